"""A linear layer on a shared set and its loss in one operation, some samples at a time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet, check_targets
from slide.backend import plain
from slide.functional.active_loss import loss_on_active, loss_rows, mean_loss
from slide.functional.autocast import outside_autocast
from slide.functional.averaged_weights import check_not_averaged
from slide.functional.first_derivatives import FirstDerivatives
from slide.functional.hard_samples import check_fraction, hardest_count, hardest_first
from slide.functional.linear import LinearOptions, check_active, gather_rows, linear_on_set
from slide.functional.losses import Loss, find_loss
from slide.functional.nonzero_entries import input_gradient, nonzeros, weight_gradient
from slide.functional.nonzero_rows import scatter_rows
from slide.row_gradients import RowGradient, check_leaves, hand_over
from slide.utils import checks
from slide.utils.profiling import profiled, untraced

# Number of scores in a block: they stay in the second-level caches. A block has at least this many
# samples, because a product of fewer samples is inefficient.
_BLOCK_SCORES, _LEAST_SAMPLES = 2**19, 64
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
    if plain(weight) or not active.shared or active.complete or weight.dtype == torch.bfloat16:
        # A complete set needs no copy of its rows, and its scores are too many for scratch memory.
        options = products._replace(for_loss=not plain(weight))
        scores = linear_on_set(x, weight, bias, active, options)
        return loss_on_active(scores, active, loss, hard_fraction, weights)
    check_not_averaged(weight, bias)
    if not products.sparse_grad:
        check_leaves(weight, bias)
    check_targets(active, len(x))
    check_fraction("hard_fraction", hard_fraction)
    kept, learns = hardest_count(hard_fraction, len(x)), torch.is_grad_enabled()
    weights = checks.row_weights("weights", weights, len(x))
    options = _Options(loss, kept, products.rounded, learns, products.sparse_grad, weights, early)
    with active.scratch.alone():
        return _SharedLinearLoss.apply(x, weight, bias, active, options)  # type: ignore[return-value]


class _Options(NamedTuple):
    """Options of `_SharedLinearLoss`.

    Attributes:
        loss: the loss.
        kept: number of samples that the mean is over.
        rounded: see `LinearOptions`.
        learns: whether gradients are needed.
        sparse_grad: see `LinearOptions`.
        weights: factors of the losses of the samples; None: all are 1.
        early: called as soon as the gradient of ``x`` is known; None: nothing is.
    """

    loss: Loss
    kept: int
    rounded: torch.dtype
    learns: bool
    sparse_grad: bool
    weights: np.ndarray | None
    early: Early | None


class _SharedLinearLoss(FirstDerivatives):
    @staticmethod
    @profiled("output_layer")
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        active: ActiveSet,
        options: _Options,
    ):
        x, rows = x.detach(), gather_rows(weight, active)
        exact, factors = x.dtype, (x.to(options.rounded), rows.to(options.rounded))
        added = None if bias is None else gather_rows(bias, active)
        losses, gradient = _losses_in_blocks(factors, added, active, options, exact)
        hard, count = None, len(x)
        if options.kept < count:
            hard = np.sort(hardest_first(losses)[: options.kept])
            losses, at = losses[hard], torch.from_numpy(hard)
            gradient, x = gradient[at], x[at]
            factors = factors[0][at], factors[1]
        mean = mean_loss(losses, exact)
        if not options.learns:
            return mean
        ctx.weight, ctx.bias, ctx.sparse_grad = weight, bias, options.sparse_grad
        grad = nonzeros(gradient)
        if grad is None:
            grad, (x, rows) = gradient, factors
            if options.rounded != exact:
                room = active.scratch.tensor("rounded", tuple(gradient.shape), options.rounded)
                grad = room.copy_(gradient)
        if ctx.needs_input_grad[0]:
            grad_x = input_gradient(grad, rows).to(exact)
            ctx.grad_x = grad_x if hard is None else scatter_rows(grad_x, hard, count)
            if options.early is not None:
                options.early(ctx.grad_x, mean)
        if ctx.needs_input_grad[1]:
            ctx.grad_weight = weight_gradient(grad, x, active.ids, active.scratch, exact)
        if ctx.needs_input_grad[2]:
            ctx.grad_bias = RowGradient(active.ids, gradient.sum(0)[:, None])
        return mean

    @staticmethod
    @profiled("output_layer")
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        upstream, grad_weight, grad_bias = grads[0].item(), None, None
        # What autograd gets is in new memory, since it or a caller may change it in place.
        sparse = ctx.sparse_grad
        grad_x = ctx.grad_x * grads[0] if ctx.needs_input_grad[0] else None
        if ctx.needs_input_grad[1]:
            grad_weight = hand_over(
                ctx, ctx.weight, ctx.grad_weight.scaled(upstream, sparse), sparse
            )
        if ctx.needs_input_grad[2]:
            grad_bias = hand_over(ctx, ctx.bias, ctx.grad_bias.scaled(upstream, sparse), sparse)
        return grad_x, grad_weight, grad_bias, None, None


def _losses_in_blocks(
    factors: tuple[Tensor, Tensor],
    bias: Tensor | None,
    active: ActiveSet,
    options: _Options,
    exact: torch.dtype,
) -> tuple[np.ndarray, Tensor]:
    """The losses of the samples ``(B,)``, and the gradient of their scores ``(B, A)``.

    The gradient is in scratch memory.

    ``factors`` are the inputs ``(B, D)`` and the rows ``(A, D)``, both rounded.
    """
    x, rows = factors
    count, size, scratch = len(x), len(active.ids), active.scratch
    step = max(_LEAST_SAMPLES, _BLOCK_SCORES // max(size, 1))
    gradient = scratch.tensor("gradient", (count, size), exact)
    scores = scratch.tensor("scores", (min(step, count), size), exact)
    products = scores
    if options.rounded != exact:
        products = scratch.tensor("products", tuple(scores.shape), options.rounded)
    blocks = [np.empty(0)]
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        z, product = scores[: part.stop - start], products[: part.stop - start]
        torch.mm(x[part], rows.T, out=product)
        if bias is not None:
            torch.add(product, bias, out=z)
        elif options.rounded != exact:
            z.copy_(product)
        both = z, gradient[part]
        blocks.append(loss_rows(options.loss, active, part, options.kept, both, options.weights))
    return np.concatenate(blocks), gradient
