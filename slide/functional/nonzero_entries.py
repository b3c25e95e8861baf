"""Gradients of scores in which few entries are not zero, and products with them.

A hinge loss has a gradient of zero at outputs that are right by a margin. After some training most
outputs are. Then the products of the backward pass need only the entries that are not zero.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import Scratch, Transposed
from slide.backend import array_view, plain
from slide.kernels import nonzeros as kernels
from slide.kernels.pattern_products import group_entries, weighted_sum
from slide.row_gradients import AnyRowGradient, FactoredRowGradient, RowGradient
from slide.sparse import CSR

# Above this share of non-zero entries, dense products that are rounded to bfloat16 are faster.
# Dense products in float32 are faster only above a larger share.
DENSE_ENTRY_SHARE = 0.05
_SAMPLED = 16  # Number of rows that are counted first; often they show that there are too many.


def nonzeros(gradient: Tensor) -> CSR | None:
    """The non-zero entries of a gradient.

    Args:
        gradient: ``(B, A)``, contiguous.

    Returns:
        The entries, or None if their share is above `DENSE_ENTRY_SHARE`, the gradient is empty, its
        type is bfloat16, which kernels do not read, or it is not for kernels (`slide.backend`).
    """
    if plain(gradient) or gradient.dtype == torch.bfloat16 or not gradient.numel():
        return None
    matrix = array_view(gradient)
    sample = matrix[:: max(1, len(matrix) // _SAMPLED)]
    if np.count_nonzero(sample) > 2 * DENSE_ENTRY_SHARE * sample.size:
        return None
    indptr = np.zeros(len(matrix) + 1, np.int64)
    kernels.count_nonzeros(matrix, indptr[1:])
    np.cumsum(indptr, out=indptr)
    if indptr[-1] > DENSE_ENTRY_SHARE * matrix.size:
        return None
    columns, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], matrix.dtype)
    kernels.take_nonzeros(matrix, indptr, columns, values)
    return CSR(indptr, columns, values)


def input_gradient(gradient: Tensor | CSR, rows: Tensor) -> Tensor:
    """``gradient @ rows``, ``(B, D)``, for ``rows`` ``(A, D)`` of the same type."""
    if isinstance(gradient, Tensor):
        return gradient @ rows
    out = torch.zeros(gradient.num_rows, rows.shape[1], dtype=rows.dtype)
    weighted_sum(*gradient, array_view(rows.contiguous()), array_view(out))
    return out


def weight_gradient(
    gradient: Tensor | CSR, x: Tensor, ids: Any, scratch: Scratch, dtype: torch.dtype
) -> AnyRowGradient:
    """``gradient.T @ x``, with one row for each of the outputs ``ids``.

    Outputs without a non-zero entry also have a row, of zeros. An optimizer with momentum moves a
    row whose gradient is zero, but it does not move a row without a gradient.

    Args:
        gradient: ``(B, A)``.
        x: ``(B, D)`` of the same type.
        ids: ``(A,)`` int32; None: all rows, in order.
        scratch: the layer's scratch arrays.
        dtype: type of the weight and of the rows; a CSR gradient has this type already.
    """
    if isinstance(gradient, Tensor):
        return RowGradient(ids, (gradient.T @ x).to(dtype))
    if ids is None:
        ids = np.arange(scratch.out_features, dtype=np.int32)
    starts, slots = np.zeros(len(ids) + 1, np.int64), np.arange(len(ids), dtype=np.int32)
    entries = np.empty(len(gradient.indices), np.int64)
    samples = np.empty(len(gradient.indices), np.int32)
    group_entries(gradient.indptr, gradient.indices, slots, starts, entries, samples)
    transposed = Transposed(ids, starts, entries, samples)
    # A copy: the optimizer computes the product later, and the caller may change x before that.
    vectors = array_view(x.clone(memory_format=torch.contiguous_format))
    return FactoredRowGradient(transposed, gradient.values, vectors)
