"""Scores of sparse one-vs-rest linear classifiers on sparse rows."""

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial

# A step of a bisection takes as long as this number of entries that are read in order.
_STEP = 3


@serial
def _dot(x, row, weight):
    """The product of row ``row`` of ``x`` with a dense vector."""
    total = 0.0
    for p in range(x.indptr[row], x.indptr[row + 1]):
        total += weight[x.indices[p]] * x.values[p]
    return total


@serial
def _dot_sorted(columns, values, x, row):
    """The product of a long row, whose columns ascend, with row ``row`` of ``x``, by bisection."""
    total = np.float32(0)
    for p in range(x.indptr[row], x.indptr[row + 1]):
        column, first, size = x.indices[p], 0, len(columns)
        while size > 1:
            half = size // 2
            # An expression without branches, because a processor cannot foretell them.
            first += half if columns[first + half] <= column else 0
            size -= half
        if columns[first] == column:
            total += values[first] * x.values[p]
    return total


@parallel
def score_labels(x, classifiers, bias, ids, dense, out):
    """Scores of some classifiers on each row.

    Args:
        x: `slide.sparse.CSR` of B rows, D columns.
        classifiers: `slide.sparse.CSR` of their weights, ``(N, D)``; the columns of a row ascend.
        bias: fixed part of a score.
        ids: ``(B, K)`` int64 numbers of classifiers; a number below 0 gets the score -inf.
        dense: ``(T, D)`` float32 scratch, zero before and after.
        out: ``(B, K)`` float32 output.
    """
    threads = len(dense)
    for t in prange(threads):
        row = dense[t]
        for b in range(t, len(ids), threads):
            features = x.indptr[b + 1] - x.indptr[b]
            for p in range(x.indptr[b], x.indptr[b + 1]):
                row[x.indices[p]] += x.values[p]
            for k in range(ids.shape[1]):
                n = ids[b, k]
                if n < 0:
                    out[b, k] = -np.inf
                    continue
                own = slice(classifiers.indptr[n], classifiers.indptr[n + 1])
                size = own.stop - own.start
                if size > _STEP * features * np.log2(size + 1):
                    columns, values = classifiers.indices[own], classifiers.values[own]
                    out[b, k] = bias + _dot_sorted(columns, values, x, b)
                else:
                    out[b, k] = bias + _dot(classifiers, n, row)
            for p in range(x.indptr[b], x.indptr[b + 1]):
                row[x.indices[p]] = 0
