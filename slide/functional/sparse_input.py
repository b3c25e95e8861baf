"""The product of a sparse input with a weight that has one row for each feature."""

from typing import Any

import torch
from torch import Tensor

from slide import ops
from slide.active_set import ActiveSet
from slide.backend import KERNEL_DTYPES
from slide.functional.autograd import FirstDerivatives, check_not_averaged
from slide.functional.linear import pattern_gradient
from slide.ops.kernels.ragged import select_rows
from slide.row_gradients import check_leaves, hand_over
from slide.sparse import CSR, as_csr, check_pattern
from slide.utils.profiling import profiled, untraced


@untraced
def sparse_linear(
    x: Any,
    weight: Tensor,
    bias: Tensor | None,
    sparse_grad: bool = False,
) -> Tensor:
    """``x @ weight + bias`` for a sparse ``x``: sums of the weight rows of its entries.

    Args:
        x: ``(B, D)`` sparse or dense matrix, in any form that `slide.as_csr` takes; it gets no
            gradient.
        weight: ``(D, H)`` float32 or float64, one row for each feature. Its gradient has rows (see
            `slide.functional`).
        bias: ``(H,)`` or None; its gradient is dense and goes through autograd.
        sparse_grad: whether the weight's gradient goes through autograd as a sparse tensor.

    Returns:
        ``(B, H)``, of the type of the weight.

    Raises:
        ValueError: for a column out of range, a malformed matrix, or a weight that is not a leaf
            while ``sparse_grad`` is false.
        TypeError: for a weight that is neither float32 nor float64, or wrong types of ``x``.

    Example:
        >>> import numpy as np, slide, torch
        >>> from slide.functional import sparse_linear
        >>> x = slide.CSR(np.array([0, 2]), np.array([0, 2], np.int32), np.ones(2, np.float32))
        >>> sparse_linear(x, torch.eye(3), bias=None)
        tensor([[1., 0., 1.]])
    """
    if weight.dtype not in KERNEL_DTYPES:
        raise TypeError(f"weights of sparse inputs must be float32 or float64, not {weight.dtype}")
    x = as_csr(x, len(weight))
    check_pattern("features", x, None, len(weight))
    check_not_averaged(weight)  # The bias has an ordinary gradient.
    if not sparse_grad:
        check_leaves(weight)
    if not torch.is_grad_enabled():
        return _sum_rows(x, weight, bias)
    return _SparseLinear.apply(x, weight, bias, sparse_grad)  # type: ignore[return-value]


@profiled("input_layer")
def _sum_rows(x: CSR, weight: Tensor, bias: Tensor | None) -> Tensor:
    return ops.weighted_sum(*x, weight.detach(), None if bias is None else bias.detach())


class _SparseLinear(FirstDerivatives):
    @staticmethod
    def forward(ctx: Any, x: CSR, weight: Tensor, bias: Tensor | None, sparse_grad: bool):
        ctx.x, ctx.weight, ctx.sparse_grad = x, weight, sparse_grad
        return _sum_rows(x, weight, bias)

    @staticmethod
    @profiled("input_layer")
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        grad, grad_weight = grads[0].contiguous(), None
        if ctx.needs_input_grad[1]:
            x, visited = ctx.x, ops.rows_to_visit(grad)
            if visited is None:
                # Copies: the optimizer computes the product later, and the caller may have put the
                # next batch, or another gradient, into the same memory by then.
                x, vectors = x._replace(values=x.values.copy()), grad.clone()
            else:
                x = CSR(*select_rows(x.indptr, visited, x.indices, x.values))
                vectors = grad[torch.from_numpy(visited)]
            features = ActiveSet(len(ctx.weight), x.indices, x.indptr)
            gradient = pattern_gradient(features, x.values, vectors)
            grad_weight = hand_over(ctx, ctx.weight, gradient, ctx.sparse_grad)
        return None, grad_weight, grad.sum(0) if ctx.needs_input_grad[2] else None, None
