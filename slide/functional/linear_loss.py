"""A linear layer on a shared set and its loss in one operation, some samples at a time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide import ops
from slide.active_set import ActiveSet, check_targets
from slide.backend import number_of
from slide.functional.active_loss import check_fraction, hardest_count, loss_on_active
from slide.functional.autograd import FirstDerivatives, check_not_averaged, outside_autocast
from slide.functional.linear import (
    LinearOptions,
    check_active,
    gather_rows,
    input_gradient,
    linear_on_set,
    scatter_rows,
    weight_gradient,
)
from slide.functional.losses import Loss, find_loss
from slide.row_gradients import RowGradient, check_leaves, hand_over
from slide.utils import checks
from slide.utils.profiling import profiled, untraced

# Takes the gradient of the inputs ``(B, D)`` and the loss, a scalar.
Early = Callable[[Tensor, Tensor], object]


@untraced
def active_linear_loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    active: ActiveSet,
    loss: str | Loss,
    *,
    hard_fraction: float = 1.0,
    precision: str = "float32",
    sparse_grad: bool = False,
    weights: np.ndarray | None = None,
) -> Tensor:
    """The loss `loss_on_active` of the scores `active_linear`, a scalar.

    With a shared set on the CPU this takes less time and memory than the two functions. It computes
    the scores of some samples and at once their gradient, while both are in the cache. The forward
    pass computes the gradients of ``x``, weight and bias, and the backward pass returns them.

    Args:
        x, weight, bias, active, precision, sparse_grad: see `active_linear`.
        loss, hard_fraction, weights: see `loss_on_active`.

    Returns:
        The mean loss, a scalar of the type of the weight; float32 for bfloat16.

    Raises:
        ValueError: as in `active_linear` and `loss_on_active`.
        TypeError: as in these.

    Example:
        >>> import numpy as np, slide, torch
        >>> from slide.functional import active_linear_loss
        >>> weight = torch.zeros(9, 4, requires_grad=True)
        >>> ids = np.array([3, 7], np.int32)
        >>> active = slide.ActiveSet(9, ids, targets=slide.Pattern.from_lists([[0]]))
        >>> loss = active_linear_loss(torch.ones(1, 4), weight, None, active, "bce")
        >>> round(loss.item(), 4)
        1.3863
    """
    x, precision, outside = outside_autocast(x, weight, precision)
    check_active(x, weight, bias, active)
    record, products = find_loss(loss), LinearOptions.of(x, precision, sparse_grad)
    with outside:
        layer = x, weight, bias, active
        return linear_loss_on_set(*layer, record, hard_fraction, products, weights)


def linear_loss_on_set(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    active: ActiveSet,
    loss: Loss,
    hard_fraction: float,
    products: LinearOptions,
    weights: np.ndarray | None = None,
    early: Early | None = None,
) -> Tensor:
    """`active_linear_loss`, without its checks of inputs and set.

    Where the gradients are computed in blocks, ``early`` is called before the gradient of the
    weight is computed.
    """
    if not active.shared or active.complete or weight.dtype == torch.bfloat16:
        # A complete set needs no copy of its rows, and its scores are too many for scratch memory.
        scores = linear_on_set(x, weight, bias, active, products._replace(for_loss=True))
        return loss_on_active(scores, active, loss, hard_fraction, weights)
    check_not_averaged(weight, bias)
    if not products.sparse_grad:
        check_leaves(weight, bias)
    check_targets(active, len(x))
    check_fraction("hard_fraction", hard_fraction)
    kept, learns = hardest_count(hard_fraction, len(x)), torch.is_grad_enabled()
    weights = checks.row_weights("weights", weights, len(x))
    with active.scratch.alone():
        return _SharedLinearLoss.apply(  # type: ignore[return-value]
            x, weight, bias, active, loss, kept, products, learns, weights, early
        )


class _SharedLinearLoss(FirstDerivatives):
    @staticmethod
    @profiled("output_layer")
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        active: ActiveSet,
        loss: Loss,
        kept: int,
        products: LinearOptions,
        learns: bool,
        weights: np.ndarray | None,
        early: Early | None,
    ):
        x, rows = x.detach(), gather_rows(weight, active)
        rounded, scale = products.rounded, 1 / max(kept, 1)
        exact, factors = x.dtype, (x.to(rounded), rows.to(rounded))
        added = None if bias is None else gather_rows(bias, active)
        losses, gradient = ops.losses_of_products(
            *factors, added, active, loss, scale, weights, exact
        )
        hard, count = None, len(x)
        if kept < count:
            hard = losses.argsort(descending=True)[:kept].sort().values  # NaN is the largest.
            losses, gradient, x = losses[hard], gradient[hard], x[hard]
            factors = factors[0][hard], factors[1]
        mean = ops.mean_loss(losses, exact)
        if not learns:
            return mean
        ctx.weight, ctx.bias, ctx.sparse_grad = weight, bias, products.sparse_grad
        grad = ops.nonzeros(gradient)
        if grad is None:
            grad, (x, rows) = gradient, factors
            if rounded != exact and gradient.is_cpu:
                room = active.scratch.tensor("rounded", tuple(gradient.shape), rounded)
                grad = room.copy_(gradient)
            elif rounded != exact:  # Scratch memory is that of the host.
                grad = gradient.to(rounded)
        if ctx.needs_input_grad[0]:
            grad_x = input_gradient(grad, rows).to(exact)
            ctx.grad_x = grad_x if hard is None else scatter_rows(grad_x, hard, count)
            if early is not None:
                early(ctx.grad_x, mean)
        if ctx.needs_input_grad[1]:
            ctx.grad_weight = weight_gradient(grad, x, active.ids, active.scratch, exact)
        if ctx.needs_input_grad[2]:
            ctx.grad_bias = RowGradient(active.ids, gradient.sum(0)[:, None])
        return mean

    @staticmethod
    @profiled("output_layer")
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        upstream, grad_weight, grad_bias = number_of(grads[0]), None, None
        # What autograd gets is in new memory, since it or a caller may change it in place.
        sparse = ctx.sparse_grad
        grad_x = ctx.grad_x * grads[0] if ctx.needs_input_grad[0] else None
        if ctx.needs_input_grad[1]:
            gradient = ctx.grad_weight.scaled(upstream, sparse)
            grad_weight = hand_over(ctx, ctx.weight, gradient, sparse)
        if ctx.needs_input_grad[2]:
            gradient = ctx.grad_bias.scaled(upstream, sparse)
            grad_bias = hand_over(ctx, ctx.bias, gradient, sparse)
        return grad_x, grad_weight, grad_bias, *(None,) * 7
