"""Sparse one-vs-rest linear classifiers: training in the dual, and scores.

Classifier ``l`` gives row ``x`` the score ``bias + intercept_l + <w_l, x>``. With a negative bias
and no intercept, a row that shares no feature with the weights is classified as negative, so the
classifier needs only negatives that may be mistaken for positives. An intercept is the weight of a
feature that all rows have, so the classifier needs all rows.
"""

from typing import NamedTuple

import numpy as np

from slide.ops.compile import AHEAD, helper, parallel, prange, prefetch_entries, serial
from slide.ops.ragged import add_row, clear_row, row_product, sort_pairs
from slide.ops.random import random_below


class TrainingRows(NamedTuple):
    """The training rows of each classifier, in CSR.

    indptr (N + 1,) int64; rows (nnz,) int32; signs (nnz,) float32.
    """

    indptr: np.ndarray
    rows: np.ndarray
    signs: np.ndarray


class DualScratch(NamedTuple):
    """Memory for T threads, D columns, and classifiers of at most L training rows.

    numbers (T, D) int32, -1 before and after; columns (T, D) int32, the columns of a classifier's
    rows; weights (T, D) float32, zero before and after; bounds (T, L, 2) int64, begin and end of
    each row; squares, diagonals (T, L) float64: squared length, 1 / (2 C cost); orders (T, L)
    int64; alphas (T, L) float32, the variables of the dual; indices, values (T, E) int32 and
    float32, copies of the rows of a classifier, which are read where they are if they have more
    than E entries.
    """

    numbers: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    bounds: np.ndarray
    squares: np.ndarray
    diagonals: np.ndarray
    orders: np.ndarray
    alphas: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, threads: int, rows: int, columns: int, entries: int) -> "DualScratch":
        """The arrays for ``threads`` threads and L, D and E."""
        return cls(
            np.full((threads, columns), -1, np.int32),
            np.empty((threads, columns), np.int32),
            np.zeros((threads, columns), np.float32),
            np.empty((threads, rows, 2), np.int64),
            np.empty((threads, rows)),
            np.empty((threads, rows)),
            np.empty((threads, rows), np.int64),
            np.empty((threads, rows), np.float32),
            np.empty((threads, entries), np.int32),
            np.empty((threads, entries), np.float32),
        )


class Solver(NamedTuple):
    """What is minimised, ``|w|^2 / 2 + C * sum of max(0, 1 - sign * score)^2``, and how far.

    C: weight of the losses against the length of w; bias: fixed part of a score; max_iter: maximum
    number of passes over a classifier's rows; constant: 1 if w has an intercept, otherwise 0.
    """

    C: float
    bias: float
    max_iter: int
    tol: float
    constant: float = 0.0


@helper
def _lay_out(x, rows, costs, solver, t, scratch):
    """Number the columns of a classifier's rows, and copy the rows side by side if they fit."""
    numbers, columns, bounds = scratch.numbers[t], scratch.columns[t], scratch.bounds[t]
    indices, values, weight = scratch.indices[t], scratch.values[t], scratch.weights[t]
    entries = 0
    for i in range(len(rows)):
        begin, end = x.indptr[rows[i]], x.indptr[rows[i] + 1]
        bounds[i, 0], bounds[i, 1] = begin, end
        entries += end - begin
    copied = entries <= len(indices)
    count = position = 0
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch_entries(x.indices, bounds[i + AHEAD, 0], bounds[i + AHEAD, 1])
            prefetch_entries(x.values, bounds[i + AHEAD, 0], bounds[i + AHEAD, 1])
        begin, end = bounds[i, 0], bounds[i, 1]
        for p in range(begin, end):
            column, value = x.indices[p], x.values[p]
            if numbers[column] < 0:
                numbers[column], columns[count] = count, column
                count += 1
            weight[numbers[column]] += value
            if copied:
                indices[position], values[position] = numbers[column], value
                position += 1
        square = solver.constant
        for p in range(begin, end):  # The values of a repeated column add up.
            number = numbers[x.indices[p]]
            square += weight[number] * weight[number]
            weight[number] = 0
        if copied:
            bounds[i, 0], bounds[i, 1] = position - (end - begin), position
        cost = costs[rows[i]] if len(costs) > 0 else 1.0
        scratch.squares[t, i], scratch.diagonals[t, i] = square, 1 / (2 * solver.C * cost)
    return count, copied


@helper
def _descend(indices, values, signs, solver, t, scratch):
    """Dual coordinate descent with shrinking (Hsieh et al. 2008, algorithms 1 and 3).

    "A dual coordinate descent method for large-scale linear SVM". The weights are zero at entry,
    and the sum of ``alphas * signs * rows`` at exit. The intercept is returned.
    """
    bounds, weight, order = scratch.bounds[t], scratch.weights[t], scratch.orders[t]
    squares, diagonals = scratch.squares[t], scratch.diagonals[t]
    alphas = scratch.alphas[t]
    size = len(signs)
    for i in range(size):
        order[i], alphas[i] = i, 0
    draws, bound, intercept = np.int64(0), np.inf, 0.0
    for _ in range(solver.max_iter):
        largest = 0.0
        for k in range(size - 1, 0, -1):
            j = random_below(np.uint64(len(signs)), draws, k + 1)
            draws += 1
            order[k], order[j] = order[j], order[k]
        k = 0
        while k < size:
            i = order[k]
            begin, end = bounds[i, 0], bounds[i, 1]
            total = np.float32(0)
            for p in range(begin, end):
                total += weight[indices[p]] * values[p]
            score = solver.bias + intercept + total
            gradient = signs[i] * score - 1 + alphas[i] * diagonals[i]
            if alphas[i] == 0 and gradient > bound:
                # Its margin exceeds the largest violation of the last pass: skip it from now on.
                size -= 1
                order[k], order[size] = order[size], order[k]
                continue
            k += 1
            if alphas[i] == 0 and gradient >= 0:
                continue
            largest = max(largest, abs(gradient))
            updated = max(alphas[i] - gradient / (squares[i] + diagonals[i]), 0.0)
            step = np.float32((updated - alphas[i]) * signs[i])
            for p in range(begin, end):
                weight[indices[p]] += step * values[p]
            intercept += step * solver.constant
            alphas[i] = updated
        if largest > solver.tol:
            bound = largest
        elif size == len(signs):
            break
        else:  # Visit all rows once more before the end.
            size, bound = len(signs), np.inf
    return intercept


@helper
def _take_weights(count, copied, threshold, t, scratch, found, n):
    """Move the weights of classifier ``n`` that are large enough to ``found``; clear the rest."""
    weight, begin, k = scratch.weights[t], found.starts[n], 0
    columns, values = found.columns[begin:], found.values[begin:]
    for j in range(count):
        column = scratch.columns[t, j]
        position = j if copied else column
        value, weight[position], scratch.numbers[t, column] = weight[position], 0, -1
        if value != 0 and abs(value) >= threshold:
            columns[k], values[k] = column, value
            k += 1
    sort_pairs(columns[:k], columns[:k], values[:k])
    # Not in the parallel loop, in which numba loses what is written to an array of a tuple.
    found.counts[n] = k


@parallel
def fit_classifiers(x, costs, lists, order, solver, threshold, scratch, found, intercepts):
    """The weights of some classifiers, each trained on its own rows.

    x `CSR` of the training rows, D columns; costs (R,) factors of C, above 0; lists see
    `TrainingRows`; order (n,) int64, the classifiers in the order in which they are trained; solver
    see `Solver`; threshold: weights of a smaller magnitude are left out; scratch see `DualScratch`;
    found `RowRoom` for the weights, intercepts (n,) float32, outputs.
    """
    threads = len(scratch.weights)
    for thread in prange(threads):
        t = np.int64(thread)  # As a serial kernel has it, so helpers are compiled once.
        for i in range(t, len(order), threads):
            n = order[i]
            begin, end = lists.indptr[n], lists.indptr[n + 1]
            rows, signs = lists.rows[begin:end], lists.signs[begin:end]
            count, copied = _lay_out(x, rows, costs, solver, t, scratch)
            if copied:
                indices, values = scratch.indices[t], scratch.values[t]
                intercepts[n] = _descend(indices, values, signs, solver, t, scratch)
            else:
                intercepts[n] = _descend(x.indices, x.values, signs, solver, t, scratch)
            _take_weights(count, copied, threshold, t, scratch, found, n)


@helper
def _list_row(pattern, b, sign, marks, positions, rows, signs):
    for p in range(pattern.indptr[b], pattern.indptr[b + 1]):
        n = pattern.indices[p]
        if marks[n] != b:
            marks[n] = b
            if len(rows) > 0:
                rows[positions[n]], signs[positions[n]] = b, sign
            positions[n] += 1


@serial
def list_training_rows(labels, candidates, marks, positions, rows, signs):
    """The training rows of each classifier, ascending: positives, and rows of wrong candidates.

    The first call, with empty ``rows``, counts them, the second one writes them. An id that is
    repeated in a row counts once, and a label of a row is no wrong candidate.

    labels `Pattern` of the labels of R rows, in [0, N); candidates the same for their candidates;
    marks (N,) int32 scratch; positions (N,) int64, counts up by
    one for each training row of a classifier; rows, signs see `TrainingRows`.
    """
    marks[:] = -1
    for b in range(len(labels.indptr) - 1):
        _list_row(labels, b, np.float32(1), marks, positions, rows, signs)
        _list_row(candidates, b, np.float32(-1), marks, positions, rows, signs)


# A step of a bisection takes as long as this number of entries that are read in order.
_STEP = 3


@helper
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

    x `CSR` of B rows, D columns; classifiers `CSR` of their weights, (N, D); bias: fixed part of a
    score; ids (B, K) int64 numbers of classifiers; dense (T, D) float32 scratch, zero before and
    after; out (B, K) float32 output.
    """
    threads = len(dense)
    for t in prange(threads):
        row = dense[t]
        for b in range(np.int64(t), len(ids), threads):
            features = x.indptr[b + 1] - x.indptr[b]
            add_row(x, b, row)
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
                    out[b, k] = bias + row_product(classifiers, n, row)
            clear_row(x, b, row)
