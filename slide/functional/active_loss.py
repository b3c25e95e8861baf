"""A loss of scores on an active set, and its gradient.

The mean may be over the hardest samples of a batch (online hard example mining: Shrivastava, Gupta
and Girshick 2016, "Training region-based object detectors with online hard example mining").
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide import ops
from slide.active_set import ActiveSet, check_sets, check_targets
from slide.functional.autograd import FirstDerivatives
from slide.functional.losses import Loss, find_loss
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
    return _ActiveLoss.apply(scores, active, loss, hard_fraction, weights)  # type: ignore[return-value]


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
        count = active.targets.num_rows
        kept = hardest_count(hard_fraction, count)
        losses, ctx.gradient = ops.loss_rows(
            scores.contiguous(), active, loss, 1 / max(kept, 1), weights
        )
        if kept < count:
            order = losses.argsort(descending=True)  # NaN counts as the largest loss.
            ops.clear_samples(ctx.gradient, active.indptr, order[kept:])
            losses = losses[order[:kept]]
        return ops.mean_loss(losses, scores.dtype)

    @staticmethod
    @profiled("output_layer")
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        # In new memory even where the factor is 1, since callers may change it in place.
        return ctx.gradient * grads[0], None, None, None, None


def check_fraction(name: str, fraction: float) -> None:
    """Raise ValueError unless ``fraction`` lies in (0, 1]."""
    checks.positive(name, fraction)
    checks.share(name, fraction, with_one=True)


def hardest_count(fraction: float, num_samples: int) -> int:
    """The number of samples in a ``fraction`` of them, rounded; at least one."""
    return min(num_samples, max(1, round(fraction * num_samples)))
