"""Products of a layer with the rows that a pattern names, and gradients that are mostly zero.

A pattern is an `slide.ActiveSet` with a set for each sample, whose entry p names row ``ids[p]``.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from slide.backend import KERNEL_DTYPES, array_view, on_device, on_host, uses_reference
from slide.ops import ragged
from slide.ops.compile import (
    AHEAD,
    AHEAD_ENTRIES,
    ask_for,
    helper,
    parallel,
    prange,
    prefetch_row,
    serial,
)
from slide.ops.dispatch import operation
from slide.runtime import num_threads
from slide.sparse import CSR, row_bounds

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
# Bits of an id by which a pass of a radix sort orders: its counters stay in the first-level cache.
_DIGIT_BITS = 11
_ENTRY = (1 << 32) - 1
# Rows that are only added up leave the cache soon, so more of them can be on their way: 2,048
# numbers are 8 KB in float32, a sixth of a first-level cache of 48 KB.
_NUMBERS_AHEAD = 2048
# 2^27 numbers are gathered at a time: 512 MB.
_MOST = 2**27


def exact(values: Tensor) -> Tensor:
    """The values, contiguous; bfloat16 becomes float32, in which products are summed up."""
    return (values.float() if values.dtype == torch.bfloat16 else values).contiguous()


def _factors(values: np.ndarray | Tensor, others: Tensor) -> np.ndarray:
    """Coefficients for a kernel: float64 beside float64, so it is not compiled for a mixture."""
    found = array_view(values) if isinstance(values, Tensor) else values
    return found.astype(np.float64, copy=False) if others.dtype == torch.float64 else found


def samples_of(counts: Tensor, total: int) -> Tensor:
    """The sample of each entry, ``(total,)`` int64, from the numbers of entries ``(B,)``."""
    numbers = torch.arange(len(counts), device=counts.device)
    return torch.repeat_interleave(numbers, counts, output_size=total)


def samples_on(indptr: np.ndarray, device: torch.device) -> Tensor:
    """The sample of each entry of a pattern with these bounds, ``(nnz,)`` int64, on a device."""
    return samples_of(on_device(np.diff(indptr), device), int(indptr[-1]))


@parallel
def sampled_product_kernel(indptr, ids, vectors, rows, bias, out):
    """Write ``out[p] = <vectors[b], rows[ids[p]]> + bias[ids[p]]``; an empty bias is none."""
    width = vectors.shape[1]
    has_bias = bias.shape[0] > 0
    for b in prange(len(indptr) - 1):
        vector = vectors[b]
        for p in range(indptr[b], indptr[b + 1]):
            if p + AHEAD < len(ids):
                prefetch_row(rows, ids[p + AHEAD])
            if has_bias and p + AHEAD_ENTRIES < len(ids):
                ask_for(bias, ids[p + AHEAD_ENTRIES])
            row = rows[ids[p]]
            total = vector[0] * row[0]
            for d in range(1, width):
                total += vector[d] * row[d]
            if has_bias:
                total += bias[ids[p]]
            out[p] = total


@parallel
def grouped_product_kernel(groups, vectors, rows, bias, num_chunks, out):
    """`sampled_product` of grouped entries: each row is read once, vectors stay in the cache."""
    width, num_rows = vectors.shape[1], len(groups.ids)
    has_bias = bias.shape[0] > 0
    for chunk in prange(num_chunks):
        stop = (chunk + 1) * num_rows // num_chunks
        for u in range(chunk * num_rows // num_chunks, stop):
            if u + AHEAD < stop:
                prefetch_row(rows, groups.ids[u + AHEAD])
            if has_bias and u + AHEAD_ENTRIES < stop:
                ask_for(bias, groups.ids[u + AHEAD_ENTRIES])
            row = rows[groups.ids[u]]
            for q in range(groups.starts[u], groups.starts[u + 1]):
                vector = vectors[groups.samples[q]]
                total = vector[0] * row[0]
                for d in range(1, width):
                    total += vector[d] * row[d]
                if has_bias:
                    total += bias[groups.ids[u]]
                out[groups.entries[q]] = total


@parallel
def block_product_kernel(groups, indptr, vectors, rows, bias, out):
    """`sampled_product` of sets that groups of samples share: a row is read once for a group.

    groups `slide.active_set.Groups`; four samples at a time, so that a number of the row is loaded
    once for four products.
    """
    width, has_bias = vectors.shape[1], bias.shape[0] > 0
    order, ids = groups.order, groups.ids
    for s in prange(len(groups.bounds) - 1):
        first, last = groups.bounds[s], groups.bounds[s + 1]
        begin = groups.indptr[s]
        for u in range(begin, groups.indptr[s + 1]):
            if u + AHEAD < len(ids):
                prefetch_row(rows, ids[u + AHEAD])
            row, j = rows[ids[u]], u - begin
            start = bias[ids[u]] if has_bias else rows.dtype.type(0)
            i = first
            while i + 4 <= last:
                a, b, c, d = order[i], order[i + 1], order[i + 2], order[i + 3]
                va, vb, vc, vd = vectors[a], vectors[b], vectors[c], vectors[d]
                ta = tb = tc = td = start
                for k in range(width):
                    number = row[k]
                    ta += va[k] * number
                    tb += vb[k] * number
                    tc += vc[k] * number
                    td += vd[k] * number
                out[indptr[a] + j], out[indptr[b] + j] = ta, tb
                out[indptr[c] + j], out[indptr[d] + j] = tc, td
                i += 4
            while i < last:
                a, ta = order[i], start
                va = vectors[a]
                for k in range(width):
                    ta += va[k] * row[k]
                out[indptr[a] + j] = ta
                i += 1


def torch_sampled_product(
    pattern: Any, vectors: Tensor, rows: Tensor, bias: Tensor | None, grouped: bool = True
) -> Tensor:
    ids, samples = on_device(pattern.ids, rows.device), samples_on(pattern.indptr, rows.device)
    out = torch_entry_products(samples, ids, vectors, rows)
    return out if bias is None else out + bias[ids]


def torch_entry_products(samples: Tensor, ids: Tensor, vectors: Tensor, rows: Tensor) -> Tensor:
    """``out[p] = <vectors[samples[p]], rows[ids[p]]>``, ``(nnz,)``."""
    step = max(1, _MOST // max(1, vectors.shape[1]))
    parts = [
        (vectors[samples[begin : begin + step]] * rows[ids[begin : begin + step]]).sum(1)
        for begin in range(0, len(ids), step)
    ]
    return torch.cat([vectors.new_empty(0), *parts])


@operation(torch_sampled_product)
def sampled_product(
    pattern: Any, vectors: Tensor, rows: Tensor, bias: Tensor | None, grouped: bool = True
) -> Tensor:
    """``out[p] = <vectors[b], rows[ids[p]]> + bias[ids[p]]`` over the entries of each sample b.

    pattern: B samples with nnz entries together; vectors (B, D) float32 or float64, contiguous;
    rows (N, D), of the type of vectors or bfloat16; bias (N,) of the type of rows, or None;
    grouped: whether the pattern's transposed is needed anyway, for a backward pass. Returns
    ``(nnz,)`` of the type of ``vectors``.
    """
    out = torch.empty(len(pattern.ids), dtype=vectors.dtype)
    if getattr(pattern, "groups", None) is not None and rows.dtype != torch.bfloat16:
        added, x, weight = _array_or_none(bias, vectors), array_view(vectors), array_view(rows)
        block_product_kernel(pattern.groups, pattern.indptr, x, weight, added, out.numpy())
        return out
    if not grouped and rows.dtype != torch.bfloat16:
        return entry_products(pattern.indptr, pattern.ids, vectors, rows, bias)
    groups = pattern.transposed
    if rows.dtype == torch.bfloat16:  # Kernels do not read it.
        at = torch.from_numpy(groups.ids)
        rows = rows.index_select(0, at).float()
        bias = None if bias is None else bias.index_select(0, at).float()
        groups = groups._replace(ids=np.arange(len(at), dtype=np.int32))
    grouped_product_kernel(
        groups,
        array_view(vectors),
        array_view(rows),
        _array_or_none(bias, vectors),
        4 * num_threads(),
        out.numpy(),
    )
    return out


def entry_products(
    indptr: np.ndarray, ids: np.ndarray, vectors: Tensor, rows: Tensor, bias: Tensor | None = None
) -> Tensor:
    """`sampled_product` by its kernel alone, of contiguous tensors on the CPU."""
    out = torch.empty(len(ids), dtype=vectors.dtype)
    added = _array_or_none(bias, vectors)
    sampled_product_kernel(indptr, ids, array_view(vectors), array_view(rows), added, out.numpy())
    return out


def _array_or_none(bias: Tensor | None, like: Tensor) -> np.ndarray:
    """The entries of a bias for a kernel, which takes an empty array for none."""
    return array_view(like.new_empty(0) if bias is None else bias)


@parallel
def weighted_sum_kernel(indptr, ids, coefficients, rows, out):
    """Add ``sum_p coefficients[p] * rows[ids[p]]`` to ``out[b]``; see `sampled_product`."""
    width = rows.shape[1]
    ahead = max(AHEAD, _NUMBERS_AHEAD // max(width, 1))
    for b in prange(len(indptr) - 1):
        total = out[b]
        for p in range(indptr[b], indptr[b + 1]):
            if p + ahead < len(ids):
                prefetch_row(rows, ids[p + ahead])
            c = coefficients[p]
            if c != 0:
                row = rows[ids[p]]
                for d in range(width):
                    total[d] += c * row[d]


def torch_weighted_sum(
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


@operation(torch_weighted_sum)
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
    weighted_sum_kernel(
        indptr, ids, _factors(coefficients, rows), array_view(rows), array_view(out)
    )
    return out


class TotalRows(NamedTuple):
    """The sums of rows with equal ids: each summand has the total of its id.

    ids (n,), ascending; rows (n, D) totals; first (n,) bool, true for the first of equal ids.
    """

    ids: Tensor
    rows: Tensor
    first: Tensor


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


def torch_row_gradient(pattern: Any, coefficients: Any, vectors: Tensor) -> Any:
    device = vectors.device
    ids, samples = on_device(pattern.ids, device), samples_on(pattern.indptr, device)
    coefficients = on_device(coefficients, device).to(vectors.dtype)
    return total_rows(ids, coefficients[:, None] * vectors[samples])


@operation(torch_row_gradient)
def row_gradient(pattern: Any, coefficients: Any, vectors: Tensor) -> Any:
    """``sum_p coefficients[p] * vectors[b]`` over the entries with the same id.

    coefficients (nnz,) floats; vectors (B, D) floats. Returns the factors ``(pattern.transposed,
    coefficients, vectors)``, which nobody may change, since the optimizer computes the sums
    (`adam_factored`), or `TotalRows`.
    """
    return pattern.transposed, _factors(coefficients, vectors), array_view(vectors)


@helper
def bfloat16_bits(value, bits):
    """The upper half of the ``bits`` of a float32, rounded to nearest, of equal ones to even."""
    last = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + last) >> np.uint32(16)
    return np.uint16(0x7FC0) if np.isnan(value) else np.uint16(rounded)


@parallel
def gather_rounded_kernel(rows, ids, rounded):
    """Write the `bfloat16_bits` of the rows ``ids`` of a float32 matrix, then zeros."""
    bits = rows.view(np.uint32)
    for u in prange(len(ids)):
        if u + AHEAD < len(ids):
            prefetch_row(rows, ids[u + AHEAD])
        row, own = rows[ids[u]], bits[ids[u]]
        for d in range(len(row)):
            rounded[u, d] = bfloat16_bits(row[d], own[d])
    rounded[len(ids) :] = 0


def gather_rounded(weight: Tensor, ids: Tensor, rounded: torch.dtype) -> Tensor:
    """Copies ``(A, D)`` of the rows ``ids`` of a weight on the CPU, rounded to a type.

    Rows of zeros may follow. oneDNN makes new code for each product of another shape, which takes
    as long as a third of it: sets of nearly the same size get one shape.
    """
    if (weight.dtype, rounded) != (torch.float32, torch.bfloat16) or not weight.is_contiguous():
        return weight.index_select(0, ids).to(rounded)
    unit = 1 << max(_LEAST_UNIT, len(ids).bit_length() - _UNIT_BITS)
    bits = torch.empty(-(-len(ids) // unit) * unit, weight.shape[1], dtype=torch.uint16)
    gather_rounded_kernel(array_view(weight), on_host(ids), bits.numpy())
    return bits.view(rounded)


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
    """The non-zero entries of a gradient ``(B, A)`` on the CPU; None if they are many.

    A hinge loss has a gradient of zero at outputs that are right by a margin, after some training
    most.
    """
    if gradient.dtype == torch.bfloat16 or not gradient.numel():
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


@parallel
def _count_entries(indptr, values, counts):
    for b in prange(len(counts)):
        for p in range(indptr[b], indptr[b + 1]):
            counts[b] += values[p] != 0


@parallel
def _take_entries(indptr, ids, values, bounds, out_ids, out_values):
    for b in prange(len(bounds) - 1):
        q = bounds[b]
        if q < bounds[b + 1]:
            for p in range(indptr[b], indptr[b + 1]):
                if values[p] != 0:
                    out_ids[q], out_values[q] = ids[p], values[p]
                    q += 1


def nonzero_entries(indptr: np.ndarray, ids: np.ndarray, values: np.ndarray) -> CSR:
    """The entries of a pattern whose values ``(nnz,)`` are not zero, on the CPU."""
    counts = np.zeros(len(indptr) - 1, np.int64)
    _count_entries(indptr, values, counts)
    bounds = row_bounds(counts)
    found = CSR(bounds, np.empty(bounds[-1], np.int32), np.empty(bounds[-1], values.dtype))
    _take_entries(indptr, ids, values, *found)
    return found


@helper
def _sorted_entries(ids, num_rows):
    """Keys ``id << 32 | entry`` in ascending order: a radix sort of the bits that ids can have."""
    keys, others = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    for p in range(len(ids)):
        keys[p] = (np.int64(ids[p]) << 32) | p
    bits = 1
    while (1 << bits) < num_rows:
        bits += 1
    passes = (bits + _DIGIT_BITS - 1) // _DIGIT_BITS
    digit = (bits + passes - 1) // passes
    positions = np.empty(1 << digit, np.int64)
    for i in range(passes):
        shift, mask = 32 + i * digit, len(positions) - 1
        positions[:] = 0
        for p in range(len(keys)):
            positions[(keys[p] >> shift) & mask] += 1
        end = np.int64(0)
        for c in range(len(positions)):
            count = positions[c]
            positions[c] = end
            end += count
        for p in range(len(keys)):
            c = (keys[p] >> shift) & mask
            others[positions[c]] = keys[p]
            positions[c] += 1
        keys, others = others, keys
    return keys


@serial
def transpose_pattern(indptr, ids, num_rows, touched, starts, entries, samples):
    """Group the entries of a pattern by id, ascending, in time linear in ``nnz``; returns R.

    touched (nnz,) int32, the first R get the distinct ids, which then lie on the same page or a
    near one; others see `slide.active_set.Transposed`.
    """
    keys, sample_of = _sorted_entries(ids, num_rows), np.empty(len(ids), np.int32)
    for b in range(len(indptr) - 1):
        for p in range(indptr[b], indptr[b + 1]):
            sample_of[p] = b
    distinct, last = 0, np.int64(-1)
    for q in range(len(keys)):
        p, row = keys[q] & _ENTRY, keys[q] >> 32
        if row != last:
            touched[distinct] = row
            starts[distinct] = q
            distinct += 1
            last = row
        entries[q] = p
        samples[q] = sample_of[p]
    starts[distinct] = len(keys)
    return distinct
