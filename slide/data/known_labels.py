"""Equal rows, and the labels that training rows list for their features."""

import numpy as np

from slide.data.dataset import Split, take_labels
from slide.data.transform_steps import mix_bits
from slide.sparse import CSR, Pattern, hits

__all__ = ["KnownLabels", "first_unknown", "lists_all_labels", "row_keys"]

# Rows with more non-zeros on average describe one object each, such as a text.
_SHORT = 4
_BLOCK = 1 << 16


def row_keys(features: CSR) -> np.ndarray:
    """A number for each row: equal rows have equal keys, other rows almost surely have others.

    A key is the sum, modulo 2^64, of a hash of each column number with its value. The order of the
    entries of a row does not matter, and zeros count as missing. The function has no random parts,
    so keys of two matrices can be compared.

    Args:
        features: R rows.

    Returns:
        ``(R,)`` uint64.

    Example:
        >>> import numpy as np
        >>> from slide.data import row_keys
        >>> from slide.sparse import CSR, Pattern
        >>> pattern = Pattern.from_lists([[4, 7], [7, 4], [4]])
        >>> keys = row_keys(CSR(*pattern, np.ones(5, np.float32)))
        >>> bool(keys[0] == keys[1]), bool(keys[0] == keys[2])
        (True, False)
    """
    keys = np.empty(features.num_rows, np.uint64)
    for start in range(0, len(keys), _BLOCK):
        part = features.slice(start, start + _BLOCK)
        values = np.ascontiguousarray(part.values, np.float32)
        words = part.indices.astype(np.uint64) << np.uint64(32)
        mixed = mix_bits(words | values.view(np.uint32).astype(np.uint64))
        mixed[values == 0] = 0
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
        keys[start : start + _BLOCK] = np.diff(sums[part.indptr])
    return keys


def lists_all_labels(train: Split) -> bool:
    """Whether each row lists all known labels of its features, as in a knowledge graph.

    It is assumed if rows are short (4 non-zeros on average at most, and at most half of the
    features), no two rows are equal, and some have several labels: a row stands for head and
    relation, and its labels for all known tails. Rows to come may repeat the features of a training
    row, and ask for further labels. Rows of a few measurements are dense, and rows of a
    classification have one label each: an equal row has the same answer there.

    Args:
        train: training rows.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split, lists_all_labels
        >>> from slide.sparse import CSR, Pattern
        >>> for rows in [[0, 5], [0, 6], [1, 5]], [[0, 5], [0, 6], [0, 5]]:
        ...     features = CSR(*Pattern.from_lists(rows), np.ones(6, np.float32))
        ...     labels = Pattern.from_lists([[2, 1], [0], [3]])
        ...     lists_all_labels(Split(features, labels, num_features=7, num_labels=4))
        True
        False
    """
    rows, nonzeros = len(train), len(train.features.indices)
    if not 0 < nonzeros <= rows * min(_SHORT, train.num_features / 2):
        return False
    if np.diff(train.labels.indptr).max() < 2:
        return False
    return len(np.unique(row_keys(train.features))) == rows


class KnownLabels:
    """Finds the labels that training rows list for equal features.

    In a knowledge graph these are no answers to a question, as in the filtered setting of Bordes et
    al. 2013, "Translating embeddings for modeling multi-relational data", section 4.2.

    Args:
        train: training rows. If several of them are equal, one of them counts.

    Attributes:
        keys: ``(R,)`` uint64, `row_keys` of the training rows, ascending.
        rows: ``(R,)`` int64, the rows of these keys.
        labels: R rows, the labels of the training rows.

    Example:
        >>> import numpy as np
        >>> from slide.data import KnownLabels, Split
        >>> from slide.sparse import CSR, Pattern
        >>> rows = CSR(*Pattern.from_lists([[0, 5], [0, 6]]), np.ones(4, np.float32))
        >>> known = KnownLabels(Split(rows, Pattern.from_lists([[2], [1, 3]]), 7, 4))
        >>> known.of(CSR(*Pattern.from_lists([[6, 0]]), np.ones(2, np.float32))).indices
        array([1, 3], dtype=int32)
    """

    def __init__(self, train: Split):
        keys = row_keys(train.features)
        self.rows = np.argsort(keys, kind="stable")
        self.keys, self.labels = keys[self.rows], train.labels

    @classmethod
    def restored(cls, keys: np.ndarray, rows: np.ndarray, labels: Pattern) -> "KnownLabels":
        """The object with these attributes."""
        known = cls.__new__(cls)
        known.keys, known.rows, known.labels = keys, rows, labels
        return known

    def of(self, features: CSR) -> Pattern:
        """The known labels of R rows of features: R rows, empty for features that are new."""
        wanted = row_keys(features)
        sizes = np.zeros(len(wanted) + 1, np.int64)
        if not len(self.keys):
            return Pattern(sizes, np.empty(0, np.int32))
        places = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        found = np.flatnonzero(self.keys[places] == wanted)
        labels = take_labels(self.labels, self.rows[places[found]])
        sizes[found + 1] = np.diff(labels.indptr)
        return Pattern(np.cumsum(sizes), labels.indices)


def first_unknown(ids: np.ndarray, known: Pattern, count: int) -> np.ndarray:
    """The first ids of each row that are not known.

    Args:
        ids: ``(R, k)`` integers, label numbers, best first; -1: there are no more.
        known: R rows of labels that are left out.
        count: number of ids of a row that are kept.

    Returns:
        ``(R, count)`` int64; -1 where a row has fewer.

    Example:
        >>> import numpy as np
        >>> from slide.data import first_unknown
        >>> from slide.sparse import Pattern
        >>> first_unknown(np.array([[7, 3, 5], [3, 9, 4]]), Pattern.from_lists([[7], []]), 2)
        array([[3, 5],
               [3, 9]])
    """
    rows, width = ids.shape
    left = (ids >= 0) & ~hits(ids, known)
    order = np.argsort(~left, axis=1, kind="stable")[:, :count]
    found = np.full((rows, count), -1, np.int64)
    best = np.where(left, ids, -1)
    found[:, : min(width, count)] = np.take_along_axis(best, order, axis=1)
    return found
