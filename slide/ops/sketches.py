"""Ranking rows by their sketches.

A sketch is one line of the cache (`LINE` bytes), or two (`WIDTH`). It has numbers of 8 bits, which
times its scale are a rounded row in few directions, and the score of the row for the mean input,
its prior.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view, on_host
from slide.ops.compile import AHEAD, ask_for, helper, parallel, prange, prefetch_row
from slide.ops.dispatch import operation
from slide.ops.products import bfloat16_bits, first_of_equal
from slide.ops.vectors import BLOCK, lowest_bit, rounded_scores

# Bytes of a sketch and of its first line; positions of its three floats, which come first; then
# follow the numbers.
WIDTH, LINE = 128, 64
SCALE, PRIOR = 0, 1
FIRST = 12
CODES = WIDTH - FIRST
NUMBERS = slice(FIRST, WIDTH)
# A row and its score as one integer; of equal scores that of the lower row is larger.
_ROWS = np.int64(0x7FFFFFFF)
# Sketches ahead: each is at a random address.
_AHEAD = 16
_NO_KEY, _NO_SCORE = np.int32(np.iinfo(np.int32).min), np.float32(-np.inf)
# Numbers of rows and queries whose scores are held at a time.
_SCORES = 2**24
# A shorter row is rounded to zeros.
SMALLEST = np.float32(1e-30)


class Rows(NamedTuple):
    """Rows that all inputs look at.

    ids (n,) int32; scales (n,) float32 of their sketches; priors (n,) float32 of their sketches.
    """

    ids: np.ndarray
    scales: np.ndarray
    priors: np.ndarray


def no_keys(shape: tuple[int, int]) -> np.ndarray:
    """Heaps ``(B, k)`` of the best rows, without any row so far."""
    return np.full(shape, np.iinfo(np.int64).min, np.int64)


def at_least(keys: np.ndarray) -> np.ndarray:
    """Keys without a row; any row replaces them whose score is at least that of these keys."""
    return keys & ~np.int64(0xFFFFFFFF)


def is_no_row(keys: np.ndarray) -> np.ndarray:
    """Which keys are still those of `at_least` or of `no_keys`."""
    return keys & _ROWS == 0


def rows_of(keys: np.ndarray) -> np.ndarray:
    """The rows ``(B, k)`` int32 in heaps, the best first; -1 after the last one."""
    keys = np.sort(keys, axis=1)[:, ::-1]
    return np.where(is_no_row(keys), -1, _ROWS - (keys & _ROWS)).astype(np.int32)


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
    for i in range(len(keys)):  # A head has scores of rounded inputs, so other keys of its rows.
        found &= (keys[i] ^ key) & _ROWS != 0
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
def _least(keys):
    """The least score among the keys of a heap; -inf if it is not full."""
    ordered = np.int32(keys[0] >> 32)
    bits = ordered ^ ((ordered >> np.int32(31)) & np.int32(0x7FFFFFFF))
    return _NO_SCORE if ordered == _NO_KEY else np.int32(bits).view(np.float32)


@parallel
def rank_rows(products, factors, rows, left_out, keys):
    """Keep the rows with the largest rounded scores, of some rows that each query looks at.

    products (B, n) int32, of the rounded queries and the numbers of the sketches; factors (B,)
    float32, scales of the queries; rows `Rows`, n of them; left_out `Pattern` of B rows, ids
    that are not kept; keys (B, k) int64, heaps of the best rows so far, written: `no_keys` or
    `at_least` before the first ones.
    """
    ids, scales, priors = rows.ids, rows.scales, rows.priors
    n = len(ids)
    for b in prange(len(products)):
        known = left_out.indices[left_out.indptr[b] : left_out.indptr[b + 1]]
        numbers, factor, heap = products[b], factors[b], keys[b]
        least, scores = _least(heap), np.empty(BLOCK, np.float32)
        none = heap[:0]
        for begin in range(0, n, BLOCK):
            if begin + BLOCK <= n:
                found = rounded_scores(numbers, factor, scales, priors, begin, least, scores)
            else:
                found = np.uint64(0)
                for j in range(n - begin):
                    i = begin + j
                    scores[j] = np.float32(numbers[i]) * (factor * scales[i]) + priors[i]
                    found |= np.uint64(scores[j] >= least) << np.uint64(j)
            while found:
                j = np.int64(lowest_bit(found))
                found &= found - np.uint64(1)
                row = np.int64(ids[begin + j])
                key = _key(_ordered(scores[j]), row)
                if scores[j] > _NO_SCORE and key > heap[0] and _is_new(none, key, known, row):
                    _replace_least(heap, key)
            least = _least(heap)


@parallel
def rank_buckets(queries, tables, codes, buckets, sketches, left_out, keys):
    """Keep the rows with the largest rounded scores in some buckets.

    Of equal scores the lower row is kept, so the order of rows in a bucket has no effect.

    queries (B, LINE) float32 inputs in few directions, at the positions of `NUMBERS`, and zeros
    before them; tables (T,) int64, the table of each bucket that a query reads; codes (T, B) int32,
    which bucket of the table it is; buckets `hashing.Buckets`; sketches (N, LINE) int8 and
    (N, LINE / 4) float32, the same memory; left_out, keys: see `rank_rows`. Returns ``(B,)`` int64,
    number of rows that each query scanned; a row counts as often as it is in a bucket.
    """
    scanned = np.zeros(len(queries), np.int64)
    starts, rooms, seen, pools = buckets.starts, buckets.rooms, buckets.seen, buckets.pool
    numbers, floats = sketches
    for b in prange(len(queries)):
        query, heap = queries[b], keys[b]
        known = left_out.indices[left_out.indptr[b] : left_out.indptr[b + 1]]
        begins, sizes = np.empty(len(tables), np.int64), np.empty(len(tables), np.int64)
        for t in range(len(tables)):
            bucket = tables[t] * seen.shape[1] + codes[t, b]
            ask_for(seen, bucket)
            ask_for(starts, bucket)
            ask_for(rooms, bucket)
        total = 0
        for t in range(len(tables)):
            l, c = tables[t], codes[t, b]
            sizes[t] = min(seen[l, c], rooms[l, c])
            begins[t] = starts[l, c]
            ask_for(pools, l * pools.shape[1] + begins[t])
            total += sizes[t]
        scanned[b] = total
        # One list of all rows, since most buckets are too short to request memory ahead.
        rows, end = np.empty(total, np.int32), 0
        for t in range(len(tables)):
            for p in range(begins[t], begins[t] + sizes[t]):
                rows[end] = pools[tables[t], p]
                end += 1
        for p in range(min(_AHEAD, total)):
            ask_for(numbers, np.int64(rows[p]) * LINE)
        for p in range(total):
            if p + _AHEAD < total:
                ask_for(numbers, np.int64(rows[p + _AHEAD]) * LINE)
            row, product = np.int64(rows[p]), np.float32(0)
            for j in range(LINE):
                product += query[j] * np.float32(numbers[row, j])
            ordered = _ordered(floats[row, SCALE] * product + floats[row, PRIOR])
            key = _key(ordered, row)
            # A row may be in several of the buckets.
            if key > heap[0] and ordered > _NO_KEY and _is_new(heap, key, known, row):
                _replace_least(heap, key)
    return scanned


@parallel
def round_rows(rows, ids, vector, rounded, products):
    """Write the `bfloat16_bits` of some rows, then zeros, and products of the rows and a vector.

    rows (N, D) float32; ids (n,) int32; vector (D,) float32; rounded (at least n, D) uint16,
    products (n,) float32, written.
    """
    bits = rows.view(np.uint32)
    for u in prange(len(ids)):
        if u + AHEAD < len(ids):
            prefetch_row(rows, ids[u + AHEAD])
        row, own, total = rows[ids[u]], bits[ids[u]], np.float32(0)
        for d in range(len(row)):
            total += row[d] * vector[d]
            rounded[u, d] = bfloat16_bits(row[d], own[d])
        products[u] = total
    rounded[len(ids) :] = 0


@parallel
def sketch_rows(projected, offset, sketches):
    """Round projected rows; a row or a prior that is not finite gets a score of -inf.

    projected (n, k + 1) float32; offset (k + 1,) float32 that is subtracted; sketches (n, W) int8
    and (n, W / 4) float32, the same memory, written; W is `WIDTH`, or `LINE` for fewer numbers.
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
        for j in range(numbers.shape[1]):
            numbers[i, j] = 0
        if known:
            for j in range(k):
                number = (row[j] - offset[j]) / max(scale, SMALLEST)
                numbers[i, FIRST + j] = np.int8(np.rint(number))  # To even, as torch rounds.
        floats[i, SCALE] = scale
        floats[i, PRIOR] = prior if known else np.float32(-np.inf)


@parallel
def _largest_scores(sketches, variances, deviations, out):
    numbers, floats = sketches
    for i in prange(len(numbers)):
        total = np.float32(0)
        for j in range(numbers.shape[1]):
            number = np.float32(numbers[i, j])
            total += number * number * variances[j]
        out[i] = floats[i, PRIOR] + deviations * floats[i, SCALE] * np.sqrt(total)


def torch_largest_scores(sketches: Tensor, variances: Tensor, deviations: float) -> np.ndarray:
    floats = sketches.view(torch.float32)
    spread = (sketches.float().square() @ variances).sqrt() * floats[:, SCALE]
    return on_host(floats[:, PRIOR] + deviations * spread)


@operation(torch_largest_scores)
def largest_scores(sketches: Tensor, variances: Tensor, deviations: float) -> np.ndarray:
    """The score that each row may have for one of few inputs, ``(n,)`` float32.

    sketches (n, W) int8; variances (W,) float32, of inputs in the directions, at the positions of
    the numbers, and zeros before them; deviations: number of standard deviations of a score that
    are added to the prior.
    """
    out = np.empty(len(sketches), np.float32)
    _largest_scores(views(sketches), array_view(variances), np.float32(deviations), out)
    return out


def torch_rank_all(queries: Tensor, sketches: Tensor, left_out: Tensor, most: int) -> Tensor:
    """The rows with the largest rounded scores, the best first; equal ones in the order of rows.

    queries (B, CODES) float32 inputs in few directions; sketches (N, WIDTH) int8; left_out (n, 2)
    int64, pairs of a query and a row that it does not get; most: number of rows of a query. Returns
    ``(B, most)`` int32; -1 after the last row that has a score.
    """
    floats = sketches.view(torch.float32)
    codes, scales, priors = sketches[:, NUMBERS].float(), floats[:, SCALE], floats[:, PRIOR]
    found = []
    block = max(1, _SCORES // max(1, len(sketches)))
    for start in range(0, len(queries), block):
        scores = queries[start : start + block] @ codes.T * scales + priors
        scores = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf)
        mine = left_out[(left_out[:, 0] >= start) & (left_out[:, 0] < start + block)]
        scores[mine[:, 0] - start, mine[:, 1]] = -torch.inf
        best, ids = scores.sort(dim=1, descending=True, stable=True)
        found.append(torch.where(best > -torch.inf, ids, -1)[:, :most])
    if not found:
        return torch.empty(0, most, dtype=torch.int32, device=queries.device)
    rows = torch.cat(found).int()
    return torch.nn.functional.pad(rows, (0, most - rows.shape[1]), value=-1)


def views(sketches: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Sketches as kernels take them: their numbers, and the same memory as floats."""
    return array_view(sketches), array_view(sketches.view(torch.float32))


def rounded_queries(queries: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors ``(n, k)`` as int8 numbers and factors ``(n,)`` float32."""
    factors = queries.abs().amax(1) / 127
    numbers = (queries / factors.clamp(min=float(SMALLEST))[:, None]).round_()
    return numbers.nan_to_num_(0, 0, 0).clamp_(-127, 127).to(torch.int8), factors


def torch_sketches_of(projected: Tensor, offset: Tensor, width: int = WIDTH) -> Tensor:
    projected = projected - offset
    rows, prior = projected[:, :-1], projected[:, -1]
    lengths = rows.abs().amax(1)
    known = lengths.isfinite() & prior.isfinite()
    scale = torch.where(known, lengths / 127, 0)
    out = torch.zeros(len(rows), width, dtype=torch.int8, device=rows.device)
    rounded = (rows / scale.clamp(min=float(SMALLEST))[:, None]).nan_to_num(0, 0, 0)
    rounded = torch.where(known[:, None], rounded.round_().clamp_(-127, 127), 0)
    out[:, FIRST : FIRST + rows.shape[1]] = rounded.to(torch.int8)
    floats = out.view(torch.float32)
    floats[:, SCALE], floats[:, PRIOR] = scale, torch.where(known, prior, -torch.inf)
    return out


@operation(torch_sketches_of)
def sketches_of(projected: Tensor, offset: Tensor, width: int = WIDTH) -> Tensor:
    """The sketches ``(n, width)`` int8 of projected rows ``(n, k + 1)`` less ``offset``."""
    out = torch.empty(len(projected), width, dtype=torch.int8)
    sketch_rows(array_view(projected), array_view(offset), views(out))
    return out


def torch_best_in_buckets(
    queries: Tensor, found: Tensor, sketches: Tensor, left_out: Tensor, most: int
) -> Tensor:
    """The best rows ``(B, most)`` int32 of each query among those found; -1 after the last one.

    queries (B, k) float32 inputs in few directions; found (B, n) int32, -1: no row; sketches (N, W)
    int8; left_out (B, m) int32, rows that a query does not get, -1: none.
    """
    ids, _ = found.sort(1)
    new = first_of_equal(ids) & (ids >= 0)
    new &= ~(ids[:, :, None] == left_out[:, None, :]).any(2)
    some = sketches[ids.clamp(min=0).long()]
    floats = some.view(torch.float32)
    numbers = some[..., FIRST : FIRST + queries.shape[1]].float()
    scores = (numbers @ queries[:, :, None])[..., 0] * floats[..., SCALE]
    scores = (scores + floats[..., PRIOR]).nan_to_num(-torch.inf, torch.inf, -torch.inf)
    best, order = scores.masked_fill(~new, -torch.inf).sort(dim=1, descending=True, stable=True)
    rows = torch.where(best > -torch.inf, ids.gather(1, order), -1)[:, :most]
    return torch.nn.functional.pad(rows, (0, most - rows.shape[1]), value=-1)
