"""The loss of a layer whose outputs are shared out among processes, and its gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from slide.active_set import ActiveSet, check_active
from slide.backend import on_device
from slide.distributed.group import Group
from slide.functional.autograd import EarlyGradients
from slide.functional.linear import linear_loss_on_set, linear_on_set
from slide.nn import ActiveLoss
from slide.ops.losses import aimed_at, hardest_count, score_matrix
from slide.ops.products import samples_of
from slide.row_gradients import take_row_gradients
from slide.sparse import Pattern
from slide.utils import checks


class Task(NamedTuple):
    """What the loss of a step is computed from, beside inputs and weights."""

    active: ActiveSet  # Of this rank, by local numbers.
    label_counts: np.ndarray  # (B,) int64, labels of each sample on all ranks together.
    loss: ActiveLoss
    precision: str
    sparse_grad: bool
    weights: np.ndarray | None  # (B,) factors of the losses of the samples; None: all are 1.
    group: Group


def check_loss_of_group(loss: Any, group: Group) -> None:
    """Raise unless a loss is an `ActiveLoss` that several ranks can compute."""
    if not isinstance(loss, ActiveLoss):
        raise TypeError(
            f"on several processes a loss must be an ActiveLoss, not {type(loss).__qualname__}"
        )
    record = loss.record
    if loss.class_weights is not None:
        raise ValueError(
            "class_weights need all labels of a sample on one process: give weights of the samples"
        )
    if group.size > 1 and record.splits_target and record.name not in SOFTMAXES:
        raise ValueError(
            f"the loss {record.name} cannot be computed on several processes: its outputs share a "
            f"target; take one of {', '.join(SOFTMAXES)}, or a loss that is a sum over outputs"
        )


def loss_over_ranks(x: Tensor, weight: Tensor, bias: Tensor | None, task: Task) -> Tensor:
    """The mean loss over the samples, of the active sets of all ranks together; a scalar.

    One all-reduce adds up the gradients of ``x`` ``(B, H)`` and the loss; losses that need sums
    over all outputs of a sample exchange 1 to 4 B numbers before.
    """
    check_active(task.active, len(x), None, targets=True)
    task = task._replace(weights=checks.row_weights("weights", task.weights, len(x)))
    learns = torch.is_grad_enabled()
    return _LossOverRanks.apply(x, weight, bias, task, learns)  # type: ignore[return-value]


class _LossOverRanks(EarlyGradients):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, task: Task, learns: bool):
        # Leaves in the same memory: the gradients that the operations of one process leave on them
        # go to the weights in the backward pass.
        ctx.save_for_backward(x)  # Autograd notices changes of it, and a second backward pass.
        leaves = [_leaf(each) for each in (x, weight, bias)]
        sums = _Sums(task.group)
        with torch.set_grad_enabled(learns):
            own, known = _own_part(leaves, task, sums)
        ctx.grad_x, total = _over_ranks(leaves[0], own, known, sums)
        ctx.parameters, ctx.sparse_grad = (weight, bias), task.sparse_grad
        ctx.rows = [None if leaf is None else take_row_gradients(leaf) for leaf in leaves[1:]]
        return total


def _leaf(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    return tensor.detach().requires_grad_(tensor.requires_grad)


class _Sums:
    """The gradient of ``x`` and the loss, added up over the ranks by one all-reduce."""

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
    """This rank's part of the loss, and the loss if all ranks know it; leaves get gradients."""
    loss, fraction = task.loss.record, task.loss.hard_fraction
    x, weight, bias = leaves
    if task.group.size == 1 or (not loss.splits_target and fraction == 1):
        mean = linear_loss_on_set(
            x,
            weight,
            bias,
            task.active,
            loss,
            fraction,
            precision=task.precision,
            sparse_grad=False,
            weights=task.weights,
            early=sums.begin,
        )
        if mean.requires_grad:
            mean.backward()
        return mean.detach(), None
    scores = linear_on_set(x, weight, bias, task.active, task.precision, sparse_grad=False)
    logs = task.active.log_weights
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
    """The losses of the samples ``(B,)`` float64, equal on all ranks, and their gradients."""
    loss, targets = task.loss.record, task.active.targets
    assert targets is not None
    if loss.splits_target:
        own_targets = OwnTargets.of(targets, task.label_counts, scores.device)
        return SOFTMAXES[loss.name](scores, logs, own_targets, task.group)
    with torch.enable_grad():
        own = loss.dense(scores.requires_grad_(), aimed_at(targets, scores), logs)
        (gradient,) = torch.autograd.grad(own.sum(), scores)
    return task.group.all_reduce(own.detach().double()), gradient


def _factors(losses: Tensor, fraction: float, weights: np.ndarray | None) -> Tensor:
    """The factor of each sample in the mean over the hardest, ``(B,)`` float64."""
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


# Softmaxes over outputs that are shared out: each function takes the scores of this rank's active
# sets, and returns the losses of the samples (B,) float64, equal on all ranks, and their gradients
# (B, A) by the scores.


class OwnTargets(NamedTuple):
    """The targets among this rank's scores."""

    rows: Tensor  # (T,) int64, sample of each target.
    columns: Tensor  # (T,) int64, its column.
    share: Tensor  # (T,) float64, 1 / |y|, where y are the labels of the sample on all ranks.
    labelled: Tensor  # (B,) bools, whether a sample has labels.

    @classmethod
    def of(cls, targets: Pattern, label_counts: np.ndarray, device: torch.device) -> "OwnTargets":
        """From the targets of a set, and ``(B,)`` numbers of labels on all ranks."""
        counts = on_device(label_counts, device)
        rows = samples_of(on_device(np.diff(targets.indptr), device), len(targets.indices))
        columns = on_device(targets.indices, device).long()
        return cls(rows, columns, 1 / counts[rows].double(), counts > 0)

    def total(self, values: Tensor) -> Tensor:
        """The sums of ``(..., T)`` float64 over the targets of each sample, ``(..., B)``."""
        sums = values.new_zeros(*values.shape[:-1], len(self.labelled))
        return sums.index_add_(-1, self.rows, values)


def _softmax(
    scores: Tensor, logs: Tensor | None, targets: OwnTargets, group: Group
) -> tuple[Tensor, Tensor]:
    """`slide.ops.losses.softmax`: log-sum-exp minus the mean of the targets' scores."""
    logits = scores if logs is None else scores + logs
    at = targets.rows, targets.columns
    pulled = targets.total(scores[at].double() * targets.share)
    top, pulled = _gathered(torch.logsumexp(logits, 1), pulled, group)
    losses = torch.where(targets.labelled, top - pulled, 0)
    gradient = (logits - top.to(logits.dtype)[:, None]).exp_()
    gradient[at] -= targets.share.to(gradient.dtype)
    gradient.masked_fill_(~targets.labelled[:, None], 0)
    return losses, gradient


def _decoupled_softmax(
    scores: Tensor, logs: Tensor | None, targets: OwnTargets, group: Group
) -> tuple[Tensor, Tensor]:
    """`slide.ops.losses.decoupled_softmax`: each target against all negatives."""
    at = targets.rows, targets.columns
    logits = scores.clone() if logs is None else scores + logs
    logits[at] = -torch.inf
    top, _ = _gathered(torch.logsumexp(logits, 1), None, group)
    gaps = top[targets.rows] - scores[at].double()
    parts = torch.stack([softplus(gaps), gaps.sigmoid()]) * targets.share
    losses, pull = group.all_reduce(targets.total(parts))
    # Without negatives there is nothing to push, and -inf - -inf is not a number.
    top = torch.where(top == -torch.inf, 0, top).to(logits.dtype)
    gradient = logits.sub_(top[:, None]).exp_().mul_(pull.to(logits.dtype)[:, None])
    gradient[at] = -parts[1].to(gradient.dtype)
    return losses, gradient


def _gathered(logs: Tensor, sums: Tensor | None, group: Group) -> tuple[Tensor, Tensor]:
    """Log-sum-exps ``(B,)`` and sums ``(B,)`` or None, over all ranks, float64."""
    logs = logs.double()
    own = torch.stack([logs, torch.zeros_like(logs) if sums is None else sums])
    every = torch.stack(group.all_gather(own, [2] * group.size))
    return torch.logsumexp(every[:, 0], 0), every[:, 1].sum(0)


SOFTMAXES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "softmax": _softmax,
    "decoupled_softmax": _decoupled_softmax,
}
