"""The final ranker: it turns ranking features of a candidate into the probability of a label."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from slide.ops.trees import LEAVES, Splits, Trees, splits_of, sum_trees
from slide.runtime import num_threads
from slide.utils.array_checks import Expected, Stored

# 50 true labels among the candidates at least suffice to fit trees.
_LEAST_HITS = 50
# Wrong candidates for each true label. More of them taught the trees nothing.
_WRONG, _WRONG_OF_LINEAR = 4, 20
_SETTINGS: dict[str, Any] = {
    "learning_rate": 0.1,
    "min_samples_leaf": 50,
    "early_stopping": False,
    "random_state": 0,
}
# From fewer than 10,000 true labels large trees would learn chance. Trees are then the mean of
# several models of small ones, each with other wrong candidates, and a linear model counts, too.
FEW_HITS = 10_000
_FEW: dict[str, Any] = {"max_iter": 50, "max_leaf_nodes": 15}
_ENOUGH: dict[str, Any] = {"max_iter": 100, "max_leaf_nodes": 31}
_MODELS_OF_FEW = 4
# 5 folds of held-out rows decide how much the linear model counts beside few trees.
_FOLDS = 5
# Of 1,000 true labels or more, the rows of 2 of the folds suffice to tell.
_MANY_HITS, _FEWER_FOLDS = 1000, 2
# Shares of it that are tried, the largest first.
_SHARES = np.linspace(1, 0, 11)
# The penalty on |w - w0|^2 / 2 counts as much as 10 candidates do; w0 is 0.1 for reciprocal ranks.
_PENALTY, _START = 10.0, 0.1
# The five best candidates of a row correct the probabilities, the first one the most; its factors
# are at least 0.1, so that the order of candidates stays.
_CORRECTED, _LEAST_FACTOR = 5, 0.1
# Of 2,000 rows the share of right first answers is known to a point; a correction by fewer would
# add a larger error than it mends.
_LEAST_ROWS = 2000
_UNCHANGED = [0.0, 1.0, 1.0]
# Numbers that the linear model has of a scorer. The last two are only in models of an earlier
# slide.
_STANDARDISED, _RECIPROCAL, _ANY_RECIPROCAL, _LOGARITHM = range(4)


class FinalRanker:
    """Gradient-boosted trees, beside a linear model where few true labels are held out.

    The trees are ``sklearn.ensemble.HistGradientBoostingClassifier`` with a logistic loss
    (Friedman 2001, "Greedy function approximation: a gradient boosting machine"; Ke et al. 2017,
    "LightGBM"). Features that can only speak for a label are monotone. Scores that minimise the
    logistic loss are probabilities, so they can be compared across rows. Of many wrong candidates
    a part is drawn for learning, and the scores are corrected for it (King and Zeng 2001, "Logistic
    regression in rare events data", section 4.1). With few true labels the trees are the mean of
    several models, which learn from other draws (Breiman 1996, "Bagging predictors").

    The linear model is a logistic regression of what each scorer says of a candidate: its score,
    standardised within the row, and its reciprocal rank. No weight is negative (Breiman 1996,
    "Stacked regressions", section 2), so that it is hardly ever worse than the best scorer, however
    few rows there are. Without any true label all reciprocal ranks count the same (Cormack et al.
    2009, "Reciprocal rank fusion outperforms Condorcet and individual rank learning methods").

    Its share beside the trees is decided by folds of the held-out rows (Wolpert 1992, "Stacked
    generalization"): it is the largest one whose logistic loss on rows of other folds is within a
    standard error of the least (Breiman et al. 1984, "Classification and regression trees",
    section 3.4.3).

    A beta calibration of three numbers (Kull et al. 2017, "Beta calibration: a well-founded and
    easily implemented improvement on logistic calibration for binary classifiers") corrects the
    probabilities of the best candidates of a row, which are chosen because they are large, and
    keeps their order. With few true labels it learns from rows of other folds, otherwise from all.
    It counts if it lowers the loss of 2,000 rows or more by two standard errors.

    Args:
        signs: for each column 1, -1 or 0: the score rises with it, falls with it, or may do both.
            Columns with -1 are ranks by scorers, 0 for the best candidate of a row.
        ranked: for each rank, the column of the numbers that it ranks, and the number by which
            the scorer says that it knows nothing of a candidate. None: there are ranks alone.

    Attributes:
        trees: None: the linear model alone counts.
        base: log-odds of a candidate, to which the trees add.
        linear_share: share of the linear model beside the trees, in [0, 1].
        linear: its intercept, and ``(4, scorers)`` weights in a list.
        correction: an intercept, and factors of log p and of -log(1 - p), whose sum is the log-odds
            in place of those of p.
    """

    def __init__(self, signs: list[int], ranked: list[tuple[int, float]] | None = None):
        self.signs = signs
        self._ranks = [column for column, sign in enumerate(signs) if sign < 0]
        self.ranked = [(rank, np.nan) for rank in self._ranks] if ranked is None else ranked
        self.trees: Trees | None = None
        self.base, self.linear_share = 0.0, 1.0
        self.linear = [0.0] * (1 + 4 * len(self._ranks))
        self.correction = _UNCHANGED
        self._splits: tuple[Trees, Splits] | None = None  # The trees of the splits.

    def fit(
        self,
        columns: np.ndarray,
        hits: np.ndarray,
        starts: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> "FinalRanker":
        """Learn from candidates of rows from which no scorer has learnt.

        Args:
            columns: ``(pairs, C)`` float32.
            hits: ``(pairs,)`` bool, whether the candidate is a label of its row.
            starts: ``(B + 1,)`` integers, where the candidates of each of B rows begin; None: all
                are of one row.
            weights: ``(pairs,)``, how much each counts; None: all the same.

        Returns:
            The ranker itself. It has no trees with fewer than 50 true labels.
        """
        starts = np.array([0, len(hits)]) if starts is None else starts
        self.trees, self.base, self.linear_share = None, 0.0, 1.0
        self.correction = _UNCHANGED
        enough = min(hits.sum(), (~hits).sum()) >= _LEAST_HITS
        if enough:
            few = hits.sum() < FEW_HITS and bool(self._ranks)
            every = np.arange(len(hits))
            self.trees, self.base = self._grow(columns, hits, weights, every, _MODELS_OF_FEW)
            self.linear_share = 0.0
            if few:
                self._weigh(columns, hits, starts, weights)
            else:
                rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
                found = self._log_odds(columns, starts)
                self.correction = _correction(found, hits, rows, weights)
        if self.linear_share:
            every = np.ones(len(hits), bool)
            self.linear = self._fit_linear(self._numbers(columns, starts), hits, weights, every)
        return self

    def probabilities(self, columns: np.ndarray, starts: np.ndarray | None = None) -> np.ndarray:
        """The probability ``(pairs,)`` float64 that a candidate is a label of its row.

        Args:
            columns: ``(pairs, C)`` float32.
            starts: see `fit`.
        """
        starts = np.array([0, len(columns)]) if starts is None else starts
        log_odds = self._log_odds(columns, starts)
        if self.correction != _UNCHANGED:
            first, *factors = self.correction
            log_odds = first + _logarithms(log_odds) @ factors
        return 1 / (1 + np.exp(-log_odds))

    def _log_odds(self, columns: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """The log-odds ``(pairs,)`` float64 of candidates before they are corrected."""
        log_odds = np.zeros(len(columns))
        if self.linear_share:
            log_odds += self.linear_share * self.linear[0]
            for column, weight in enumerate(self.linear[1:]):
                if weight:
                    kind, scorer = divmod(column, len(self._ranks))
                    number = self._number(columns, starts, kind, scorer)
                    log_odds += self.linear_share * weight * number
        if self.trees is not None:
            if self._splits is None or self._splits[0] is not self.trees:
                self._splits = self.trees, splits_of(self.trees, len(self.signs))
            of_trees = _log_odds(columns, self._splits[1], self.base)
            log_odds += (1 - self.linear_share) * of_trees
        return log_odds

    def state(self) -> dict[str, Any]:
        """Its numbers, as JSON can hold them, without the trees."""
        return {
            "base": self.base,
            "linear_share": self.linear_share,
            "linear_weights": list(map(float, self.linear)),
            "correction": self.correction,
        }

    def restore(self, stored: Stored) -> None:
        """Take over numbers and trees that were stored; refuse what no `fit` leaves."""
        self.base, count = stored.number("base"), len(self._ranks)
        self.trees = _stored_trees(stored, len(self.signs)) if "roots" in stored else None
        nothing, self.correction = [0.0] * count, _UNCHANGED
        if "correction" in stored.numbers:
            self.correction = stored.list_of("correction", 3)
            if min(self.correction[1:]) < _LEAST_FACTOR:
                stored.refuse(f"have a correction whose factors are at least {_LEAST_FACTOR}")
        if "linear_weights" in stored.numbers:
            self.linear_share = stored.number("linear_share", 0, 1)
            self.linear = stored.list_of("linear_weights", 1 + 4 * count)
        elif self.trees is None:  # Models of an earlier slide have a vote of reciprocal ranks,
            slope, votes = stored.number("slope"), stored.list_of("weights", count)
            votes = [slope * vote for vote in votes]
            self.linear_share = 1.0
            self.linear = [self.base, *nothing, *votes, *nothing, *nothing]
        else:  # or regressions of ranks beside their trees.
            self.linear_share = 0.0
            if "rank_share" in stored.numbers:
                self.linear_share = stored.number("rank_share", 0, 1)
                first, *ranks = stored.list_of("rank_weights", 1 + 2 * count)
                self.linear = [first, *nothing, *nothing, *ranks]

    def _grow(
        self,
        columns: np.ndarray,
        hits: np.ndarray,
        weights: np.ndarray | None,
        some: np.ndarray,
        most: int,
    ) -> tuple[Trees, float]:
        """Trees whose sum and a base are log-odds: of few true labels the mean of ``most`` models.

        They learn from the candidates ``some``. All draws are equal if they take all of them.
        """
        from scipy.special import logit

        right, draws = hits[some], np.random.default_rng(0)
        few, share = right.sum() < FEW_HITS, _drawn_share(right, _WRONG)
        settings = _SETTINGS | (_FEW if few else _ENOUGH)
        count = most if few and share < 1 else 1
        drawn = [some[right | (draws.random(len(some)) < share)] for _ in range(count)]

        def prior(rows: np.ndarray) -> float:
            counts = None if weights is None else weights[rows]
            return logit(np.average(hits[rows], weights=counts))

        def learn(rows: np.ndarray) -> Any:
            model = load_learner()(**settings, monotonic_cst=self.signs)
            # There are thousands of short parallel regions, whose threads spin at their ends: a
            # second thread saves little, and takes 20 times as long if it has to wait for its core.
            with threadpool_limits(1, "openmp"):
                counts = None if weights is None else weights[rows]
                return model.fit(columns[rows], hits[rows], counts)

        models = _in_threads(learn, drawn)
        # They add to the log-odds of a drawn candidate; the odds of all are smaller by the share.
        base = np.mean([prior(rows) for rows in drawn]) + np.log(share)
        return _mean_trees(models), float(base)

    def _weigh(
        self, columns: np.ndarray, hits: np.ndarray, starts: np.ndarray, weights: np.ndarray | None
    ) -> None:
        """Find the share of the linear model and the correction, by rows of other folds."""
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        fold = np.random.default_rng(0).permutation(len(starts) - 1)[rows] % _FOLDS
        numbers, trees, linear = self._numbers(columns, starts), *np.empty((2, len(hits)))
        judged = fold < (_FOLDS if hits.sum() < _MANY_HITS else _FEWER_FOLDS)
        others = [fold != number for number in range(fold[judged].max() + 1)]
        if any(min((hits & o).sum(), (~hits & o).sum()) < _LEAST_HITS // 2 for o in others):
            self.linear_share = 1.0  # So few rows have all true labels.
            return

        def grow(other: np.ndarray) -> tuple[Trees, float]:
            return self._grow(columns, hits, weights, np.flatnonzero(other), 1)

        for other, (grown, base) in zip(others, _in_threads(grow, others), strict=True):
            own = ~other
            trees[own] = _log_odds(columns[own], splits_of(grown, len(self.signs)), base)
            intercept, *found = self._fit_linear(numbers, hits, weights, other)
            linear[own] = intercept + numbers[own] @ np.array(found)[: numbers.shape[1]]
        counts = np.ones(len(hits)) if weights is None else weights
        rows = np.unique(rows[judged], return_inverse=True)[1]
        signs, counts = np.where(hits, -1.0, 1.0)[judged], counts[judged]
        trees, linear = trees[judged], linear[judged]
        losses = np.stack(
            [
                np.bincount(rows, counts * np.logaddexp(0, signs * (s * linear + (1 - s) * trees)))
                for s in _SHARES
            ]
        )
        more = losses - losses[losses.sum(1).argmin()]
        near = more.sum(1) <= more.std(1) * np.sqrt(more.shape[1])
        self.linear_share = share = float(_SHARES[near.argmax()])
        log_odds = share * linear + (1 - share) * trees
        self.correction = _correction(log_odds, hits[judged], rows, counts)

    def _fit_linear(
        self, numbers: np.ndarray, hits: np.ndarray, weights: np.ndarray | None, some: np.ndarray
    ) -> list[float]:
        """Intercept and weights, none below 0, that minimise the loss of some candidates."""
        share, count = _drawn_share(hits[some], _WRONG_OF_LINEAR), len(self._ranks)
        drawn = some & (hits | (np.random.default_rng(0).random(len(hits)) < share))
        numbers, right = numbers[drawn].astype(np.float64), hits[drawn].astype(np.float64)
        counts = np.ones(len(right)) if weights is None else weights[drawn]
        counts = counts / max(counts.sum() / max(len(counts), 1), 1e-9)
        mean = numbers.mean(0) if len(numbers) else np.zeros(2 * count)
        scale = numbers.std(0) if len(numbers) else np.ones(2 * count)
        scale[scale < 1e-6] = 1  # It says the same of each candidate.
        standard, start = (numbers - mean) / scale, np.repeat([0, _START], count)
        found = _regression(standard, right, counts, start, 0)
        slopes = found[1:] / scale
        first = found[0] - mean @ slopes + np.log(share)
        return [float(first), *map(float, slopes), *[0.0] * (2 * count)]

    def _numbers(self, columns: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """What the linear model knows of each candidate ``(pairs, 2 * scorers)``, float32."""
        found = np.empty((len(columns), 2 * len(self._ranks)), np.float32)
        for column in range(found.shape[1]):
            kind, scorer = divmod(column, len(self._ranks))
            found[:, column] = self._number(columns, starts, kind, scorer)
        return found

    def _number(
        self, columns: np.ndarray, starts: np.ndarray, kind: int, scorer: int
    ) -> np.ndarray:
        """A number that a scorer says of each candidate."""
        column, nothing = self.ranked[scorer]
        if kind == _STANDARDISED:
            return _standardised(columns[:, column].astype(np.float64), starts)
        ranks = columns[:, self._ranks[scorer]].astype(np.float64)
        if kind == _LOGARITHM:
            return -np.log1p(ranks)
        # Of candidates of which it knows nothing, ranks tell one from the other by their ids alone.
        knows = columns[:, column] != np.float32(nothing)
        return (knows if kind == _RECIPROCAL else 1) / (1 + ranks)


def _regression(
    numbers: np.ndarray, right: np.ndarray, counts: np.ndarray, start: np.ndarray, least: float
) -> np.ndarray:
    """Intercept and weights of a logistic regression, close to ``start`` and not below a bound."""
    from scipy.optimize import minimize

    def loss(found: np.ndarray) -> tuple[float, np.ndarray]:
        # Half a candidate more of each: the intercept stays finite.
        first, away = found[0], found[1:] - start
        log_odds = first + numbers @ found[1:]
        lost = counts @ (np.logaddexp(0, log_odds) - right * log_odds)
        wrong = counts * (1 / (1 + np.exp(-log_odds)) - right)
        slope = np.concatenate([[wrong.sum()], numbers.T @ wrong + _PENALTY * away])
        slope[0] += 1 / (1 + np.exp(-first)) - 0.5
        lost += np.logaddexp(0, first) - first / 2 + _PENALTY / 2 * (away @ away)
        return lost, slope

    bounds = [(None, None)] + [(least, None)] * len(start)
    begin = np.array([0, *start])
    # Products with a vector are too short for two threads, which would wait for each other.
    with threadpool_limits(1, "blas"):
        return minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds).x


def _correction(
    log_odds: np.ndarray, hits: np.ndarray, rows: np.ndarray, weights: np.ndarray | None
) -> list[float]:
    """The correction that fits the best candidates of rows, whose numbers ascend, if it helps."""
    order = np.lexsort((-log_odds, rows))
    ranks = np.arange(len(rows)) - np.searchsorted(rows, rows)
    if (ranks == 0).sum() < _LEAST_ROWS:
        return _UNCHANGED
    best = order[ranks < _CORRECTED]
    right, numbers = hits[best].astype(np.float64), _logarithms(log_odds[best])
    counts = 1 / (1 + ranks[ranks < _CORRECTED]) * (1 if weights is None else weights[best])
    found = _regression(numbers, right, counts, np.ones(2), _LEAST_FACTOR)
    signs, corrected = 1 - 2 * right, found[0] + numbers @ found[1:]
    less = np.logaddexp(0, signs * log_odds[best]) - np.logaddexp(0, signs * corrected)
    gains = np.bincount(np.unique(rows[best], return_inverse=True)[1], counts * less)
    helps = gains.sum() > 2 * gains.std() * np.sqrt(len(gains))
    return [float(number) for number in found] if helps else _UNCHANGED


def _logarithms(log_odds: np.ndarray) -> np.ndarray:
    """log p and -log(1 - p) ``(pairs, 2)`` of probabilities p."""
    return np.stack([-np.logaddexp(0, -log_odds), np.logaddexp(0, log_odds)], 1)


def _in_threads(function: Callable[[Any], Any], parts: Iterable[Any]) -> list[Any]:
    """What a function that mostly leaves the interpreter to others returns for each part."""
    with ThreadPoolExecutor(num_threads()) as pool:
        return list(pool.map(function, parts))


def _drawn_share(hits: np.ndarray, wrong: int) -> float:
    """The share of the wrong candidates that is drawn: ``wrong`` for each true label."""
    return float(min(wrong * max(hits.sum(), 1) / max((~hits).sum(), 1), 1.0))


def _standardised(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The values less their mean in a row, in its standard deviations; 0 where all are equal."""
    sizes = np.diff(starts)
    sizes, starts = sizes[sizes > 0], starts[:-1][sizes > 0]

    def means(of: np.ndarray) -> np.ndarray:
        return np.repeat(np.add.reduceat(of, starts) / sizes, sizes) if len(of) else of

    values = values - means(values)
    return values / np.sqrt(means(values**2) + 1e-9)


def _log_odds(columns: np.ndarray, splits: Splits, base: float) -> np.ndarray:
    """The sum of trees and a base, float64."""
    found = np.empty(len(columns), np.float32)
    sum_trees(np.ascontiguousarray(columns), splits, base, found)
    return found.astype(np.float64)


def load_learner() -> Any:
    """The class of the model that learns the trees; it is imported here, which takes a second."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    class Learner(HistGradientBoostingClassifier):
        # Bins by weighted quantiles, as scikit-learn makes them from 1.9 on, take seconds a model.
        def _bin_data(self, X: Any, *weights: Any, **named: Any) -> Any:
            return super()._bin_data(X, *[None] * len(weights), **named)

    return Learner


def _mean_trees(models: list[Any]) -> Trees:
    """Trees whose sum is the mean of models of scikit-learn."""
    # scikit-learn has no public way to the nodes.
    nodes = [stage[0].nodes for model in models for stage in model._predictors]
    starts = np.cumsum([0, *map(len, nodes)])
    every, shift = np.concatenate(nodes), np.repeat(starts[:-1], np.diff(starts))
    leaf = every["is_leaf"].astype(bool)
    return Trees(
        roots=starts[:-1].astype(np.int32),
        columns=np.where(leaf, -1, every["feature_idx"]).astype(np.int32),
        thresholds=every["num_threshold"].astype(np.float64),
        left=np.where(leaf, 0, every["left"] + shift).astype(np.int32),
        right=np.where(leaf, 0, every["right"] + shift).astype(np.int32),
        values=(every["value"] / len(models)).astype(np.float32),
    )


def _stored_trees(stored: Stored, num_columns: int) -> Trees:
    """Trees of a file: each node has one parent, before it, so that no walk is endless."""
    columns = stored.array("columns", Expected((None,), "int32", -1, num_columns - 1))
    count, numbers = len(columns), np.arange(len(columns))
    roots = stored.array("roots", Expected((None,), "int32", 0, count - 1))
    if not len(roots) or roots[0] != 0 or (np.diff(roots) <= 0).any():
        stored.refuse_array("roots", "rise from 0")
    tree = np.searchsorted(roots, numbers, "right") - 1
    inner, leaves = columns >= 0, np.bincount(tree[columns < 0], minlength=len(roots))
    children = []
    for name in ("left", "right"):
        child = stored.array(name, Expected((count,), "int32", 0, count - 1))
        children.append(child)
        if (child[inner] <= numbers[inner]).any() or (tree[child] != tree)[inner].any():
            stored.refuse_array(name, "name later nodes of the same tree")
    named = np.sort(np.concatenate([child[inner] for child in children]))
    if not np.array_equal(named, np.delete(numbers, roots)):
        stored.refuse_array("left", "with right name each node but the roots once")
    if leaves.max() > LEAVES:
        stored.refuse_array("columns", f"have {LEAVES} leaves in a tree at most")
    thresholds = stored.array("thresholds", Expected((count,), "float64"))
    values = stored.array("values", Expected((count,), "float32"))
    return Trees(roots, columns, thresholds, children[0], children[1], values)
