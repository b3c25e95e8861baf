"""Losses of rows of scores in torch, with the gradients of autograd.

A formula gets scores ``(B, A)``, bools ``(B, A)`` that mark the targets, and None or log weights
``(B, A)`` or ``(A,)``, 0 at targets. It returns the losses ``(B,)``.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from slide.backend import on_device
from slide.ops.reference.products import samples_on
from slide.sparse import Pattern


def target_share(targets: Tensor, scores: Tensor) -> Tensor:
    """``(B, A)``: 1 / |y| at the targets of each row, 0 elsewhere; the type of ``scores``."""
    return targets.to(scores.dtype) / targets.sum(1).clamp(min=1)[:, None]


def bce(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """Binary cross-entropy of each output against 0 or 1, weighted and summed."""
    weights = torch.ones_like(scores) if log_weights is None else log_weights.exp()
    return -(weights * logsigmoid(torch.where(targets, scores, -scores))).sum(1)


def squared_hinge(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """max(0, 1 - y z)^2 with y = 1 for targets, else y = -1; weighted and summed."""
    weights = torch.ones_like(scores) if log_weights is None else log_weights.exp()
    return (weights * relu(1 + torch.where(targets, -scores, scores)) ** 2).sum(1)


def softmax(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """Cross-entropy of the weighted softmax with targets of 1 / |y|; 0 without targets."""
    logits = scores if log_weights is None else scores + log_weights
    aimed = (target_share(targets, scores) * scores).sum(1)
    # The sum is infinite if a set is empty.
    return torch.where(targets.any(1), torch.logsumexp(logits, 1), 0) - aimed


def smoothed_softmax(
    smoothing: float, scores: Tensor, targets: Tensor, log_weights: Tensor | None
) -> Tensor:
    """`softmax`, with a share of the targets on all outputs, by their weights."""
    weights = torch.ones_like(scores) if log_weights is None else log_weights.exp()
    mean = (weights * scores).sum(1) / (weights + torch.zeros_like(scores)).sum(1)
    aimed = (target_share(targets, scores) * scores).sum(1)
    moved = torch.where(targets.any(1), aimed - mean, 0)
    return softmax(scores, targets, log_weights) + smoothing * moved


def decoupled_softmax(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """Mean cross-entropy of each target against the negatives alone."""
    logits = scores if log_weights is None else scores + log_weights
    negatives = torch.logsumexp(logits.masked_fill(targets, -torch.inf), 1, keepdim=True)
    return -(target_share(targets, scores) * logsigmoid(scores - negatives)).sum(1)


def loss_rows(
    scores: Tensor, active: Any, loss: Any, scale: float, weights: np.ndarray | None
) -> tuple[Tensor, Tensor]:
    device, logs = scores.device, active.log_weights
    if logs is not None:
        logs = on_device(logs, device).to(scores.dtype)
    with torch.enable_grad():
        leaf = matrix = scores.detach().requires_grad_()
        if active.indptr is not None:
            matrix, logs = score_matrix(leaf, logs, active.indptr)
        losses = loss.dense(matrix, aimed_at(active.targets, matrix), logs)
        if weights is not None:
            losses = losses * on_device(weights, device).to(losses.dtype)
        if torch.is_inference_mode_enabled():  # Nothing is recorded, and nobody asks for it.
            return losses, torch.zeros_like(scores)
        (gradient,) = torch.autograd.grad(losses.sum() * scale, leaf)
    return losses.detach(), gradient


class ProductLosses(NamedTuple):
    """Losses ``(B,)`` of the scores of a shared set, and their gradient ``(B, A)``.

    Where one visit made them, too: the gradient rounded to the type of the products, with a column
    for each of their rows, and its sums ``(A,)`` over the samples.
    """

    losses: Tensor
    gradient: Tensor
    rounded: Tensor | None = None
    sums: Tensor | None = None


def losses_of_products(
    x: Tensor,
    rows: Tensor,
    bias: Tensor | None,
    active: Any,
    loss: Any,
    scale: float,
    weights: np.ndarray | None,
    exact: torch.dtype,
) -> ProductLosses:
    scores = (x @ rows.T).to(exact)
    scores = scores if bias is None else scores + bias
    return ProductLosses(*loss_rows(scores, active, loss, scale, weights))


def clear_samples(gradient: Tensor, indptr: np.ndarray | None, samples: Tensor) -> None:
    if indptr is None:
        gradient[samples] = 0
        return
    cleared = torch.zeros(len(indptr) - 1, dtype=torch.bool, device=gradient.device)
    cleared[samples] = True
    gradient.masked_fill_(cleared[samples_on(indptr, gradient.device)], 0)


def aimed_at(targets: Pattern, scores: Tensor) -> Tensor:
    """Which of the scores ``(B, A)`` belong to targets, ``(B, A)`` bools."""
    aimed = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    samples = targets.entry_rows()
    columns = on_device(targets.indices, scores.device).long()
    aimed[on_device(samples, scores.device), columns] = True
    return aimed


def score_matrix(
    scores: Tensor, weights: Tensor | None, indptr: np.ndarray
) -> tuple[Tensor, Tensor | None]:
    """Scores and log weights as ``(B, largest set)``, filled up by outputs of weight 0."""
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
