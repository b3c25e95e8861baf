"""A loss of scores on an active set, and its gradient by one kernel."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet, check_sets, check_targets
from slide.backend import array_view, plain
from slide.functional.first_derivatives import FirstDerivatives
from slide.functional.hard_samples import check_fraction, hardest_count, hardest_first
from slide.functional.losses import Loss, find_loss
from slide.functional.plain_loss import plain_loss
from slide.kernels.loss_rows import Rows
from slide.kernels.ragged import clear_rows
from slide.utils import checks
from slide.utils.profiling import profiled, untraced


@untraced
def loss_on_active(
    scores: Tensor,
    active: ActiveSet,
    loss: str | Loss,
    hard_fraction: float = 1.0,
    weights: np.ndarray | None = None,
) -> Tensor:
    """The mean over the samples of a loss on an active set.

    Args:
        scores: ``(B, A)`` for a shared set, else ``(nnz,)``: what `active_linear` returns.
        active: a set with targets. With its weights, sums over the set estimate sums over all N.
        loss: the name of a loss, or its record; see `slide.ActiveLoss`.
        hard_fraction: share of the samples that the mean is over, in (0, 1]; these samples have the
            largest losses.
        weights: ``(B,)`` factors of the losses of the samples, at least 0; None: all are 1.

    Returns:
        The mean loss, a scalar.

    Raises:
        ValueError: for an unknown loss, a share that is not in (0, 1], a set without targets, or
            scores, bounds, targets or weights that do not fit each other.
        TypeError: for bounds or targets of a wrong type.

    Example:
        >>> import numpy as np, slide, torch
        >>> from slide.functional import loss_on_active
        >>> ids = np.array([3, 7], np.int32)
        >>> active = slide.ActiveSet(9, ids, targets=slide.Pattern.from_lists([[0]]))
        >>> loss_on_active(torch.tensor([[1.0, 0.0]]), active, "squared_hinge")
        tensor(1.)
    """
    loss = find_loss(loss)
    num_samples = len(scores) if active.indptr is None else len(active.indptr) - 1
    check_sets(active, num_samples)
    check_targets(active, num_samples)
    check_fraction("hard_fraction", hard_fraction)
    weights = checks.row_weights("weights", weights, num_samples)
    shape = (num_samples, len(active.ids)) if active.shared else active.ids.shape
    if scores.shape != shape:
        raise ValueError(f"scores {tuple(scores.shape)} do not fit an active set, {shape}")
    if scores.dtype in (torch.bfloat16, torch.float16):
        scores = scores.float()
    if plain(scores):
        return plain_loss(scores, active, loss, hard_fraction, weights)
    return _ActiveLoss.apply(scores, active, loss, hard_fraction, weights)  # type: ignore[return-value]


def loss_rows(
    loss: Loss,
    active: ActiveSet,
    part: slice,
    kept: int,
    tensors: tuple[Tensor, Tensor],
    weights: np.ndarray | None,
) -> np.ndarray:
    """The losses of the samples ``part``; writes the gradient of the mean over ``kept`` samples.

    ``tensors`` are the scores and the gradient. ``weights`` ``(B,)`` are those of all samples.
    """
    scores, gradient = tensors
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
    rows = Rows(indptr, flat, bounds, targets.indices, log_weights, active.shared, scale)
    flat_gradient = array_view(gradient).reshape(-1)
    loss.kernel(rows, losses, flat_gradient)
    if weights is not None:
        losses *= weights[part]
        flat_gradient *= np.repeat(weights[part], np.diff(indptr)).astype(flat.dtype)
    return losses


def mean_loss(losses: np.ndarray, dtype: torch.dtype) -> Tensor:
    """The mean as a scalar tensor; 0 if there are no samples."""
    return torch.tensor(losses.mean() if len(losses) else 0.0, dtype=dtype)


class _ActiveLoss(FirstDerivatives):
    @staticmethod
    @profiled("output_layer")
    def forward(
        ctx: Any,
        scores: Tensor,
        active: ActiveSet,
        loss: Loss,
        hard_fraction: float,
        weights: np.ndarray | None,
    ):
        assert active.targets is not None
        scores, count = scores.contiguous(), active.targets.num_rows
        kept = hardest_count(hard_fraction, count)
        ctx.gradient = torch.empty_like(scores)
        tensors = scores, ctx.gradient
        losses = loss_rows(loss, active, slice(0, count), kept, tensors, weights)
        if kept < count:
            order, indptr = hardest_first(losses), active.indptr
            if indptr is None:
                indptr = np.arange(count + 1, dtype=np.int64) * len(active.ids)
            clear_rows(indptr, order[kept:], array_view(ctx.gradient).reshape(-1))
            losses = losses[order[:kept]]
        return mean_loss(losses, scores.dtype)

    @staticmethod
    @profiled("output_layer")
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        # In new memory even where the factor is 1, since callers may change it in place.
        return ctx.gradient * grads[0], None, None, None, None
