"""Products with the rows that a pattern names, and Adam on such rows; see `slide.ops.kernels`.

Entry ``p`` of a pattern belongs to sample ``samples[p]`` and names row ``ids[p]`` of a matrix.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from slide.backend import KERNEL_DTYPES, on_device
from slide.ops.kernels.products import AdamHyper

# 2^27 numbers are gathered at a time: 512 MB.
_MOST = 2**27


class TotalRows(NamedTuple):
    """The sums of rows with equal ids: each summand has the total of its id.

    ids (n,), ascending; rows (n, D) totals; first (n,) bool, true for the first of equal ids.
    """

    ids: Tensor
    rows: Tensor
    first: Tensor


def samples_of(counts: Tensor, total: int) -> Tensor:
    """The sample of each entry, ``(total,)`` int64, from the numbers of entries ``(B,)``."""
    numbers = torch.arange(len(counts), device=counts.device)
    return torch.repeat_interleave(numbers, counts, output_size=total)


def samples_on(indptr: np.ndarray, device: torch.device) -> Tensor:
    """The sample of each entry of a pattern with these bounds, ``(nnz,)`` int64, on a device."""
    return samples_of(on_device(np.diff(indptr), device), int(indptr[-1]))


def sampled_product(
    pattern: Any, vectors: Tensor, rows: Tensor, bias: Tensor | None, grouped: bool = True
) -> Tensor:
    ids, samples = on_device(pattern.ids, rows.device), samples_on(pattern.indptr, rows.device)
    out = entry_products(samples, ids, vectors, rows)
    return out if bias is None else out + bias[ids]


def entry_products(samples: Tensor, ids: Tensor, vectors: Tensor, rows: Tensor) -> Tensor:
    """``out[p] = <vectors[samples[p]], rows[ids[p]]>``, ``(nnz,)``."""
    step = max(1, _MOST // max(1, vectors.shape[1]))
    parts = [
        (vectors[samples[begin : begin + step]] * rows[ids[begin : begin + step]]).sum(1)
        for begin in range(0, len(ids), step)
    ]
    return torch.cat([vectors.new_empty(0), *parts])


def weighted_sum(
    indptr: np.ndarray | Tensor,
    ids: Any,
    coefficients: Any,
    rows: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    indptr, ids, coefficients = (on_device(a, rows.device) for a in (indptr, ids, coefficients))
    # Rows of shorter types, such as bfloat16, are summed up in the type of the coefficients.
    dtype = rows.dtype if rows.dtype in KERNEL_DTYPES else coefficients.dtype
    coefficients = coefficients.to(dtype)
    if not len(ids) or not rows.shape[1]:  # PyTorch refuses rows without numbers.
        out = coefficients.new_zeros(len(indptr) - 1, rows.shape[1])
        return out if bias is None else out + bias
    if rows.dtype != dtype:
        rows, ids = rows[ids].to(dtype), torch.arange(len(ids), device=ids.device)
    out = embedding_bag(
        ids,
        rows,
        indptr.to(ids.dtype),
        mode="sum",
        per_sample_weights=coefficients,
        include_last_offset=True,
    )
    return out if bias is None else out + bias


def row_gradient(pattern: Any, coefficients: Any, vectors: Tensor) -> Any:
    device = vectors.device
    ids, samples = on_device(pattern.ids, device), samples_on(pattern.indptr, device)
    coefficients = on_device(coefficients, device).to(vectors.dtype)
    return total_rows(ids, coefficients[:, None] * vectors[samples])


def gather_rounded(weight: Tensor, ids: Any, rounded: torch.dtype) -> tuple[Tensor, Tensor]:
    rows = weight.index_select(0, on_device(ids, weight.device))
    return rows, rows.to(rounded)


def total_rows(ids: Tensor, rows: Tensor) -> TotalRows:
    """The sums of ``rows`` ``(n, D)`` with equal ``ids`` ``(n,)``."""
    ids, order = ids.sort(stable=True)
    first = first_of_equal(ids)
    position = first.cumsum(0) - 1
    sums = torch.zeros_like(rows).index_add_(0, position, rows[order])
    return TotalRows(ids, sums[position], first)


def first_of_equal(ascending: Tensor) -> Tensor:
    """Where a new value begins along the last axis of ascending values; bool, the same shape."""
    first = torch.ones_like(ascending, dtype=torch.bool)
    first[..., 1:] = ascending[..., 1:] != ascending[..., :-1]
    return first


class AdamTensors(NamedTuple):
    """`slide.ops.kernels.products.AdamRows` as tensors; None for what is not kept."""

    weight: Tensor
    first: Tensor | None
    second: Tensor
    last_step: Tensor | None


def adam_rows(state: AdamTensors, hyper: AdamHyper, ids: Tensor | None, grads: Tensor) -> None:
    """Adam on the rows ``ids``, or all; equal ids have equal gradients."""
    grads = grads.to(state.second.dtype)
    w, v = (t if ids is None else t[ids] for t in (state.weight, state.second))
    decay1, decay2 = _decays(state.last_step, hyper, ids, v.dtype)
    square = grads.square()
    if v.shape[1] != w.shape[1]:
        square = square.mean(1, keepdim=True)
    m = (1 - hyper.beta1) * grads
    if state.first is not None:
        m = m + decay1 * (state.first if ids is None else state.first[ids])
        _write(state.first, ids, m)
    v = decay2 * v + (1 - hyper.beta2) * square
    rate = hyper.lr / (1 - hyper.beta1**hyper.step)
    scale = 1 / math.sqrt(1 - hyper.beta2**hyper.step)
    keep = 1 - hyper.lr * hyper.weight_decay
    w = keep * w.to(v.dtype) - rate * m / (v.sqrt() * scale + hyper.eps)
    _write(state.second, ids, v)
    _write(state.weight, ids, w.to(state.weight.dtype))


def _decays(
    last_step: Tensor | None, hyper: AdamHyper, ids: Tensor | None, dtype: torch.dtype
) -> tuple[float | Tensor, float | Tensor]:
    """The decay of both moments; with last steps, of each row, which are set to this step."""
    if last_step is None:
        return hyper.beta1, hyper.beta2
    last = last_step if ids is None else last_step[ids]
    missed = torch.where(last > 0, hyper.step - last, 1).to(dtype)[:, None]
    _write(last_step, ids, torch.full_like(last, hyper.step))
    return hyper.beta1**missed, hyper.beta2**missed


def _write(tensor: Tensor, ids: Tensor | None, values: Tensor) -> None:
    if ids is None:
        tensor.copy_(values)
    else:
        tensor.index_copy_(0, ids.long(), values)
