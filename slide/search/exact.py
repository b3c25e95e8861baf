"""Exact search for the rows with the largest inner products."""

import torch
from torch import Tensor

_ROW_BLOCK, _QUERY_BLOCK = 8_192, 512


def exact_top_k(
    queries: Tensor, weight: Tensor, bias: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """The k rows with the largest ``<query, row> + bias``, for each query.

    All scores are computed, in blocks of at most 512 x 8,192.

    Args:
        queries: ``(B, D)`` floats.
        weight: ``(N, D)``, of the type of ``queries``.
        bias: ``(N,)`` or None.
        k: number of rows to return for each query, in [1, N].

    Returns:
        Scores ``(B, k)`` of the type of ``queries`` and ids ``(B, k)`` int64, best first. The order
        of equal scores is not defined.

    Raises:
        ValueError: if k is not in [1, N].

    Example:
        >>> import slide, torch
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> scores, ids = slide.exact_top_k(torch.eye(2), weight, None, k=1)
        >>> ids.tolist()
        [[0], [1]]
    """
    if not 1 <= k <= len(weight):
        raise ValueError(f"k must be in [1, {len(weight)}], not {k}")
    parts = [_block_top_k(block, weight, bias, k) for block in queries.split(_QUERY_BLOCK)]
    if not parts:
        return queries.new_empty(0, k), torch.empty(0, k, dtype=torch.int64)
    return torch.cat([scores for scores, _ in parts]), torch.cat([ids for _, ids in parts])


def _block_top_k(queries: Tensor, weight: Tensor, bias: Tensor | None, k: int):
    best = queries.new_empty(len(queries), 0)
    best_ids = torch.empty(len(queries), 0, dtype=torch.int64)
    for start in range(0, len(weight), _ROW_BLOCK):
        rows = weight[start : start + _ROW_BLOCK]
        if bias is None:
            scores = queries @ rows.T
        else:
            scores = torch.addmm(bias[start : start + _ROW_BLOCK], queries, rows.T)
        top, ids = scores.topk(min(k, scores.shape[1]), dim=1)
        best, order = torch.cat([best, top], 1).topk(min(k, best.shape[1] + top.shape[1]), dim=1)
        best_ids = torch.cat([best_ids, ids + start], 1).gather(1, order)
    return best, best_ids
