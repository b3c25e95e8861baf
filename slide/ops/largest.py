"""The largest scores of rows: of dense blocks, of products of sparse rows, of rounded lists."""

from typing import NamedTuple

import numpy as np

from slide.ops.compile import AHEAD, helper, parallel, prange, prefetch_row, serial
from slide.ops.ragged import sort_pairs

# What a sum of 0 is kept as, because 0 means that an output was not seen.
_SEEN = -np.finfo(np.float32).tiny
# Lists in a group, whose largest bound is kept: about the root of the number of all lists.
_GROUP = 64
# What a list that a query has seen is kept as, and positions of groups without a list.
_LEAST_KEY = np.iinfo(np.int32).min


@serial
def replace_least(scores, ids, score, number):
    """Replace the least score of a binary heap, and its id."""
    at, size = 0, len(scores)
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and scores[child + 1] < scores[child]:
            child += 1
        if scores[child] >= score:
            break
        scores[at], ids[at] = scores[child], ids[child]
        at = child
    scores[at], ids[at] = score, number


@serial
def add_to_sum(total, seen, count, n, value):
    """Add ``value`` to the sum of output ``n``; returns how many outputs have sums now.

    total (N,) float32, zero where an output is new; seen (N + 1,) int32, the first ``count``
    outputs that have sums.
    """
    old = total[n]
    # In float32, in which it is kept: a number that is not 0 may become 0.
    found = np.float32(old + value)
    total[n] = found if found != 0 else _SEEN
    # Without branches, because a processor cannot foretell what is new.
    seen[count] = n
    return count + (old == 0)


@serial
def leave_out(total, outputs):
    """Give some outputs sums that are below all others, where they have any; see `add_to_sum`."""
    for n in outputs:
        if total[n] != 0:
            total[n] = _SEEN


@serial
def best_first(scores, ids):
    """Sort pairs by their scores, the largest first; of equal ones the first stays the first."""
    sort_pairs(-scores, scores, ids)


@parallel
def keep_largest(scores, first, best, ids):
    """Keep the k largest scores of each row in ``best``, and their outputs ``first + j``."""
    for b in prange(len(scores)):
        own, numbers = best[b], ids[b]
        for j in range(scores.shape[1]):
            if scores[b, j] > own[0]:
                replace_least(own, numbers, scores[b, j], first + j)


@parallel
def keep_largest_bounds(products, of_query, of_row, biases, first, best, ids):
    """`keep_largest` of upper bounds ``products + of_query * of_row + biases``."""
    for b in prange(len(products)):
        own, numbers, error = best[b], ids[b], of_query[b]
        for j in range(products.shape[1]):
            bound = products[b, j] + error * of_row[j] + biases[j]
            if bound > own[0]:
                replace_least(own, numbers, bound, first + j)


@parallel
def top_products(x, lists, left_out, sums, touched, ids, scores):
    """The largest positive entries of each row of ``x @ lists``, best first, without ``left_out``.

    x `CSR` (B, D); lists `CSR` (D, N); left_out `Pattern` of B rows; sums (T, N) float32 scratch of
    zeros, touched (T, N + 1) int32 scratch; ids (B, k) int32, -1 before; scores (B, k) float32,
    zero before.
    """
    threads = len(sums)
    for t in prange(threads):
        total, seen = sums[t], touched[t]
        for b in range(t, len(ids), threads):
            count = np.int64(0)
            for p in range(x.indptr[b], x.indptr[b + 1]):
                column, value = x.indices[p], x.values[p]
                own = slice(lists.indptr[column], lists.indptr[column + 1])
                outputs, weights = lists.indices[own], lists.values[own]
                for q in range(len(outputs)):
                    count = add_to_sum(total, seen, count, outputs[q], value * weights[q])
            leave_out(total, left_out.indices[left_out.indptr[b] : left_out.indptr[b + 1]])
            least = scores[b, 0]
            for i in range(count):
                n = seen[i]
                score = total[n]
                total[n] = 0
                if score > least:
                    replace_least(scores[b], ids[b], score, n)
                    least = scores[b, 0]
            best_first(scores[b], ids[b])


@helper
def _to_keys(bounds, keys):
    """Integers in the order of floats, since a loop over integers finds a maximum faster."""
    bits = bounds.view(np.int32)
    for i in range(len(bits)):
        # Of two negative floats, the larger one has the smaller bits.
        keys[i] = bits[i] ^ (bits[i] >> 31 & np.int32(0x7FFFFFFF))


@helper
def _maximum(keys):
    """The largest of some integers."""
    largest = np.int32(_LEAST_KEY)
    for i in range(len(keys)):
        largest = max(largest, keys[i])
    return largest


@helper
def _position(keys, key):
    """The first position of an integer that is among ``keys``."""
    at = 0
    while keys[at] != key:
        at += 1
    return at


@helper
def _scan_list(query, begin, end, codes, scales, biases, best, positions):
    """Score the rows of a list; each one above the least of the best replaces it."""
    for p in range(begin, end):
        total = np.float32(0)
        for j in range(len(query)):
            total += query[j] * np.float32(codes[p, j])
        score = scales[p] * total + biases[p]
        if score > best[0]:
            replace_least(best, positions, score, p)


@parallel
def scan_lists(queries, bounds, starts, codes, scales, biases, limit, best, positions, seen):
    """The largest scores of each query, in no order, from lists of rounded rows by their bounds.

    queries (B, D), bounds (B, L), the score that a row of a list may have; starts to biases see
    `RowLists`; limit: rows after which no further list begins; best (B, k), -inf before; positions
    (B, k), in codes; seen (B,), rows scored.
    """
    lists = bounds.shape[1]
    groups = -(-lists // _GROUP)
    for b in prange(len(queries)):
        query, own_best, own_positions, count = queries[b], best[b], positions[b], 0
        # Few of the lists are ever needed, so to sort them all would be a waste.
        keys, tops = np.full((groups, _GROUP), _LEAST_KEY, np.int32), np.empty(groups, np.int32)
        _to_keys(bounds[b], keys.ravel())
        for g in range(groups):
            tops[g] = _maximum(keys[g])
        while count < limit:
            top = _maximum(tops)
            g = _position(tops, top)
            at = _position(keys[g], top)
            number = g * _GROUP + at
            if top == _LEAST_KEY or bounds[b, number] <= own_best[0]:
                break
            begin, end = starts[number], starts[number + 1]
            _scan_list(query, begin, end, codes, scales, biases, own_best, own_positions)
            count += end - begin
            keys[g, at] = _LEAST_KEY
            tops[g] = _maximum(keys[g])
        seen[b] = count


# Bits of a float without its sign, and bits of infinity; a NaN has larger ones.
_NO_SIGN, _INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
# The codes of a row with a smaller scale are zeros.
_LEAST_SCALE = np.float32(1e-30)
# The squared spread of a list whose rows were too long for it to be known: it is seen first.
_UNKNOWN = 1e30


class RowLists(NamedTuple):
    """L lists that hold each of N rows once, rounded to 8 bits.

    starts (L + 1,) int64, where each list begins; ids (N,) int32, numbers of the rows, list by
    list; codes (N, D) int8; scales (N,) float32, by which codes are multiplied, NaN for a row that
    is not finite; biases (N,) float32, or zeros; means (L, D) float32 of the rounded rows, with a
    bias as one more coordinate; a row that is not finite counts as zeros; spreads (L,) float32, the
    root of the mean squared distance from this mean.
    """

    starts: np.ndarray
    ids: np.ndarray
    codes: np.ndarray
    scales: np.ndarray
    biases: np.ndarray
    means: np.ndarray
    spreads: np.ndarray


class ChangedRows(NamedTuple):
    """n rows to put into lists.

    rows (r, D) float32; bits the same memory as int32; biases (r,) float32; ids (n,) integers,
    which of the rows; positions (n,) int32, where in the lists: distinct, list by list.
    """

    rows: np.ndarray
    bits: np.ndarray
    biases: np.ndarray
    ids: np.ndarray
    positions: np.ndarray


@helper
def _scale(bits, r, width):
    """A 127th of the largest entry of row ``r``; NaN if an entry is not finite."""
    largest = np.int32(0)
    for j in range(width):
        largest = max(largest, bits[r, j] & _NO_SIGN)
    if largest >= _INFINITY:
        return np.float32(np.nan)
    return np.int32(largest).view(np.float32) / np.float32(127)


@helper
def _put_row(changed, i, lists, change):
    """Put one row at its position, and add what it changes in the sum of the rounded rows."""
    r, p, rows, codes = changed.ids[i], changed.positions[i], changed.rows, lists.codes
    width, biased = rows.shape[1], len(changed.biases) > 0
    scale, bias = _scale(changed.bits, r, width), changed.biases[r] if biased else np.float32(0)
    inverse = np.float32(1) / scale if scale > _LEAST_SCALE else np.float32(0)
    old, old_bias, new, new_bias = lists.scales[p], lists.biases[p], scale, bias
    if not (np.isfinite(old) and np.isfinite(old_bias)):
        old = old_bias = np.float32(0)
    if not (np.isfinite(new) and np.isfinite(new_bias)):
        new = new_bias = np.float32(0)
    squares, total = np.float32(0), 0.0
    for j in range(width):
        before = old * np.float32(codes[p, j])
        code = np.rint(rows[r, j] * inverse) if inverse > 0 else np.float32(0)
        after = new * code
        codes[p, j] = np.int8(code)
        change[j] += after - before
        squares += after * after - before * before
    if biased:
        change[width] += new_bias - old_bias
        # Biases may be far from 0 and near each other.
        total = np.float64(new_bias) * new_bias - np.float64(old_bias) * old_bias
    lists.scales[p], lists.biases[p] = scale, bias
    return total + squares


@helper
def _put_rows(changed, begin, end, lists, number):
    """Put some rows into one list; see `put_rows`."""
    means, count = lists.means, lists.starts[number + 1] - lists.starts[number]
    change, squares = np.zeros(means.shape[1], np.float32), 0.0
    for i in range(begin, end):
        if i + AHEAD < len(changed.ids):
            prefetch_row(changed.rows, changed.ids[i + AHEAD])
            prefetch_row(lists.codes, changed.positions[i + AHEAD])
        squares += _put_row(changed, i, lists, change)
    before, after = 0.0, 0.0
    for j in range(len(change)):
        mean = means[number, j]
        before += np.float64(mean) * mean
        mean = np.float32(mean + change[j] / count)
        after += np.float64(mean) * mean
        means[number, j] = mean
    # The mean square of a list is that of its mean and that of the distances from it.
    square = np.float64(lists.spreads[number]) ** 2 + before + squares / count - after
    lists.spreads[number] = np.sqrt(max(square, 0.0)) if square < _UNKNOWN else _UNKNOWN**0.5


@parallel
def put_rows(changed, bounds, numbers, lists):
    """Put rows into the positions of others; means and spreads of their lists follow.

    changed `ChangedRows`; bounds (m + 1,) int64, where the rows of each of m lists begin; numbers
    (m,) int64, these lists; a position with a scale of 0 counts as a row of zeros.
    """
    for t in prange(len(numbers)):
        _put_rows(changed, bounds[t], bounds[t + 1], lists, numbers[t])
