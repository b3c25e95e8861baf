"""One-vs-rest linear classifiers over sparse rows: training in the dual, and scores.

Classifier ``l`` gives row ``x`` the score ``bias + <w_l, x>``. With a negative bias, a row that
shares no feature with the weights is classified as negative, so the classifier needs only negatives
that may be mistaken for positives.
"""

from typing import NamedTuple

import numpy as np

from slide.kernels.compile import parallel, prange, serial
from slide.kernels.random import random_below

# Entries that are read in order in the time of a step of a bisection.
_STEP = 3


class TrainingRows(NamedTuple):
    """The training rows of each classifier, in CSR.

    Attributes:
        indptr: ``(N + 1,)`` int64.
        rows: ``(nnz,)`` int32.
        signs: ``(nnz,)`` float32: 1 for positives, -1 for negatives.
    """

    indptr: np.ndarray
    rows: np.ndarray
    signs: np.ndarray


class DualScratch(NamedTuple):
    """Memory for T threads and classifiers of at most R rows and D columns.

    Attributes:
        weights: ``(T, D)`` float32, zero before and after.
        orders: ``(T, R)`` int64.
        alphas: ``(T, R)`` float32.
    """

    weights: np.ndarray
    orders: np.ndarray
    alphas: np.ndarray


class WeightRoom(NamedTuple):
    """Room for the weights of n classifiers.

    Attributes:
        starts: ``(n,)`` int64, where the room of each one begins. It must suffice for all columns
            of its training rows.
        counts: ``(n,)`` int64 output, the number of its weights.
        columns, values: int32 and float32 output; the columns of a classifier ascend.
    """

    starts: np.ndarray
    counts: np.ndarray
    columns: np.ndarray
    values: np.ndarray


class Solver(NamedTuple):
    """What is minimised, ``|w|^2 / 2 + C * sum of max(0, 1 - sign * score)^2``, and how far.

    Attributes:
        C: weight of the losses against the length of ``w``.
        bias: fixed part of a score.
        max_iter: maximum number of passes over a classifier's rows.
        tol: the solver stops after a pass in which no projected gradient was larger.
    """

    C: float
    bias: float
    max_iter: int
    tol: float


@serial
def _dot(x, row, weight):
    total = 0.0
    for p in range(x.indptr[row], x.indptr[row + 1]):
        total += weight[x.indices[p]] * x.values[p]
    return total


@serial
def _add(x, row, factor, weight):
    for p in range(x.indptr[row], x.indptr[row + 1]):
        weight[x.indices[p]] += factor * x.values[p]


@serial
def _descend(x, squares, costs, rows, signs, solver, weight, order, alphas):
    """Dual coordinate descent with shrinking (Hsieh et al. 2008, algorithms 1 and 3).

    Hsieh, Chang, Lin, Keerthi and Sundararajan 2008, "A dual coordinate descent method for
    large-scale linear SVM". ``weight`` is zero at entry, and the sum of ``alphas * signs * rows``
    at exit; ``order`` is scratch of the length of ``rows``.
    """
    size = len(rows)
    for i in range(size):
        order[i] = i
    diagonal = 1 / (2 * solver.C)
    weighted = len(costs) > 0
    draws, bound = 0, np.inf
    for _ in range(solver.max_iter):
        largest = 0.0
        for k in range(size - 1, 0, -1):
            j = random_below(np.uint64(len(rows)), draws, k + 1)
            draws += 1
            order[k], order[j] = order[j], order[k]
        k = 0
        while k < size:
            i = order[k]
            if weighted:
                diagonal = 1 / (2 * solver.C * costs[rows[i]])
            score = solver.bias + _dot(x, rows[i], weight)
            gradient = signs[i] * score - 1 + alphas[i] * diagonal
            if alphas[i] == 0 and gradient > bound:
                # Its margin exceeds the largest violation of the last pass: skip it from now on.
                size -= 1
                order[k], order[size] = order[size], order[k]
                continue
            k += 1
            if alphas[i] == 0 and gradient >= 0:
                continue
            largest = max(largest, abs(gradient))
            updated = max(alphas[i] - gradient / (squares[rows[i]] + diagonal), 0.0)
            _add(x, rows[i], (updated - alphas[i]) * signs[i], weight)
            alphas[i] = updated
        if largest > solver.tol:
            bound = largest
        elif size == len(rows):
            break
        else:  # Visit all rows once more before the end.
            size, bound = len(rows), np.inf


@serial
def _take_weights(x, rows, threshold, weight, found, n):
    """Move the weights of classifier ``n`` that are large enough from ``weight`` to ``found``."""
    columns, values, k = found.columns[found.starts[n] :], found.values[found.starts[n] :], 0
    for i in range(len(rows)):
        for p in range(x.indptr[rows[i]], x.indptr[rows[i] + 1]):
            # Reset at once, so that a repeated column counts only once.
            value, weight[x.indices[p]] = weight[x.indices[p]], 0
            if value != 0 and abs(value) >= threshold:
                columns[k], values[k] = x.indices[p], value
                k += 1
    order = np.argsort(columns[:k])
    columns[:k], values[:k] = columns[:k][order], values[:k][order]
    # Not in the parallel loop, in which numba loses what is written to an array of a tuple.
    found.counts[n] = k


@parallel
def fit_classifiers(x, squares, costs, lists, order, solver, threshold, scratch, found):
    """The weights of some classifiers, each trained on its own rows.

    Args:
        x: `slide.sparse.CSR` of the training rows, D columns.
        squares: ``(R,)`` their squared lengths.
        costs: ``(R,)`` factors of C, above 0; empty: all are 1.
        lists: see `TrainingRows`; n classifiers.
        order: ``(n,)`` int64, the classifiers in the order in which they are trained. Threads take
            turns in it, so they have equal work if neighbours have lists of similar length.
        solver: see `Solver`.
        threshold: weights of a smaller magnitude are left out.
        scratch: see `DualScratch`.
        found: see `WeightRoom`.
    """
    threads = len(scratch.weights)
    for t in prange(threads):
        weight = scratch.weights[t]
        for i in range(t, len(order), threads):
            n = order[i]
            begin, end = lists.indptr[n], lists.indptr[n + 1]
            rows, signs = lists.rows[begin:end], lists.signs[begin:end]
            alphas = scratch.alphas[t, : end - begin]
            alphas[:] = 0
            _descend(x, squares, costs, rows, signs, solver, weight, scratch.orders[t], alphas)
            _take_weights(x, rows, threshold, weight, found, n)


@serial
def _list_row(pattern, b, sign, marks, places, rows, signs):
    for p in range(pattern.indptr[b], pattern.indptr[b + 1]):
        n = pattern.indices[p]
        if marks[n] != b:
            marks[n] = b
            if len(rows) > 0:
                rows[places[n]], signs[places[n]] = b, sign
            places[n] += 1


@serial
def list_training_rows(labels, candidates, marks, places, rows, signs):
    """The training rows of each classifier, ascending: positives, and rows of wrong candidates.

    The first call, with empty ``rows``, counts them, the second one writes them. An id that is
    repeated in a row counts once, and a label of a row is no wrong candidate.

    Args:
        labels: `slide.sparse.Pattern` of the labels of R rows, in [0, N).
        candidates: the same for their candidates.
        marks: ``(N,)`` int32 scratch.
        places: ``(N,)`` int64. It counts up by one for each training row of a classifier: from 0 to
            their number, or from the first place in ``rows`` to the end.
        rows, signs: see `TrainingRows`; output, or empty.
    """
    marks[:] = -1
    for b in range(len(labels.indptr) - 1):
        _list_row(labels, b, 1, marks, places, rows, signs)
        _list_row(candidates, b, -1, marks, places, rows, signs)


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
            _add(x, b, 1.0, row)
            features = x.indptr[b + 1] - x.indptr[b]
            for k in range(ids.shape[1]):
                n = ids[b, k]
                if n < 0:
                    out[b, k] = -np.inf
                    continue
                own = slice(classifiers.indptr[n], classifiers.indptr[n + 1])
                size = own.stop - own.start
                # A step of a bisection takes as long as some entries that are read in order.
                if size > _STEP * features * np.log2(size + 1):
                    columns, values = classifiers.indices[own], classifiers.values[own]
                    out[b, k] = bias + _dot_sorted(columns, values, x, b)
                else:
                    out[b, k] = bias + _dot(classifiers, n, row)
            for p in range(x.indptr[b], x.indptr[b + 1]):
                row[x.indices[p]] = 0
