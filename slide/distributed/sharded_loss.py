"""The loss of a layer whose outputs are shared out among processes, and its gradients.

Each rank has the scores of its own active set. What the ranks exchange for a loss is small: see
`loss_over_ranks`. No gradient of a weight is sent.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet, check_targets
from slide.backend import number_of, on_device
from slide.distributed.group import Group
from slide.distributed.sharded_softmax import SOFTMAXES, OwnTargets
from slide.functional.active_loss import hardest_count
from slide.functional.autograd import FirstDerivatives
from slide.functional.linear import LinearOptions, linear_on_set
from slide.functional.linear_loss import linear_loss_on_set
from slide.nn import ActiveLoss
from slide.ops.reference.losses import aimed_at, score_matrix
from slide.row_gradients import hand_over, take_row_gradients
from slide.utils import checks


class Task(NamedTuple):
    """What the loss of a step is computed from, beside inputs and weights.

    Attributes:
        active: the active set of this rank, by local numbers.
        label_counts: ``(B,)`` int64, number of labels of each sample, on all ranks together.
        loss: the loss.
        products: how products are computed.
        weights: ``(B,)`` factors of the losses of the samples; None: all are 1.
        group: the processes.
    """

    active: ActiveSet
    label_counts: np.ndarray
    loss: ActiveLoss
    products: LinearOptions
    weights: np.ndarray | None
    group: Group


def check_loss_of_group(loss: Any, group: Group) -> None:
    """Raise an error for a loss that the processes of a group cannot compute together.

    Args:
        loss: the loss; a function of values and active set is none, because each process has the
            values of its own outputs only.
        group: the processes.

    Raises:
        TypeError: if it is no `slide.ActiveLoss`.
        ValueError: on several processes, if it is neither a known softmax nor a sum over outputs.
    """
    if not isinstance(loss, ActiveLoss):
        raise TypeError(
            f"on several processes a loss must be an ActiveLoss, not {type(loss).__qualname__}"
        )
    record = loss.record
    if group.size > 1 and record.splits_target and record.name not in SOFTMAXES:
        raise ValueError(
            f"the loss {record.name} cannot be computed on several processes: its outputs share a "
            f"target; take one of {', '.join(SOFTMAXES)}, or a loss that is a sum over outputs"
        )


def loss_over_ranks(x: Tensor, weight: Tensor, bias: Tensor | None, task: Task) -> Tensor:
    """The mean loss over the samples, of the active sets of all ranks together; a scalar.

    ``bce`` and ``squared_hinge`` are sums over outputs, so one all-reduce adds up the gradients of
    ``x``, with the loss as one number more. The softmaxes gather B log-sum-exps and scores of
    targets from each rank before. ``decoupled_softmax`` then adds up 2 B numbers, and so does any
    sum over outputs if ``hard_fraction`` is below 1, B numbers. The forward pass computes all
    gradients, and the backward pass leaves those of the rows.

    Args:
        x: ``(B, H)``, the same on all ranks.
        weight: ``(n, H)``, the rows of this rank.
        bias: ``(n,)`` or None.
        task: the other parts of the step.

    Raises:
        ValueError: for targets or weights of samples that do not fit.
    """
    check_targets(task.active, len(x))
    task = task._replace(weights=checks.row_weights("weights", task.weights, len(x)))
    learns = torch.is_grad_enabled()
    return _LossOverRanks.apply(x, weight, bias, task, learns)  # type: ignore[return-value]


class _LossOverRanks(FirstDerivatives):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, task: Task, learns: bool):
        # Leaves in the same memory: the gradients that the operations of one process leave on them
        # go to the weights in the backward pass.
        leaves = [_leaf(each) for each in (x, weight, bias)]
        sums = _Sums(task.group)
        with torch.set_grad_enabled(learns):
            own, known = _own_part(leaves, task, sums)
        ctx.grad_x, total = _over_ranks(leaves[0], own, known, sums)
        ctx.parameters, ctx.sparse_grad = (weight, bias), task.products.sparse_grad
        ctx.rows = [None if leaf is None else take_row_gradients(leaf) for leaf in leaves[1:]]
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_x = ctx.grad_x * grads[0] if ctx.needs_input_grad[0] else None
        upstream, sparse, found = number_of(grads[0]), ctx.sparse_grad, []
        wanted = ctx.needs_input_grad[1:3]
        for parameter, gradient, needed in zip(ctx.parameters, ctx.rows, wanted, strict=True):
            if not needed or gradient is None:
                found.append(None)
                continue
            gradient = gradient.scaled(upstream, sparse)
            found.append(hand_over(ctx, parameter, gradient, sparse))
        return grad_x, *found, None, None


def _leaf(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    return tensor.detach().requires_grad_(tensor.requires_grad)


class _Sums:
    """The gradient of ``x`` and the loss, added up over the ranks by one all-reduce.

    Args:
        group: the processes.
    """

    def __init__(self, group: Group):
        self._group, self._end = group, None

    def begin(self, *parts: Tensor) -> None:
        """Begin, if it has not begun; the exchange goes on while this rank does other work."""
        if self._end is None:
            dtype = torch.promote_types(parts[0].dtype, torch.float32)
            numbers = torch.cat([part.to(dtype).flatten() for part in parts])  # A copy.
            self._end = self._group.begin_all_reduce(numbers)

    def end(self) -> Tensor:
        """Wait; the sums of all numbers, one after the other."""
        assert self._end is not None
        return self._end()


def _own_part(leaves: list[Any], task: Task, sums: _Sums) -> tuple[Tensor, Tensor | None]:
    """Compute the gradients of this rank's part, and leave them on the leaves.

    Where it can, it begins ``sums`` before the gradient of the weight is computed.

    Returns:
        This rank's part of the loss, and the loss if all ranks know it already.
    """
    loss, fraction = task.loss.record, task.loss.hard_fraction
    products = task.products._replace(sparse_grad=False)
    x, weight, bias = leaves
    layer = x, weight, bias, task.active
    if task.group.size == 1 or (not loss.splits_target and fraction == 1):
        options = loss, fraction, products, task.weights
        mean = linear_loss_on_set(*layer, *options, early=sums.begin)
        if mean.requires_grad:
            mean.backward()
        return mean.detach(), None
    scores, logs = linear_on_set(*layer, products), task.active.log_weights
    if scores.dtype == torch.bfloat16:
        scores = scores.float()
    if logs is not None:
        logs = on_device(logs, scores.device).to(scores.dtype)
    if task.active.indptr is not None:
        scores, logs = score_matrix(scores, logs, task.active.indptr)
    losses, gradient = _losses(scores.detach(), logs, task)
    factors = _factors(losses, fraction, task.weights)
    if scores.requires_grad:
        gradient.mul_(factors.to(gradient.dtype)[:, None])
        gradient.masked_fill_((factors == 0)[:, None], 0)  # Even if it is not finite.
        scores.backward(gradient)
    total = torch.where(factors > 0, losses * factors, 0).sum()
    return total, total


def _losses(scores: Tensor, logs: Tensor | None, task: Task) -> tuple[Tensor, Tensor]:
    """The losses of the samples ``(B,)`` float64, equal on all ranks, and their gradients.

    Args:
        scores: ``(B, A)``, those of this rank's set.
        logs: ``(A,)`` or ``(B, A)``, or None.
        task: the other parts of the step.
    """
    loss, targets = task.loss.record, task.active.targets
    assert targets is not None
    if loss.splits_target:
        return SOFTMAXES[loss.name](
            scores, logs, OwnTargets.of(targets, task.label_counts, scores.device), task.group
        )
    with torch.enable_grad():
        own = loss.dense(scores.requires_grad_(), aimed_at(targets, scores), logs)
        (gradient,) = torch.autograd.grad(own.sum(), scores)
    return task.group.all_reduce(own.detach().double()), gradient


def _factors(losses: Tensor, fraction: float, weights: np.ndarray | None) -> Tensor:
    """What the loss of each sample counts in the mean over the hardest, ``(B,)`` float64."""
    factors = torch.ones_like(losses)
    if weights is not None:
        factors = on_device(weights, losses.device).clone()
    count, kept = len(losses), hardest_count(fraction, len(losses))
    if kept < count:
        order = (losses * factors).argsort(descending=True, stable=True)  # NaN comes first.
        factors[order[kept:]] = 0
    return factors / max(kept, 1)


def _over_ranks(
    x: Tensor, own: Tensor, known: Tensor | None, sums: _Sums
) -> tuple[Tensor | None, Tensor]:
    """The gradient of ``x`` and the loss, added up over the ranks."""
    parts = [each for each in (x.grad, own if known is None else None) if each is not None]
    found = torch.empty(0, dtype=torch.promote_types(x.dtype, torch.float32))
    if parts:
        sums.begin(*parts)
        found = sums.end()
    total = found[-1].clone() if known is None else known.to(found.dtype)
    grad_x = None if x.grad is None else found[: x.numel()].view(x.shape).to(x.dtype)
    return grad_x, total
