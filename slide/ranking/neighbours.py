"""Nearest training rows, and the votes of their labels."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from slide.data import Split
from slide.ranking.dense_search import DenseSearch, are_dense
from slide.ranking.list_search import BLOCK, ListSearch
from slide.search import sparse_top_k, top_votes
from slide.sparse import CSR, Pattern, check_pattern, row_bounds
from slide.utils import checks
from slide.utils.progress_bar import ProgressBar

# Labels are rare if they have fewer training rows in the mean. Only the nearest rows have them. Of
# few labels or rows, all rows are needed for enough candidates.
RARE, MANY = 10, 10_000
RARE_NEAR, USUAL_NEAR = 20, 50


class Votes(NamedTuple):
    """Labels of the nearest training rows.

    Attributes:
        ids: ``(B, k)`` int32, labels with the most votes first; -1: there are no more.
        shares: ``(B, k)`` float32, votes weighted by similarity, as shares of all votes of the row.
        sharp: ``(B, k)`` float32, the same with the fourth power of the similarity.
        nearest: ``(B,)`` float32, similarity of the nearest row.
        mean: ``(B,)`` float32, mean similarity of the neighbours.
    """

    ids: np.ndarray
    shares: np.ndarray
    sharp: np.ndarray
    nearest: np.ndarray
    mean: np.ndarray


class Neighbours:
    """Finds the training rows that are nearest by cosine, and lets their labels vote.

    Sparse rows are found by `ListSearch`, dense ones by `DenseSearch`.

    Args:
        count: number of neighbours of a row.
        weighted: whether features count by how rare they are, or in dense rows by how little they
            vary.

    Raises:
        ValueError: for a number out of range.

    Attributes:
        search: finds the nearest rows; None before `fit`.

    Example:
        >>> import numpy as np, slide
        >>> from slide.ranking import Neighbours
        >>> indptr, ones = np.arange(4), np.ones(3, np.float32)
        >>> features = slide.CSR(indptr, np.array([0, 1, 1], np.int32), ones)
        >>> labels = slide.Pattern(indptr, np.array([5, 6, 7], np.int32))
        >>> model = Neighbours(count=2, weighted=False).fit(features, labels, 8, 8)
        >>> model.votes(features, k=2).ids.tolist()
        [[5, -1], [6, 7], [6, 7]]
    """

    def __init__(self, count: int = USUAL_NEAR, weighted: bool = True):
        checks.whole("count", count, 1)
        checks.flag("weighted", weighted)
        self.count, self.weighted = count, weighted
        self.search: ListSearch | DenseSearch | None = None
        self.labels = CSR(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        self.num_labels = 0

    def fit(
        self, features: CSR, labels: Pattern, num_features: int, num_labels: int
    ) -> "Neighbours":
        """Take rows to search in.

        Args:
            features: ``(R, D)`` training rows.
            labels: R rows of labels, in [0, N).
            num_features: D.
            num_labels: N.

        Returns:
            The object itself.

        Raises:
            ValueError: for ids out of range, numbers of rows that differ, or values that are not
                finite.
        """
        check_pattern("labels", labels, features.num_rows, num_labels)
        check_pattern("features", features, None, num_features)
        checks.finite("features", features.values)
        self.search = None  # Before a new one is made, which takes as much memory.
        search = DenseSearch if are_dense(features, num_features) else ListSearch
        self.search = search(features, num_features, self.weighted)
        self.labels = CSR(*labels, np.ones(len(labels.indices), np.float32))
        self.num_labels = num_labels
        return self

    def votes(self, features: CSR, k: int, left_out: Pattern | None = None) -> Votes:
        """The k labels that the nearest rows of each row name most often.

        Args:
            features: ``(B, D)``.
            k: number of labels.
            left_out: B rows of labels that are not returned, although they have votes; None: none.

        Raises:
            RuntimeError: before `fit`.
        """
        scores, near = self.fitted().nearest(features, self.count)
        labels = Pattern(self.labels.indptr, self.labels.indices)
        ids, votes, sharp = top_votes(near, scores, labels, self.num_labels, k, left_out)
        sums = scores.sum(1, keepdims=True), (scores**4).sum(1, keepdims=True)
        return Votes(
            ids,
            votes / np.maximum(sums[0], 1e-9),
            sharp / np.maximum(sums[1], 1e-9),
            scores[:, 0],
            sums[0][:, 0] / np.maximum((near >= 0).sum(1), 1),
        )

    def own_candidates(
        self,
        k: int,
        left_out: Callable[[int, int], Pattern] | None = None,
        block: int = BLOCK,
    ) -> Pattern:
        """For each training row the k labels with the most votes of its other neighbours.

        The search is quicker than in `votes`, so some of the nearest rows may be missing.

        Args:
            k: number of labels.
            left_out: called with a first row and the row after the last one; it returns for each of
                these rows the labels that are no candidates. None: all labels are.
            block: number of rows in a search, at most.

        Raises:
            RuntimeError: before `fit`.
        """
        search, begin = self.fitted(), 0
        sizes, ids = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        with ProgressBar(total=search.num_rows, desc="candidates", leave=False) as bar:
            for scores, near in search.own_nearest(self.count, block):
                end = begin + len(near)
                without = None if left_out is None else left_out(begin, end)
                rows = CSR(*Pattern.from_padded(near), scores[near >= 0])
                _, found = sparse_top_k(rows, self.labels, self.num_labels, k, without)
                sizes.append((found >= 0).sum(1))
                ids.append(found[found >= 0])
                bar.update(end - begin)
                begin = end
        return Pattern(row_bounds(np.concatenate(sizes)), np.concatenate(ids))

    def fitted(self) -> ListSearch | DenseSearch:
        """What finds the nearest rows.

        Raises:
            RuntimeError: before `fit`.
        """
        if self.search is None:
            raise RuntimeError("there are no training rows: call fit first")
        return self.search


def num_near_rows(train: Split, kind: str) -> int:
    """How many nearest rows vote, by default.

    Args:
        train: training rows.
        kind: `slide.data.kind_of` the rows.

    Returns:
        20 where `MANY` labels or more have fewer than `RARE` rows in the mean, except in a
        recommender or a graph; else 50.
    """
    rare = len(train.labels.indices) < RARE * train.num_labels and train.num_labels >= MANY
    return RARE_NEAR if rare and kind not in ("graph", "items") else USUAL_NEAR
