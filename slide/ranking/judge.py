"""A calibrated model that turns evidence into the probability of a label."""

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from slide.ops.kernels.trees import Splits, Trees, splits_of, sum_trees

# Fewer true labels among the candidates do not suffice to fit a model.
_LEAST_HITS = 50
# Wrong candidates for each true label that the trees learn from, at most.
_WRONG = 4
_SETTINGS: dict[str, Any] = {
    "learning_rate": 0.1,
    "min_samples_leaf": 50,
    "early_stopping": False,
    "random_state": 0,
}
# From fewer true labels than this, large trees would learn chance. The judge is then the mean of
# several models of small trees, each with other wrong candidates.
_FEW_HITS = 10_000
_FEW: dict[str, Any] = {"max_iter": 50, "max_leaf_nodes": 15}
_ENOUGH: dict[str, Any] = {"max_iter": 100, "max_leaf_nodes": 31}
_MODELS_OF_FEW = 4
# How little the slope of a logistic regression with few hits is drawn to 0: votes are small.
_SOFT = 10.0


class Judge:
    """Gradient-boosted trees with a logistic loss, fitted on held-out rows.

    Columns in which more evidence can only speak for a label are monotone. The trees are those of
    ``sklearn.ensemble.HistGradientBoostingClassifier`` (Friedman 2001, "Greedy function
    approximation: a gradient boosting machine"; Ke et al. 2017, "LightGBM"). Scores that minimise
    the logistic loss are probabilities, so they can be compared across rows. Of many wrong
    candidates a part is drawn for learning, and the scores are corrected for it (King and Zeng
    2001, "Logistic regression in rare events data", section 4.1). With few true labels it is the
    mean of several models, which learn from other draws (Breiman 1996, "Bagging predictors"),
    unless all candidates are needed.

    Args:
        signs: for each column 1, -1 or 0: the score rises with it, falls with it, or may do both.
            Columns with -1 are ranks by experts, 0 for the best candidate of a row.
        ranked: for each of these, the column of the numbers that it ranks, and the number by which
            the expert says that it knows nothing of a candidate. None: it knows something of each.

    Example:
        >>> import numpy as np
        >>> from slide.ranking.judge import Judge
        >>> columns = np.random.default_rng(0).random((2000, 1), dtype=np.float32)
        >>> judge = Judge([1]).fit(columns, columns[:, 0] > 0.7)
        >>> judge.probabilities(np.array([[0.1], [0.9]], np.float32)) > 0.5
        array([False,  True])
    """

    def __init__(self, signs: list[int], ranked: list[tuple[int, float]] | None = None):
        self.signs, self.ranked = signs, ranked
        self.trees: Trees | None = None
        self.base, self.slope = 0.0, 1.0  # Without trees, log-odds are base + slope * vote.
        self._ranks = [column for column, sign in enumerate(signs) if sign < 0]
        self.trust = [1.0] * len(self._ranks)  # The weight of each expert in the vote.
        self._splits: tuple[Trees, Splits] | None = None  # Of these trees.

    def fit(
        self, columns: np.ndarray, hits: np.ndarray, weights: np.ndarray | None = None
    ) -> "Judge":
        """Learn from candidates of rows that no expert has seen.

        Args:
            columns: ``(pairs, C)`` float32.
            hits: ``(pairs,)`` bool, whether the candidate is a label of its row.
            weights: ``(pairs,)``, how much each counts; None: all the same.

        Returns:
            The judge itself. With too few hits it has no trees, and ranks by a weighted sum of the
            reciprocal ranks (as Cormack et al. 2009, "Reciprocal rank fusion outperforms Condorcet
            and individual rank learning methods"), which a logistic regression turns into
            probabilities (Platt 1999, "Probabilistic outputs for support vector machines",
            section 2). An expert counts by the log-odds that its best candidate is right, less
            those of a choice at random (Zhu et al. 2009, "Multi-class AdaBoost", section 2).
        """
        self.trees, self.base, self.slope = None, 0.0, 1.0
        if min(hits.sum(), (~hits).sum()) < _LEAST_HITS:
            counts = np.ones(len(hits)) if weights is None else weights
            self.trust = self._trust(columns, hits, counts)
            self._scale(self._vote(columns), hits, counts)
            return self
        share = min(_WRONG * hits.sum() / (~hits).sum(), 1.0)
        few, draws = hits.sum() < _FEW_HITS, np.random.default_rng(0)
        settings, models = _SETTINGS | (_FEW if few else _ENOUGH), []
        # All draws are equal if they take all candidates.
        for _ in range(_MODELS_OF_FEW if few and share < 1 else 1):
            drawn = hits | (draws.random(len(hits)) < share)
            model = load_learner()(**settings, monotonic_cst=self.signs)
            counts = None if weights is None else weights[drawn]
            # There are thousands of short parallel regions, whose threads spin at their ends: a
            # second thread saves little, and takes 20 times as long if it has to wait for its core.
            with threadpool_limits(1, "openmp"):
                models.append(model.fit(columns[drawn], hits[drawn], counts))
        # The odds are larger by 1 / share among the drawn ones.
        base = np.mean([model._baseline_prediction[0, 0] for model in models]) + np.log(share)
        self.trees, self.base = _mean_trees(models), float(base)
        return self

    def probabilities(self, columns: np.ndarray) -> np.ndarray:
        """The probability ``(pairs,)`` float64 that a candidate is a label of its row."""
        if self.trees is None:
            return _sigmoid(self.base + self.slope * self._vote(columns))
        if self._splits is None or self._splits[0] is not self.trees:
            self._splits = self.trees, splits_of(self.trees, len(self.signs))
        log_odds = np.empty(len(columns), np.float32)
        sum_trees(np.ascontiguousarray(columns), self._splits[1], self.base, log_odds)
        return _sigmoid(log_odds.astype(np.float64))

    def _vote(self, columns: np.ndarray) -> np.ndarray:
        """The weighted sum of the reciprocal ranks of each candidate, float64."""
        reciprocal = 1 / (1 + columns[:, self._ranks].astype(np.float64))
        return (self.trust * reciprocal * self._knows(columns)).sum(1)

    def _knows(self, columns: np.ndarray) -> np.ndarray:
        """Whether each expert knows something of each candidate ``(pairs, experts)``.

        Of equal candidates its rank tells one from the other by their numbers alone.
        """
        if self.ranked is None:
            return np.ones((len(columns), len(self._ranks)), bool)
        places, nothing = zip(*self.ranked, strict=True)
        return columns[:, places] != np.array(nothing, np.float32)

    def _trust(self, columns: np.ndarray, hits: np.ndarray, counts: np.ndarray) -> list[float]:
        """The weight of each expert; all the same where none is better than chance."""
        first = (columns[:, self._ranks] == 0) & self._knows(columns)
        best = first * counts[:, None]
        # Each expert has one best candidate a row at most.
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
