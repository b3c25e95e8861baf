"""Sparse linear one-vs-rest classifiers that re-rank the candidates of a network.

All labels share the hidden layers of a network. A linear classifier belongs to one label and learns
which features occur with that label. Network and classifiers make different errors, and the
weighted mean of their scores is better than both (`LinearRanker.rerank`). The classifiers are those
of DiSMEC (Babbar and Schölkopf 2017, "DiSMEC: distributed sparse machines for extreme multi-label
classification", section 2), with fewer negatives: a row is a negative of a label only if the label
is one of its candidates. The re-ranker of Astec has the same negatives (Dahiya et al. 2021,
"DeepXML: a deep extreme multi-label learning framework").
"""

from typing import Any

import numpy as np
import torch

from slide import checks
from slide.kernels import dual_descent as kernels
from slide.kernels.dual_descent import Solver, TrainingRows
from slide.runtime import num_threads
from slide.sparse import CSR, Pattern, check_pattern


class LinearRanker:
    """One linear classifier for each label, with squared hinge, L2 penalty and few weights.

    The score of a label is ``bias + <w, x>`` with a fixed bias. If a row has none of the features
    of a label, its score is the bias, like the score of a negative. So a row that shares no feature
    with the positives of a label is not needed in the training of that label.

    Args:
        C: weight of the squared hinge against |w|^2 / 2, as in ``sklearn.svm.LinearSVC``.
        bias: fixed part of all scores, in [-1, 0].
        tol: training of a label ends when the projected gradient of its dual is below this number.
        max_iter: largest number of passes over the rows of a label.
        threshold: weights of a smaller magnitude are set to 0.
        share: weight of the linear score in the final score, in [0, 1]; None chooses it by the
            number of labels in a training row: 2 / labels, in [0.1, 0.5].
        depth: number of the best labels of a network that are re-ranked.

    Raises:
        ValueError: for a number out of range.

    Attributes:
        weights: CSR ``(N, D)`` after `fit`.
        fitted_share: weight of the linear score, after `fit`.

    Example:
        >>> import numpy as np, slide
        >>> indptr = np.arange(3)
        >>> features = slide.CSR(indptr, np.array([0, 1], np.int32), np.ones(2, np.float32))
        >>> labels = slide.Pattern(indptr, np.array([0, 1], np.int32))
        >>> candidates = slide.Pattern(indptr, np.array([1, 0], np.int32))
        >>> ranker = slide.LinearRanker().fit(features, labels, candidates, 2, 2)
        >>> ids, scores = np.array([[0, 1], [0, 1]]), np.zeros((2, 2), np.float32)
        >>> ranker.rerank(features, ids, scores, k=1)[1].tolist()
        [[0], [1]]
    """

    def __init__(
        self,
        C: float = 1.0,
        bias: float = -1.0,
        tol: float = 0.1,
        max_iter: int = 20,
        threshold: float = 0.05,
        share: float | None = None,
        depth: int = 50,
    ):
        checks.positive("C", C)
        checks.within("bias", bias, -1.0, 0.0)
        checks.positive("tol", tol)
        checks.whole("max_iter", max_iter, 1)
        checks.not_negative("threshold", threshold)
        if share is not None:
            checks.share("share", share, with_one=True)
        checks.whole("depth", depth, 1)
        self.threshold = threshold
        self.share = share
        self.fitted_share = 0.0
        self.depth = depth
        self.solver = Solver(float(C), float(bias), max_iter, float(tol))
        self.num_features = 0
        self.weights: CSR | None = None

    def fit(
        self,
        features: CSR,
        labels: Pattern,
        candidates: Pattern,
        num_features: int,
        num_labels: int,
    ) -> "LinearRanker":
        """Train each label on its positives, and on the rows that have it as a wrong candidate.

        Args:
            features: ``(R, D)`` training rows.
            labels: R rows of labels, in [0, N).
            candidates: R rows of labels with high scores of a network. Labels of the row may be
                among them.
            num_features: D.
            num_labels: N.

        Returns:
            The ranker itself.

        Raises:
            ValueError: for ids out of range, numbers of rows that differ, or values that are not
                finite.
        """
        check_pattern("features", features, None, num_features)
        if not np.isfinite(features.values).all():
            raise ValueError("features hold NaN or infinite values")
        check_pattern("labels", labels, features.num_rows, num_labels)
        check_pattern("candidates", candidates, features.num_rows, num_labels)
        labels_per_row = len(labels.indices) / max(labels.num_rows, 1)
        self.fitted_share = linear_share(labels_per_row) if self.share is None else self.share
        lists = _training_lists(labels, candidates, num_labels)
        owner = np.repeat(np.arange(features.num_rows), np.diff(features.indptr))
        squares = np.bincount(owner, features.values**2, minlength=features.num_rows)
        threads, longest = num_threads(), int(np.diff(lists.indptr).max(initial=0))
        scratch = np.zeros((threads, num_features), np.float32)
        orders = np.empty((threads, longest), np.int64)
        alphas = np.zeros(len(lists.rows), np.float32)
        kernels.fit_duals(features, squares, lists, self.solver, scratch, orders, alphas)
        indptr = np.zeros(num_labels + 1, np.int64)
        found = features, lists, alphas, self.threshold, scratch, indptr
        kernels.collect_weights(*found, np.empty(0, np.int32), np.empty(0, np.float32))
        np.cumsum(indptr, out=indptr)
        indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
        if len(indices):
            kernels.collect_weights(*found, indices, values)
        self.num_features = num_features
        self.weights = CSR(indptr, indices, values)
        return self

    def scores(self, features: CSR, ids: np.ndarray) -> np.ndarray:
        """Scores ``(B, K)`` float32 of the labels ``ids`` ``(B, K)``; -inf for ids below 0.

        Raises:
            RuntimeError: before `fit`.
            ValueError: for columns or ids out of range.
        """
        if self.weights is None:
            raise RuntimeError("the classifiers are not trained: call fit first")
        check_pattern("features", features, None, self.num_features)
        _check_ids(ids, features.num_rows, self.weights.num_rows)
        dense = np.zeros((num_threads(), self.num_features), np.float32)
        out = np.empty(ids.shape, np.float32)
        ids = ids.astype(np.int64, copy=False)
        kernels.score_labels(features, self.weights, self.solver.bias, ids, dense, out)
        return out

    def rerank(
        self, features: CSR, ids: np.ndarray, scores: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k best candidates of a network by the weighted mean of both scores.

        Args:
            features: ``(B, D)``.
            ids: ``(B, K)`` integers, candidates of the network, with K >= k; an id below 0 means
                that there is no candidate.
            scores: ``(B, K)`` scores of the network. Its loss must be the squared hinge, or another
                loss whose ``score_range`` is (-1, 1); otherwise the scores are not comparable.
            k: number of candidates to return for each row.

        Returns:
            Scores and ids, both ``(B, k)``, best first.

        Raises:
            ValueError: for a number out of range.
            RuntimeError: before `fit`.
        """
        if not 1 <= k <= ids.shape[1]:
            raise ValueError(f"k must be in [1, {ids.shape[1]}], not {k}")
        if scores.shape != ids.shape:
            raise ValueError(f"scores of shape {scores.shape} do not fit ids of shape {ids.shape}")
        own, known = self.scores(features, ids), ids >= 0
        mixed = np.full(ids.shape, -np.inf, np.float32)
        mixed[known] = (1 - self.fitted_share) * scores[known] + self.fitted_share * own[known]
        order = np.argsort(-mixed, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(mixed, order, 1), np.take_along_axis(ids, order, 1)

    def state_dict(self) -> dict[str, Any]:
        """Everything that `rerank` needs, as tensors and numbers, for `slide.files.write_tensors`.

        Raises:
            RuntimeError: before `fit`.
        """
        if self.weights is None:
            raise RuntimeError("the classifiers are not trained: call fit first")
        arrays = {name: torch.from_numpy(a) for name, a in self.weights._asdict().items()}
        numbers = {"bias": self.solver.bias, "share": self.fitted_share, "depth": self.depth}
        return {"num_features": self.num_features, **numbers, **arrays}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.solver = self.solver._replace(bias=state["bias"])
        self.fitted_share, self.depth = state["share"], state["depth"]
        weights = (state[name].numpy() for name in CSR._fields)
        self.num_features, self.weights = int(state["num_features"]), CSR(*weights)


def linear_share(labels_per_row: float) -> float:
    """Weight of the linear classifiers in the final score: 2 / labels of a row, in [0.1, 0.5].

    A classifier of one label does not know which labels occur together, but a network does. This
    knowledge is worth more if rows have many labels.
    """
    checks.not_negative("labels_per_row", labels_per_row)
    return max(2 / max(labels_per_row, 4), 0.1)


def _check_ids(ids: np.ndarray, num_rows: int, num_labels: int) -> None:
    if ids.ndim != 2 or len(ids) != num_rows:
        raise ValueError(f"ids of shape {ids.shape} do not fit {num_rows} rows")
    if ids.size and ids.max() >= num_labels:
        raise ValueError(f"ids must be below {num_labels}, not {ids.max()}")


def _training_lists(labels: Pattern, candidates: Pattern, num_labels: int) -> TrainingRows:
    """The training rows of each label: its positives, and rows with it as a wrong candidate."""
    num_rows = labels.num_rows

    def pairs(pattern: Pattern) -> np.ndarray:
        """One number for each entry, which orders entries by label and then by row."""
        row = np.repeat(np.arange(num_rows), np.diff(pattern.indptr))
        return pattern.indices.astype(np.int64) * num_rows + row

    # Sorted by pair, positives first. Of equal pairs the first one is kept.
    every = np.sort(np.concatenate([2 * pairs(labels), 2 * pairs(candidates) + 1]))
    pair, proposed = every >> 1, every & 1
    kept = np.concatenate([[True], pair[1:] != pair[:-1]]) if len(pair) else np.empty(0, bool)
    pair, signs = pair[kept], 1 - 2 * proposed[kept].astype(np.float32)
    indptr = np.searchsorted(pair, np.arange(num_labels + 1) * num_rows).astype(np.int64)
    return TrainingRows(indptr, (pair % max(num_rows, 1)).astype(np.int32), signs)
