"""Reads pairs of SciPy sparse matrices, from `scipy.sparse.save_npz`: features and labels."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from slide.data.dataset import Block
from slide.data.errors import DataError
from slide.data.formats.text_reader import MAX_INDEX, Sizes
from slide.sparse import CSR, Pattern
from slide.utils.progress_bar import counted_bytes

__all__ = ["read_npz_blocks", "read_npz_shape", "read_npz_sizes"]

# Compression makes zeros at most a thousand times shorter. Without this bound a small file could
# ask for memory for billions of rows.
_ROWS_PER_BYTE = 1024


def read_npz_sizes(features: Path, labels: Path) -> Sizes:
    """Reads only the shapes of two matrices.

    Raises:
        DataError: a file is no sparse matrix, or the two differ in their number of rows.
    """
    rows, num_features = read_npz_shape(features)
    label_rows, num_labels = read_npz_shape(labels)
    if label_rows != rows:
        raise DataError(f"{labels}: file has {label_rows} rows, but {rows} are in {features}")
    return Sizes(rows, num_features, num_labels)


def read_npz_blocks(features: Path, labels: Path | None) -> Iterator[Block]:
    """Reads two matrices of any sparse kind. A stored zero is neither a feature nor a label.

    Args:
        features: file of the features; their values are converted to float32.
        labels: file of the labels: the entries that are not zero; None: no row has labels.

    Yields:
        All rows at once.

    Raises:
        DataError: a file is no sparse matrix, a value is not finite in float32, an entry occurs
            twice, or the two differ in their number of rows.
    """
    if labels is None:
        read_npz_shape(features)
        rows = _read_matrix(features)
        yield Block(rows, Pattern(np.zeros(len(rows.indptr), np.int64), np.empty(0, np.int32)))
        return
    read_npz_sizes(features, labels)
    indptr, indices, _ = _read_matrix(labels, marks=True)
    yield Block(_read_matrix(features), Pattern(indptr, indices))


@contextmanager
def _opened_matrix(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file. If numpy opened it by its path, it would not close a malformed one."""
    with path.open("rb") as file:
        try:
            yield file
        except Exception as error:  # zipfile, zlib, struct and numpy raise many kinds.
            problem = f"cannot be read as a SciPy sparse matrix: {type(error).__name__}: {error}"
            raise DataError(f"{path}: {problem} (scipy.sparse.save_npz writes one)") from error


def read_npz_shape(path: Path) -> tuple[int, int]:
    """Reads only the shape of a matrix: its rows and columns.

    Raises:
        DataError: the file is no sparse matrix, or of a size that cannot be.
    """
    with _opened_matrix(path) as file, np.load(file, allow_pickle=False) as arrays:
        rows, columns = (int(count) for count in arrays["shape"])
    for name, count in (("rows", rows), ("columns", columns)):
        if not 0 <= count <= MAX_INDEX:
            raise DataError(f"{path}: matrix has {count} {name}, not between 0 and {MAX_INDEX}")
    size = path.stat().st_size
    if rows > _ROWS_PER_BYTE * size:
        raise DataError(
            f"{path}: matrix has {rows} rows, more than a file of {size} bytes can hold"
        )
    return rows, columns


def _read_matrix(path: Path, marks: bool = False) -> CSR:
    """A matrix with values of float32; as ``marks``, only whether they are zero.

    Numbers that are not zero may be in float32.
    """
    from scipy import sparse  # Imported here: it takes long, and few files need it.

    with _opened_matrix(path) as file:
        with counted_bytes(file, path.stat().st_size, str(path)) as counted:
            matrix = sparse.load_npz(counted)
        # SciPy's compiled conversions trust these numbers as places in memory.
        if hasattr(matrix, "indptr"):
            matrix.check_format(full_check=True)
            if np.any(np.diff(matrix.indptr) < 0):
                raise ValueError("index pointers decrease")
        elif matrix.format == "dia":
            if np.any(np.abs(matrix.offsets.astype(np.int64)) > max(matrix.shape)):
                raise ValueError("an offset is beyond the matrix")
        elif matrix.format == "coo":
            matrix.has_canonical_format = True  # Else the conversion would sum duplicates.
        matrix = matrix.tocsr()
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"{path}: values are of type {matrix.dtype}, not real numbers")
    with np.errstate(over="ignore"):
        values = matrix.data.astype(np.float32, copy=False)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        place = _entry_place(matrix, bad[0])
        raise DataError(f"{path}: value {matrix.data[bad[0]]} at {place} is not a finite float32")
    matrix.data = matrix.data != 0 if marks else values
    _check_distinct(path, matrix)
    indices = matrix.indices.astype(np.int32, copy=False)
    rows = CSR(matrix.indptr.astype(np.int64, copy=False), indices, matrix.data)
    return rows.without_zeros()


def _check_distinct(path: Path, matrix) -> None:
    if matrix.has_canonical_format:
        return
    matrix = matrix.sorted_indices()  # A copy: the entries of the file keep their order.
    same = matrix.indices[1:] == matrix.indices[:-1]
    begins = matrix.indptr[1:-1]
    same[begins[(begins > 0) & (begins < matrix.nnz)] - 1] = False
    twice = np.flatnonzero(same)
    if len(twice):
        raise DataError(f"{path}: {_entry_place(matrix, twice[0])} has more than one entry")


def _entry_place(matrix, at: int) -> str:
    row = np.searchsorted(matrix.indptr, at, side="right") - 1
    return f"({row}, {matrix.indices[at]})"
