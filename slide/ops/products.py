"""Products of a layer with the rows that a pattern names, and gradients that are mostly zero.

A pattern is an `slide.ActiveSet` with a set for each sample, or anything with its ``indptr``,
``ids`` and ``transposed``. Arrays are on the host; ids may be a tensor on the device of the rows.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view, on_host, uses_reference
from slide.ops.kernels import products as kernels
from slide.ops.kernels import ragged
from slide.ops.reference import products as reference
from slide.ops.table import operation
from slide.runtime import num_threads
from slide.sparse import CSR

# Above this share of non-zero entries, dense products that are rounded to bfloat16 are faster.
# Dense products in float32 are faster only above a larger share.
DENSE_ENTRY_SHARE = 0.05
# Number of rows that are counted first; often they show that there are too many entries.
_SAMPLED = 16
# Sets are brought to a multiple of 16 rows, from 1,024 rows on of 32, from 2,048 on of 64, and so
# on: above 512 rows by a 32nd at most.
_LEAST_UNIT, _UNIT_BITS = 4, 6
# Above this share of samples, a copy of them takes more time than a visit to all samples.
DENSE_ROW_SHARE = 0.75


def exact(values: Tensor) -> Tensor:
    """The values, contiguous; bfloat16 becomes float32, in which products are summed up."""
    return (values.float() if values.dtype == torch.bfloat16 else values).contiguous()


def _factors(values: np.ndarray | Tensor, others: Tensor) -> np.ndarray:
    """Coefficients for a kernel: float64 beside float64, so it is not compiled for a mixture."""
    found = array_view(values) if isinstance(values, Tensor) else values
    return found.astype(np.float64, copy=False) if others.dtype == torch.float64 else found


@operation(reference.sampled_product)
def sampled_product(
    pattern: Any, vectors: Tensor, rows: Tensor, bias: Tensor | None, grouped: bool = True
) -> Tensor:
    """``out[p] = <vectors[b], rows[ids[p]]> + bias[ids[p]]`` over the entries of each sample b.

    pattern: B samples with nnz entries together; vectors (B, D) float32 or float64, contiguous;
    rows (N, D), of the type of vectors or bfloat16; bias (N,) of the type of rows, or None;
    grouped: whether the pattern's transposed is needed anyway, for a backward pass. Returns
    ``(nnz,)`` of the type of ``vectors``.
    """
    if not grouped and rows.dtype != torch.bfloat16:
        return entry_products(pattern.indptr, pattern.ids, vectors, rows, bias)
    out = torch.empty(len(pattern.ids), dtype=vectors.dtype)
    groups = pattern.transposed
    if rows.dtype == torch.bfloat16:  # Kernels do not read it.
        at = torch.from_numpy(groups.ids)
        rows = rows.index_select(0, at).float()
        bias = None if bias is None else bias.index_select(0, at).float()
        groups = groups._replace(ids=np.arange(len(at), dtype=np.int32))
    factors = array_view(vectors), array_view(rows), _array_or_none(bias, vectors)
    kernels.grouped_product(groups, *factors, 4 * num_threads(), array_view(out))
    return out


def entry_products(
    indptr: np.ndarray, ids: np.ndarray, vectors: Tensor, rows: Tensor, bias: Tensor | None = None
) -> Tensor:
    """`sampled_product` by its kernel alone, of contiguous tensors on the CPU."""
    out = torch.empty(len(ids), dtype=vectors.dtype)
    factors = array_view(vectors), array_view(rows), _array_or_none(bias, vectors)
    kernels.sampled_product(indptr, ids, *factors, array_view(out))
    return out


def _array_or_none(bias: Tensor | None, like: Tensor) -> np.ndarray:
    """The entries of a bias for a kernel, which takes an empty array for none."""
    return array_view(like.new_empty(0) if bias is None else bias)


@operation(reference.weighted_sum)
def weighted_sum(
    indptr: np.ndarray | Tensor,
    ids: Any,
    coefficients: Any,
    rows: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """``out[b] = bias + sum_p coefficients[p] * rows[ids[p]]`` over the entries of each sample b.

    indptr (B + 1,) int64; ids (nnz,) int32; coefficients (nnz,) floats; rows (N, D); bias (D,) or
    None. Returns ``(B, D)``, of the type of ``rows``; float32 for bfloat16.
    """
    if rows.dtype == torch.bfloat16:  # Kernels do not read it.
        distinct, ids = np.unique(ids, return_inverse=True)
        rows = rows.index_select(0, torch.from_numpy(distinct)).float()
        ids = ids.astype(np.int32)
    out = torch.zeros(len(indptr) - 1, rows.shape[1], dtype=rows.dtype)
    if bias is not None:
        out += bias
    kernels.weighted_sum(
        indptr, ids, _factors(coefficients, rows), array_view(rows), array_view(out)
    )
    return out


@operation(reference.row_gradient)
def row_gradient(pattern: Any, coefficients: Any, vectors: Tensor) -> Any:
    """``sum_p coefficients[p] * vectors[b]`` over the entries with the same id.

    coefficients (nnz,) floats; vectors (B, D) floats. Returns the factors ``(pattern.transposed,
    coefficients, vectors)``, which nobody may change, since the optimizer computes the sums
    (`adam_factored`), or `TotalRows`.
    """
    return pattern.transposed, _factors(coefficients, vectors), array_view(vectors)


@operation(reference.gather_rounded)
def gather_rounded(weight: Tensor, ids: Any, rounded: torch.dtype) -> tuple[Tensor, Tensor]:
    """Copies ``(A, D)`` of the rows ``ids`` of a weight, in its type and in another one.

    The second one may have rows of zeros at its end. oneDNN makes new code for each product of
    another shape, which takes as long as a third of it: sets of nearly the same size get one shape.
    """
    if (weight.dtype, rounded) != (torch.float32, torch.bfloat16) or not weight.is_contiguous():
        return reference.gather_rounded(weight, ids, rounded)
    rows = torch.empty(len(ids), weight.shape[1])
    unit = 1 << max(_LEAST_UNIT, len(ids).bit_length() - _UNIT_BITS)
    bits = torch.empty(-(-len(ids) // unit) * unit, weight.shape[1], dtype=torch.uint16)
    kernels.gather_rounded(array_view(weight), on_host(ids), array_view(rows), array_view(bits))
    return rows, bits.view(rounded)


def rows_to_visit(gradient: Tensor, indptr: np.ndarray | None = None) -> np.ndarray | None:
    """The samples ``(R,)`` int64 whose gradient is not zero; None if visiting all is faster.

    A loss over the hardest samples leaves zero gradients for the others. Shrivastava, Gupta and
    Girshick (2016, section 4.2) run a second forward pass instead. gradient (B, A), or (nnz,) with
    bounds indptr.
    """
    if uses_reference(gradient) or len(gradient if indptr is None else indptr[1:]) < 2:
        return None
    if indptr is None:
        # The first column usually decides.
        if np.count_nonzero(array_view(gradient)[:, :1]) > DENSE_ROW_SHARE * len(gradient):
            return None
        indptr = np.arange(len(gradient) + 1, dtype=np.int64) * gradient.shape[1]
    marks = np.empty(len(indptr) - 1, np.bool_)
    ragged.mark_nonzero_rows(indptr, array_view(gradient).reshape(-1), marks)
    rows = np.flatnonzero(marks)
    return None if len(rows) > DENSE_ROW_SHARE * len(marks) else rows


def nonzeros(gradient: Tensor) -> CSR | None:
    """The non-zero entries of a gradient ``(B, A)``; None if they are many, or on a device.

    A hinge loss has a gradient of zero at outputs that are right by a margin, after some training
    most.
    """
    if uses_reference(gradient) or gradient.dtype == torch.bfloat16 or not gradient.numel():
        return None
    matrix = array_view(gradient)
    sample = matrix[:: max(1, len(matrix) // _SAMPLED)]
    if np.count_nonzero(sample) > 2 * DENSE_ENTRY_SHARE * sample.size:
        return None
    indptr = np.zeros(len(matrix) + 1, np.int64)
    ragged.count_nonzeros(matrix, indptr[1:])
    np.cumsum(indptr, out=indptr)
    if indptr[-1] > DENSE_ENTRY_SHARE * matrix.size:
        return None
    columns, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], matrix.dtype)
    ragged.take_nonzeros(matrix, indptr, columns, values)
    return CSR(indptr, columns, values)


def group_columns(matrix: CSR, num_columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bounds of all columns of a matrix, and positions and rows of their entries."""
    starts, slots = np.zeros(num_columns + 1, np.int64), np.arange(num_columns, dtype=np.int32)
    entries = np.empty(len(matrix.indices), np.int64)
    samples = np.empty(len(matrix.indices), np.int32)
    kernels.group_entries(matrix.indptr, matrix.indices, slots, starts, entries, samples)
    return starts, entries, samples
