"""The largest scores of each row: of blocks of dense scores, and of products of sparse rows."""

import numpy as np

from slide.kernels.compile import parallel, prange, serial


@serial
def _replace_least(scores, ids, score, number):
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
                _replace_least(own, numbers, scores[b, j], first + j)


@parallel
def top_products(x, lists, left_out, sums, touched, ids, scores):
    """The largest positive entries of each row of ``x @ lists``, in no particular order.

    Only the lists of the columns in which a row has an entry are read.

    Args:
        x: `slide.sparse.CSR` of B rows, D columns.
        lists: `slide.sparse.CSR` ``(D, N)``.
        left_out: ``(B,)`` int64, for each row one output that is not returned; or empty.
        sums: ``(T, N)`` float32 scratch, -inf before and after.
        touched: ``(T, N)`` int32 scratch.
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
                for q in range(lists.indptr[column], lists.indptr[column + 1]):
                    n = lists.indices[q]
                    if total[n] == -np.inf:
                        seen[count] = n
                        count += 1
                        total[n] = 0
                    total[n] += value * lists.values[q]
            for i in range(count):
                n = seen[i]
                score = total[n]
                total[n] = -np.inf
                if score > scores[b, 0] and (len(left_out) == 0 or left_out[b] != n):
                    _replace_least(scores[b], ids[b], score, n)
