"""The manual gradients, as autograd functions.

Gradients of inputs flow through autograd. A weight's gradient never does: it is left on the weight
as row numbers and rows (`slide.active.add_row_gradient`), for an optimizer that updates those rows
alone. Autograd would scatter it into a zero matrix of the weight's size.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide import checks
from slide.active import (
    ActiveSet,
    FactoredRowGradient,
    RowGradient,
    Transposed,
    add_row_gradient,
)
from slide.convolution import active_conv2d as active_conv2d
from slide.kernels import active as kernels
from slide.kernels import losses as loss_kernels
from slide.runtime import array_view
from slide.sparse import CSR

_LOSSES = {
    "softmax": loss_kernels.softmax,
    "decoupled_softmax": loss_kernels.decoupled_softmax,
    "bce": loss_kernels.bce,
    "squared_hinge": loss_kernels.squared_hinge,
}
LOSS_NAMES = tuple(_LOSSES)
PRECISIONS = ("float32", "bfloat16")


def _check_linear(x: Tensor, weight: Tensor, bias: Tensor | None, in_axis: int) -> None:
    if weight.ndim != 2 or x.ndim != 2 or x.shape[1] != weight.shape[in_axis]:
        raise ValueError(f"input {tuple(x.shape)} does not fit weight {tuple(weight.shape)}")
    if bias is not None and bias.shape != (weight.shape[1 - in_axis],):
        raise ValueError(f"bias {tuple(bias.shape)} does not fit weight {tuple(weight.shape)}")
    if x.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise TypeError(f"input is {x.dtype} but weight is {weight.dtype}; convert one of them")


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
    _check_linear(x, weight, bias, in_axis=1)
    checks.one_of("precision", precision, PRECISIONS)
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
    if active.shared:
        rounded = torch.bfloat16 if precision == "bfloat16" else x.dtype
        return _SharedLinear.apply(x, weight, bias, active, rounded)  # type: ignore[return-value]
    return _PerSampleLinear.apply(x, weight, bias, active)  # type: ignore[return-value]


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
    def backward(ctx: Any, *grads: Tensor):
        (x,) = ctx.saved_tensors
        active, grad = ctx.active, array_view(grads[0].contiguous())
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.zeros_like(x)
            kernels.weighted_sum(
                active.indptr, active.ids, grad, array_view(ctx.weight), array_view(grad_x)
            )
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
        ids = torch.from_numpy(active.ids)
        rows = weight.detach() if active.complete else weight.detach().index_select(0, ids)
        x, rows = x.to(rounded), rows.to(rounded)
        ctx.save_for_backward(x, rows)
        ctx.weight, ctx.bias, ctx.active = weight, bias, active
        if bias is None:
            return (x @ rows.T).to(weight.dtype)
        some = bias.detach() if active.complete else bias.detach().index_select(0, ids)
        if rounded == weight.dtype:
            return torch.addmm(some, x, rows.T)
        return (x @ rows.T).to(weight.dtype).add_(some)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        x, rows = ctx.saved_tensors
        exact, grad = grads[0], grads[0].to(x.dtype)
        grad_x = (grad @ rows).to(exact.dtype) if ctx.needs_input_grad[0] else None
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
    def backward(ctx: Any, *grads: Tensor):
        grad = grads[0].contiguous()
        if ctx.needs_input_grad[1]:
            if ctx.transposed is None:
                raise ValueError("the gradient of a sparse layer's weight needs `transposed`")
            add_row_gradient(
                ctx.weight, FactoredRowGradient(ctx.transposed, ctx.x.values, array_view(grad))
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


def loss_on_active(scores: Tensor, active: ActiveSet, name: str) -> Tensor:
    """Mean over the samples of a loss on an active set; see `slide.kernels.losses`.

    Args:
        scores: ``(B, A)`` for a shared set, else ``(nnz,)``: what `active_linear` gives.
        active: with targets; its weights make sums over the set estimates of sums over all N.
        name: one of `LOSS_NAMES`.

    Returns:
        A scalar.

    Raises:
        ValueError: for an unknown name or a set without targets.
    """
    if name not in _LOSSES:
        raise ValueError(f"loss must be one of {list(_LOSSES)}, not {name!r}")
    if active.targets is None:
        raise ValueError("a loss needs an active set with targets")
    return _Loss.apply(scores, active, name)  # type: ignore[return-value]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, active: ActiveSet, name: str):
        assert active.targets is not None
        num_samples = active.targets.num_rows
        flat = array_view(scores.contiguous()).reshape(-1)
        indptr = active.indptr
        if indptr is None:
            indptr = np.arange(num_samples + 1, dtype=np.int64) * len(active.ids)
        log_weights = np.empty(0, flat.dtype)
        if active.log_weights is not None:
            log_weights = active.log_weights.astype(flat.dtype, copy=False)
        losses, gradient = np.empty(num_samples), np.empty_like(flat)
        rows = loss_kernels.Rows(
            indptr,
            flat,
            active.targets.indptr,
            active.targets.indices,
            log_weights,
            active.shared,
            1 / max(num_samples, 1),
        )
        _LOSSES[name](rows, losses, gradient)
        ctx.gradient = torch.from_numpy(gradient).view(scores.shape)
        return torch.tensor(losses.mean(), dtype=scores.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        # One pass over all scores less in the usual case.
        gradient = ctx.gradient if grads[0].item() == 1 else ctx.gradient * grads[0]
        return gradient, None, None
