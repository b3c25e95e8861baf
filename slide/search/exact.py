"""Search for the rows with the largest inner products, by scores of all rows or of candidates."""

import numpy as np
import torch
from torch import Tensor

from slide import ops
from slide.active_set import ActiveSet
from slide.backend import array_view, has_bfloat16, on_device, on_host, uses_reference
from slide.functional import active_linear
from slide.ops.largest import keep_largest, keep_largest_bounds
from slide.sparse import Pattern, check_pattern, row_bounds
from slide.utils import checks
from slide.utils.quantized import QuantizedRows, TensorRows, weight_rows

# Scores of 512 x 2,048 are 4 MB, which stay in the caches of a core.
_ROW_BLOCK, _QUERY_BLOCK = 2_048, 512
# Rounding pays for no fewer queries and rows, and if no more than this share of the rows is wanted.
_LEAST_QUERIES, _LEAST_ROWS, _MOST_WANTED = 64, 4096, 1 / 16
_MOST_COLUMNS = 2**14  # Sums of more products have larger errors than the bound has room for.
_DEVICE_SCORES = 2**27  # Scores that are computed at a time off the CPU: 512 MB.
_SPARE = 64  # Rows that are kept besides twice k: for most queries fewer may be among the best.
# Rounding to bfloat16 changes a number by at most 2^-8 of it. Both factors are rounded, and the
# product, which is at most the product of their lengths; a fourth part is for sums in float32.
_SHARE = 3.25 * 2.0**-8
# Vectors that are shorter, or longer than its inverse, have squares that float32 does not hold.
_SHORTEST = 1e-12


def exact_top_k(
    queries: Tensor, weight: Tensor | QuantizedRows, bias: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """The k rows with the largest ``<query, row> + bias``, for each query.

    It computes all scores, in blocks. If the processor multiplies bfloat16 faster, it computes
    rounded scores for many queries, and exact scores where rounding could change the result.

    Args:
        queries: ``(B, D)`` floats.
        weight: ``(N, D)``, of the type of ``queries``; or stored rows, which become float32 block
            by block.
        bias: ``(N,)`` or None.
        k: in [1, N].

    Returns:
        Scores ``(B, k)`` of the type of ``queries`` and ids ``(B, k)`` int64, best first. The order
        of equal scores is not defined. A score that is NaN or -inf is no answer: where there are no
        others, scores are -inf and ids -1.

    Raises:
        ValueError: if k is not in [1, N].

    Example:
        >>> import slide, torch
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> scores, ids = slide.exact_top_k(torch.eye(2), weight, None, k=1)
        >>> ids.tolist()
        [[0], [1]]
    """
    k = checks.whole_within("k", k, 1, weight.shape[0])
    if uses_reference(queries):
        return _reference_search(queries, weight, bias, k)
    many = len(queries) >= _LEAST_QUERIES and weight.shape[0] >= _LEAST_ROWS
    few_wanted = k <= _MOST_WANTED * weight.shape[0] and weight.shape[1] <= _MOST_COLUMNS
    if queries.dtype == torch.float32 and many and few_wanted and has_bfloat16():
        best, ids, proven = rounded_top_k(queries, weight, bias, k)
        if not proven.all():
            best[~proven], ids[~proven] = _full_search(queries[~proven], weight, bias, k)
    else:
        best, ids = _full_search(queries, weight, bias, k)
    best, order = best.sort(1, descending=True)
    return best.to(queries.dtype), ids.gather(1, order)


def _full_search(
    queries: Tensor, weight: Tensor | QuantizedRows, bias: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """`exact_top_k` without rounding, in no particular order."""
    # Shorter floats are compared as float32, because kernels do not read them.
    dtype = queries.dtype if queries.dtype == torch.float64 else torch.float32
    best = queries.new_full((len(queries), k), -torch.inf, dtype=dtype)
    ids = torch.full((len(queries), k), -1)
    stored = weight_rows(weight)
    for first in range(0, len(queries), _QUERY_BLOCK):
        part = slice(first, first + _QUERY_BLOCK)
        x, arrays = queries[part], (array_view(best[part]), array_view(ids[part]))
        # Fewer queries are scored against more rows at a time: each block costs some microseconds.
        block = stored.at_once(_ROW_BLOCK * max(1, _QUERY_BLOCK // max(1, len(x))))
        for start in range(0, stored.shape[0], block):
            rows = stored.block(start, start + block)
            if bias is None:
                scores = x @ rows.T
            else:
                scores = torch.addmm(bias[start : start + block], x, rows.T)
            keep_largest(array_view(scores.to(best.dtype)), start, *arrays)
    return best, ids


def _reference_search(
    queries: Tensor, weight: Tensor | QuantizedRows, bias: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """`exact_top_k` by the torch reference, on the device of the queries."""
    stored = weight_rows(weight)
    rows = stored.at_once(max(k, _DEVICE_SCORES // max(1, len(queries))))
    if stored.tensors[0].device != queries.device:  # A block is copied to the device.
        rows = min(rows, max(1, _DEVICE_SCORES // stored.shape[1]))
    best = queries.new_full((len(queries), 0), -torch.inf)
    ids = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, stored.shape[0], rows):
        # Rows that stay on the host come block by block.
        scores = queries @ stored.block(start, start + rows).to(queries.device).T
        if bias is not None:
            scores = scores + bias[start : start + rows].to(queries.device)
        scores = torch.where(scores.isnan(), -torch.inf, scores)  # As for kernels.
        found, positions = scores.topk(min(k, scores.shape[1]))
        best, ids = torch.cat([best, found], 1), torch.cat([ids, positions + start], 1)
        best, order = best.topk(min(k, best.shape[1]))
        ids = ids.gather(1, order)
    return best, torch.where(best > -torch.inf, ids, -1)


def rounded_top_k(
    queries: Tensor, weight: Tensor | QuantizedRows, bias: Tensor | None, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The k best scores ``(B, k)`` and ids in no order, and ``(B,)`` whether that is proven.

    Rounding to bfloat16 changes a score by less than a bound (Higham 2002, "Accuracy and stability
    of numerical algorithms", sections 2.2 and 3.1), and only what may be among the best is scored
    anew. It is not proven where numbers are not finite, or very many scores nearly equal.
    """
    queries, rows = queries.detach().contiguous(), weight_rows(weight)
    bias = queries.new_zeros(rows.shape[0]) if bias is None else bias.detach()
    # How far rounding may move the score of a query and a row: the product of the two numbers.
    errors = (_SHARE * queries.norm(dim=1)).numpy(), rows.lengths().numpy()
    bounds, ids = _largest_bounds(queries, rows, array_view(bias), errors, 2 * k + _SPARE)
    with np.errstate(invalid="ignore"):  # Of numbers that are not finite.
        lowest = bounds - 2 * errors[0][:, None] * errors[1][ids]
    # The k-th largest score is at least the k-th largest lower bound.
    least = np.partition(lowest, -k, axis=1)[:, -k, None]
    scores = _scored(queries, rows, bias, ids, (bounds >= least) & (ids >= 0))
    best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    found = np.take_along_axis(scores, best, 1)
    # The score of a row that was not kept is at most the least bound that was kept.
    proven = (found.min(1) >= bounds.min(1)) | (bounds.shape[1] == rows.shape[0])
    proven &= (
        np.isfinite(found).all(1)
        & _has_bounds(TensorRows(queries), errors[0])
        & _has_bounds(rows, errors[1]).all()
    )
    ids = np.take_along_axis(ids, best, 1)
    return torch.from_numpy(found), torch.from_numpy(ids), torch.from_numpy(proven)


def _has_bounds(vectors: TensorRows | QuantizedRows, lengths: np.ndarray) -> np.ndarray:
    """Whether vectors are zero or of a length whose square float32 holds: others have no bounds."""
    known = (lengths > _SHORTEST) & (lengths < 1 / _SHORTEST)
    others = np.flatnonzero(~known)
    known[others] = ~(vectors.take(torch.from_numpy(others)) != 0).any(1).numpy()
    return known


def _largest_bounds(
    queries: Tensor,
    stored: TensorRows | QuantizedRows,
    biases: np.ndarray,
    errors: tuple[np.ndarray, np.ndarray],
    number: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The largest upper bounds of scores, and their rows: ``(B, number)``, in no order."""
    shape = len(queries), min(number, stored.shape[0])
    bounds, ids = np.full(shape, -np.inf, np.float32), np.full(shape, -1)
    rounded = queries.bfloat16()
    for first in range(0, stored.shape[0], _ROW_BLOCK):
        part = slice(first, first + _ROW_BLOCK)
        rows = stored.block(first, first + _ROW_BLOCK).bfloat16().T
        added = errors[1][part], biases[part]
        for start in range(0, len(queries), _QUERY_BLOCK):
            some = slice(start, start + _QUERY_BLOCK)
            products = array_view((rounded[some] @ rows).float())
            keep_largest_bounds(products, errors[0][some], *added, first, bounds[some], ids[some])
    return bounds, ids


def _scored(
    queries: Tensor,
    stored: TensorRows | QuantizedRows,
    bias: Tensor,
    ids: np.ndarray,
    wanted: np.ndarray,
) -> np.ndarray:
    """The scores of the wanted ids ``(B, K)``; -inf for the others."""
    indptr = row_bounds(wanted.sum(1))
    weight, added, positions = stored.some(ids[wanted].astype(np.int32), bias)
    found = ops.entry_products(indptr, positions, queries, weight.contiguous(), added)
    scores = np.full(ids.shape, -np.inf, np.float32)
    scores[wanted] = found.numpy()
    return scores


def index_top_k(
    queries: Tensor, weight: Tensor, bias: Tensor | None, candidates: Pattern, k: int
) -> tuple[Tensor, Tensor]:
    """The k candidates of each query with the largest ``<query, row> + bias``.

    Args:
        queries: ``(B, D)`` floats.
        weight: ``(N, D)``, of the type of ``queries``.
        bias: ``(N,)`` or None.
        candidates: B rows of ids in [0, N). An id may occur several times in a row.
        k: at least 1.

    Returns:
        Scores ``(B, k)`` of the type of ``queries`` and ids ``(B, k)`` int64, best first; -inf and
        -1 where no candidate has a score above -inf.

    Raises:
        ValueError: if k is below 1, or for candidates of another number of rows, or out of range.
        TypeError: for candidates of another type; see `check_pattern`.

    Example:
        >>> import slide, torch
        >>> from slide.search import index_top_k
        >>> weight = torch.tensor([[1., 0.], [0., 2.], [3., 3.]])
        >>> found = slide.Pattern.from_lists([[0, 1, 1], []])
        >>> index_top_k(torch.ones(2, 2), weight, None, found, k=2)[1].tolist()
        [[1, 0], [-1, -1]]
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    check_pattern("candidates", candidates, len(queries), len(weight))
    pairs = candidates.entry_rows() * len(weight) + candidates.indices
    pairs = np.sort(pairs)  # np.unique takes many times as long.
    row, ids = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], len(weight))
    indptr = np.searchsorted(row, np.arange(len(queries) + 1))
    active = ActiveSet(len(weight), ids.astype(np.int32), indptr)
    with torch.no_grad():
        values = active_linear(queries, weight.detach(), bias, active)
    values = values.masked_fill(values.isnan(), -torch.inf)
    # numpy does not know bfloat16.
    known = values.float() if values.dtype == torch.bfloat16 else values
    order = np.lexsort((-on_host(known), row))
    rank = np.arange(len(order)) - indptr[row]
    best = order[rank < k]
    rows, columns, chosen, named = (
        on_device(each, values.device) for each in (row[best], rank[rank < k], best, ids[best])
    )
    scores = values.new_full((len(queries), k), -torch.inf)
    found = torch.full((len(queries), k), -1, dtype=torch.int64, device=values.device)
    scores[rows, columns] = values[chosen]
    found[rows, columns] = named.masked_fill(values[chosen] == -torch.inf, -1)
    return scores, found
