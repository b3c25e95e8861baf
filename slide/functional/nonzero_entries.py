"""Gradients of scores that are zero but for a few entries, and products with them.

A hinge asks nothing of an output that is clearly right, and soon most outputs are. The products of
a backward pass then need no more than the other entries.
"""

import numpy as np
import torch
from torch import Tensor

from slide.active_set import Transposed
from slide.kernels import nonzeros as kernels
from slide.kernels.pattern_products import group_entries, weighted_sum
from slide.row_gradients import AnyRowGradient, FactoredRowGradient, RowGradient
from slide.runtime import array_view
from slide.scratch import Scratch
from slide.sparse import CSR

# Above about this share of entries dense products that are rounded to bfloat16 are faster; exact
# ones are so only above a larger one.
DENSE_ENTRY_SHARE = 0.05
_SAMPLED = 16  # rows that tell whether to count them all


def nonzeros(gradient: Tensor) -> CSR | None:
    """The entries of ``gradient`` ``(B, A)`` that are not zero; None where they are not few.

    Args:
        gradient: contiguous. There is no reading bfloat16, which counts as having many.
    """
    if gradient.dtype == torch.bfloat16 or not gradient.numel():
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
    gradient: Tensor | CSR, x: Tensor, ids: np.ndarray, scratch: Scratch, dtype: torch.dtype
) -> AnyRowGradient:
    """``gradient.T @ x`` in rows of ``dtype``: one for each of the outputs ``ids`` ``(A,)``.

    Outputs without an entry are part of it: to an optimizer with momentum, no gradient and one of
    zero are not the same.

    Args:
        gradient: ``(B, A)``.
        x: ``(B, D)`` of the same type.
        ids: int32.
        scratch: of the layer.
        dtype: of the weight; that of a CSR gradient.
    """
    if isinstance(gradient, Tensor):
        return RowGradient(ids, (gradient.T @ x).to(dtype))
    starts, slots = np.zeros(len(ids) + 1, np.int64), np.arange(len(ids), dtype=np.int32)
    entries = np.empty(len(gradient.indices), np.int64)
    samples = np.empty(len(gradient.indices), np.int32)
    group_entries(gradient.indptr, gradient.indices, slots, starts, entries, samples)
    transposed = Transposed(ids, starts, entries, samples, scratch)
    # The product is taken when an optimizer wants it, and until then the caller may change x.
    vectors = array_view(x.clone(memory_format=torch.contiguous_format))
    return FactoredRowGradient(transposed, gradient.values, vectors)
