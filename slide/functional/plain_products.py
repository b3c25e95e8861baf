"""The products of `slide.functional` that kernels compute on the CPU, in plain torch.

They have the gradients of `slide.functional.linear` and `slide.functional.sparse_input`. One
difference: a sample whose gradient is zero is not left out, so its rows have gradients of zero.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.backend import on_device
from slide.functional.drawn_ids import check_drawn, drawn_ids
from slide.functional.first_derivatives import FirstDerivatives
from slide.plain.pattern_products import row_gradient, sampled_product, samples_of, weighted_sum
from slide.row_gradients import RowGradient, hand_over
from slide.sparse import CSR
from slide.utils.profiling import profiled


def samples_on(indptr: np.ndarray, device: torch.device) -> Tensor:
    """The sample of each entry of a pattern with these bounds, ``(nnz,)`` int64, on a device."""
    return samples_of(on_device(np.diff(indptr), device), int(indptr[-1]))


def exact(values: Tensor) -> Tensor:
    """The values, contiguous; bfloat16 becomes float32, in which products are summed up."""
    return (values.float() if values.dtype == torch.bfloat16 else values).contiguous()


class PlainPerSampleLinear(FirstDerivatives):
    """``x @ weight.T + bias`` on sets of each sample, ``(nnz,)``."""

    @staticmethod
    @profiled("output_layer")
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        active: ActiveSet,
        sparse_grad: bool,
    ):
        # The weight is saved so that autograd notices changes of it before the backward pass.
        ctx.save_for_backward(x, weight, drawn_ids(ctx, active.ids))
        ctx.weight, ctx.bias, ctx.sparse_grad = weight, bias, sparse_grad
        assert active.indptr is not None
        ctx.indptr = active.indptr
        ctx.ids = on_device(active.ids, weight.device)
        samples = samples_on(ctx.indptr, weight.device)
        added = None if bias is None else bias.detach()
        out = sampled_product(samples, ctx.ids, exact(x.detach()), weight.detach(), added)
        return out.to(weight.dtype)

    @staticmethod
    @profiled("output_layer")
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, drawn = ctx.saved_tensors
        check_drawn(ctx, drawn)
        ids, grad, vectors = ctx.ids, exact(grads[0]), exact(x)
        samples = samples_on(ctx.indptr, weight.device)
        grad_x, grad_weight, grad_bias = None, None, None
        if ctx.needs_input_grad[0]:
            bounds = on_device(ctx.indptr, weight.device)
            grad_x = weighted_sum(bounds, ids, grad, weight.detach()).to(x.dtype)
        if ctx.needs_input_grad[1]:
            gradient = RowGradient(*row_gradient(samples, ids, grad, vectors))
            grad_weight = hand_over(ctx, ctx.weight, gradient, ctx.sparse_grad)
        if ctx.needs_input_grad[2]:
            ones = vectors.new_ones(len(vectors), 1)
            gradient = RowGradient(*row_gradient(samples, ids, grad, ones))
            grad_bias = hand_over(ctx, ctx.bias, gradient, ctx.sparse_grad)
        return grad_x, grad_weight, grad_bias, None, None


class PlainSparseLinear(FirstDerivatives):
    """``x @ weight + bias`` for a sparse ``x``, ``(B, H)``."""

    @staticmethod
    @profiled("input_layer")
    def forward(ctx: Any, x: CSR, weight: Tensor, bias: Tensor | None, sparse_grad: bool):
        device = weight.device
        ctx.indptr, ctx.weight, ctx.sparse_grad = x.indptr, weight, sparse_grad
        ctx.ids, ctx.values = on_device(x.indices, device), on_device(x.values, device)
        ctx.values = ctx.values.to(weight.dtype)
        out = weighted_sum(on_device(x.indptr, device), ctx.ids, ctx.values, weight.detach())
        return out if bias is None else out + bias.detach()

    @staticmethod
    @profiled("input_layer")
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        grad, grad_weight = grads[0].contiguous(), None
        if ctx.needs_input_grad[1]:
            samples = samples_on(ctx.indptr, grad.device)
            gradient = RowGradient(*row_gradient(samples, ctx.ids, ctx.values, grad))
            grad_weight = hand_over(ctx, ctx.weight, gradient, ctx.sparse_grad)
        return None, grad_weight, grad.sum(0) if ctx.needs_input_grad[2] else None, None
