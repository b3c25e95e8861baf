"""Squared hinge of each output."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import relu

from slide.functional.losses.loss import Loss
from slide.ops.kernels.compile import parallel, prange
from slide.ops.kernels.loss_rows import hinge, score_row


@parallel
def squared_hinge(rows, losses, gradient):
    """max(0, 1 - y z)^2 with y = 1 for targets, else y = -1; weighted and summed."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, b)
        g = gradient[rows.indptr[b] : rows.indptr[b + 1]]
        weighted = len(log_weights) > 0
        scale = g.dtype.type(2 * rows.scale)
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
        losses[b] = loss


def _dense(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """The loss of each row in plain torch; see `slide.functional.losses.loss.Loss`."""
    weights = torch.ones_like(scores) if log_weights is None else log_weights.exp()
    return (weights * relu(1 + torch.where(targets, -scores, scores)) ** 2).sum(1)


def prior_score(p: Tensor) -> Tensor:
    """The score that minimises the loss of an output which is a target with probability ``p``."""
    return 2 * p - 1


LOSS = Loss(
    name="squared_hinge",
    kernel=squared_hinge,
    dense=_dense,
    prior_score=prior_score,
    score_range=(-1.0, 1.0),
)
