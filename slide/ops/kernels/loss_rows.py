"""Rows of scores, as the kernels of the losses read them, and the functions that these share.

A row of scores is ``scores[indptr[b]:indptr[b + 1]]``. ``target_positions`` counts from the start
of the row. ``log_weights`` holds the logarithm of how many outputs an entry stands for: one number
for each entry, or, with ``shared``, one for each column, the same for all rows; empty means that
all weights are 1. Targets have weight 1. The kernel of a loss (`slide.functional.losses`) writes
``losses[b]`` and ``gradient``, which is ``scale`` times the derivative of ``losses[b]`` by the
scores of the row, in one visit of each row.
"""

from typing import NamedTuple

import numpy as np

from slide.ops.kernels.compile import serial


class Rows(NamedTuple):
    """Scores and what is known of them.

    Attributes:
        indptr: ``(B + 1,)`` int64 bounds of the rows.
        scores: ``(nnz,)`` floats.
        target_indptr: ``(B + 1,)`` int64.
        target_positions: ``(number of targets,)`` int32, from the start of the row.
        log_weights: ``(nnz,)``, or ``(A,)`` with ``shared``, or empty; floats.
        shared: whether all rows have the same columns.
        scale: factor on the gradient.
    """

    indptr: np.ndarray
    scores: np.ndarray
    target_indptr: np.ndarray
    target_positions: np.ndarray
    log_weights: np.ndarray
    shared: bool
    scale: float


@serial
def score_row(rows, b):
    """The scores, targets and log weights of row b, the last ones empty if there are none."""
    begin, end = rows.indptr[b], rows.indptr[b + 1]
    targets = rows.target_positions[rows.target_indptr[b] : rows.target_indptr[b + 1]]
    if rows.shared or len(rows.log_weights) == 0:
        return rows.scores[begin:end], targets, rows.log_weights
    return rows.scores[begin:end], targets, rows.log_weights[begin:end]


@serial
def softplus(z):
    """log(1 + exp(z)) without overflow."""
    return max(z, 0.0) + np.log1p(np.exp(-abs(z)))


@serial
def sigmoid(z):
    """1 / (1 + exp(-z)) without overflow."""
    e = np.exp(-abs(z))
    return 1 / (1 + e) if z >= 0 else e / (1 + e)


@serial
def hinge(z):
    """max(0, z); NaN stays NaN, which max would lose."""
    return 0.0 if z < 0 else z


@serial
def add_weights(scores, log_weights, out):
    """Write ``scores + log_weights``."""
    for j in range(len(scores)):
        out[j] = scores[j]
    if len(log_weights) > 0:
        for j in range(len(scores)):
            out[j] += log_weights[j]


@serial
def normalise(out, scale):
    """Turn logits into ``scale`` times their softmax; return log(sum(exp)), -inf if all are."""
    top = -np.inf
    for j in range(len(out)):
        top = max(top, out[j])
    if top == -np.inf:
        # All are -inf, or some are NaN, which no comparison finds and which must stay.
        for j in range(len(out)):
            out[j] = np.exp(out[j])
            top += out[j]
        return top
    shift = out.dtype.type(top)
    total = 0.0
    for j in range(len(out)):
        out[j] = np.exp(out[j] - shift)
        total += out[j]
    inverse = out.dtype.type(scale / total)
    for j in range(len(out)):
        out[j] *= inverse
    return top + np.log(total)
