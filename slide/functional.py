"""The manual gradients, as autograd functions.

Gradients of inputs flow through autograd. A weight's gradient never does: it is left on the weight
as row numbers and rows (`slide.active.add_row_gradient`), for an optimizer that updates those rows
alone. Autograd would scatter it into a zero matrix of the weight's size.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from slide import checks
from slide.active import (
    ActiveSet,
    FactoredRowGradient,
    RowGradient,
    Transposed,
    add_row_gradient,
    transpose,
)
from slide.convolution import active_conv2d as active_conv2d
from slide.csr_product import CSRMatrix as CSRMatrix
from slide.csr_product import csr_matmul as csr_matmul
from slide.kernels import active as kernels
from slide.row_subset import put_rows, rows_to_visit, take_rows
from slide.runtime import array_view
from slide.sparse import CSR, Pattern

PRECISIONS = ("float32", "bfloat16")


def _check_linear(x: Tensor, weight: Tensor, bias: Tensor | None, in_axis: int) -> None:
    if weight.ndim != 2 or x.ndim != 2 or x.shape[1] != weight.shape[in_axis]:
        raise ValueError(f"input {tuple(x.shape)} does not fit weight {tuple(weight.shape)}")
    if bias is not None and bias.shape != (weight.shape[1 - in_axis],):
        raise ValueError(f"bias {tuple(bias.shape)} does not fit weight {tuple(weight.shape)}")
    if x.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise TypeError(f"input is {x.dtype} but weight is {weight.dtype}; convert one of them")


def check_active(x: Tensor, weight: Tensor, bias: Tensor | None, active: ActiveSet) -> None:
    """Raise where inputs, weight, bias and active set do not fit one another."""
    _check_linear(x, weight, bias, in_axis=1)
    if active.out_features != len(weight):
        raise ValueError(
            f"an active set of {active.out_features} outputs does not fit {len(weight)} rows"
        )
    ids = active.ids
    if ids.size and not (ids.min() >= 0 and ids.max() < active.out_features):
        raise ValueError(
            f"active ids must lie in [0, {len(weight)}), not in [{ids.min()}, {ids.max()}]"
        )
    if active.indptr is not None and len(active.indptr) != len(x) + 1:
        raise ValueError(f"{len(active.indptr) - 1} active sets do not fit {len(x)} samples")


def active_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, active: ActiveSet, precision: str = "float32"
) -> Tensor:
    """``x @ weight.T + bias`` on an active set.

    Args:
        x: ``(B, D)`` floats.
        weight: ``(N, D)``, the type of ``x``. Its gradient comes as rows (see the module).
        bias: ``(N,)`` or None; likewise.
        active: of N outputs.
        precision: one of `PRECISIONS`; with ``"bfloat16"`` the three matrix products of a shared
            set, forward and backward, round their factors and results to that type, which is
            faster where the processor has instructions for it. The weight stays as it is.

    Returns:
        ``(B, A)`` for a shared set, else ``(nnz,)`` in the order of ``active.ids``.

    Raises:
        ValueError: where shapes do not fit; TypeError: where types differ.
    """
    check_active(x, weight, bias, active)
    checks.one_of("precision", precision, PRECISIONS)
    if active.shared:
        return _SharedLinear.apply(x, weight, bias, active, rounded_type(x, precision))  # type: ignore[return-value]
    return _PerSampleLinear.apply(x, weight, bias, active)  # type: ignore[return-value]


def rounded_type(x: Tensor, precision: str) -> torch.dtype:
    """The type that products round to: one of `PRECISIONS`, or that of ``x``."""
    return torch.bfloat16 if precision == "bfloat16" else x.dtype


def gather_rows(weight: Tensor, active: ActiveSet) -> Tensor:
    """The rows, or entries, of a weight on a shared set."""
    weight = weight.detach()
    return weight if active.complete else weight.index_select(0, torch.from_numpy(active.ids))


class _PerSampleLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, active: ActiveSet):
        x = x.contiguous()
        out = torch.empty(len(active.ids), dtype=x.dtype)
        no_bias = np.empty(0, array_view(x).dtype)
        kernels.sampled_product(
            active.indptr,
            active.ids,
            array_view(x),
            array_view(weight),
            no_bias if bias is None else array_view(bias),
            array_view(out),
        )
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.active = weight, bias, active
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        active, grad, num_samples = ctx.active, grads[0].contiguous(), len(x)
        visited = rows_to_visit(grad, active.indptr)
        grad = array_view(grad)
        if visited is not None:
            indptr, ids, grad = take_rows(active.indptr, visited, active.ids, grad)
            active = ActiveSet(active.out_features, ids, indptr, scratch=active.scratch)
            x = x[torch.from_numpy(visited)]
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.zeros_like(x)
            kernels.weighted_sum(
                active.indptr, active.ids, grad, array_view(ctx.weight), array_view(grad_x)
            )
            if visited is not None:
                grad_x = put_rows(grad_x, visited, num_samples)
        if ctx.needs_input_grad[1]:
            add_row_gradient(
                ctx.weight, FactoredRowGradient(active.transposed, grad, array_view(x))
            )
        if ctx.needs_input_grad[2]:
            ones = np.ones((len(x), 1), grad.dtype)
            add_row_gradient(ctx.bias, FactoredRowGradient(active.transposed, grad, ones))
        return grad_x, None, None, None


class _SharedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        active: ActiveSet,
        rounded: torch.dtype,
    ):
        x, rows = x.to(rounded), gather_rows(weight, active).to(rounded)
        ctx.save_for_backward(x, rows)
        ctx.weight, ctx.bias, ctx.active = weight, bias, active
        if bias is None:
            return (x @ rows.T).to(weight.dtype)
        some = gather_rows(bias, active)
        if rounded == weight.dtype:
            return torch.addmm(some, x, rows.T)
        return (x @ rows.T).to(weight.dtype).add_(some)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, rows = ctx.saved_tensors
        exact, num_samples = grads[0].contiguous(), len(x)
        visited = rows_to_visit(exact)
        if visited is not None:
            kept = torch.from_numpy(visited)
            x, exact = x.index_select(0, kept), exact.index_select(0, kept)
        grad = exact.to(x.dtype)
        grad_x = (grad @ rows).to(exact.dtype) if ctx.needs_input_grad[0] else None
        if visited is not None and grad_x is not None:
            grad_x = put_rows(grad_x, visited, num_samples)
        if ctx.needs_input_grad[1]:
            add_row_gradient(ctx.weight, RowGradient(ctx.active.ids, (grad.T @ x).to(exact.dtype)))
        if ctx.needs_input_grad[2]:
            add_row_gradient(ctx.bias, RowGradient(ctx.active.ids, exact.sum(0)[:, None]))
        return grad_x, None, None, None, None


def sparse_linear(
    x: CSR, weight: Tensor, bias: Tensor | None, transposed: Transposed | None = None
) -> Tensor:
    """``x @ weight + bias`` for a sparse ``x``: sums of weight rows, one a non-zero.

    Args:
        x: ``(B, D)`` CSR matrix; it gets no gradient.
        weight: ``(D, H)``, one row a feature. Its gradient comes as rows (see the module).
        bias: ``(H,)`` or None; its gradient comes by autograd.
        transposed: the entries of ``x`` by column; needed for the weight's gradient.

    Returns:
        ``(B, H)``.
    """
    return _SparseLinear.apply(x, weight, bias, transposed)  # type: ignore[return-value]


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: CSR, weight: Tensor, bias: Tensor | None, transposed: Transposed | None
    ):
        out = torch.zeros(x.num_rows, weight.shape[1], dtype=weight.dtype)
        if bias is not None:
            out += bias.detach()
        kernels.weighted_sum(*x, array_view(weight), array_view(out))
        ctx.x, ctx.weight, ctx.transposed = x, weight, transposed
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = grads[0].contiguous()
        if ctx.needs_input_grad[1]:
            if ctx.transposed is None:
                raise ValueError("the gradient of a sparse layer's weight needs `transposed`")
            x, vectors, transposed = ctx.x, grad, ctx.transposed
            visited = rows_to_visit(grad)
            if visited is not None:
                x = CSR(*take_rows(x.indptr, visited, x.indices, x.values))
                transposed = transpose(Pattern(x.indptr, x.indices), transposed.scratch)
                vectors = grad[torch.from_numpy(visited)]
            add_row_gradient(
                ctx.weight, FactoredRowGradient(transposed, x.values, array_view(vectors))
            )
        return None, None, grad.sum(0) if ctx.needs_input_grad[2] else None, None


def gather_active(values: Tensor, active: ActiveSet) -> Tensor:
    """The entries of a dense ``(B, N)`` on the active set; the inverse of `scatter_active`.

    Returns:
        ``(B, A)`` for a shared set, else ``(nnz,)``.
    """
    if active.complete:
        return values
    ids = torch.from_numpy(active.ids).long()
    if active.indptr is None:
        return values[:, ids]
    return values[_samples(active), ids]


def _samples(active: ActiveSet) -> Tensor:
    """The sample of each entry of per-sample sets, ``(nnz,)`` int64."""
    assert active.indptr is not None
    counts = torch.from_numpy(np.diff(active.indptr))
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def scatter_active(values: Tensor, active: ActiveSet, num_samples: int) -> Tensor:
    """A dense ``(B, N)`` with ``values`` on the active set and zeros elsewhere.

    For hidden layers, where N is some thousands: it costs B x N.

    Args:
        values: ``(B, A)`` for a shared set, or ``(B, A, H, W)`` of a convolution, else ``(nnz,)``.
        active: where they belong.
        num_samples: B.
    """
    if active.complete:
        return values
    ids = torch.from_numpy(active.ids).long()
    out = values.new_zeros(num_samples, active.out_features, *values.shape[2:])
    if active.indptr is None:
        return out.index_copy(1, ids, values)
    return out.index_put((_samples(active), ids), values)
