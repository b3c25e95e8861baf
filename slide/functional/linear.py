"""A linear layer on an active set, ``x @ weight.T + bias``, and its loss, with their gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide import ops
from slide.active_set import ActiveSet, check_active, transpose
from slide.backend import (
    array_view,
    check_memory,
    check_together,
    has_bfloat16,
    on_device,
    uses_reference,
)
from slide.functional.autograd import (
    EarlyGradients,
    FirstDerivatives,
    check_drawn,
    check_takes_rows,
    drawn_ids,
    outside_autocast,
)
from slide.functional.losses import (
    Loss,
    find_loss,
    loss_of_scores,
)
from slide.ops.products import TotalRows, samples_on
from slide.ops.ragged import select_rows
from slide.row_gradients import AnyRowGradient, FactoredRowGradient, RowGradient, hand_over
from slide.sparse import CSR, Pattern, row_bounds
from slide.utils import checks
from slide.utils.profiling import untraced

# Takes the gradient of the inputs ``(B, D)`` and the loss, a scalar.
Early = Callable[[Tensor, Tensor], object]
PRECISIONS = ("float32", "bfloat16", "auto")
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def check_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise unless inputs, weight and bias fit each other and have supported types."""
    if not isinstance(x, Tensor):
        hint = "; put a ToDense() before this layer" if hasattr(x, "to_dense") else ""
        raise TypeError(f"the input must be a tensor, not {type(x).__name__}{hint}")
    if x.device != weight.device or (bias is not None and bias.device != weight.device):
        check_together(x, weight, bias)
    check_memory(weight)
    if weight.dtype not in DTYPES:
        raise TypeError(f"weights must be float32, bfloat16 or float64, not {weight.dtype}")
    if weight.ndim != 2 or x.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"input {tuple(x.shape)} does not fit weight {tuple(weight.shape)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias {tuple(bias.shape)} does not fit weight {tuple(weight.shape)}")
    if x.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise TypeError(f"input is {x.dtype} but weight is {weight.dtype}; convert one of them")


@untraced
def active_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    active: ActiveSet,
    precision: str = "float32",
    sparse_grad: bool = False,
) -> Tensor:
    """``x @ weight.T + bias`` on an active set.

    Args:
        x: ``(B, D)``, float32, bfloat16 or float64.
        weight: ``(N, D)``, of the type of ``x``. Its gradient has rows (see `slide.functional`).
        bias: ``(N,)``, of the type of ``x``, or None. Its gradient has rows, too.
        active: the active set, out of N outputs.
        precision: ``"float32"``, ``"bfloat16"`` or ``"auto"``. With ``"bfloat16"`` the matrix
            products of a shared set, forward and backward, round their factors and results to
            bfloat16; ``"auto"`` does if that is faster. The weight itself is not rounded, nor sums
            over gradients that are mostly zero (`slide.ops.nonzeros`).
        sparse_grad: whether gradients of weight and bias go through autograd as sparse tensors.

    Returns:
        ``(B, A)`` for a shared set, else ``(nnz,)`` in the order of ``active.ids``.

    Raises:
        ValueError: if shapes or devices do not fit.
        TypeError: if types differ or are not supported.

    Example:
        >>> import numpy as np, slide, torch
        >>> weight = torch.eye(4, requires_grad=True)
        >>> active = slide.ActiveSet(4, np.array([1, 3], np.int32))
        >>> slide.active_linear(torch.arange(4.0)[None], weight, None, active)
        tensor([[1., 3.]], grad_fn=<_SharedLinearBackward>)
    """
    x, precision, outside = outside_autocast(x, weight, precision)
    check_linear(x, weight, bias)
    check_active(active, len(x), len(weight))
    check_takes_rows(weight, bias)
    with outside:
        return linear_on_set(x, weight, bias, active, precision, sparse_grad)


class _Products(NamedTuple):
    """How products are computed, and what kind of gradient the weight gets."""

    rounded: torch.dtype  # What factors and results of a shared set are rounded to.
    sparse_grad: bool
    learns: bool
    for_loss: bool = False  # The loss keeps the gradient of scores, so new sets do no harm.


def _products(x: Tensor, precision: str, sparse_grad: bool, for_loss: bool = False) -> _Products:
    if precision not in PRECISIONS:
        checks.one_of("precision", precision, PRECISIONS)
    if precision == "auto":
        fast = x.dtype == torch.float32 and has_bfloat16(x.device)
        precision = "bfloat16" if fast else "float32"
    rounded = torch.bfloat16 if precision == "bfloat16" else x.dtype
    return _Products(rounded, sparse_grad, torch.is_grad_enabled(), for_loss)


def linear_on_set(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    active: ActiveSet,
    precision: str,
    sparse_grad: bool,
    for_loss: bool = False,
) -> Tensor:
    """`active_linear` without its checks; ``for_loss``: see `_Products`."""
    operation = _SharedLinear if active.indptr is None else _PerSampleLinear
    products = _products(x, precision, sparse_grad, for_loss)
    return operation.apply(x, weight, bias, active, products)


class _PerSampleLinear(FirstDerivatives):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        active: ActiveSet,
        products: _Products,
    ):
        # The weight is saved so that autograd notices changes of it before the backward pass.
        ctx.save_for_backward(x, weight, None if products.for_loss else drawn_ids(ctx, active.ids))
        ctx.weight, ctx.bias, ctx.active = weight, bias, active
        ctx.sparse_grad = products.sparse_grad
        added = None if bias is None else bias.detach()
        found = ops.sampled_product(
            active, ops.exact(x.detach()), weight.detach(), added, products.learns
        )
        return found.to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, _, ids), weight, active = ctx.saved_tensors, ctx.weight, ctx.active
        check_drawn(ctx, ids)
        check_active(active, len(x), len(weight))  # Its arrays may have changed.
        x, grad, num_samples = ops.exact(x), ops.exact(grads[0]), len(x)
        visited = None
        if active.groups is None or uses_reference(grad):
            visited = ops.rows_to_visit(grad, active.indptr)
        if active.groups is not None and not uses_reference(grad):
            # Only entries with a gradient count: rows of zeros are not updated.
            kept = ops.nonzero_entries(active.indptr, active.ids, array_view(grad))
            active = ActiveSet(
                active.out_features, kept.indices, kept.indptr, scratch=active.scratch
            )
            grad = torch.from_numpy(kept.values)
        elif visited is None:
            grad = grad.clone()  # As x below.
        else:
            indptr, ids, some = select_rows(active.indptr, visited, active.ids, array_view(grad))
            active = ActiveSet(active.out_features, ids, indptr, scratch=active.scratch)
            grad, x = torch.from_numpy(some), x[torch.from_numpy(visited)]
        grad_x, grad_weight, grad_bias = None, None, None
        if ctx.needs_input_grad[0]:
            assert active.indptr is not None
            grad_x = ops.weighted_sum(active.indptr, active.ids, grad, weight.detach())
            if visited is not None:
                grad_x = scatter_rows(grad_x, visited, num_samples)
            grad_x = grad_x.to(weight.dtype)
        if ctx.needs_input_grad[1]:
            # A copy: the optimizer computes the product later, and x may change before that.
            grad_weight = hand_over(ctx, weight, pattern_gradient(active, grad, x.clone()))
        if ctx.needs_input_grad[2]:
            ones = x.new_ones(len(x), 1)
            grad_bias = hand_over(ctx, ctx.bias, pattern_gradient(active, grad, ones))
        return grad_x, grad_weight, grad_bias, None, None


def pattern_gradient(pattern: ActiveSet, coefficients: Any, vectors: Tensor) -> AnyRowGradient:
    """`slide.ops.row_gradient` as the gradient of a weight."""
    found = ops.row_gradient(pattern, coefficients, vectors)
    return RowGradient(*found) if isinstance(found, TotalRows) else FactoredRowGradient(*found)


def input_gradient(gradient: Tensor | CSR, rows: Tensor) -> Tensor:
    """``gradient @ rows``, ``(B, D)``, for ``rows`` ``(A, D)`` of the same type."""
    if isinstance(gradient, Tensor):
        return gradient @ rows
    return ops.weighted_sum(*gradient, rows.contiguous())


def weight_gradient(
    gradient: Tensor | CSR, x: Tensor, ids: Any, out_features: int, dtype: torch.dtype
) -> AnyRowGradient:
    """``gradient.T @ x`` with a row for each of ``ids``: momentum moves rows of zeros, too."""
    if isinstance(gradient, Tensor):
        product = gradient.T @ x
        return RowGradient(ids, (product if ids is None else product[: len(ids)]).to(dtype))
    if ids is None:
        ids = np.arange(out_features, dtype=np.int32)
    entries = transpose(Pattern(gradient.indptr, gradient.indices), len(ids))
    counts = np.zeros(len(ids), np.int64)
    counts[entries.ids] = np.diff(entries.starts)
    transposed = entries._replace(ids=ids, starts=row_bounds(counts))
    # A copy: the optimizer computes the product later, and the caller may change x before that.
    vectors = array_view(x.clone(memory_format=torch.contiguous_format))
    return FactoredRowGradient(transposed, gradient.values, vectors)


def scatter_rows(values: Tensor, rows: np.ndarray | Tensor, num_rows: int) -> Tensor:
    """``(num_rows, D)`` with ``values`` ``(R, D)`` in ``rows`` and zeros elsewhere."""
    out = values.new_zeros(num_rows, values.shape[1])
    return out.index_copy_(0, torch.as_tensor(rows), values)


class _SharedLinear(FirstDerivatives):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        active: ActiveSet,
        products: _Products,
    ):
        rounded = products.rounded
        rows, some = weight.detach(), None if bias is None else bias.detach()
        if not active.complete:
            at = on_device(active.ids, weight.device)
            rows = rows.index_select(0, at)
            some = None if some is None else some.index_select(0, at)
        x, rows = x.to(rounded), rows.to(rounded)
        ctx.save_for_backward(x, rows, drawn_ids(ctx, active.ids))
        ctx.weight, ctx.bias, ctx.active = weight, bias, active
        ctx.sparse_grad = products.sparse_grad
        if some is None:
            return (x @ rows.T).to(weight.dtype)
        if rounded == weight.dtype:
            return torch.addmm(some, x, rows.T)
        return (x @ rows.T).to(weight.dtype).add_(some)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, rows, ids = ctx.saved_tensors
        check_drawn(ctx, ids)
        given, active, num_samples = grads[0].contiguous(), ctx.active, len(x)
        dtype, visited = given.dtype, ops.rows_to_visit(ops.exact(given))
        if visited is not None:
            kept = torch.from_numpy(visited)
            x, given = x.index_select(0, kept), given.index_select(0, kept)
        grad = None if uses_reference(given) else ops.nonzeros(given)
        if grad is None:
            grad = given.to(x.dtype)
        else:
            x, rows = x.to(dtype), rows.to(dtype)
        grad_x, grad_weight, grad_bias = None, None, None
        if ctx.needs_input_grad[0]:
            grad_x = input_gradient(grad, rows).to(dtype)
            if visited is not None:
                grad_x = scatter_rows(grad_x, visited, num_samples)
        if ctx.needs_input_grad[1]:
            gradient = weight_gradient(grad, x, active.row_ids, active.out_features, dtype)
            grad_weight = hand_over(ctx, ctx.weight, gradient)
        if ctx.needs_input_grad[2]:
            gradient = RowGradient(active.row_ids, given.sum(0)[:, None])
            grad_bias = hand_over(ctx, ctx.bias, gradient)
        return grad_x, grad_weight, grad_bias, None, None


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

    With a shared set on the CPU this takes less time and memory than the two functions: the forward
    pass computes scores and all gradients of some samples at a time, while they are in the cache.

    Args:
        x, weight, bias, active, precision, sparse_grad: see `active_linear`.
        loss, hard_fraction, weights: see `loss_on_active`.

    Returns:
        The mean loss, a scalar of the type of the weight; float32 for bfloat16. Errors: see
        `active_linear` and `loss_on_active`.

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
    check_linear(x, weight, bias)
    check_active(active, len(x), len(weight), targets=True)
    check_takes_rows(weight, bias)
    record, weights = find_loss(loss), checks.row_weights("weights", weights, len(x))
    with outside:
        return linear_loss_on_set(
            x, weight, bias, active, record, hard_fraction, precision, sparse_grad, weights
        )


def linear_loss_on_set(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    active: ActiveSet,
    loss: Loss,
    hard_fraction: float,
    precision: str,
    sparse_grad: bool,
    weights: np.ndarray | None = None,
    early: Early | None = None,
) -> Tensor:
    """`active_linear_loss` without checks; ``early`` comes before the weight's gradient."""
    if active.indptr is not None or active.complete or weight.dtype == torch.bfloat16:
        # A complete set needs no copy of its rows, and its scores are too many for scratch memory.
        scores = linear_on_set(x, weight, bias, active, precision, sparse_grad, for_loss=True)
        return loss_of_scores(scores, active, loss, hard_fraction, weights)
    products = _products(x, precision, sparse_grad)
    with active.scratch.alone:
        return _SharedLinearLoss.apply(  # type: ignore[return-value]
            x, weight, bias, active, loss, hard_fraction, products, weights, early
        )


class _SharedLinearLoss(EarlyGradients):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        active: ActiveSet,
        loss: Loss,
        hard_fraction: float,
        products: _Products,
        weights: np.ndarray | None,
        early: Early | None,
    ):
        # Autograd notices changes of x before the backward pass, and a second such pass.
        ctx.save_for_backward(x if products.learns else None)
        own = None if bias is None else bias.detach()
        learns = products.learns and any(ctx.needs_input_grad)
        mean, found = ops.linear_loss(
            x.detach(),
            weight.detach(),
            own,
            active,
            loss,
            hard_fraction,
            weights,
            products.rounded,
            learns,
        )
        if found is None:
            return mean
        ctx.parameters, ctx.sparse_grad = (weight, bias), products.sparse_grad
        grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = input_gradient(found.gradient, found.rows).to(x.dtype)
            hard = found.samples
            ctx.grad_x = grad_x if hard is None else scatter_rows(grad_x, hard, len(x))
            if early is not None:
                early(ctx.grad_x, mean)
        if ctx.needs_input_grad[1]:
            size = active.out_features
            grad_weight = weight_gradient(found.gradient, found.x, active.ids, size, x.dtype)
        if ctx.needs_input_grad[2]:
            assert found.sums is not None
            grad_bias = RowGradient(active.ids, found.sums[:, None])
        ctx.rows = grad_weight, grad_bias
        return mean


@untraced
def gather_active(values: Tensor, active: ActiveSet) -> Tensor:
    """The entries of a dense ``(B, N)`` on the active set; the inverse of `scatter_active`.

    They are ``(B, A)`` for a shared set, else ``(nnz,)`` in the order of ``active.ids``.

    Example:
        >>> import numpy as np, slide, torch
        >>> from slide.functional import gather_active
        >>> active = slide.ActiveSet(4, np.array([3, 0], np.int32))
        >>> gather_active(torch.tensor([[5, 6, 7, 8]]), active)
        tensor([[8, 5]])
    """
    if active.complete:
        return values
    ids = on_device(active.ids, values.device).long()
    if active.indptr is None:
        return values[:, ids]
    return values[samples_on(active.indptr, values.device), ids]


@untraced
def scatter_active(values: Tensor, active: ActiveSet, num_samples: int) -> Tensor:
    """A dense ``(B, N)`` with ``values`` on the active set and zeros elsewhere.

    This is for hidden layers, where N is some thousands: it takes B x N numbers.

    ``values`` are ``(nnz,)``; for a shared set ``(B, A)``, or images ``(B, A, H, W)``.

    Example:
        >>> import numpy as np, slide, torch
        >>> from slide.functional import scatter_active
        >>> active = slide.ActiveSet(4, np.array([3, 0], np.int32))
        >>> scatter_active(torch.tensor([[8, 5]]), active, num_samples=1)
        tensor([[5, 0, 0, 8]])
    """
    if active.complete:
        return values
    ids = on_device(active.ids, values.device).long()
    out = values.new_zeros(num_samples, active.out_features, *values.shape[2:])
    if active.indptr is None:
        return out.index_copy(1, ids, values)
    return out.index_put((samples_on(active.indptr, values.device), ids), values)
