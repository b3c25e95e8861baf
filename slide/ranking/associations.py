"""Which labels go with a feature: conditional frequencies, counted in the training rows."""

from typing import Any

import numpy as np

from slide import checks
from slide.search import shortened, sparse_top_k
from slide.sparse import CSR, Pattern, check_pattern

# Rows of the training set that are counted at a time.
_BLOCK = 1 << 17
# Pairs of feature and label that are counted at most; with more of them, some rows are left out.
MOST_PAIRS = 200_000_000
# Added to the number of rows of a feature, so that features of few rows do not seem sure.
_PRIOR = 3


class Associations:
    """Scores labels by the share of the rows of each feature that have them.

    The score of a label is the sum over the features of a row of ``value * count(feature, label) /
    (count(feature) + 3)``. In a recommender these are the items that users of an item like, too
    (Sarwar et al. 2001, "Item-based collaborative filtering recommendation algorithms").

    Args:
        longest: number of labels of a feature that are kept, those with the most rows.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> import numpy as np, slide
        >>> from slide.ranking import Associations
        >>> features = slide.CSR(np.arange(4), np.zeros(3, np.int32), np.ones(3, np.float32))
        >>> labels = slide.Pattern(np.arange(4), np.array([5, 5, 7], np.int32))
        >>> model = Associations().fit(features, labels, 1, 8)
        >>> model.best(features, k=2)[1][0].tolist()
        [5, 7]
    """

    def __init__(self, longest: int = 512):
        checks.whole("longest", longest, 1)
        self.longest, self.num_labels = longest, 0
        self.lists = CSR(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))

    def fit(
        self, features: CSR, labels: Pattern, num_features: int, num_labels: int
    ) -> "Associations":
        """Count features and labels.

        Args:
            features: ``(R, D)`` training rows; values do not count.
            labels: R rows of labels, in [0, N).
            num_features: D.
            num_labels: N.

        Returns:
            The object itself.

        Raises:
            ValueError: for ids out of range, or numbers of rows that differ.
        """
        import scipy.sparse  # Imported here, so that `import slide` stays fast.

        check_pattern("features", features, None, num_features)
        check_pattern("labels", labels, features.num_rows, num_labels)
        step = -(-count_pairs(features, labels) // MOST_PAIRS)
        pairs: Any = scipy.sparse.csr_array((num_features, num_labels), dtype=np.float32)
        counts = np.zeros(num_features)
        for begin in range(0, features.num_rows, _BLOCK):
            x = _ones(features, begin, num_features)[::step]
            found = x.T @ _ones(labels, begin, num_labels)[::step]
            pairs = found if begin == 0 else pairs + found
            counts += np.bincount(x.indices, minlength=num_features)
            del found  # There may be hundreds of millions of pairs.
        pairs = pairs.tocsr()
        shares = pairs.data / np.repeat(counts + _PRIOR, np.diff(pairs.indptr))
        values, indices = shares.astype(np.float32), pairs.indices.astype(np.int32, copy=False)
        lists = CSR(pairs.indptr.astype(np.int64), indices, values)
        del pairs, shares
        self.lists = shortened(lists, self.longest)
        self.num_labels = num_labels
        return self

    def best(self, features: CSR, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores ``(B, k)`` float32 and ids ``(B, k)`` int32 of the labels with the highest scores.

        Args:
            features: ``(B, D)``; negative values subtract from the scores.
            k: number of labels. Only scores above 0 count: where a row has fewer of them, the
                remaining scores are 0 and the ids are -1.

        Raises:
            ValueError: for features out of range, or k below 1.
        """
        return sparse_top_k(features, self.lists, self.num_labels, k)


def count_pairs(features: CSR, labels: Pattern) -> int:
    """Number of pairs of a feature and a label of the same row, at least 1."""
    return max(int((np.diff(features.indptr) * np.diff(labels.indptr)).sum()), 1)


def _ones(pattern: CSR | Pattern, begin: int, num_columns: int):
    """Some rows as a matrix of ones."""
    import scipy.sparse

    part = pattern.slice(begin, begin + _BLOCK)
    ones = np.ones(len(part.indices), np.float32)
    shape = part.num_rows, num_columns
    return scipy.sparse.csr_array((ones, part.indices, part.indptr), shape)
