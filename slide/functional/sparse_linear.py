"""Products with a sparse input, or with a weight that is a large sparse matrix."""

from typing import Any

import torch
from torch import Tensor

from slide import ops
from slide.active_set import ActiveSet
from slide.backend import KERNEL_DTYPES, check_memory, check_together
from slide.functional.autograd import FirstDerivatives, check_takes_rows, outside_autocast
from slide.functional.linear import pattern_gradient
from slide.ops.csr import CSRMatrix
from slide.ops.ragged import select_rows
from slide.row_gradients import hand_over
from slide.sparse import CSR, as_csr, check_pattern
from slide.utils.profiling import untraced


@untraced
def sparse_linear(x: Any, weight: Tensor, bias: Tensor | None, sparse_grad: bool = False) -> Tensor:
    """``x @ weight + bias`` for a sparse ``x``: sums of the weight rows of its entries.

    Args:
        x: ``(B, D)`` sparse or dense matrix, in any form that `slide.as_csr` takes; it gets no
            gradient.
        weight: ``(D, H)`` float32 or float64, one row for each feature. Its gradient has rows (see
            `slide.functional`).
        bias: ``(H,)`` or None; its gradient is dense and goes through autograd.
        sparse_grad: whether the weight's gradient goes through autograd as a sparse tensor.

    Raises:
        ValueError: for a column out of range, or a malformed matrix.
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
    check_memory(weight)
    x = as_csr(x, len(weight))
    check_pattern("features", x, None, len(weight))
    check_takes_rows(weight)  # The bias has an ordinary gradient.
    return _SparseLinear.apply(x, weight, bias, sparse_grad)  # type: ignore[return-value]


class _SparseLinear(FirstDerivatives):
    @staticmethod
    def forward(ctx: Any, x: CSR, weight: Tensor, bias: Tensor | None, sparse_grad: bool):
        # Bounds are few; columns are compared again, since they may change before that.
        x = x._replace(indptr=x.indptr.copy())
        ctx.x, ctx.weight, ctx.sparse_grad = x, weight, sparse_grad
        return ops.weighted_sum(*x, weight.detach(), None if bias is None else bias.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        _ = ctx.saved_tensors  # Empty; it raises in a second backward pass, as PyTorch's do.
        grad, grad_weight = grads[0].contiguous(), None
        if ctx.needs_input_grad[1]:
            x, visited = ctx.x, ops.rows_to_visit(grad)
            check_pattern("features", x, len(grad), len(ctx.weight))
            if visited is None:
                # Copies: the optimizer computes the product later, and the caller may have put the
                # next batch, or another gradient, into the same memory by then.
                x, vectors = x._replace(values=x.values.copy()), grad.clone()
            else:
                x = CSR(*select_rows(x.indptr, visited, x.indices, x.values))
                vectors = grad[torch.from_numpy(visited)]
            features = ActiveSet(len(ctx.weight), x.indices, x.indptr)
            gradient = pattern_gradient(features, x.values, vectors)
            grad_weight = hand_over(ctx, ctx.weight, gradient)
        return None, grad_weight, grad.sum(0) if ctx.needs_input_grad[2] else None, None


@untraced
def csr_matmul(matrix: CSRMatrix, x: Tensor, values: Tensor | None = None) -> Tensor:
    """``matrix @ x``, with gradients for ``x`` and, if given, for ``values``.

    Args:
        matrix: ``(N, D)``, a `CSRMatrix` or any matrix that `CSRMatrix` takes. Only a `CSRMatrix`
            keeps its transpose for the next backward pass.
        x: ``(D,)`` or ``(D, K)``, float32 or float64. On another device than the CPU, a
            `CSRMatrix` keeps a copy there.
        values: ``(nnz,)`` entries that replace the matrix's own, on the same pattern. Their
            gradient is dense. Each backward pass sorts them into the transpose's order.

    Returns:
        ``(N,)`` or ``(N, K)``.

    Raises:
        ValueError: if shapes do not fit, or ``x`` and ``values`` are on different devices.
        TypeError: if types differ.

    Example:
        >>> import scipy.sparse, slide, torch
        >>> matrix = slide.CSRMatrix(scipy.sparse.csr_array([[0.0, 2.0], [3.0, 0.0]]))
        >>> x = torch.tensor([1.0, 10.0], dtype=torch.float64, requires_grad=True)
        >>> y = slide.csr_matmul(matrix, x)
        >>> y.sum().backward()
        >>> y.tolist(), x.grad.tolist()
        ([20.0, 3.0], [3.0, 2.0])
    """
    if not isinstance(matrix, CSRMatrix):
        matrix = CSRMatrix(matrix, len(x) if isinstance(matrix, CSR) else None)
    if x.ndim not in (1, 2) or len(x) != matrix.shape[1]:
        raise ValueError(f"x {tuple(x.shape)} does not fit a matrix {matrix.shape}")
    if values is not None and values.shape != matrix.values.shape:
        raise ValueError(f"values {tuple(values.shape)} do not fit {len(matrix.values)} entries")
    used = matrix.values if values is None else values
    # The matrix's own entries follow x to its device.
    like = x.new_empty(0, dtype=used.dtype) if values is None else values
    x, _, outside = outside_autocast(x, like)
    if x.dtype != used.dtype:
        raise TypeError(f"x is {x.dtype} but values are {used.dtype}; convert one of them")
    if values is not None:
        check_together(x, values)
    with outside:
        return _Product.apply(x, values, matrix)  # type: ignore[return-value]


class _Product(FirstDerivatives):
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor | None, matrix: CSRMatrix):
        ctx.matrix, ctx.own, kept = matrix, values is None, values
        if ctx.own and ctx.needs_input_grad[0] and not matrix.values.is_inference():
            kept = matrix.values  # Autograd notices changes of it before the backward pass.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, kept)
        return matrix.product(x.detach(), None if values is None else values.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, values), matrix, grad_x, grad_values = ctx.saved_tensors, ctx.matrix, None, None
        if ctx.needs_input_grad[0]:
            grad_x = matrix.transposed_product(grads[0], None if ctx.own else values)
        if ctx.needs_input_grad[1]:
            grad_values = matrix.entry_products(grads[0], x)
        return grad_x, grad_values, None
