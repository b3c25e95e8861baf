"""`slide.ops.kernels.pattern_products` in torch: products with the rows that a pattern names.

Entry ``p`` of a pattern belongs to sample ``samples[p]`` and names row ``ids[p]`` of a matrix.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

# A product gathers at most so many numbers at a time.
_MOST = 2**27


class TotalRows(NamedTuple):
    """The sums of rows with equal ids, with one row for each summand.

    How many ids differ is not known on the host. So each summand has the total of its id: equal
    ids have equal rows.

    Attributes:
        ids: ``(n,)``, ascending; may repeat.
        rows: ``(n, D)`` totals.
        first: ``(n,)`` bool, true for the first of equal ids.
    """

    ids: Tensor
    rows: Tensor
    first: Tensor


def samples_of(counts: Tensor, total: int) -> Tensor:
    """The sample of each entry, ``(total,)`` int64, from the numbers of entries ``(B,)``."""
    numbers = torch.arange(len(counts), device=counts.device)
    return torch.repeat_interleave(numbers, counts, output_size=total)


def sampled_product(
    samples: Tensor, ids: Tensor, vectors: Tensor, rows: Tensor, bias: Tensor | None
) -> Tensor:
    """``out[p] = <vectors[samples[p]], rows[ids[p]]> + bias[ids[p]]``, ``(nnz,)``."""
    step = max(1, _MOST // max(1, vectors.shape[1]))
    parts = [
        (vectors[samples[begin : begin + step]] * rows[ids[begin : begin + step]]).sum(1)
        for begin in range(0, len(ids), step)
    ]
    out = torch.cat([vectors.new_empty(0), *parts])
    return out if bias is None else out + bias[ids]


def weighted_sum(indptr: Tensor, ids: Tensor, coefficients: Tensor, rows: Tensor) -> Tensor:
    """``out[b] = sum_p coefficients[p] * rows[ids[p]]`` over the entries of sample b, ``(B, D)``.

    Args:
        indptr: ``(B + 1,)`` bounds of the samples' entries.
        ids: ``(nnz,)`` row numbers.
        coefficients: ``(nnz,)`` floats.
        rows: ``(N, D)`` floats; shorter ones are summed up in the type of the coefficients.
    """
    if not len(ids) or not rows.shape[1]:  # PyTorch refuses rows without numbers.
        return coefficients.new_zeros(len(indptr) - 1, rows.shape[1])
    if rows.dtype != coefficients.dtype:
        rows, ids = rows[ids].to(coefficients.dtype), torch.arange(len(ids), device=ids.device)
    bounds = indptr.to(ids.dtype)
    return embedding_bag(
        *(ids, rows, bounds),
        mode="sum",
        per_sample_weights=coefficients,
        include_last_offset=True,
    )


def row_gradient(samples: Tensor, ids: Tensor, coefficients: Tensor, vectors: Tensor) -> TotalRows:
    """``sum_p coefficients[p] * vectors[samples[p]]`` over the entries with the same id."""
    return total_rows(ids, coefficients[:, None] * vectors[samples])


def total_rows(ids: Tensor, rows: Tensor) -> TotalRows:
    """The sums of ``rows`` ``(n, D)`` with equal ``ids`` ``(n,)``.

    Example:
        >>> import torch
        >>> from slide.ops.reference.pattern_products import total_rows
        >>> total = total_rows(torch.tensor([3, 1, 3]), torch.tensor([[1.0], [2.0], [5.0]]))
        >>> total.ids.tolist(), total.rows.flatten().tolist(), total.first.tolist()
        ([1, 3, 3], [2.0, 6.0, 6.0], [True, True, False])
    """
    ids, order = ids.sort(stable=True)
    first = first_of_equal(ids)
    place = first.cumsum(0) - 1
    sums = torch.zeros_like(rows).index_add_(0, place, rows[order])
    return TotalRows(ids, sums[place], first)


def first_of_equal(ascending: Tensor) -> Tensor:
    """Where a new value begins along the last axis of ascending values; bool, the same shape."""
    first = torch.ones_like(ascending, dtype=torch.bool)
    first[..., 1:] = ascending[..., 1:] != ascending[..., :-1]
    return first
