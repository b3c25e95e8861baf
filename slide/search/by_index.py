"""Search among the candidates of an index: only these are scored."""

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.functional import active_linear
from slide.ops.backend import on_device, on_host
from slide.sparse import Pattern, check_pattern


def index_top_k(
    queries: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    candidates: Pattern,
    k: int,
) -> tuple[Tensor, Tensor]:
    """The k candidates of each query with the largest ``<query, row> + bias``.

    Args:
        queries: ``(B, D)`` floats.
        weight: ``(N, D)``, of the type of ``queries``.
        bias: ``(N,)`` or None.
        candidates: B rows of ids in [0, N). An id may occur several times in a row.
        k: number of ids to return for each query, at least 1.

    Returns:
        Scores ``(B, k)`` of the type of ``queries`` and ids ``(B, k)`` int64, best first. If a
        query has fewer than k candidates, the remaining scores are -inf and the ids are -1. So it
        is for a candidate whose score is NaN or -inf.

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
