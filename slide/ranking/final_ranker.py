"""The final ranker: it turns ranking features of a candidate into the probability of a label."""

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from slide.ops.kernels.trees import LEAVES, Splits, Trees, splits_of, sum_trees
from slide.utils.array_checks import Expected, Stored

# 50 true labels among the candidates at least suffice to fit trees.
_LEAST_HITS = 50
# 4 wrong candidates for each true label: more of them taught the trees nothing.
_WRONG = 4
_SETTINGS: dict[str, Any] = {
    "learning_rate": 0.1,
    "min_samples_leaf": 50,
    "early_stopping": False,
    "random_state": 0,
}
# From fewer than 10,000 true labels large trees would learn chance. The ranker is then the mean of
# several models of small trees, each with other wrong candidates.
FEW_HITS = 10_000
_FEW: dict[str, Any] = {"max_iter": 50, "max_leaf_nodes": 15}
_ENOUGH: dict[str, Any] = {"max_iter": 100, "max_leaf_nodes": 31}
_MODELS_OF_FEW = 4
# 5 folds of held-out rows decide how much logistic regressions of ranks count beside few trees.
_FOLDS = 5
# Shares that are tried.
_SHARES = np.linspace(0, 1, 11)
# C = 0.01: ranks of scorers are much alike, and their weights stay small and alike.
_RANKS_C = 0.01
# C = 1: of the two weights of a single scorer.
_SINGLE_C = 1.0
# C = 10: the slope of a logistic regression with few hits is hardly drawn to 0, as votes are small.
_SOFT = 10.0


class FinalRanker:
    """Gradient-boosted trees with a logistic loss, fitted on held-out rows.

    Features that can only speak for a label are monotone. The trees are those of
    ``sklearn.ensemble.HistGradientBoostingClassifier`` (Friedman 2001, "Greedy function
    approximation: a gradient boosting machine"; Ke et al. 2017, "LightGBM"). Scores that minimise
    the logistic loss are probabilities, so they can be compared across rows. Of many wrong
    candidates a part is drawn for learning, and the scores are corrected for it (King and Zeng
    2001, "Logistic regression in rare events data", section 4.1). With few true labels it is the
    mean of several models, which learn from other draws (Breiman 1996, "Bagging predictors"),
    unless all candidates are needed. Beside the trees counts a logistic regression of the ranks by
    all scorers, and one of the ranks by the best scorer alone: the fewer rows, the better are the
    simpler ones. Their shares are those with the least loss on rows that none has learnt from, by
    folds of the held-out rows.

    Args:
        signs: for each column 1, -1 or 0: the score rises with it, falls with it, or may do both.
            Columns with -1 are ranks by scorers, 0 for the best candidate of a row.
        ranked: for each of these, the column of the numbers that it ranks, and the number by which
            the scorer says that it knows nothing of a candidate. None: it knows something of each.

    Example:
        >>> import numpy as np
        >>> from slide.ranking.final_ranker import FinalRanker
        >>> columns = np.random.default_rng(0).random((2000, 1), dtype=np.float32)
        >>> ranker = FinalRanker([1]).fit(columns, columns[:, 0] > 0.7)
        >>> ranker.probabilities(np.array([[0.1], [0.9]], np.float32)) > 0.5
        array([False,  True])
    """

    def __init__(self, signs: list[int], ranked: list[tuple[int, float]] | None = None):
        self.signs, self.ranked = signs, ranked
        self.trees: Trees | None = None
        self.base, self.slope = 0.0, 1.0  # Without trees, log-odds are base + slope * vote.
        self._ranks = [column for column, sign in enumerate(signs) if sign < 0]
        # Beside trees, the share and the weights of a logistic regression of ranks.
        self.rank_share, self.rank_weights = 0.0, [0.0] * (1 + 2 * len(self._ranks))
        self.weights = [1.0] * len(self._ranks)  # The weight of each scorer in the vote.
        self._splits: tuple[Trees, Splits] | None = None  # Of these trees.

    def fit(
        self,
        columns: np.ndarray,
        hits: np.ndarray,
        weights: np.ndarray | None = None,
        rows: np.ndarray | None = None,
    ) -> "FinalRanker":
        """Learn from candidates of rows from which no scorer has learnt.

        Args:
            columns: ``(pairs, C)`` float32.
            hits: ``(pairs,)`` bool, whether the candidate is a label of its row.
            weights: ``(pairs,)``, how much each counts; None: all the same.
            rows: ``(pairs,)`` integers, the row of each candidate; None: trees alone count.

        Returns:
            The ranker itself. With too few hits it has no trees, and ranks by a weighted sum of the
            reciprocal ranks (as Cormack et al. 2009, "Reciprocal rank fusion outperforms Condorcet
            and individual rank learning methods"), which a logistic regression turns into
            probabilities (Platt 1999, "Probabilistic outputs for support vector machines",
            section 2). An scorer counts by the log-odds that its best candidate is right, less
            those of a choice at random (Zhu et al. 2009, "Multi-class AdaBoost", section 2).
        """
        self.trees, self.base, self.slope, self.rank_share = None, 0.0, 1.0, 0.0
        if min(hits.sum(), (~hits).sum()) < _LEAST_HITS:
            counts = np.ones(len(hits)) if weights is None else weights
            self.weights = self._weigh(columns, hits, counts)
            self._scale(self._vote(columns), hits, counts)
            return self
        few = hits.sum() < FEW_HITS
        self.trees, self.base = self._grow(columns, hits, weights, _MODELS_OF_FEW if few else 1)
        if few and rows is not None and self._ranks:
            self._blend(columns, hits, weights, rows)
        return self

    def probabilities(self, columns: np.ndarray) -> np.ndarray:
        """The probability ``(pairs,)`` float64 that a candidate is a label of its row."""
        if self.trees is None:
            return _sigmoid(self.base + self.slope * self._vote(columns))
        if self._splits is None or self._splits[0] is not self.trees:
            self._splits = self.trees, splits_of(self.trees, len(self.signs))
        log_odds = _log_odds(columns, self._splits[1], self.base)
        if self.rank_share:
            ranks = self._rank_log_odds(columns, self.rank_weights)
            log_odds = (1 - self.rank_share) * log_odds + self.rank_share * ranks
        return _sigmoid(log_odds)

    def restore(self, stored: Stored) -> None:
        """Take over numbers, and trees if there are any, that were stored.

        Raises:
            ValueError: for a number or array that no `fit` leaves, such as a node that leads back.
        """
        self.base, self.slope = stored.number("base"), stored.number("slope")
        self.weights = stored.list_of("weights", len(self._ranks))
        if "rank_share" in stored.numbers:  # Models of an earlier slide have trees alone.
            self.rank_share = stored.number("rank_share", 0, 1)
            self.rank_weights = stored.list_of("rank_weights", 1 + 2 * len(self._ranks))
        if "roots" in stored:
            self.trees = _stored_trees(stored, len(self.signs))

    def _grow(
        self, columns: np.ndarray, hits: np.ndarray, weights: np.ndarray | None, most: int
    ) -> tuple[Trees, float]:
        """Trees whose sum and a base are log-odds: the mean of up to ``most`` models."""
        share = min(_WRONG * hits.sum() / (~hits).sum(), 1.0)
        few, draws = hits.sum() < FEW_HITS, np.random.default_rng(0)
        settings, models = _SETTINGS | (_FEW if few else _ENOUGH), []
        # All draws are equal if they take all candidates.
        for _ in range(most if few and share < 1 else 1):
            drawn = hits | (draws.random(len(hits)) < share)
            model = load_learner()(**settings, monotonic_cst=self.signs)
            counts = None if weights is None else weights[drawn]
            # There are thousands of short parallel regions, whose threads spin at their ends: a
            # second thread saves little, and takes 20 times as long if it has to wait for its core.
            with threadpool_limits(1, "openmp"):
                models.append(model.fit(columns[drawn], hits[drawn], counts))
        # The odds are larger by 1 / share among the drawn ones.
        base = np.mean([model._baseline_prediction[0, 0] for model in models]) + np.log(share)
        return _mean_trees(models), float(base)

    def _blend(
        self, columns: np.ndarray, hits: np.ndarray, weights: np.ndarray | None, rows: np.ndarray
    ) -> None:
        """Choose how much ranks count beside the trees, by logistic loss on rows of other folds.

        Wolpert 1992, "Stacked generalization": each fold is scored by models of the others.
        """
        order: np.ndarray = np.random.default_rng(0).permutation(int(rows.max(initial=0)) + 1)
        fold, scorers = order[rows] % _FOLDS, len(self._ranks)
        found = np.empty((2 + scorers, len(hits)))  # By trees, all ranks, those of each scorer.
        for number in range(_FOLDS):
            own, other = fold == number, fold != number
            if min(hits[other].sum(), (~hits[other]).sum()) < _LEAST_HITS // 2:
                return  # Smaller trees than those of all rows would be compared.
            counts = None if weights is None else weights[other]
            learnt = columns[other], hits[other], counts
            grown, base = self._grow(*learnt, 1)
            found[0, own] = _log_odds(columns[own], splits_of(grown, len(self.signs)), base)
            for place, scorer in enumerate([None, *range(scorers)], 1):
                ranks = self._weigh_ranks(*learnt, scorer)
                found[place, own] = self._rank_log_odds(columns[own], ranks)
        signs = np.where(hits, -1.0, 1.0)

        def loss(log_odds: np.ndarray) -> float:
            return float(np.average(np.logaddexp(0, signs * log_odds), weights=weights))

        def best_share(one: np.ndarray, other: np.ndarray) -> float:
            return float(min(_SHARES, key=lambda share: loss((1 - share) * one + share * other)))

        of_all = best_share(*found[:2])
        blend = (1 - of_all) * found[0] + of_all * found[1]
        best = int(np.argmin([loss(each) for each in found[2:]]))
        alone = best_share(blend, found[2 + best])
        self.rank_share = 1 - (1 - alone) * (1 - of_all)
        if self.rank_share:
            both = (self._weigh_ranks(columns, hits, weights, each) for each in (None, best))
            shares = (1 - alone) * of_all / self.rank_share, alone / self.rank_share
            self.rank_weights = list(np.dot(shares, list(both)))

    def _weigh_ranks(
        self,
        columns: np.ndarray,
        hits: np.ndarray,
        weights: np.ndarray | None,
        scorer: int | None = None,
    ) -> list[float]:
        """A logistic regression of ranks, by one scorer or all: its intercept, then weights."""
        from sklearn.linear_model import LogisticRegression

        numbers, scorers = self._rank_numbers(columns), len(self._ranks)
        used = slice(None) if scorer is None else slice(scorer, None, scorers)
        model = LogisticRegression(C=_RANKS_C if scorer is None else _SINGLE_C, max_iter=300)
        model.fit(numbers[:, used], hits, weights)
        found = np.zeros(2 * scorers)
        found[used] = np.ravel(model.coef_)
        return [*map(float, np.ravel(model.intercept_)), *map(float, found)]

    def _rank_log_odds(self, columns: np.ndarray, weights: list[float]) -> np.ndarray:
        return weights[0] + self._rank_numbers(columns) @ np.array(weights[1:])

    def _rank_numbers(self, columns: np.ndarray) -> np.ndarray:
        """Reciprocals and logarithms of the ranks by each scorer, float64."""
        ranks = columns[:, self._ranks]
        found = np.empty((len(columns), 2 * ranks.shape[1]))  # In place: there are many candidates.
        reciprocals, logarithms = np.split(found, 2, axis=1)
        reciprocals[:] = logarithms[:] = ranks
        np.divide(1, np.add(reciprocals, 1, out=reciprocals), out=reciprocals)
        np.negative(np.log1p(logarithms, out=logarithms), out=logarithms)
        return found

    def _vote(self, columns: np.ndarray) -> np.ndarray:
        """The weighted sum of the reciprocal ranks of each candidate, float64."""
        reciprocal = 1 / (1 + columns[:, self._ranks].astype(np.float64))
        return (self.weights * reciprocal * self._knows(columns)).sum(1)

    def _knows(self, columns: np.ndarray) -> np.ndarray:
        """Whether each scorer knows something of each candidate ``(pairs, scorers)``.

        Of equal candidates its rank tells one from the other by their numbers alone.
        """
        if self.ranked is None:
            return np.ones((len(columns), len(self._ranks)), bool)
        places, nothing = zip(*self.ranked, strict=True)
        return columns[:, places] != np.array(nothing, np.float32)

    def _weigh(self, columns: np.ndarray, hits: np.ndarray, counts: np.ndarray) -> list[float]:
        """The weight of each scorer; all the same where none is better than chance."""
        first = (columns[:, self._ranks] == 0) & self._knows(columns)
        best = first * counts[:, None]
        # Each scorer has one best candidate a row at most.
        chance = min(int(first.sum(0).max(initial=0)) / max(len(columns), 1), 0.5) or 0.5
        # As if each had named two more at random.
        right = (2 * chance + (best * hits[:, None]).sum(0)) / (2 + best.sum(0))
        odds = np.log(right / (1 - right)) - np.log(chance / (1 - chance))
        odds = np.where(odds > 1e-9, odds, 0)
        return list(odds) if odds.any() else [1.0] * len(odds)

    def _scale(self, votes: np.ndarray, hits: np.ndarray, counts: np.ndarray) -> None:
        """Fit slope and base to a few hits."""
        from sklearn.linear_model import LogisticRegression

        right, wrong = counts[hits].sum(), counts[~hits].sum()
        if right and wrong:
            model = LogisticRegression(C=_SOFT).fit(votes[:, None], hits, counts)
            slope, base = float(model.coef_[0, 0]), float(model.intercept_[0])
            if slope > 0:  # Else it would turn the order round.
                self.slope, self.base = slope, base
                return
        # Their share, as if there had been half a pair more of each.
        mean = votes.mean() if len(votes) else 0.0
        self.base = float(np.log((right + 0.5) / (wrong + 0.5)) - self.slope * mean)


def _log_odds(columns: np.ndarray, splits: Splits, base: float) -> np.ndarray:
    """The sum of trees and a base, float64."""
    found = np.empty(len(columns), np.float32)
    sum_trees(np.ascontiguousarray(columns), splits, base, found)
    return found.astype(np.float64)


def _sigmoid(log_odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-log_odds))


def load_learner() -> Any:
    """The class of the model that learns the trees; it is imported here, which takes a second."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier


def _mean_trees(models: list[Any]) -> Trees:
    """Trees whose sum is the mean of those of models of scikit-learn.

    The format of scikit-learn itself cannot be stored safely.
    """
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
    """Trees of a file: each node has one parent in its tree, before it, so that no walk is endless.

    Raises:
        ValueError: for other nodes.
    """
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
