"""Nearest training rows, and the votes of their labels."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from slide import checks
from slide.bars import Bar
from slide.data import Split
from slide.search import column_lists, shortened, sparse_top_k, top_votes
from slide.sparse import CSR, Pattern, check_pattern, row_bounds

# Mean number of list entries that a search reads for a row. Longer lists are cut off. Searches for
# negatives need not be as exact, and there is one for each training row.
_WORK, _OWN_WORK = 16_384, 8192
# Labels are rare if they have fewer training rows in the mean. Only the nearest rows have them. Of
# few labels or rows, all rows are needed for enough candidates.
RARE, MANY = 10, 10_000
RARE_NEAR, USUAL_NEAR = 20, 50
# Rows of training data that are looked at a time.
_BLOCK = 8192


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

    Features count by their inverse document frequency (Spärck Jones 1972, "A statistical
    interpretation of term specificity and its application in retrieval"), if ``idf`` is set.
    Inverted lists make the search fast (Zobel and Moffat 2006, "Inverted files for text search
    engines"): only rows that share a feature are looked at. Lists of frequent features are cut off,
    so that a search reads about 16,000 entries for a row.

    Args:
        count: number of neighbours of a row.
        idf: whether rare features count more.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> import numpy as np, slide
        >>> from slide.ranking import Neighbours
        >>> indptr, ones = np.arange(4), np.ones(3, np.float32)
        >>> features = slide.CSR(indptr, np.array([0, 1, 1], np.int32), ones)
        >>> labels = slide.Pattern(indptr, np.array([5, 6, 7], np.int32))
        >>> model = Neighbours(count=2, idf=False).fit(features, labels, 2, 8)
        >>> model.votes(features, k=2).ids.tolist()
        [[5, -1], [6, 7], [6, 7]]
    """

    def __init__(self, count: int = USUAL_NEAR, idf: bool = True):
        checks.whole("count", count, 1)
        checks.flag("idf", idf)
        self.count, self.idf = count, idf
        self.rows = CSR(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        self.lists, self.labels, self.weights = self.rows, self.rows, np.empty(0, np.float32)
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
            ValueError: for ids out of range, or numbers of rows that differ.
        """
        check_pattern("labels", labels, features.num_rows, num_labels)
        check_pattern("features", features, None, num_features)
        counts = np.bincount(features.indices, minlength=num_features)
        self.weights = np.ones(num_features, np.float32)
        if self.idf:
            self.weights = np.log((1 + features.num_rows) / (1 + counts)).astype(np.float32)
        self.rows = self._weighted(features)
        longest = longest_list(counts, features.num_rows, _WORK)
        self.lists = column_lists(self.rows, num_features, longest)
        self.labels = CSR(*labels, np.ones(len(labels.indices), np.float32))
        self.num_labels = num_labels
        return self

    def votes(self, features: CSR, k: int, left_out: Pattern | None = None) -> Votes:
        """The k labels that the nearest rows of each row name most often.

        Args:
            features: ``(B, D)``.
            k: number of labels.
            left_out: B rows of labels that are not returned, although they have votes; None: none.
        """
        weighted = self._weighted(features)
        scores, near = sparse_top_k(weighted, self.lists, self.rows.num_rows, self.count)
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
        block: int = _BLOCK,
    ) -> Pattern:
        """For each training row the k labels with the most votes of its other neighbours.

        The lists are shorter than in `votes`, so some of the nearest rows may be missing.

        Args:
            k: number of labels.
            left_out: called with a first row and the row after the last one; it returns for each of
                these rows the labels that are no candidates. None: all labels are.
            block: number of rows in a search.
        """
        counts = np.bincount(self.rows.indices, minlength=len(self.weights))
        longest = longest_list(counts, self.rows.num_rows, _OWN_WORK)
        lists = shortened(self.lists, longest)
        sizes, ids = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        starts = range(0, self.rows.num_rows, block)
        for begin in Bar(starts, "candidates", leave=False):
            end = min(begin + block, self.rows.num_rows)
            rows, part = np.arange(begin, end, dtype=np.int32), self.rows.slice(begin, end)
            itself = Pattern(np.arange(len(rows) + 1), rows)
            scores, near = sparse_top_k(part, lists, self.rows.num_rows, self.count, itself)
            without = None if left_out is None else left_out(begin, end)
            near = _sparse(near, scores)
            _, found = sparse_top_k(near, self.labels, self.num_labels, k, without)
            sizes.append((found >= 0).sum(1))
            ids.append(found[found >= 0])
        return Pattern(row_bounds(np.concatenate(sizes)), np.concatenate(ids))

    def _weighted(self, features: CSR) -> CSR:
        """The rows with weighted features, at length 1."""
        found, bounds = np.empty(len(features.indices), np.float32), features.indptr
        for begin in range(0, features.num_rows, _BLOCK):
            part = features.slice(begin, begin + _BLOCK)
            values = part.values * self.weights[part.indices]
            owner = part.entry_rows()
            norms = np.sqrt(np.bincount(owner, values**2, minlength=part.num_rows))
            end = min(begin + _BLOCK, features.num_rows)
            found[bounds[begin] : bounds[end]] = values / np.maximum(norms, 1e-9)[owner]
        return CSR(bounds, features.indices, found)


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


def longest_list(counts: np.ndarray, num_rows: int, work: int) -> int:
    """The greatest power of 2 for which a search reads at most ``work`` entries in the mean.

    Args:
        counts: ``(D,)`` number of rows of each feature.
        num_rows: number of rows.
        work: number of entries.
    """
    longest = 64
    while longest < num_rows and (counts * np.minimum(counts, 2 * longest)).sum() <= (
        work * num_rows
    ):
        longest *= 2
    return longest


def _sparse(ids: np.ndarray, values: np.ndarray) -> CSR:
    """The rows of a top-k list as sparse rows."""
    return CSR(*Pattern.from_padded(ids), values[ids >= 0].astype(np.float32))
