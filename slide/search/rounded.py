"""Exact search that scans rounded rows, and scores anew only what may be among the best.

A product of bfloat16 numbers takes less time than one of float32 numbers on processors that have
instructions for it. Rounding changes a score by less than a bound (Higham 2002, "Accuracy and
stability of numerical algorithms", sections 2.2 and 3.1). So a row whose rounded score is far below
those of k other rows is not among the k best.
"""

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view
from slide.kernels.largest import keep_largest_bounds
from slide.kernels.pattern_products import sampled_product
from slide.sparse import row_bounds
from slide.utils.quantized import QuantizedRows, TensorRows, weight_rows

_ROW_BLOCK, _QUERY_BLOCK = 2_048, 512
# Rows that are kept besides twice k: for most queries fewer may be among the best.
_SPARE = 64
# Rounding to bfloat16 changes a number by at most this share of it. Both factors are rounded, and
# the product, which is at most the product of their lengths; a fourth part is for sums in float32.
_UNIT = 2.0**-8
_SHARE = 3.25 * _UNIT
# Vectors that are shorter, or longer than its inverse, are not searched in this way.
_SHORTEST = 1e-12


def rounded_top_k(
    queries: Tensor, weight: Tensor | QuantizedRows, bias: Tensor | None, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The k rows with the largest ``<query, row> + bias``, and whether that is proven.

    Args:
        queries: ``(B, D)`` float32.
        weight: ``(N, D)`` float32, or stored rows.
        bias: ``(N,)`` float32, or None.
        k: number of rows to return for each query, in [1, N].

    Returns:
        Scores ``(B, k)`` float32, which are not rounded to bfloat16, and ids ``(B, k)`` int64, in
        no particular order; and ``(B,)`` bool: whether it is proven that no other row of the query
        has a larger score. That is not so where numbers are not finite, or very many scores nearly
        equal: these queries are to be searched by other means.

    Example:
        >>> import torch
        >>> from slide.search.rounded import rounded_top_k
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> scores, ids, proven = rounded_top_k(torch.eye(2), weight, None, k=1)
        >>> ids.tolist(), proven.tolist()
        ([[0], [1]], [True, True])
    """
    queries, rows = queries.detach().contiguous(), weight_rows(weight)
    bias = torch.zeros(rows.shape[0]) if bias is None else bias.detach()
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
    weight, added, places = stored.some(ids[wanted].astype(np.int32), bias)
    assert added is not None
    out = np.empty(indptr[-1], np.float32)
    arrays = array_view(queries), array_view(weight.contiguous()), array_view(added)
    sampled_product(indptr, places, *arrays, out)
    scores = np.full(ids.shape, -np.inf, np.float32)
    scores[wanted] = out
    return scores
