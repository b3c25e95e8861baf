"""Ridge regressions of each item on the items that are most often with it."""

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.ops.kernels.largest import replace_least

# Added to the number of rows of an item, so that rare ones do not seem close.
_PRIOR = np.float32(5)


@serial
def _closest(lists, counts, n, num_features, close):
    """Put the items closest to item ``n`` into ``close``, ascending; returns their number."""
    scores, found = np.zeros(len(close), np.float32), 0
    close[:] = -1
    for p in range(lists.indptr[n], lists.indptr[n + 1]):
        item = lists.indices[p]
        if item != n and item < num_features:
            score = lists.values[p] / np.sqrt(counts[item] + _PRIOR)
            if score > scores[0]:
                replace_least(scores, close, score, item)
    close[:] = np.sort(close)
    for i in range(len(close)):
        if close[i] >= 0:
            close[found] = close[i]
            found += 1
    return found


@serial
def _solve(gram, right, sweeps, weights):
    """Solve ``gram @ weights = right`` by passes over the weights; returns whether they settle.

    Places of ``gram`` and ``right`` begin with 1. ``gram`` may be larger: a part of it would have
    no fixed strides, and no vector code.
    """
    weights[:] = 0
    first, change = np.float32(0), np.float32(0)
    for sweep in range(sweeps):
        change = np.float32(0)
        for i in range(len(weights)):
            product = np.float32(0)
            for j in range(len(weights)):
                product += gram[i + 1, j + 1] * weights[j]
            step = (right[i + 1] - product) / gram[i + 1, i + 1]
            weights[i] += step
            change = max(change, abs(step))
        first = change if sweep == 0 else first
    return change <= first  # Not if they are infinite.


@serial
def _dominate(gram, size):
    """Enlarge the diagonal so that passes over the weights settle."""
    for i in range(1, size + 1):
        total = np.float32(1)
        for j in range(1, size + 1):
            total += gram[i, j] if j != i else np.float32(0)
        gram[i, i] = max(gram[i, i], total)


@serial
def _fill(lists, counts, n, items, penalty, place, gram, right):
    """The sums of products of ``items`` with each other, and with item ``n``, from place 1 on.

    Place 0 takes what belongs to other items, because a processor cannot foretell which do.
    """
    size = len(items)
    for i in range(size):
        place[items[i]] = i + 1
        gram[i + 1, : size + 1] = 0
    for p in range(lists.indptr[n], lists.indptr[n + 1]):
        right[place[lists.indices[p]]] = lists.values[p]
    for i in range(size):
        for p in range(lists.indptr[items[i]], lists.indptr[items[i] + 1]):
            gram[i + 1, place[lists.indices[p]]] = lists.values[p]
    for i in range(1, size + 1):
        for j in range(1, i):  # A shortened list may lack what the other one has.
            gram[i, j] = gram[j, i] = max(gram[i, j], gram[j, i])
        gram[i, i] = counts[items[i - 1]] + penalty
    for i in range(size):
        place[items[i]] = 0


@serial
def _put(items, gram, right, sweeps, found, row):
    """Write the weights of ``items`` into a row of ``found``."""
    begin, end = found.starts[row], found.starts[row] + len(items)
    found.counts[row], found.columns[begin:end] = len(items), items
    if not _solve(gram, right, sweeps, found.values[begin:end]):
        # Of shortened lists the products may be those of no rows: then they have no solution.
        _dominate(gram, len(items))
        _solve(gram, right, sweeps, found.values[begin:end])


@parallel
def regress_items(lists, counts, first, num_features, penalty, sweeps, places, close, gram, found):
    """Regress items on the items that are most often with them, by squared error and |w|^2.

    Args:
        lists: `slide.sparse.CSR` ``(N, N)``: for each item the items that share rows with it, and
            the number of these rows.
        counts: ``(N,)`` int64, the number of rows of each item.
        first: the first item that is regressed.
        num_features: items from here on have no weights.
        penalty: factor of |w|^2.
        sweeps: number of passes over the weights of an item.
        places: ``(T, N)`` int32 scratch, zero before and after.
        close: ``(T, K)`` int32 scratch; K is the largest number of weights of an item.
        gram: ``(T, K + 1, K + 1)`` float32 scratch.
        found: `slide.ops.kernels.ragged.RowRoom` of the items from ``first`` on, output.
    """
    threads = len(places)
    for t in prange(threads):
        right = np.empty(close.shape[1] + 1, np.float32)
        # Strided, because neighbours often have as many rows.
        for row in range(t, len(found.starts), threads):
            n = first + row
            size = _closest(lists, counts, n, num_features, close[t])
            items = close[t, :size]
            _fill(lists, counts, n, items, penalty, places[t], gram[t], right)
            _put(items, gram[t], right, sweeps, found, row)
