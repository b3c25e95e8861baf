"""Products of a large sparse matrix with dense matrices, fast forward and backward."""

from typing import Any

from torch import Tensor

from slide.backend import check_together
from slide.functional.autograd import FirstDerivatives, outside_autocast
from slide.ops.csr import CSRMatrix
from slide.sparse import CSR
from slide.utils.profiling import untraced


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
