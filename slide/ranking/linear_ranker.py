"""Sparse linear one-vs-rest classifiers that re-rank the candidates of a network.

A network shares what it learns among labels; a linear classifier of one label remembers which
features speak for that label. Their errors differ, and the weighted mean of their scores is better
than either (`LinearRanker.rerank`). The classifiers are those of DiSMEC (Babbar and Schölkopf 2017,
section 2), but their negatives are not all rows: only those rows that have the label as a
candidate, as in the re-ranker of Astec (Dahiya et al. 2021).
"""

from typing import Any

import numpy as np
import torch

from slide import checks
from slide.kernels import dual_descent as kernels
from slide.kernels.dual_descent import Lists, Solver
from slide.runtime import num_threads
from slide.sparse import CSR, Pattern, check_pattern


class LinearRanker:
    """One linear classifier for each label, with squared hinge, L2 penalty and few weights.

    A score is ``bias + <w, x>`` with a fixed bias. So a label without evidence scores as a trained
    negative does, and rows that share no feature with the positives of a label need no training.

    Args:
        C: weight of the squared hinge against |w|^2 / 2, as in ``sklearn.svm.LinearSVC``.
        bias: fixed part of all scores, in [-1, 0].
        tol: a classifier is done when the projected gradient of its dual is below that.
        max_iter: most passes over the rows of a label.
        threshold: weights of a smaller magnitude are dropped.
        share: weight of the linear score in the final score, in [0, 1]; None: by the number of
            labels in a training row (`linear_share`).
        depth: how many of the best labels of a network are re-ranked.

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
        """Train each label on its positives, and on the rows that have it only as a candidate.

        Args:
            features: ``(R, D)`` training rows.
            labels: of R rows, in [0, N).
            candidates: of R rows, labels that a network scores highest; they may be labels of the
                row.
            num_features, num_labels: D and N.

        Returns:
            itself.

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
        kernels.fit(features, squares, lists, self.solver, scratch, orders, alphas)
        indptr = np.zeros(num_labels + 1, np.int64)
        found = features, lists, alphas, self.threshold, scratch, indptr
        kernels.collect(*found, np.empty(0, np.int32), np.empty(0, np.float32))
        np.cumsum(indptr, out=indptr)
        indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
        if len(indices):
            kernels.collect(*found, indices, values)
        self.num_features = num_features
        self.weights = CSR(indptr, indices, values)
        return self

    def scores(self, features: CSR, ids: np.ndarray) -> np.ndarray:
        """Scores ``(B, K)`` float32 of the labels ``ids`` ``(B, K)``; -inf where an id is below 0.

        Raises:
            RuntimeError: before `fit`; ValueError: for columns or ids out of range.
        """
        if self.weights is None:
            raise RuntimeError("the classifiers are not trained: call fit first")
        check_pattern("features", features, None, self.num_features)
        _check_ids(ids, features.num_rows, self.weights.num_rows)
        dense = np.zeros((num_threads(), self.num_features), np.float32)
        out = np.empty(ids.shape, np.float32)
        ids = ids.astype(np.int64, copy=False)
        kernels.scores(features, self.weights, self.solver.offset, ids, dense, out)
        return out

    def rerank(
        self, features: CSR, ids: np.ndarray, scores: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k best candidates of a network by the weighted mean of both scores.

        Args:
            features: ``(B, D)``.
            ids: ``(B, K)`` labels, with K >= k; below 0: none.
            scores: ``(B, K)`` of the network, trained with the squared hinge or another loss
                whose ``score_range`` is (-1, 1); else the scores are not comparable.
            k: how many to return.

        Returns:
            scores and ids, both ``(B, k)``, best first.

        Raises:
            ValueError: for a number out of range; RuntimeError: before `fit`.
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
        """The weights, and how scores are made of them; `slide.files.write_tensors` takes it.

        Raises:
            RuntimeError: before `fit`.
        """
        if self.weights is None:
            raise RuntimeError("the classifiers are not trained: call fit first")
        arrays = {name: torch.from_numpy(a) for name, a in self.weights._asdict().items()}
        numbers = {"bias": self.solver.offset, "share": self.fitted_share, "depth": self.depth}
        return {"num_features": self.num_features, **numbers, **arrays}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.solver = self.solver._replace(offset=state["bias"])
        self.fitted_share, self.depth = state["share"], state["depth"]
        weights = (state[name].numpy() for name in CSR._fields)
        self.num_features, self.weights = int(state["num_features"]), CSR(*weights)


def linear_share(labels_per_row: float) -> float:
    """Weight of the linear classifiers in the final score: 2 / labels of a row, in [0.1, 0.5].

    A classifier of one label knows nothing of how labels go together. Where a row has dozens of
    labels, a network knows that best.
    """
    checks.not_negative("labels_per_row", labels_per_row)
    return max(2 / max(labels_per_row, 4), 0.1)


def _check_ids(ids: np.ndarray, num_rows: int, num_labels: int) -> None:
    if ids.ndim != 2 or len(ids) != num_rows:
        raise ValueError(f"ids of shape {ids.shape} do not fit {num_rows} rows")
    if ids.size and ids.max() >= num_labels:
        raise ValueError(f"ids must be below {num_labels}, not {ids.max()}")


def _training_lists(labels: Pattern, candidates: Pattern, num_labels: int) -> Lists:
    """Each label's rows: its positives, and the rows that have it as a candidate only."""
    num_rows = labels.num_rows

    def pairs(pattern: Pattern) -> np.ndarray:
        """One number an entry, by label and then row."""
        row = np.repeat(np.arange(num_rows), np.diff(pattern.indptr))
        return pattern.indices.astype(np.int64) * num_rows + row

    # By pair, positives first, so that the first of equal ones is the one to keep.
    every = np.sort(np.concatenate([2 * pairs(labels), 2 * pairs(candidates) + 1]))
    pair, proposed = every >> 1, every & 1
    kept = np.concatenate([[True], pair[1:] != pair[:-1]]) if len(pair) else np.empty(0, bool)
    pair, signs = pair[kept], 1 - 2 * proposed[kept].astype(np.float32)
    indptr = np.searchsorted(pair, np.arange(num_labels + 1) * num_rows).astype(np.int64)
    return Lists(indptr, (pair % max(num_rows, 1)).astype(np.int32), signs)
