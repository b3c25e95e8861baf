"""Binary cross-entropy of each output."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from slide.functional.losses.loss import Loss
from slide.ops.kernels.compile import parallel, prange
from slide.ops.kernels.loss_rows import hinge, score_row, sigmoid


@parallel
def bce(rows, losses, gradient):
    """Binary cross-entropy of each output against 0 or 1, weighted and summed over the row."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, b)
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


def _dense(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """The loss of each row in plain torch; see `slide.functional.losses.loss.Loss`."""
    weights = torch.ones_like(scores) if log_weights is None else log_weights.exp()
    return -(weights * logsigmoid(torch.where(targets, scores, -scores))).sum(1)


LOSS = Loss(
    name="bce",
    kernel=bce,
    dense=_dense,
    prior_score=torch.logit,
)
