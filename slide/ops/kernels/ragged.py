"""Operations on rows of a ragged array: copy, clear, shorten, find entries that are not zero."""

from typing import NamedTuple

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.sparse import row_bounds

# Entries that are read before the next decision whether to stop; without blocks, the compiler makes
# no vector code.
STRIDE = 512


class RowRoom(NamedTuple):
    """Room for n sparse rows whose numbers of entries are not known before.

    starts (n,) int64, where the room of each row begins; counts (n,) int64 output, the number of
    its entries; columns (ascending in a row), values int32 and float32 output.
    """

    starts: np.ndarray
    counts: np.ndarray
    columns: np.ndarray
    values: np.ndarray


@parallel
def gather_ragged(indptr, data, rows, out_indptr, out):
    """Copy some rows.

    indptr (N + 1,) int64; data (nnz,) of any type; rows (B,) int64 in [0, N); out_indptr (B + 1,)
    int64 bounds of the copied rows; out (out_indptr[-1],) output of the type of data.
    """
    for i in prange(len(rows)):
        source = indptr[rows[i]]
        target = out_indptr[i]
        for k in range(out_indptr[i + 1] - target):
            out[target + k] = data[source + k]


def select_rows(indptr: np.ndarray, rows: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
    """Some rows of ragged arrays ``(nnz,)`` that share their bounds.

    indptr (B + 1,) int64 bounds; rows (R,) int64; arrays (nnz,) each, of any types. Returns the
    bounds of the selected rows, ``(R + 1,)`` int64, then the selected part of each array.
    """
    bounds = row_bounds(indptr[rows + 1] - indptr[rows])
    taken = [np.empty(bounds[-1], array.dtype) for array in arrays]
    for array, out in zip(arrays, taken, strict=True):
        gather_ragged(indptr, array, rows, bounds, out)
    return [bounds, *taken]


@parallel
def clear_rows(indptr, rows, values):
    """Write zeros into some rows.

    indptr (N + 1,) int64 bounds of the rows; rows (B,) int64 in [0, N); values (nnz,) of any type.
    """
    for i in prange(len(rows)):
        for k in range(indptr[rows[i]], indptr[rows[i] + 1]):
            values[k] = 0


@serial
def mark_nonzero_rows(indptr, values, marks):
    """Write which rows have a non-zero entry; NaN is not zero.

    The loop is serial: most rows are decided by their first entries, and for small batches waking
    the threads would take longer.

    indptr (N + 1,) int64 bounds of the rows; values (nnz,) floats; marks (N,) bool output.
    """
    for b in range(len(indptr) - 1):
        begin, end = indptr[b], indptr[b + 1]
        found = False
        while begin < end and not found:
            part = values[begin : min(begin + STRIDE, end)]
            found_here = False
            for k in range(len(part)):
                found_here |= part[k] != 0
            found = found_here
            begin += STRIDE
        marks[b] = found


@parallel
def gather_entries(values, positions, out):
    """Write ``out[i] = values[positions[i]]``.

    values (n,) of any type; positions (m,) int32 in [0, n); out (m,) output of the type of values.
    """
    for i in prange(len(positions)):
        out[i] = values[positions[i]]


@serial
def _copy(indices, values, out, first):
    for i in range(len(indices)):
        out.indices[first + i], out.values[first + i] = indices[i], values[i]


@serial
def shorten(indices, values, out_indices, out_values):
    """Keep the entries of the largest magnitude of a row, in order; of equal ones evenly many.

    Entries of a list are often equal, such as the entries of a binary feature. The first
    ones would all come from the same part of a file.

    indices (n,) integers; values (n,) int32 or floats; out_indices, out_values (k,) output, with 0
    < k <= n.
    """
    sizes = np.abs(values)
    for i in range(len(sizes)):
        if sizes[i] != sizes[i]:
            sizes[i] = -1  # NaN is the smallest.
    kept = len(out_indices)
    least = np.partition(sizes, len(sizes) - kept)[len(sizes) - kept]
    left, equal = kept, 0
    for size in sizes:
        left -= size > least
        equal += size == least
    k = seen = 0
    for i in range(len(sizes)):
        taken = sizes[i] > least
        if sizes[i] == least:
            taken = (seen + 1) * left // equal > seen * left // equal
            seen += 1
        if taken:
            out_indices[k], out_values[k] = indices[i], values[i]
            k += 1


@parallel
def shorten_rows(rows, out, num_tasks):
    """Keep the entries of the largest magnitude of each row, in order; of equal ones evenly many.

    rows `CSR` of N rows; out the same with bounds, and empty indices and values; num_tasks: number
    of parts of the work.
    """
    for t in prange(num_tasks):
        # Strided, because neighbours often have rows of similar length.
        for r in range(t, len(rows.indptr) - 1, num_tasks):
            begin, end = rows.indptr[r], rows.indptr[r + 1]
            first, stop = out.indptr[r], out.indptr[r + 1]
            indices, values = rows.indices[begin:end], rows.values[begin:end]
            if stop - first == end - begin:
                _copy(indices, values, out, first)
            elif stop > first:
                shorten(indices, values, out.indices[first:stop], out.values[first:stop])


@parallel
def count_nonzeros(matrix, counts):
    """Write the number of non-zero entries of each row; NaN is not zero.

    matrix (B, A) floats; counts (B,) int64 output.
    """
    for b in prange(len(matrix)):
        found = 0
        for j in range(matrix.shape[1]):
            found += matrix[b, j] != 0
        counts[b] = found


@parallel
def take_nonzeros(matrix, indptr, columns, values):
    """Write columns and values of the non-zero entries, row after row.

    matrix (B, A) floats; indptr (B + 1,) int64 bounds of the rows, from the counts of
    `count_nonzeros`; columns (nnz,) int32 output, ascending in a row; values (nnz,) output of the
    type of matrix.
    """
    for b in prange(len(matrix)):
        p = indptr[b]
        for j in range(matrix.shape[1]):
            if matrix[b, j] != 0:
                columns[p] = j
                values[p] = matrix[b, j]
                p += 1
