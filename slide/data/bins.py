"""Numbers in bins by quantiles, so that any function of a number is linear in its features."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from slide.sparse import CSR, Pattern

# 128 fine bins; 8 of them are a coarse one.
_FINE, _IN_COARSE = 128, 8
# Of 32 numbers at most: with more, such as pixels and those of embeddings, answers were worse.
MOST_BINNED = 32
# 65,536 training rows tell quantiles.
SAMPLED = 65_536

Edges = Sequence[Sequence[float] | np.ndarray]


def bin_edges(numbers: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """The edges of fine bins of each column of some rows' numbers ``(B, columns)``, NaN for none.

    They ascend. A bin holds the numbers up to an edge and above the one before it.
    """
    shares, found = np.arange(1, _FINE) / _FINE, []
    for values in numbers.T:
        values = values[~np.isnan(values)]
        edges = np.quantile(values, shares, method="inverted_cdf") if len(values) else values
        edges = np.unique(edges)
        found.append(tuple(edges[edges < values.max(initial=-np.inf)].tolist()))
    return tuple(found)


def bin_features(numbers: np.ndarray, edges: Edges, value: float = 1.0) -> CSR:
    """The features of numbers ``(B, columns)``: each is in a fine bin and a coarse one; NaN: none.

    All have the same value. Those of a column follow those of the column before it.
    """
    ids, first = [], 0
    for values, own in zip(numbers.T, edges, strict=True):
        for each in _resolutions(own):
            ids.append(np.where(np.isnan(values), -1, first + np.searchsorted(each, values)))
            first += len(each) + 1
    bins = Pattern.from_padded(np.stack(ids, 1))
    return CSR(*bins, np.full(len(bins.indices), value, np.float32))


def num_bins(edges: Edges) -> int:
    """The number of features that `bin_features` makes."""
    return sum(len(each) + 1 for own in edges for each in _resolutions(own))


def bin_names(name: str, edges: Sequence[float]) -> list[str]:
    """Names of the features of a column, such as ``price above 3 up to 3.5``."""
    found = []
    for each in _resolutions(edges):
        bounds = [repr(float(edge)).removesuffix(".0") for edge in each]  # No two are the same.
        low, high = ["", *(f"above {edge}" for edge in bounds)], [*bounds, ""]
        parts = [f"{a} up to {b}" if b else a for a, b in zip(low, high, strict=True)]
        found += [f"{name} {part.strip() or 'any'}" for part in parts]
    return found


def _resolutions(edges: Any) -> list[Any]:
    """The edges of fine bins, and of coarse ones if there are several."""
    coarse = edges[_IN_COARSE - 1 :: _IN_COARSE]
    return [edges, coarse] if len(coarse) else [edges]
