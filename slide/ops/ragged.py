"""Operations on rows of a ragged array: copy, clear, shorten, find entries that are not zero."""

from typing import NamedTuple

import numpy as np

from slide.ops.compile import (
    AHEAD,
    helper,
    parallel,
    prange,
    prefetch_entries,
    serial,
)
from slide.sparse import row_bounds

# Entries that are read before the next decision whether to stop; without blocks, the compiler makes
# no vector code.
STRIDE = 512
# Entries of a row that are requested: 80 are five cache lines of 4-byte numbers.
_FIRST = 80


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
    """Copy rows of ``data`` with bounds ``indptr`` to ``out`` with bounds ``out_indptr``."""
    for i in prange(len(rows)):
        if i + AHEAD < len(rows):  # The begin of a row; the processor asks for what follows it.
            begin = indptr[rows[i + AHEAD]]
            prefetch_entries(data, begin, min(begin + _FIRST, indptr[rows[i + AHEAD] + 1]))
        source = indptr[rows[i]]
        target = out_indptr[i]
        for k in range(out_indptr[i + 1] - target):
            out[target + k] = data[source + k]


def select_rows(indptr: np.ndarray, rows: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
    """The bounds ``(R + 1,)`` of some rows ``(R,)``, then these rows of each ragged array."""
    rows = rows.astype(np.int64, copy=False)
    bounds = row_bounds(indptr[rows + 1] - indptr[rows])
    taken = [np.empty(bounds[-1], array.dtype) for array in arrays]
    for array, out in zip(arrays, taken, strict=True):
        gather_ragged(indptr, array, rows, bounds, out)
    return [bounds, *taken]


@parallel
def clear_rows(indptr, rows, values):
    """Write zeros into some rows of ``values`` with bounds ``indptr``."""
    for i in prange(len(rows)):
        for k in range(indptr[rows[i]], indptr[rows[i] + 1]):
            values[k] = 0


@serial
def mark_nonzero_rows(indptr, values, marks):
    """Write which rows have a non-zero entry; serial, as first entries decide most."""
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
    """Write ``out[i] = values[positions[i]]``."""
    for i in prange(len(positions)):
        out[i] = values[positions[i]]


@helper
def _copy(indices, values, out, first):
    for i in range(len(indices)):
        out.indices[first + i], out.values[first + i] = indices[i], values[i]


@helper
def add_row(x, row, dense):
    """Add row ``row`` of a `CSR` to a dense vector."""
    for p in range(x.indptr[row], x.indptr[row + 1]):
        dense[x.indices[p]] += x.values[p]


@helper
def clear_row(x, row, dense):
    """Write zeros where row ``row`` of a `CSR` has entries."""
    for p in range(x.indptr[row], x.indptr[row + 1]):
        dense[x.indices[p]] = 0


@helper
def row_product(x, row, dense):
    """The product of row ``row`` of a `CSR` with a dense vector."""
    total = 0.0
    for p in range(x.indptr[row], x.indptr[row + 1]):
        total += dense[x.indices[p]] * x.values[p]
    return total


# Numbers that are sorted by insertion, before runs of them are merged: 20, as numba does.
_RUN = 20


@helper
def sorted_order(keys):
    """``np.argsort(keys, kind="stable")``, which takes numba seconds to compile."""
    count = len(keys)
    order = np.empty(count, np.int64)
    for i in range(count):
        at, first = i, i - i % _RUN
        while at > first and keys[i] < keys[order[at - 1]]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
    if count <= _RUN:
        return order
    other = np.empty(count, np.int64)
    size = _RUN
    while size < count:
        for begin in range(0, count, 2 * size):
            i, middle, end = begin, min(begin + size, count), min(begin + 2 * size, count)
            j = middle
            for k in range(begin, end):
                if j == end or (i < middle and not keys[order[j]] < keys[order[i]]):
                    other[k] = order[i]
                    i += 1
                else:
                    other[k] = order[j]
                    j += 1
        order, other = other, order
        size *= 2
    return order


@helper
def sort_pairs(keys, one, other):
    """Put pairs in the order of their keys, of which equal ones stay as they are."""
    order, ones, others = sorted_order(keys), one.copy(), other.copy()
    for i in range(len(order)):
        one[i], other[i] = ones[order[i]], others[order[i]]


@helper
def kth_largest(values, k):
    """The k-th largest number by quickselect, which changes the order of the numbers."""
    first, last, at = 0, len(values) - 1, len(values) - k
    while first < last:
        pivot = values[(first + last) >> 1]
        i, j = first, last
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if at <= j:
            last = j
        elif at >= i:
            first = i
        else:
            break
    return values[at]


@helper
def shorten(indices, values, out_indices, out_values):
    """Keep the entries of the largest magnitude, in order; of equal ones evenly many."""
    sizes = np.empty(len(values), values.dtype)
    for i in range(len(sizes)):
        sizes[i] = abs(values[i]) if values[i] == values[i] else -1  # NaN is the smallest.
    kept = len(out_indices)
    least = kth_largest(sizes.copy(), kept)
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
    """`shorten` the rows of a `CSR` to those of ``out``, whose bounds are given."""
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
    """Write the number of non-zero entries of each row; NaN is not zero."""
    for b in prange(len(matrix)):
        found = 0
        for j in range(matrix.shape[1]):
            found += matrix[b, j] != 0
        counts[b] = found


@parallel
def take_nonzeros(matrix, indptr, columns, values):
    """Write columns and values of the non-zero entries, whose bounds `count_nonzeros` gave."""
    for b in prange(len(matrix)):
        p = indptr[b]
        for j in range(matrix.shape[1]):
            if matrix[b, j] != 0:
                columns[p] = j
                values[p] = matrix[b, j]
                p += 1
