"""Balanced clusters of sparse rows by cosine: sums of rows, and nodes that are halved."""

import numpy as np

from slide.ops.compile import helper, parallel, prange
from slide.ops.ragged import add_row, clear_row, row_product, sort_pairs, sorted_order


@helper
def _sum_list(lists, x, n, dense, found):
    columns, values = found.columns[found.starts[n] :], found.values[found.starts[n] :]
    count, square = 0, 0.0
    for q in range(lists.indptr[n], lists.indptr[n + 1]):
        add_row(x, lists.indices[q], dense)
    for q in range(lists.indptr[n], lists.indptr[n + 1]):
        row = lists.indices[q]
        for p in range(x.indptr[row], x.indptr[row + 1]):
            column = x.indices[p]
            value = dense[column]
            if value != 0:
                columns[count], values[count], dense[column] = column, value, 0
                square += value * value
                count += 1
    sort_pairs(columns[:count], columns[:count], values[:count])
    length = np.float32(max(np.sqrt(square), 1e-9))
    for i in range(count):
        values[i] /= length
    # Not in the parallel loop, in which numba loses what is written to an array of a tuple.
    found.counts[n] = count


@parallel
def sum_rows(lists, x, dense, found):
    """The sum of each of n lists of rows, at length 1.

    lists `Pattern` of n lists of rows of x; x `CSR`, D columns; dense (T, D) float32 scratch, zero
    before and after; found `RowRoom` for the sums, of all columns of the rows of a list, output.
    """
    threads = len(dense)
    for t in prange(threads):
        for n in range(np.int64(t), len(found.starts), threads):
            _sum_list(lists, x, n, dense[t], found)


@helper
def _farthest(x, rows, row, dense):
    """The position of the row that is least like ``row``."""
    add_row(x, row, dense)
    least, position = np.inf, 0
    for i in range(len(rows)):
        near = row_product(x, rows[i], dense)
        if near < least:
            least, position = near, i
    clear_row(x, row, dense)
    return position


@helper
def _centre(x, rows, dense):
    """Write the sum of rows, and return its length."""
    for i in range(len(rows)):
        add_row(x, rows[i], dense)
    square = 0.0
    for i in range(len(rows)):
        square += row_product(x, rows[i], dense)
    return max(np.sqrt(max(square, 0.0)), 1e-9)


@helper
def _halve(x, rows, passes, one, other):
    """Order rows: each half is near the centre of that half."""
    half = (len(rows) + 1) // 2
    first = rows[_farthest(x, rows, rows[0], one)]
    second = rows[_farthest(x, rows, first, one)]
    ones, others = np.array([first]), np.array([second])
    nearer = np.empty(len(rows))
    for _ in range(passes):
        lengths = _centre(x, ones, one), _centre(x, others, other)
        for i in range(len(rows)):
            near = row_product(x, rows[i], one) / lengths[0]
            nearer[i] = row_product(x, rows[i], other) / lengths[1] - near
        for i in range(len(ones)):
            clear_row(x, ones[i], one)
        for i in range(len(others)):
            clear_row(x, others[i], other)
        order = sorted_order(nearer)
        moved = False
        for i in range(half):
            moved |= order[i] >= half
        rows[:] = rows[order]
        if not moved and len(ones) == half:
            break
        ones, others = rows[:half].copy(), rows[half:].copy()


@parallel
def halve_nodes(x, members, bounds, passes, dense):
    """Order the rows of each of n nodes: the first half, rounded up, is one new node.

    Balanced spherical 2-means (Prabhu et al. 2018, "Parabel", section 3.1). It starts with two rows
    that are far from each other.

    x `CSR` of rows at length 1, D columns; members (R,) int64 rows, ordered in place; bounds (n +
    1,) int64, where the rows of each node begin; passes: at most; dense (T, 2, D) float32 scratch,
    zero before and after.
    """
    threads = len(dense)
    for t in prange(threads):
        for n in range(t, len(bounds) - 1, threads):
            rows = members[bounds[n] : bounds[n + 1]]
            if len(rows) > 1:
                _halve(x, rows, passes, dense[t, 0], dense[t, 1])
