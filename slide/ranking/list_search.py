"""The training rows that are nearest to sparse rows by cosine, from inverted lists."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from slide.search import column_lists, shortened, sparse_top_k
from slide.sparse import CSR, Pattern

# Mean number of list entries that a search reads for a row. Longer lists are cut off. Searches for
# negatives need not be as exact, and there is one for each training row.
WORK, _OWN_WORK = 16_384, 8192
# Rows of training data that are looked at a time.
BLOCK = 8192


class Near(NamedTuple):
    """The nearest training rows of B rows.

    Attributes:
        scores: ``(B, count)`` float32, cosines above 0, the largest first; 0: there are no more.
        ids: ``(B, count)`` int32, numbers of rows; -1: there are no more.
    """

    scores: np.ndarray
    ids: np.ndarray


class ListSearch:
    """Sparse rows in inverted lists, of which a search reads those of the features of a row.

    The lists (Zobel and Moffat 2006, "Inverted files for text search engines") of frequent features
    are cut off, so that a search reads about 16,000 entries for a row.

    Args:
        features: ``(R, D)`` training rows.
        num_features: D.
        weighted: whether features count by their inverse document frequency (Spärck Jones 1972, "A
            statistical interpretation of term specificity and its application in retrieval").

    Attributes:
        num_rows: R.
        weights: ``(D,)`` float32, the factor of each feature.
        lists: CSR ``(D, R)`` of rows with weighted features, at length 1.
    """

    weighting, ARRAYS = "weighted by idf", CSR._fields

    def __init__(self, features: CSR, num_features: int, weighted: bool):
        self.num_rows, self.weighted = features.num_rows, weighted
        counts = np.bincount(features.indices, minlength=num_features)
        self.weights = np.ones(num_features, np.float32)
        if weighted:
            self.weights = np.log((1 + self.num_rows) / (1 + counts)).astype(np.float32)
        self.rows: CSR | None = self._weighted(features)
        self.lists = column_lists(
            self.rows, num_features, longest_list(counts, self.num_rows, WORK)
        )

    @classmethod
    def restored(
        cls, state: dict[str, np.ndarray], weights: np.ndarray, num_rows: int, weighted: bool
    ) -> "ListSearch":
        """The search that had this `state` and these attributes, without the rows themselves."""
        search = cls.__new__(cls)
        search.lists, search.weights, search.rows = CSR(**state), weights, None
        search.num_rows, search.weighted = num_rows, weighted
        return search

    def state(self) -> dict[str, np.ndarray]:
        """Arrays for `restored`, beside ``weights``."""
        return self.lists._asdict()

    def grown(self, features: int) -> "ListSearch":
        """The same search for rows with a number of features more, which come last."""
        unseen = np.log(1 + self.num_rows) if self.weighted else 1.0
        weights = np.pad(self.weights, (0, features), constant_values=unseen)
        indptr = np.pad(self.lists.indptr, (0, features), mode="edge")
        state = self.lists._replace(indptr=indptr)._asdict()
        return self.restored(state, weights, self.num_rows, self.weighted)

    def nearest(self, features: CSR, count: int) -> Near:
        """The ``count`` nearest training rows of each of B rows."""
        rows = self._weighted(features)
        return Near(*sparse_top_k(rows, self.lists, self.num_rows, count))

    def own_nearest(self, count: int, block: int = BLOCK) -> Iterator[Near]:
        """The nearest other rows of all training rows, ``block`` of them at a time.

        The lists are shorter than in `nearest`, so some of the nearest rows may be missing.
        """
        assert self.rows is not None, "the training rows are not known"
        counts = np.bincount(self.rows.indices, minlength=len(self.weights))
        lists = shortened(self.lists, longest_list(counts, self.num_rows, _OWN_WORK))
        for begin in range(0, self.num_rows, block):
            part = self.rows.slice(begin, begin + block)
            rows = np.arange(begin, begin + part.num_rows, dtype=np.int32)
            itself = Pattern(np.arange(len(rows) + 1), rows)
            yield Near(*sparse_top_k(part, lists, self.num_rows, count, itself))

    def _weighted(self, features: CSR) -> CSR:
        """The rows with weighted features, at length 1."""
        found, bounds = np.empty(len(features.indices), np.float32), features.indptr
        for begin in range(0, features.num_rows, BLOCK):
            part = features.slice(begin, begin + BLOCK)
            values = part.values * self.weights[part.indices]
            owner = part.entry_rows()
            norms = np.sqrt(np.bincount(owner, values**2, minlength=part.num_rows))
            end = min(begin + BLOCK, features.num_rows)
            found[bounds[begin] : bounds[end]] = values / np.maximum(norms, 1e-9)[owner]
        return CSR(bounds, features.indices, found)


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
