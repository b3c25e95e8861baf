"""The largest scores of rows: of dense blocks, of products of sparse rows, of lists of rows."""

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial

# What a sum of 0 is kept as, because 0 means that an output was not seen.
_SEEN = -np.finfo(np.float32).tiny
# Lists in a group, whose largest bound is kept: about the root of the number of all lists.
_GROUP = 64
# What a list that a query has seen is kept as, and places of groups without a list.
_LEAST_KEY = np.iinfo(np.int32).min


@serial
def replace_least(scores, ids, score, number):
    """Put a pair in place of the least score of a binary heap."""
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
    """Add to the sum of output ``n``, and note the output if it is new.

    Args:
        total: ``(N,)`` float32 sums, zero where an output is new.
        seen: ``(N + 1,)`` int32, the outputs that have sums.
        count: how many of them there are.
        n: output.
        value: what is added; with 0, the output has a sum, too.

    Returns:
        How many there are now.
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
    order = np.argsort(-scores, kind="mergesort")
    scores[:], ids[:] = scores[order], ids[order]


@parallel
def keep_largest(scores, first, best, ids):
    """Keep the k largest scores of each row, in no particular order.

    Args:
        scores: ``(B, n)`` floats.
        first: number of the output in column 0 of ``scores``.
        best: ``(B, k)`` of the type of ``scores``, the largest so far; -inf before the first call.
        ids: ``(B, k)`` int64, their outputs; -1 before the first call.
    """
    for b in prange(len(scores)):
        own, numbers = best[b], ids[b]
        for j in range(scores.shape[1]):
            if scores[b, j] > own[0]:
                replace_least(own, numbers, scores[b, j], first + j)


@parallel
def keep_largest_bounds(products, of_query, of_row, biases, first, best, ids):
    """`keep_largest` of upper bounds ``products + of_query * of_row + biases``.

    Args:
        products: ``(B, n)`` float32.
        of_query: ``(B,)`` float32.
        of_row: ``(n,)`` float32.
        biases: ``(n,)`` float32.
        first, best, ids: see `keep_largest`.
    """
    for b in prange(len(products)):
        own, numbers, error = best[b], ids[b], of_query[b]
        for j in range(products.shape[1]):
            bound = products[b, j] + error * of_row[j] + biases[j]
            if bound > own[0]:
                replace_least(own, numbers, bound, first + j)


@parallel
def top_products(x, lists, left_out, sums, touched, ids, scores):
    """The largest positive entries of each row of ``x @ lists``, best first.

    Only the lists of the columns in which a row has an entry are read.

    Args:
        x: `slide.sparse.CSR` of B rows, D columns.
        lists: `slide.sparse.CSR` ``(D, N)``.
        left_out: `slide.sparse.Pattern` of B rows, outputs that are not returned.
        sums: ``(T, N)`` float32 scratch, zero before and after.
        touched: ``(T, N + 1)`` int32 scratch.
        ids: ``(B, k)`` int32 output, -1 before; -1 where there are no more positive entries.
        scores: ``(B, k)`` float32 output, zero before.
    """
    threads = len(sums)
    for t in prange(threads):
        total, seen = sums[t], touched[t]
        for b in range(t, len(ids), threads):
            count = 0
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


@serial
def _to_keys(bounds, keys):
    """Integers in the same order as floats, since a loop over integers finds their maximum faster.

    Args:
        bounds: ``(L,)`` float32.
        keys: ``(n,)`` int32 output, n >= L; the others stay as they are.
    """
    bits = bounds.view(np.int32)
    for i in range(len(bits)):
        # Of two negative floats, the larger one has the smaller bits.
        keys[i] = bits[i] ^ (bits[i] >> 31 & np.int32(0x7FFFFFFF))


@serial
def _maximum(keys):
    """The largest of some integers."""
    largest = np.int32(_LEAST_KEY)
    for i in range(len(keys)):
        largest = max(largest, keys[i])
    return largest


@serial
def _place(keys, key):
    """The first place of an integer that is among these."""
    at = 0
    while keys[at] != key:
        at += 1
    return at


@serial
def _scan_list(query, begin, end, codes, scales, biases, best, places):
    """Score the rows of a list; each one above the least of the best takes its place."""
    for p in range(begin, end):
        total = np.float32(0)
        for j in range(len(query)):
            total += query[j] * np.float32(codes[p, j])
        score = scales[p] * total + biases[p]
        if score > best[0]:
            replace_least(best, places, score, p)


@parallel
def scan_lists(queries, bounds, starts, codes, scales, biases, limit, best, places, seen):
    """The largest scores of each query, in no particular order, from lists of rounded rows.

    The lists with the largest bounds come first. A query is done when no other list's bound is
    above its least score, or when it has seen ``limit`` rows.

    Args:
        queries: ``(B, D)`` float32.
        bounds: ``(B, L)`` float32, the score that a row of each list may have.
        starts: ``(L + 1,)`` int64, where each list begins.
        codes: ``(N, D)`` int8, the rows list by list; a row is ``scales * codes``.
        scales: ``(N,)`` float32.
        biases: ``(N,)`` float32.
        limit: number of rows after which no further list begins.
        best: ``(B, k)`` float32 output, -inf before.
        places: ``(B, k)`` int32 output, where the rows are in ``codes``; -1 before.
        seen: ``(B,)`` int64 output, number of rows that were scored.
    """
    lists = bounds.shape[1]
    groups = -(-lists // _GROUP)
    for b in prange(len(queries)):
        query, own_best, own_places, count = queries[b], best[b], places[b], 0
        # Few of the lists are ever needed, so to sort them all would be a waste.
        keys, tops = np.full((groups, _GROUP), _LEAST_KEY, np.int32), np.empty(groups, np.int32)
        _to_keys(bounds[b], keys.ravel())
        for g in range(groups):
            tops[g] = _maximum(keys[g])
        while count < limit:
            top = _maximum(tops)
            g = _place(tops, top)
            at = _place(keys[g], top)
            number = g * _GROUP + at
            if top == _LEAST_KEY or bounds[b, number] <= own_best[0]:
                break
            begin, end = starts[number], starts[number + 1]
            _scan_list(query, begin, end, codes, scales, biases, own_best, own_places)
            count += end - begin
            keys[g, at] = _LEAST_KEY
            tops[g] = _maximum(keys[g])
        seen[b] = count
