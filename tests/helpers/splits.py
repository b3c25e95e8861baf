"""Random splits, and their rows as lists."""

import numpy as np

from helpers.matrices import ones_of
from slide.data import Split
from slide.sparse import CSR, Pattern


def make_split(num_rows=23, seed=0):
    """Rows of random lengths; the values tell the position in the file."""
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 6, num_rows))])
    label_indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 4, num_rows))])
    values = np.arange(1, indptr[-1] + 1, dtype=np.float32)
    features = CSR(indptr, rng.integers(0, 50, indptr[-1], np.int32), values)
    labels = Pattern(label_indptr, rng.integers(0, 30, label_indptr[-1], np.int32))
    return Split(features, labels, 50, 30)


def split_of(rows, labels, features, outputs):
    """Rows of ones at some features, with their labels."""
    return Split(ones_of(rows), Pattern.from_lists(labels), features, outputs)


def row(features, labels, index):
    """Row ``index`` as lists."""
    at = slice(*features.indptr[index : index + 2])
    own = slice(*labels.indptr[index : index + 2])
    return features.indices[at].tolist(), features.values[at].tolist(), labels.indices[own].tolist()


def rows(part):
    return [row(part.features, part.labels, i) for i in range(part.features.num_rows)]


def arrays(found):
    """The arrays of rows, or of both splits of a data set."""
    parts = (found.train, found.test) if hasattr(found, "train") else (found,)
    return [array for part in parts for array in (*part.features, *part.labels)]


def assert_types(part):
    assert [a.dtype for a in arrays(part)] == ["i8", "i4", "f4", "i8", "i4"]
    assert all(type(a) is np.ndarray and a.flags.c_contiguous for a in arrays(part))


def assert_same_rows(found, expected):
    """Bit by bit, of rows or of both splits of a data set."""
    for one, other in zip(arrays(found), arrays(expected), strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
