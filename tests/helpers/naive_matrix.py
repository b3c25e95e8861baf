"""A looped reader of SciPy's sparse matrices; it raises any error for a malformed one."""

from itertools import pairwise

import numpy as np


def naive_matrix(path):
    """``{(row, column): value}`` and the shape; raises whatever there is to raise."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        kind = arrays["format"].item()
        kind = kind if isinstance(kind, str) else kind.decode()
        num_rows, num_columns = arrays["shape"].tolist()
        data = arrays["data"]
        if kind == "dia":
            offsets = arrays["offsets"].tolist()
            columns = range(min(data.shape[1], num_columns))
            entries = [
                (j - offset, j, data[i, j])
                for i, offset in enumerate(offsets)
                for j in columns
                if 0 <= j - offset < num_rows and data[i, j] != 0
            ]
        elif kind == "coo":
            positions = arrays["coords"] if "coords" in arrays else (arrays["row"], arrays["col"])
            entries = list(zip(*(p.tolist() for p in positions), data, strict=True))
        else:
            entries = list(naive_compressed(kind, data, arrays["indices"], arrays["indptr"]))
            lines = num_columns if kind == "csc" else num_rows
            block = data.shape[1] if kind == "bsr" else 1
            assert lines == block * (len(arrays["indptr"]) - 1)
    assert data.dtype.kind in "biuf"
    found = {}
    for row, column, value in entries:
        assert (row, column) not in found
        assert 0 <= row < num_rows
        assert 0 <= column < num_columns
        with np.errstate(over="ignore"):
            found[row, column] = np.float32(value)
        assert np.isfinite(found[row, column])
    return found, (num_rows, num_columns)


def naive_compressed(kind, data, indices, indptr):
    """(row, column, value) of each entry."""
    indices, indptr = indices.tolist(), indptr.tolist()
    assert indptr[0] == 0
    assert indptr[-1] <= len(indices) == len(data)
    for line, (begin, end) in enumerate(pairwise(indptr)):
        assert begin <= end
        for k in range(begin, end):
            if kind == "csr":
                yield line, indices[k], data[k]
            elif kind == "csc":
                yield indices[k], line, data[k]
            else:
                assert kind == "bsr"
                height, width = data.shape[1:]
                for (i, j), value in np.ndenumerate(data[k]):
                    yield height * line + i, width * indices[k] + j, value
