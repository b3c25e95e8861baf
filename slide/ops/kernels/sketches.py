"""Ranking the rows in hash buckets by their sketches.

A sketch is two lines of the cache. It has `CODES` numbers of 8 bits, which times its scale are a
rounded row in few directions, the score of the row for the mean input, its prior, and the norm of
the numbers in its second line, which says how much that line may add to a score.
"""

from typing import NamedTuple

import numpy as np

from slide.ops.kernels.compile import ask_for, helper, parallel, prange
from slide.ops.kernels.ragged import kth_largest

# Bytes of a sketch and of its first line; positions of its three floats, which come first; then
# follow the numbers.
WIDTH, LINE = 128, 64
SCALE, PRIOR, REST = 0, 1, 2
FIRST = 12
CODES = WIDTH - FIRST
NUMBERS = slice(FIRST, WIDTH)
# A row and its score as one integer; of equal scores that of the lower row is larger.
_ROWS = np.int64(0x7FFFFFFF)
# Sketches ahead: each is at a random address.
_AHEAD = 16
# The second line hardly ever adds more than this part of the largest sum that it may add: 3
# standard deviations of a sum of 64 products. So it is read of a fifth of the rows at most, and one
# in a hundred of the best rows is passed over. The largest sum rules out a fifth of the rows.
UNLIKELY = 3 / 8
# Rows of the head whose largest score is kept, and the key of a row that has no score.
_BLOCK = 32
_NO_KEY, _NO_SCORE = np.int32(np.iinfo(np.int32).min), np.float32(-np.inf)
# A shorter row is rounded to zeros.
SMALLEST = np.float32(1e-30)


class Head(NamedTuple):
    """Rows that each input looks at.

    ids (n,) int32; scales (n,) float32 of their sketches; priors (n,) float32 of their sketches.
    """

    ids: np.ndarray
    scales: np.ndarray
    priors: np.ndarray


@helper
def _ordered(score):
    """An int32 that is larger for a larger score, and the least one if it is no number or -inf."""
    bits = np.float32(score).view(np.int32)
    # Of two negative floats, the larger one has the smaller bits.
    key = bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))
    return key if score > _NO_SCORE else _NO_KEY


@helper
def _key(ordered, row):
    """An integer that holds the order of a score, and the row."""
    return (np.int64(ordered) << 32) | (_ROWS - row)


@helper
def _is_new(keys, key, known, row):
    """Whether a row is neither among the keys nor left out."""
    found = True  # Without branches: the loops are short.
    for i in range(len(keys)):
        found &= keys[i] != key
    for i in range(len(known)):
        found &= known[i] != row
    return found


@helper
def _replace_least(keys, key):
    """Put a key in place of the least one of a binary heap."""
    at, size = 0, len(keys)
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[at] = keys[child]
        at = child
    keys[at] = key


@helper
def _rank_head(products, head, known, keys):
    """Keep the best rows of the head; a row is there once."""
    n, k = len(products), len(keys) + len(known)
    blocks = (n + _BLOCK - 1) // _BLOCK
    ordered = np.empty(blocks * _BLOCK, np.int32)
    largest = np.empty(blocks, np.int32)
    for j in range(n):
        ordered[j] = _ordered(products[j] * head.scales[j] + head.priors[j])
    ordered[n:] = _NO_KEY
    for g in range(blocks):
        most = ordered[g * _BLOCK]
        for j in range(g * _BLOCK + 1, (g + 1) * _BLOCK):
            most = max(most, ordered[j])
        largest[g] = most
    # At least k rows have a score as large as the k-th of these.
    least = kth_largest(largest.copy(), k) if blocks >= k else _NO_KEY
    for g in range(blocks):
        if largest[g] < least:
            continue
        for j in range(g * _BLOCK, min((g + 1) * _BLOCK, n)):
            if ordered[j] >= least and ordered[j] > _NO_KEY:
                row = np.int64(head.ids[j])
                key = _key(ordered[j], row)
                if key > keys[0] and _is_new(keys[:0], key, known, row):
                    _replace_least(keys, key)


@parallel
def rank_buckets(
    products, head, queries, tables, codes, buckets, sketches, left_out, most, part, ids
):
    """The rows with the largest rounded scores in the head and in some buckets, the best first.

    Equal scores are in the order of the rows, so the order of rows in a bucket has no effect.

    products (B, n) float32, products of the inputs and the numbers of the head's sketches; head
    `Head` of n rows, which are in none of the buckets; queries (B, WIDTH) float32 inputs in few
    directions, at the positions of `NUMBERS`, and zeros before them; tables (T,) int64, the table
    of each bucket that a query looks into; codes (T, B) int32, which bucket of the table it is;
    buckets `hashing.Buckets` that keep all of their ids; sketches (N, WIDTH) int8 and (N, WIDTH /
    4) float32, the same memory; left_out `Pattern` of B rows, ids that are not returned; most: a
    bucket with more ids than this is passed over; part: float32, of the largest sum that second
    lines may add, what counts (see `UNLIKELY`); ids (B, k) int32 output. Returns ``(B,)`` int64,
    number of rows that each query looked at, with repetitions.
    """
    looked = np.zeros(len(queries), np.int64)
    starts, seen, pools = buckets.starts, buckets.seen, buckets.pool
    numbers, floats = sketches
    for b in prange(len(queries)):
        query = queries[b]
        known = left_out.indices[left_out.indptr[b] : left_out.indptr[b + 1]]
        keys = np.full(ids.shape[1], np.iinfo(np.int64).min, np.int64)
        _rank_head(products[b], head, known, keys)
        begins, sizes = np.empty(len(tables), np.int64), np.empty(len(tables), np.int64)
        for t in range(len(tables)):
            bucket = tables[t] * seen.shape[1] + codes[t, b]
            ask_for(seen, bucket)
            ask_for(starts, bucket)
        total = 0
        for t in range(len(tables)):
            size = np.int64(seen[tables[t], codes[t, b]])
            sizes[t] = size if size <= most else 0
            begins[t] = starts[tables[t], codes[t, b]]
            ask_for(pools, tables[t] * pools.shape[1] + begins[t])
            total += sizes[t]
        looked[b] = len(head.ids) + total
        # One list of all rows, since most buckets are too short to request memory ahead.
        rows = np.empty(total, np.int32)
        end = 0
        for t in range(len(tables)):
            for p in range(begins[t], begins[t] + sizes[t]):
                rows[end] = pools[tables[t], p]
                end += 1
        # First lines tell which rows are likely to be among the best: few of them.
        rest, least = np.float32(0), np.int32(keys[0] >> 32)
        for j in range(LINE, WIDTH):
            rest += query[j] * query[j]
        rest = part * np.sqrt(rest)
        first_lines, kept = np.empty(total, np.float32), 0
        for p in range(min(_AHEAD, total)):
            ask_for(numbers, np.int64(rows[p]) * WIDTH)
        for p in range(total):
            if p + _AHEAD < total:
                ask_for(numbers, np.int64(rows[p + _AHEAD]) * WIDTH)
            row, product = np.int64(rows[p]), np.float32(0)
            for j in range(LINE):
                product += query[j] * np.float32(numbers[row, j])
            largest = product + rest * floats[row, REST]
            ordered = _ordered(floats[row, SCALE] * largest + floats[row, PRIOR])
            if ordered > _NO_KEY and ordered >= least:
                ask_for(numbers, row * WIDTH + LINE)
                rows[kept], first_lines[kept] = row, product
                kept += 1
        for p in range(kept):
            row, product = np.int64(rows[p]), first_lines[p]
            for j in range(LINE, WIDTH):
                product += query[j] * np.float32(numbers[row, j])
            ordered = _ordered(floats[row, SCALE] * product + floats[row, PRIOR])
            key = _key(ordered, row)
            # A row may be in several of the buckets.
            if key > keys[0] and ordered > _NO_KEY and _is_new(keys, key, known, row):
                _replace_least(keys, key)
        keys.sort()
        for i in range(len(keys)):
            key = keys[len(keys) - 1 - i]
            empty = key == np.iinfo(np.int64).min
            ids[b, i] = -1 if empty else _ROWS - (key & _ROWS)
    return looked


@parallel
def sketch_rows(projected, offset, sketches):
    """Round projected rows; a row or a prior that is not finite gets a score of -inf.

    projected (n, k + 1) float32; offset (k + 1,) float32 that is subtracted; sketches (n, WIDTH)
    int8 and (n, WIDTH / 4) float32, the same memory, written.
    """
    numbers, floats = sketches
    k = projected.shape[1] - 1
    for i in prange(len(projected)):
        row, longest, finite = projected[i], np.float32(0), True
        for j in range(k):
            length = np.abs(row[j] - offset[j])
            finite &= length < np.inf
            longest = max(longest, length)
        prior = row[k] - offset[k]
        known = finite and np.abs(prior) < np.inf
        scale = longest / np.float32(127) if known else np.float32(0)
        for j in range(WIDTH):
            numbers[i, j] = 0
        if known:
            for j in range(k):
                number = (row[j] - offset[j]) / max(scale, SMALLEST)
                numbers[i, FIRST + j] = np.int8(np.rint(number))  # To even, as torch rounds.
        rest = np.int32(0)
        for j in range(LINE, WIDTH):
            rest += np.int32(numbers[i, j]) * np.int32(numbers[i, j])
        floats[i, REST] = np.sqrt(np.float32(rest))
        floats[i, SCALE] = scale
        floats[i, PRIOR] = prior if known else np.float32(-np.inf)


@parallel
def largest_scores(sketches, variances, deviations, out):
    """The score that a row may have for one of few inputs.

    sketches (n, WIDTH) int8 and (n, WIDTH / 4) float32, the same memory; variances (WIDTH,)
    float32, of inputs in the directions, at the positions of `NUMBERS`; deviations: number of
    standard deviations that are added to the prior; out (n,) float32 output.
    """
    numbers, floats = sketches
    for i in prange(len(numbers)):
        total = np.float32(0)
        for j in range(WIDTH):
            number = np.float32(numbers[i, j])
            total += number * number * variances[j]
        out[i] = floats[i, PRIOR] + deviations * floats[i, SCALE] * np.sqrt(total)
