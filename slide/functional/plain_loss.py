"""The losses of scores on an active set in plain torch, with the gradients of autograd."""

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.functional.hard_samples import hardest_count
from slide.functional.losses import Loss
from slide.ops.backend import on_device
from slide.sparse import Pattern


def plain_loss(
    scores: Tensor,
    active: ActiveSet,
    loss: Loss,
    hard_fraction: float,
    weights: np.ndarray | None,
) -> Tensor:
    """The mean over the samples of a loss on an active set; see `loss_on_active`."""
    targets, device = active.targets, scores.device
    assert targets is not None
    logs = active.log_weights
    if logs is not None:
        logs = on_device(logs, device).to(scores.dtype)
    if active.indptr is not None:
        scores, logs = score_matrix(scores, logs, active.indptr)
    losses = loss.dense(scores, aimed_at(targets, scores), logs)
    if weights is not None:
        losses = losses * on_device(weights, device).to(losses.dtype)
    kept = hardest_count(hard_fraction, len(losses))
    if kept < len(losses):
        losses = losses.topk(kept).values
    return losses.sum() / max(kept, 1)


def aimed_at(targets: Pattern, scores: Tensor) -> Tensor:
    """Which of the scores ``(B, A)`` are those of targets, ``(B, A)`` bools."""
    aimed = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    samples = targets.entry_rows()
    columns = on_device(targets.indices, scores.device).long()
    aimed[on_device(samples, scores.device), columns] = True
    return aimed


def score_matrix(
    scores: Tensor, weights: Tensor | None, indptr: np.ndarray
) -> tuple[Tensor, Tensor | None]:
    """Scores and log weights of sets of each sample as matrices ``(B, largest set)``.

    Smaller sets are filled up with scores of zero that stand for no output.
    """
    sizes = np.diff(indptr)
    shape = len(sizes), int(sizes.max(initial=0))
    if (sizes == shape[1]).all():
        return scores.view(shape), None if weights is None else weights.view(shape)
    at = on_device(np.flatnonzero(np.arange(shape[1]) < sizes[:, None]), scores.device)
    if weights is None:
        weights = torch.zeros_like(scores)
    logs = weights.new_full((shape[0] * shape[1],), -torch.inf).index_copy(0, at, weights)
    flat = scores.new_zeros(shape[0] * shape[1]).index_copy(0, at, scores)
    return flat.view(shape), logs.view(shape)
