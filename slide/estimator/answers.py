"""What a trained classifier answers, as scikit-learn asks for it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from slide.estimator.recipe import without_numpy
from slide.estimator.targets import checked_sample_weight, read_targets, without_torch
from slide.model import Model, Predicted
from slide.sparse import CSR, as_csr, as_wide, hits, row_bounds
from slide.utils import checks
from slide.utils.names import Names

# Labels of a row in the matrices of scores, unless another number is asked for.
_TOP = 100


class AnswersMixin:
    """Predictions of a classifier that has ``model_``, ``classes_`` and ``multilabel_``."""

    model_: Model
    classes_: np.ndarray
    multilabel_: bool
    threshold: float
    search: Any
    n_features_in_: int

    def predict(self, X: Any) -> Any:
        """The labels of rows.

        Args:
            X: ``(B, D)`` features.

        Returns:
            If the training rows had one label each: ``(B,)`` of `classes_`; the most frequent one
            for a row without any answer. Else a SciPy matrix ``(B, N)`` of ones where the
            probability is at least ``threshold``.
        """
        if not self._fitted().multilabel_:
            ids = self._best(X, 1).labels[:, 0]
            ranker = self.model_.ranker
            if ranker is not None:  # Where all candidates are known labels, there is no answer.
                ids = np.where(ids < 0, ranker.frequency.argmax(), ids)
            return self.classes_[ids]
        found = self.predict_proba(X)
        found.data = (found.data >= self.threshold).astype(np.int64)
        found.eliminate_zeros()
        return found

    def predict_top_k(self, X: Any, k: int = 5) -> Predicted:
        """Names ``(B, k)`` of the best labels, best first, and their scores ``(B, k)``.

        With a re-ranker scores are probabilities, multiplied by ``label_weights`` if there are any.

        Args:
            X: ``(B, D)`` features.
            k: number of labels of a row. Where a row has fewer, the names are None, in an array of
                objects.
        """
        ids, scores = self._best(X, k)
        if (ids >= 0).all():
            return Predicted(self.classes_[ids], scores)
        names = self.classes_.astype(object)[ids]
        names[ids < 0] = None
        return Predicted(names, scores)

    def predict_proba(self, X: Any, top_k: int | None = None) -> Any:
        """Probabilities of the best labels, a SciPy matrix ``(B, N)``.

        Without a re-ranker they follow from the loss of the network: a score of -1 means 0, and a
        score of 1 means 1.

        Args:
            X: ``(B, D)`` features.
            top_k: number of labels of a row in the matrix; None: 100, or all if there are fewer.
        """
        ranker = self._fitted().model_.ranker
        if ranker is None:
            return self._matrix(X, top_k, lambda scores, _: _probabilities(scores))
        return self._matrix(X, top_k, ranker.unweighted)

    def decision_function(self, X: Any, top_k: int | None = None) -> Any:
        """Scores of the best labels, a SciPy matrix ``(B, N)``.

        With a re-ranker they are log-odds, or with ``label_weights`` the logarithms of probability
        times weight; else they are the scores of the network.

        Args:
            X: ``(B, D)`` features.
            top_k: see `predict_proba`.
        """
        ranker = self._fitted().model_.ranker
        if ranker is None:
            return self._matrix(X, top_k, lambda scores, _: scores)
        change = _log_odds if ranker.objective == "p" else _logs
        return self._matrix(X, top_k, lambda scores, _: change(scores))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of right best labels: accuracy, or precision at 1 for several labels of a row.

        Args:
            X: ``(B, D)`` features.
            y: see `fit`. A label that training did not have is never found.
            sample_weight: ``(B,)``, how much each row counts, at least 0; None: all the same.

        Raises:
            ValueError: for targets or weights that do not fit the rows.
        """
        if self._fitted().multilabel_:
            labels = read_targets(y, self.classes_, skip_unknown=True).labels
            found = self._best(X, 1).labels
            check_consistent_length(found, labels.indptr[1:])
            right = hits(found, labels)[:, 0]
        else:
            truth, found = column_or_1d(y), self.predict(X)
            check_consistent_length(found, truth)
            right = found == truth
        return float(np.average(right, weights=checked_sample_weight(sample_weight, len(right))))

    def _fitted(self) -> Any:
        check_is_fitted(self, "model_")
        return self

    def _read_rows(self, X: Any, reset: bool, **options: Any) -> CSR:
        """Features as they are; the first rows tell their number and names."""
        X = without_torch(X)
        found: Any = validate_data(
            self,
            as_wide(X) if hasattr(X, "tocsr") else X,
            reset=reset,
            accept_sparse="csr",
            dtype="numeric",
            **options,
        )
        if reset:  # Each of them once.
            Names.of(getattr(self, "feature_names_in_", ()), "names of features")
        return as_csr(found, self.n_features_in_)

    def _best(self, X: Any, k: int) -> Predicted:
        """Numbers and scores of the best labels."""
        k = without_numpy(k)
        checks.whole("k", k, 1)
        x = self._fitted()._read_rows(X, reset=False)
        return self.model_.predict_ids(x, k, self.search)

    def _matrix(
        self,
        X: Any,
        top_k: int | None,
        change: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> Any:
        """What ``change`` makes of scores and labels of the best ones, as a SciPy matrix."""
        import scipy.sparse

        ids, scores = self._best(X, _TOP if top_k is None else top_k)
        known = ids >= 0
        values = change(scores[known], ids[known])
        shape = len(ids), len(self.classes_)
        found = scipy.sparse.csr_array((values, ids[known], row_bounds(known.sum(1))), shape)
        found.sort_indices()
        return found


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """Probabilities of labels whose squared hinge is least at these scores.

    T. Zhang 2004, "Statistical behavior and consistency of classification methods based on convex
    risk minimization", section 2: the best score is 2 p - 1.
    """
    return np.clip((scores + 1) / 2, 0, 1)


def _log_odds(probabilities: np.ndarray) -> np.ndarray:
    inside = np.clip(probabilities, 1e-300, 1 - 1e-16)
    return np.log(inside) - np.log1p(-inside)


def _logs(scores: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(scores, 1e-300))
