"""Ranking the rows in hash buckets by their sketches.

A sketch is one line of the cache: `CODES` numbers of 8 bits, which times the scale after them are a
rounded row in few directions, and the score of the row for the mean input, its prior.
"""

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.ops.kernels.prefetch import ask_for

# Bytes of a sketch, the numbers in it, and the places of its scale and its prior among its floats.
WIDTH = 128
CODES = 120
SCALE, PRIOR = 30, 31
# A row and its score as one integer; of equal scores that of the lower row is larger.
_ROWS = np.int64(0x7FFFFFFF)
# Sketches ahead: each is at a random address.
_AHEAD = 12


@serial
def _key(score, row):
    """An integer that is larger for a larger score, and that holds the row."""
    bits = np.int64(np.float32(score).view(np.int32))
    # Of two negative floats, the larger one has the smaller bits.
    return ((bits ^ ((bits >> 63) & _ROWS)) << 32) | (_ROWS - row)


@serial
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


@serial
def _prefetch_sketch(sketches, row):
    """Request both lines of a sketch."""
    ask_for(sketches, np.int64(row) * WIDTH)
    ask_for(sketches, np.int64(row) * WIDTH + WIDTH // 2)


@parallel
def rank_buckets(queries, tables, codes, buckets, sketches, floats, left_out, largest, ids):
    """The rows with the largest rounded scores among those in some buckets, the best first.

    Equal scores are in the order of the rows, so the order of rows in a bucket has no effect.

    Args:
        queries: ``(B, WIDTH)`` float32 inputs in few directions; zeros after the first `CODES`.
        tables: ``(T,)`` int64, the table of each bucket that a query looks into.
        codes: ``(T, B)`` int32, which bucket of the table it is.
        buckets: `slide.ops.kernels.buckets.Buckets` that keep all of their ids.
        sketches: ``(N, WIDTH)`` int8.
        floats: ``(N, WIDTH / 4)`` float32, the same memory.
        left_out: `slide.sparse.Pattern` of B rows, ids that are not returned.
        largest: a bucket with more ids than this is passed over, but for the first of the T.
        ids: ``(B, k)`` int32 output; -1 after the last row.

    Returns:
        ``(B,)`` int64, number of rows that each query looked at, with repetitions.
    """
    looked = np.zeros(len(queries), np.int64)
    starts, seen, pools = buckets.starts, buckets.seen, buckets.pool
    for b in prange(len(queries)):
        query = queries[b]
        known = left_out.indices[left_out.indptr[b] : left_out.indptr[b + 1]]
        keys = np.full(ids.shape[1], np.iinfo(np.int64).min, np.int64)
        for t in range(len(tables)):
            begin = np.int64(starts[tables[t], codes[t, b]])
            size = np.int64(seen[tables[t], codes[t, b]])
            if t > 0 and size > largest:
                continue
            looked[b] += size
            pool = pools[tables[t], begin : begin + size]
            for p in range(min(_AHEAD, size)):
                _prefetch_sketch(sketches, pool[p])
            for p in range(size):
                if p + _AHEAD < size:
                    _prefetch_sketch(sketches, pool[p + _AHEAD])
                row = np.int64(pool[p])
                total = np.float32(0)
                for j in range(WIDTH):
                    total += query[j] * np.float32(sketches[row, j])
                score = floats[row, SCALE] * total + floats[row, PRIOR]
                key = _key(score, row)
                # Nothing is as large as itself if it is no number.
                if key > keys[0] and score > -np.inf:
                    fresh = True  # A row may be in several of the buckets.
                    for i in range(len(keys)):
                        fresh &= keys[i] != key
                    for i in range(len(known)):
                        fresh &= known[i] != row
                    if fresh:
                        _replace_least(keys, key)
        keys.sort()
        for i in range(len(keys)):
            key = keys[len(keys) - 1 - i]
            empty = key == np.iinfo(np.int64).min
            ids[b, i] = -1 if empty else _ROWS - (key & _ROWS)
    return looked
