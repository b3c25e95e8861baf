"""A number that tells whether rows are the ones of before."""

from zlib import crc32

import numpy as np

from slide.data.dataset import Split


def fingerprint(split: Split) -> str:
    """A checksum (CRC-32) of all features, labels and weights of a split; reads all of it.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split
        >>> from slide.data.fingerprint import fingerprint
        >>> from slide.sparse import CSR, Pattern
        >>> features = CSR(*Pattern.from_lists([[4], [0, 2]]), np.ones(3, np.float32))
        >>> fingerprint(Split(features, Pattern.from_lists([[1], [0, 3]]), 5, 4))
        '993e70cb'
    """
    found = 0
    # Of a slice, arrays of offsets begin above 0; their differences are the same.
    for indptr in (split.features.indptr, split.labels.indptr):
        found = crc32(np.diff(indptr).data, found)
    for array in (split.features.indices, split.features.values, split.labels.indices):
        found = crc32(np.ascontiguousarray(array).data, found)
    if split.weights is not None:
        found = crc32(np.ascontiguousarray(split.weights).data, found)
    return f"{found:08x}"
