"""Cross-entropy of the softmax over an active set."""

import torch
from torch import Tensor

from slide.functional.losses.loss import Loss, target_share
from slide.ops.kernels.compile import parallel, prange
from slide.ops.kernels.loss_rows import add_weights, normalise, score_row


@parallel
def softmax(rows, losses, gradient):
    """Cross-entropy of the weighted softmax with targets of 1 / |y|; 0 without targets."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, b)
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


def _dense(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """The loss of each row in plain torch; see `slide.functional.losses.loss.Loss`."""
    logits = scores if log_weights is None else scores + log_weights
    aimed = (target_share(targets, scores) * scores).sum(1)
    # The sum is infinite if a set is empty.
    return torch.where(targets.any(1), torch.logsumexp(logits, 1), 0) - aimed


LOSS = Loss(
    name="softmax",
    kernel=softmax,
    dense=_dense,
    prior_score=torch.log,
    splits_target=True,
)
