"""Losses on active sets, by name, and their plain torch twins over all outputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from slide import checks
from slide.active_set import ActiveSet, check_sets, check_targets
from slide.functional.linear import (
    PRECISIONS,
    active_linear,
    check_active,
    check_leaves,
    gather_rows,
    rounded_type,
)
from slide.functional.nonzero_entries import input_gradient, nonzeros, weight_gradient
from slide.functional.nonzero_rows import check_fraction, hardest_count, scatter_rows
from slide.kernels import losses as kernels
from slide.kernels.ragged import clear_rows
from slide.row_gradients import RowGradient, hand_over
from slide.runtime import array_view, outside_autocast, untraced
from slide.sparse import Pattern

_LOSSES = {
    "softmax": kernels.softmax,
    "decoupled_softmax": kernels.decoupled_softmax,
    "bce": kernels.bce,
    "squared_hinge": kernels.squared_hinge,
}
LOSS_NAMES = tuple(_LOSSES)
# Scores that `active_linear_loss` makes at a time: they stay in the second-level caches. Not fewer
# samples than make a product worth its while.
BLOCK, LEAST = 2**19, 64


class ActiveLoss:
    """A loss on an active set, as a callable.

    * ``softmax``: cross-entropy with targets 1 / |y|.
    * ``decoupled_softmax``: each target against the negatives alone, averaged over the targets.
    * ``bce``: binary cross-entropy, summed over the outputs.
    * ``squared_hinge``: max(0, 1 - y z)^2, summed over the outputs.

    All are means over the batch. Samples without labels add nothing to the softmaxes.

    Args:
        name: one of these.
        hard_fraction: share of the batch, the samples with the largest losses, that the mean is
            over; at least one. The backward pass visits only these; see `hardest`.

    Raises:
        ValueError: for any other name, or a share that is not in (0, 1].
    """

    def __init__(self, name: str, hard_fraction: float = 1.0):
        checks.one_of("loss", name, LOSS_NAMES)
        check_fraction("hard_fraction", hard_fraction)
        self.name = name
        self.hard_fraction = hard_fraction

    def __call__(self, scores: Tensor, active: ActiveSet) -> Tensor:
        """The loss of `slide.functional.active_linear`'s ``scores``; a scalar."""
        return loss_on_active(scores, active, self.name, self.hard_fraction)

    def prior_scores(self, labels: Pattern, num_labels: int) -> Tensor:
        """Scores ``(N,)`` that minimise the loss where inputs tell nothing: good first biases.

        For ``decoupled_softmax`` with several labels a row this holds nearly.

        Args:
            labels: of the training rows.
            num_labels: N.
        """
        counts = np.diff(labels.indptr)
        # A row's labels share a target of 1 in the softmaxes, and have one of 1 each elsewhere.
        target = 1 / np.maximum(counts, 1) if "softmax" in self.name else np.ones(len(counts))
        sums = np.bincount(labels.indices, np.repeat(target, counts), minlength=num_labels)
        # Half an occurrence more, so that unseen labels stay finite.
        p = torch.from_numpy((sums + 0.5) / (labels.num_rows + 1)).float().clamp(max=1 - 1e-6)
        if self.name == "bce":
            return torch.logit(p)
        return 2 * p - 1 if self.name == "squared_hinge" else p.log()


def hardest(fraction: float) -> Callable[[Tensor], Tensor]:
    """Online hard example mining for any loss: the mean over the samples with the largest losses.

    ``hardest(0.25)(F.cross_entropy(scores, labels, reduction="none"))`` is the mean of the hardest
    quarter. The other samples' scores get gradients of zero, which slide's layers do not visit, so
    that one forward pass is enough and the backward pass of those layers costs a quarter.

    Args:
        fraction: in (0, 1], of the batch; the nearest number of samples, but one at least.

    Returns:
        A function of losses ``(B,)``, one a sample, to a scalar.

    Raises:
        ValueError: for another fraction, or, of the function, losses that are not ``(B,)``.
    """
    check_fraction("fraction", fraction)

    def mean_of_hardest(losses: Tensor) -> Tensor:
        if losses.ndim != 1:
            raise ValueError(f"losses must be (B,), one a sample, not {tuple(losses.shape)}")
        return losses.topk(hardest_count(fraction, len(losses))).values.mean()

    return mean_of_hardest


@untraced
def loss_on_active(
    scores: Tensor, active: ActiveSet, name: str, hard_fraction: float = 1.0
) -> Tensor:
    """Mean over the samples of a loss on an active set; see `slide.kernels.losses`.

    Args:
        scores: ``(B, A)`` for a shared set, else ``(nnz,)``: what `active_linear` gives.
        active: with targets; its weights make sums over the set estimates of sums over all N.
        name: one of `LOSS_NAMES`.
        hard_fraction: share of the samples, those with the largest losses, that the mean is over.

    Returns:
        A scalar.

    Raises:
        ValueError: for an unknown name, a share that is not in (0, 1], a set without targets, or
            scores, bounds, targets or weights that do not fit one another; TypeError: for bounds or
            targets of a wrong type.
    """
    num_samples = len(scores) if active.indptr is None else len(active.indptr) - 1
    check_sets(active, num_samples)
    _check_loss(name, active, hard_fraction, num_samples)
    shape = (num_samples, len(active.ids)) if active.shared else active.ids.shape
    if scores.shape != shape:
        raise ValueError(f"scores {tuple(scores.shape)} do not fit an active set, {shape}")
    if scores.dtype in (torch.bfloat16, torch.float16):
        scores = scores.float()
    return _Loss.apply(scores, active, name, hard_fraction)  # type: ignore[return-value]


class _Options(NamedTuple):
    """Of `_SharedLinearLoss`: loss, samples kept, type of products, and what is wanted."""

    name: str
    kept: int
    rounded: torch.dtype
    learns: bool
    sparse_grad: bool


@untraced
def active_linear_loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    active: ActiveSet,
    name: str,
    precision: str = "float32",
    hard_fraction: float = 1.0,
    sparse_grad: bool = False,
) -> Tensor:
    """`loss_on_active` of `active_linear`, a shared set's scores never being held all at once.

    They are made and turned into their gradient some samples at a time, in cache; what ``x``,
    weight and bias get is worked out in the forward pass and handed out in the backward one.

    Args, errors: as theirs.

    Returns:
        A scalar.
    """
    if not active.shared or active.complete or weight.dtype == torch.bfloat16:
        # Nothing is gathered for a complete set, and its scores are too many to keep room for.
        scores = active_linear(x, weight, bias, active, precision, sparse_grad)
        return loss_on_active(scores, active, name, hard_fraction)
    x, precision, outside = outside_autocast(x, weight, precision)
    check_active(x, weight, bias, active)
    checks.one_of("precision", precision, PRECISIONS)
    _check_loss(name, active, hard_fraction, len(x))
    if not sparse_grad:
        check_leaves(weight, bias)
    options = _Options(
        name,
        hardest_count(hard_fraction, len(x)),
        rounded_type(x, precision),
        torch.is_grad_enabled(),
        sparse_grad,
    )
    with outside:
        return _SharedLinearLoss.apply(x, weight, bias, active, options)  # type: ignore[return-value]


def _check_loss(name: str, active: ActiveSet, hard_fraction: float, num_samples: int) -> None:
    checks.one_of("loss", name, LOSS_NAMES)
    check_targets(active, num_samples)
    check_fraction("hard_fraction", hard_fraction)


def _loss_rows(
    name: str, active: ActiveSet, part: slice, kept: int, scores: Tensor, gradient: Tensor
) -> np.ndarray:
    """The losses of samples ``part``; writes the gradient of a mean over ``kept`` samples."""
    targets = active.targets
    assert targets is not None
    bounds, flat = targets.indptr[part.start : part.stop + 1], array_view(scores).reshape(-1)
    indptr = active.indptr
    if indptr is None:
        indptr = np.arange(len(bounds), dtype=np.int64) * len(active.ids)
    log_weights = np.empty(0, flat.dtype)
    if active.log_weights is not None:
        log_weights = active.log_weights.astype(flat.dtype, copy=False)
    losses = np.empty(len(bounds) - 1)
    scale = 1 / max(kept, 1)
    rows = kernels.Rows(indptr, flat, bounds, targets.indices, log_weights, active.shared, scale)
    _LOSSES[name](rows, losses, array_view(gradient).reshape(-1))
    return losses


def _scaled(gradient: Tensor, upstream: Tensor) -> Tensor:
    """Their product; most often that is the gradient, and a pass over it is spared."""
    return gradient if upstream.item() == 1 else gradient * upstream


def _hardest_first(losses: np.ndarray) -> np.ndarray:
    """Sample numbers; NaN counts as the largest loss, and so is kept."""
    return torch.from_numpy(losses).argsort(descending=True).numpy()


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, active: ActiveSet, name: str, hard_fraction: float):
        assert active.targets is not None
        scores, count = scores.contiguous(), active.targets.num_rows
        kept = hardest_count(hard_fraction, count)
        ctx.gradient = torch.empty_like(scores)
        losses = _loss_rows(name, active, slice(0, count), kept, scores, ctx.gradient)
        if kept < count:
            order, indptr = _hardest_first(losses), active.indptr
            if indptr is None:
                indptr = np.arange(count + 1, dtype=np.int64) * len(active.ids)
            clear_rows(indptr, order[kept:], array_view(ctx.gradient).reshape(-1))
            losses = losses[order[:kept]]
        return torch.tensor(losses.mean() if len(losses) else 0.0, dtype=scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _scaled(ctx.gradient, grads[0]), None, None, None


class _SharedLinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        active: ActiveSet,
        options: _Options,
    ):
        name, kept, rounded, learns, _ = options
        x, rows = x.detach(), gather_rows(weight, active)
        exact, count, size = x.dtype, len(x), len(active.ids)
        factors = x.to(rounded), rows.to(rounded)
        added = None if bias is None else gather_rows(bias, active)
        step = max(LEAST, BLOCK // max(size, 1))
        gradient = active.scratch.tensor("gradient", (count, size), exact)
        scores = active.scratch.tensor("scores", (min(step, count), size), exact)
        products = scores
        if rounded != exact:
            products = active.scratch.tensor("products", tuple(scores.shape), rounded)
        blocks = []
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            z, product = scores[: part.stop - start], products[: part.stop - start]
            torch.mm(factors[0][part], factors[1].T, out=product)
            if rounded != exact:
                z.copy_(product)
            if added is not None:
                z.add_(added)
            blocks.append(_loss_rows(name, active, part, kept, z, gradient[part]))
        losses = np.concatenate([np.empty(0), *blocks])
        hard = None
        if kept < count:
            hard = np.sort(_hardest_first(losses)[:kept])
            losses, at = losses[hard], torch.from_numpy(hard)
            gradient, x = gradient[at], x[at]
            factors = factors[0][at], factors[1]
        mean = torch.tensor(losses.mean() if len(losses) else 0.0, dtype=exact)
        if not learns:
            return mean
        ctx.weight, ctx.bias, ctx.sparse_grad = weight, bias, options.sparse_grad
        if ctx.needs_input_grad[2]:
            ctx.grad_bias = RowGradient(active.ids, gradient.sum(0)[:, None])
        grad = nonzeros(gradient)
        if grad is None:
            grad, (x, rows) = gradient, factors
            if rounded != exact:
                room = active.scratch.tensor("rounded", tuple(gradient.shape), rounded)
                grad = room.copy_(gradient)
        if ctx.needs_input_grad[0]:
            grad_x = input_gradient(grad, rows).to(exact)
            ctx.grad_x = grad_x if hard is None else scatter_rows(grad_x, hard, count)
        if ctx.needs_input_grad[1]:
            ctx.grad_weight = weight_gradient(grad, x, active.ids, active.scratch, exact)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        upstream, grad_weight, grad_bias = grads[0].item(), None, None
        sparse = ctx.sparse_grad  # What goes through autograd may be changed in place.
        grad_x = _scaled(ctx.grad_x, grads[0]) if ctx.needs_input_grad[0] else None
        if ctx.needs_input_grad[1]:
            grad_weight = hand_over(ctx.weight, ctx.grad_weight.scaled(upstream, sparse), sparse)
        if ctx.needs_input_grad[2]:
            grad_bias = hand_over(ctx.bias, ctx.grad_bias.scaled(upstream, sparse), sparse)
        return grad_x, grad_weight, grad_bias, None, None


def dense_loss(scores: Tensor, targets: Tensor, name: str, log_weights: Tensor | None) -> Tensor:
    """The same losses in plain torch, differentiable by autograd; the oracle of the kernels.

    Args:
        scores: ``(B, A)``.
        targets: ``(B, A)`` bool.
        name: one of `LOSS_NAMES`.
        log_weights: ``(B, A)`` or ``(A,)``, 0 at targets; None for all 0.

    Returns:
        A scalar, the mean over the rows.
    """
    logits = scores if log_weights is None else scores + log_weights
    weights = torch.ones_like(scores) if log_weights is None else log_weights.exp()
    counts = targets.sum(1)
    share = targets.to(scores.dtype) / counts.clamp(min=1)[:, None]
    if name == "softmax":
        losses = (counts > 0) * torch.logsumexp(logits, 1) - (share * scores).sum(1)
    elif name == "decoupled_softmax":
        negatives = torch.logsumexp(logits.masked_fill(targets, -torch.inf), 1, keepdim=True)
        losses = -(share * F.logsigmoid(scores - negatives)).sum(1)
    elif name == "bce":
        losses = -(weights * F.logsigmoid(torch.where(targets, scores, -scores))).sum(1)
    elif name == "squared_hinge":
        losses = (weights * F.relu(1 + torch.where(targets, -scores, scores)) ** 2).sum(1)
    else:
        raise ValueError(f"loss must be one of {list(LOSS_NAMES)}, not {name!r}")
    return losses.mean()
