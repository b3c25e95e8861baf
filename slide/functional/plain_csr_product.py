"""`slide.csr_matmul` in plain torch, on the device of its tensors."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from slide.functional.first_derivatives import FirstDerivatives
from slide.ops.reference.pattern_products import sampled_product, samples_of, weighted_sum


class PlainMatrix(NamedTuple):
    """A pattern ``(N, D)`` on a device, and its transpose.

    Attributes:
        indptr: ``(N + 1,)`` bounds of the rows.
        rows: ``(nnz,)`` int64, row of each entry.
        columns: ``(nnz,)`` column of each entry.
        order: ``(nnz,)`` the entries by column.
        turned: ``(D + 1,)`` bounds of the columns in this order.
    """

    indptr: Tensor
    rows: Tensor
    columns: Tensor
    order: Tensor
    turned: Tensor

    @classmethod
    def of(cls, indptr: Tensor, columns: Tensor, num_columns: int) -> "PlainMatrix":
        """From the bounds of the rows and the columns of the entries, on the device."""
        ascending, order = columns.sort(stable=True)
        numbers = torch.arange(num_columns + 1, dtype=columns.dtype, device=columns.device)
        turned = torch.searchsorted(ascending, numbers)
        return cls(indptr, samples_of(indptr.diff(), len(columns)), columns, order, turned)


class PlainProduct(FirstDerivatives):
    """``matrix @ x`` for ``x`` ``(D, K)``, with gradients for ``x`` and the entries ``(nnz,)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, matrix: PlainMatrix):
        ctx.matrix = matrix
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, values)
        return weighted_sum(matrix.indptr, matrix.columns, values.detach(), x.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, values), matrix, grad = ctx.saved_tensors, ctx.matrix, grads[0].contiguous()
        grad_x, grad_values = None, None
        if ctx.needs_input_grad[0]:
            rows = matrix.rows[matrix.order]
            grad_x = weighted_sum(matrix.turned, rows, values[matrix.order], grad)
        if ctx.needs_input_grad[1]:
            grad_values = sampled_product(matrix.rows, matrix.columns, grad, x, None)
        return grad_x, grad_values, None
