"""Exact search for the rows with the largest inner products."""

import torch
from torch import Tensor

from slide.backend import array_view, has_bfloat16, plain
from slide.kernels.largest import keep_largest
from slide.search.rounded import rounded_top_k
from slide.utils.quantized import QuantizedRows, weight_rows

_ROW_BLOCK, _QUERY_BLOCK = 2_048, 512
# Rounding pays for no fewer queries and rows, and if no more than this share of the rows is wanted.
_LEAST_QUERIES, _LEAST_ROWS, _MOST_WANTED = 64, 4096, 1 / 16
_MOST_COLUMNS = 2**14  # Sums of more products have larger errors than the bound has room for.
_DEVICE_SCORES = 2**27  # Off the CPU, so many scores are computed at a time.


def exact_top_k(
    queries: Tensor, weight: Tensor | QuantizedRows, bias: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """The k rows with the largest ``<query, row> + bias``, for each query.

    All scores are computed, in blocks of at most 512 x 2,048. On processors that multiply bfloat16
    faster, many queries are answered from rounded scores and those scores that matter; see
    `slide.search.rounded`. On other devices than the CPU blocks have 2^27 scores.

    Args:
        queries: ``(B, D)`` floats.
        weight: ``(N, D)``, of the type of ``queries``; or stored rows, which become float32 block
            by block.
        bias: ``(N,)`` or None.
        k: number of rows to return for each query, in [1, N].

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
    if not 1 <= k <= weight.shape[0]:
        raise ValueError(f"k must be in [1, {weight.shape[0]}], not {k}")
    if plain(queries):
        return _plain_search(queries, weight, bias, k)
    if _rounding_pays(queries, weight, k):
        best, ids, proven = rounded_top_k(queries, weight, bias, k)
        if not proven.all():
            best[~proven], ids[~proven] = _full_search(queries[~proven], weight, bias, k)
    else:
        best, ids = _full_search(queries, weight, bias, k)
    best, order = best.sort(1, descending=True)
    return best.to(queries.dtype), ids.gather(1, order)


def _rounding_pays(queries: Tensor, weight: Tensor | QuantizedRows, k: int) -> bool:
    if queries.dtype != torch.float32 or not has_bfloat16():
        return False
    rows, columns = weight.shape
    many = len(queries) >= _LEAST_QUERIES and rows >= _LEAST_ROWS and columns <= _MOST_COLUMNS
    return many and k <= _MOST_WANTED * rows


def _full_search(
    queries: Tensor, weight: Tensor | QuantizedRows, bias: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """`exact_top_k` without rounding, in no particular order."""
    # Shorter floats are compared as float32, because kernels do not read them.
    dtype = queries.dtype if queries.dtype == torch.float64 else torch.float32
    best = queries.new_full((len(queries), k), -torch.inf, dtype=dtype)
    ids = torch.full((len(queries), k), -1)
    for start in range(0, len(queries), _QUERY_BLOCK):
        part = slice(start, start + _QUERY_BLOCK)
        _search(queries[part], weight, bias, best[part], ids[part])
    return best, ids


def _plain_search(
    queries: Tensor, weight: Tensor | QuantizedRows, bias: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """`exact_top_k` in plain torch, on the device of the queries."""
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
        found, places = scores.topk(min(k, scores.shape[1]))
        best, ids = torch.cat([best, found], 1), torch.cat([ids, places + start], 1)
        best, order = best.topk(min(k, best.shape[1]))
        ids = ids.gather(1, order)
    return best, torch.where(best > -torch.inf, ids, -1)


def _search(
    queries: Tensor, weight: Tensor | QuantizedRows, bias: Tensor | None, best: Tensor, ids: Tensor
) -> None:
    # Fewer queries are scored against more rows at a time: each block costs some microseconds.
    stored = weight_rows(weight)
    block = stored.at_once(_ROW_BLOCK * max(1, _QUERY_BLOCK // max(1, len(queries))))
    for start in range(0, stored.shape[0], block):
        rows = stored.block(start, start + block)
        if bias is None:
            scores = queries @ rows.T
        else:
            scores = torch.addmm(bias[start : start + block], queries, rows.T)
        keep_largest(array_view(scores.to(best.dtype)), start, array_view(best), array_view(ids))
