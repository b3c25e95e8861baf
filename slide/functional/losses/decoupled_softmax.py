"""Softmax cross-entropy of each target against the negatives, without the other targets."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from slide.functional.losses.loss import Loss, target_share
from slide.ops.kernels.compile import parallel, prange
from slide.ops.kernels.loss_rows import add_weights, normalise, score_row, sigmoid, softplus


@parallel
def decoupled_softmax(rows, losses, gradient):
    """Mean over the targets of the cross-entropy of each target against the negatives.

    The denominator of a target does not contain the other targets (Gupta et al. 2024,
    "Dual-encoders for extreme multi-label classification", section 4). With n the log-sum-exp of
    the negatives, the loss of a target with score z is softplus(n - z). The loss of a row without
    targets is 0.
    """
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, b)
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


def _dense(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """The loss of each row in plain torch; see `slide.functional.losses.loss.Loss`."""
    logits = scores if log_weights is None else scores + log_weights
    negatives = torch.logsumexp(logits.masked_fill(targets, -torch.inf), 1, keepdim=True)
    return -(target_share(targets, scores) * logsigmoid(scores - negatives)).sum(1)


LOSS = Loss(
    name="decoupled_softmax",
    kernel=decoupled_softmax,
    dense=_dense,
    # For rows with several labels this is an approximation.
    prior_score=torch.log,
    splits_target=True,
)
