"""Sparse linear one-vs-rest classifiers that re-rank the outputs which a network found.

A network shares what it learns among labels; a linear classifier of a label's own remembers which
features speak for it alone. Their errors differ, and the mean of their scores is better than either
(`LinearRanker.rerank`). The classifiers are those of DiSMEC (Babbar and Schölkopf 2017, section 2)
but for their negatives: not all rows, only those where the network puts the label high, as in the
re-ranker of Astec (Dahiya et al. 2021).
"""

import numpy as np
from scipy.sparse import csr_matrix

from slide import checks
from slide.kernels import linear as kernels
from slide.kernels.linear import Lists, Solver
from slide.runtime import num_threads
from slide.sparse import CSR, Pattern, check_pattern


class LinearRanker:
    """One linear classifier a label, with squared hinge, L2 penalty and few non-zero weights.

    A score is ``offset + <w, x>``: without evidence, a label is as surely wrong as a trained
    negative, and negatives that share no feature with a label's positives need no training.

    Args:
        cost: C, of the squared hinge against |w|^2 / 2.
        offset: of all scores, below 0.
        threshold: weights of a smaller magnitude are dropped.
        passes: most passes over a label's rows.
        tolerance: of the dual's projected gradient, at which a label is done.

    Raises:
        ValueError: for a number out of range.

    Attributes:
        weights: CSR ``(N, D)`` after `fit`.
    """

    def __init__(
        self,
        cost: float = 1.0,
        offset: float = -1.0,
        threshold: float = 0.05,
        passes: int = 20,
        tolerance: float = 0.1,
    ):
        checks.positive("cost", cost)
        checks.within("offset", offset, -1.0, 0.0)
        checks.not_negative("threshold", threshold)
        checks.whole("passes", passes, 1)
        checks.positive("tolerance", tolerance)
        self.threshold = threshold
        self.solver = Solver(float(cost), float(offset), passes, float(tolerance))
        self.num_features = 0
        self.weights: CSR | None = None

    def fit(
        self,
        features: CSR,
        labels: Pattern,
        candidates: np.ndarray,
        num_features: int,
        num_labels: int,
    ) -> "LinearRanker":
        """Train on each label's positives, and on the rows that have it as a candidate only.

        Args:
            features: ``(R, D)`` training rows.
            labels: of R rows, in [0, N).
            candidates: ``(R, K)`` ids of labels that a network puts high, labels of the row or
                not; below 0: none.
            num_features, num_labels: D and N.

        Returns:
            itself.

        Raises:
            ValueError: for ids out of range, or numbers of rows that differ.
        """
        check_pattern("features", features, None, num_features)
        check_pattern("labels", labels, features.num_rows, num_labels)
        _check_ids(candidates, features.num_rows, num_labels)
        lists = _training_lists(labels, candidates, num_labels)
        owner = np.repeat(np.arange(features.num_rows), np.diff(features.indptr))
        squares = np.bincount(owner, features.values**2, minlength=features.num_rows)
        threads, longest = num_threads(), int(np.diff(lists.indptr).max(initial=0))
        scratch = np.zeros((threads, num_features), np.float32)
        orders = np.empty((threads, longest), np.int64)
        alphas = np.zeros(len(lists.rows), np.float32)
        kernels.fit(features, squares, lists, self.solver, scratch, orders, alphas)
        shape = features.num_rows, num_features
        x = csr_matrix((features.values, features.indices, features.indptr), shape=shape)
        dual = csr_matrix((alphas * lists.signs, lists.rows, lists.indptr), (num_labels, shape[0]))
        dual.eliminate_zeros()
        weights = csr_matrix(dual @ x)
        weights.data[np.abs(weights.data) < self.threshold] = 0
        weights.eliminate_zeros()
        self.num_features = num_features
        self.weights = CSR(
            weights.indptr.astype(np.int64), weights.indices.astype(np.int32), weights.data
        )
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
        self, features: CSR, ids: np.ndarray, scores: np.ndarray, k: int, mix: float = 0.5
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k best of the labels that a network found, by both scores.

        Args:
            features: ``(B, D)``.
            ids: ``(B, K)`` labels, with K >= k; below 0: none.
            scores: ``(B, K)`` the network's. The squared hinge, or another loss that aims at
                scores from -1 to 1, makes them comparable.
            k: how many to return.
            mix: share of the linear score, in [0, 1].

        Returns:
            scores and ids, both ``(B, k)``, best first.

        Raises:
            ValueError: for a number out of range; RuntimeError: before `fit`.
        """
        checks.share("mix", mix, with_one=True)
        if not 1 <= k <= ids.shape[1]:
            raise ValueError(f"k must be in [1, {ids.shape[1]}], not {k}")
        own = self.scores(features, ids)
        mixed = np.where(ids < 0, -np.inf, (1 - mix) * scores + mix * np.where(ids < 0, 0, own))
        order = np.argsort(-mixed, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(mixed, order, 1), np.take_along_axis(ids, order, 1)


def _check_ids(ids: np.ndarray, num_rows: int, num_labels: int) -> None:
    if ids.ndim != 2 or len(ids) != num_rows:
        raise ValueError(f"ids of shape {ids.shape} do not fit {num_rows} rows")
    if ids.size and ids.max() >= num_labels:
        raise ValueError(f"ids must be below {num_labels}, not {ids.max()}")


def _training_lists(labels: Pattern, candidates: np.ndarray, num_labels: int) -> Lists:
    """Each label's rows: its positives, and the rows that have it as a candidate only."""
    num_rows = labels.num_rows
    # One number a pair, by label and then row; those of positives are kept apart.
    row = np.repeat(np.arange(num_rows), np.diff(labels.indptr))
    positive = np.unique(labels.indices.astype(np.int64) * num_rows + row)
    row = np.repeat(np.arange(num_rows), candidates.shape[1])[candidates.ravel() >= 0]
    proposed = candidates.ravel()[candidates.ravel() >= 0].astype(np.int64) * num_rows + row
    pairs = np.union1d(positive, proposed)
    signs = np.full(len(pairs), -1, np.float32)
    signs[np.searchsorted(pairs, positive)] = 1
    indptr = np.searchsorted(pairs, np.arange(num_labels + 1) * num_rows).astype(np.int64)
    return Lists(indptr, (pairs % max(num_rows, 1)).astype(np.int32), signs)
