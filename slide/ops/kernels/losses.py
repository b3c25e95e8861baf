"""Losses of rows of scores, with their gradients, and the functions that they share.

A kernel writes ``losses[b]`` and ``gradient``, which is ``scale`` times the derivative of
``losses[b]``, in one visit of each row. ``log_weights`` are the logarithms of how many outputs an
entry stands for, 0 at targets.
"""

from typing import NamedTuple

import numpy as np

from slide.ops.kernels.compile import helper, parallel, prange
from slide.ops.kernels.products import bfloat16_bits


class Rows(NamedTuple):
    """Scores and what is known of them.

    indptr (B + 1,) int64 bounds of the rows; scores (nnz,); target_indptr (B + 1,) int64;
    target_positions int32, from the start of the row; log_weights (nnz,), or (A,) if all rows are
    shared, or empty for 0.
    """

    indptr: np.ndarray
    scores: np.ndarray
    target_indptr: np.ndarray
    target_positions: np.ndarray
    log_weights: np.ndarray
    shared: bool
    scale: float


@helper
def score_row(rows, b):
    """The scores, targets and log weights of row b, the last ones empty if there are none."""
    begin, end = rows.indptr[b], rows.indptr[b + 1]
    targets = rows.target_positions[rows.target_indptr[b] : rows.target_indptr[b + 1]]
    if rows.shared or len(rows.log_weights) == 0:
        return rows.scores[begin:end], targets, rows.log_weights
    return rows.scores[begin:end], targets, rows.log_weights[begin:end]


@helper
def softplus(z):
    """log(1 + exp(z)) without overflow."""
    return max(z, 0.0) + np.log1p(np.exp(-abs(z)))


@helper
def sigmoid(z):
    """1 / (1 + exp(-z)) without overflow."""
    e = np.exp(-abs(z))
    return 1 / (1 + e) if z >= 0 else e / (1 + e)


@helper
def hinge(z):
    """max(0, z); NaN stays NaN, which max would lose."""
    return 0.0 if z < 0 else z


@helper
def add_weights(scores, log_weights, out):
    """Write ``scores + log_weights``."""
    for j in range(len(scores)):
        out[j] = scores[j]
    if len(log_weights) > 0:
        for j in range(len(scores)):
            out[j] += log_weights[j]


@helper
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


@parallel
def bce(rows, losses, gradient):
    """Binary cross-entropy of each output against 0 or 1, weighted and summed over the row."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, np.int64(b))
        g = gradient[rows.indptr[b] : rows.indptr[b + 1]]
        weighted = len(log_weights) > 0
        scale = g.dtype.type(rows.scale)
        loss = 0.0
        for j in range(len(g)):
            weight = np.exp(log_weights[j]) if weighted else log_weights.dtype.type(1)
            z = scores[j]
            # One exponential for both the loss log(1 + e^z) and its derivative.
            e = np.exp(-abs(z))
            loss += weight * (hinge(z) + np.log1p(e))
            g[j] = scale * weight * ((1 if z >= 0 else e) / (1 + e))
        for t in targets:
            loss -= scores[t]
            g[t] = -scale * sigmoid(-scores[t])
        losses[b] = loss


@helper
def _squared_hinge_row(scores, targets, log_weights, factor, g):
    """The loss of a row, whose gradient is written to ``g``; see `squared_hinge`."""
    weighted = len(log_weights) > 0
    scale = g.dtype.type(2 * factor)
    loss = 0.0
    for j in range(len(g)):
        slack = hinge(1 + scores[j])
        weight = np.exp(log_weights[j]) if weighted else log_weights.dtype.type(1)
        loss += weight * slack * slack
        g[j] = scale * weight * slack
    for t in targets:
        wrong, slack = hinge(1 + scores[t]), hinge(1 - scores[t])
        loss += slack * slack - wrong * wrong
        g[t] = -scale * slack
    return loss


@parallel
def squared_hinge(rows, losses, gradient):
    """max(0, 1 - y z)^2 with y = 1 for targets, else y = -1; weighted and summed."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, np.int64(b))
        g = gradient[rows.indptr[b] : rows.indptr[b + 1]]
        losses[b] = _squared_hinge_row(scores, targets, log_weights, rows.scale, g)


@parallel
def squared_hinge_of_products(products, bias, rows, num_chunks, losses, gradient, rounded, sums):
    """`squared_hinge` of the scores ``products + bias`` of a shared set, in one visit of each row.

    products (B, P) uint16, the bits of bfloat16, of which the first A of each row count; bias (A,)
    float32, or empty for none; ``rows`` has no scores; written: gradient (B, A) float32, the same
    as `bfloat16_bits` and zeros in ``rounded`` (B, P), which may be the memory of ``products``, and
    in sums (num_chunks, A) its sums over runs of samples.
    """
    count, size = gradient.shape
    for chunk in prange(num_chunks):
        scores, total = np.empty(size, np.float32), sums[chunk]
        bits = scores.view(np.uint32)
        total[:] = 0
        for b in range(chunk * count // num_chunks, (chunk + 1) * count // num_chunks):
            for j in range(size):
                bits[j] = np.uint32(products[b, j]) << np.uint32(16)
            for j in range(len(bias)):
                scores[j] += bias[j]
            targets = rows.target_positions[rows.target_indptr[b] : rows.target_indptr[b + 1]]
            g = gradient[b]
            losses[b] = _squared_hinge_row(scores, targets, rows.log_weights, rows.scale, g)
            own, out = g.view(np.uint32), rounded[b]
            for j in range(size):
                total[j] += g[j]
                out[j] = bfloat16_bits(g[j], own[j])
            out[size:] = 0


@parallel
def softmax(rows, losses, gradient):
    """Cross-entropy of the weighted softmax with targets of 1 / |y|; 0 without targets."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, np.int64(b))
        g = gradient[rows.indptr[b] : rows.indptr[b + 1]]
        loss = 0.0
        if len(targets) == 0:
            g[:] = 0
        else:
            add_weights(scores, log_weights, g)
            loss = normalise(g, rows.scale)
            share = 1.0 / len(targets)
            for t in targets:
                loss -= share * scores[t]
                g[t] -= g.dtype.type(rows.scale * share)
        losses[b] = loss


@parallel
def smooth_labels(rows, smoothing, losses, gradient):
    """After `softmax`: move this share of the targets to all outputs, by their weights."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, np.int64(b))
        g = gradient[rows.indptr[b] : rows.indptr[b + 1]]
        if len(targets) > 0:
            weighted = len(log_weights) > 0
            total, mean = 0.0, 0.0
            for j in range(len(g)):
                weight = np.exp(log_weights[j]) if weighted else log_weights.dtype.type(1)
                total += weight
                mean += weight * scores[j]
            factor = rows.scale * smoothing
            for j in range(len(g)):
                weight = np.exp(log_weights[j]) if weighted else log_weights.dtype.type(1)
                g[j] -= g.dtype.type(factor * weight / total)
            own = 0.0
            for t in targets:
                own += scores[t] / len(targets)
                g[t] += g.dtype.type(factor / len(targets))
            losses[b] += smoothing * (own - mean / total)


@parallel
def decoupled_softmax(rows, losses, gradient):
    """Mean over targets with scores z of softplus(n - z), n the log-sum-exp of the negatives."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, np.int64(b))
        g = gradient[rows.indptr[b] : rows.indptr[b + 1]]
        loss = 0.0
        if len(targets) == 0:
            g[:] = 0
        else:
            add_weights(scores, log_weights, g)
            for t in targets:
                g[t] = -np.inf
            negatives = normalise(g, rows.scale)
            share = 1.0 / len(targets)
            pull = 0.0
            for t in targets:
                loss += share * softplus(negatives - scores[t])
                pull += share * sigmoid(negatives - scores[t])
            for j in range(len(g)):
                g[j] *= g.dtype.type(pull)
            for t in targets:
                g[t] = g.dtype.type(-rows.scale * share * sigmoid(negatives - scores[t]))
        losses[b] = loss
