"""The network's best labels of rows that have known labels, which are no answers."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from slide.backend import on_host
from slide.data import first_unseen
from slide.data.dataset import take_labels
from slide.nn import SampledLinear
from slide.sparse import Pattern

# Rows are asked for as many labels more as the next of these numbers: it depends on nothing but the
# row itself, and few different numbers of labels are asked for.
_MORE = 16 * 4 ** np.arange(15, dtype=np.int64)
# Labels that are asked for at a time.
_MOST_ASKED = 1 << 22


def best_unknown(
    output: SampledLinear, hidden: Tensor, known: Pattern, k: int, search: str = "exact"
) -> np.ndarray:
    """A layer's k best labels of each row that are not known.

    Args:
        output: asked for more labels of a row, the more of them are known.
        hidden: ``(B, H)``, its inputs.
        known: B rows of labels that are left out.
        k: number of labels.
        search: see `slide.SampledLinear.top_k`.

    Returns:
        ``(B, k)`` int64, best first; -1: there are no more.
    """
    found = np.full((len(hidden), k), -1, np.int64)
    for rows, depth in rows_by_depth(known, k, output.out_features):
        ids = on_host(output.top_k(hidden[rows], depth, search)[1])
        found[rows] = first_unseen(ids, take_labels(known, rows), k)
    return found


def rows_by_depth(known: Pattern, k: int, num_labels: int) -> Iterator[tuple[np.ndarray, int]]:
    """Rows in groups, and how many labels to ask for so that k of them are not known.

    Args:
        known: rows of labels.
        k: number of labels.
        num_labels: N, the most that can be asked for.

    Example:
        >>> from slide.ranking.unknown_labels import rows_by_depth
        >>> from slide.sparse import Pattern
        >>> known = Pattern.from_lists([[], range(70), [3], [5, 7]])
        >>> [(rows.tolist(), depth) for rows, depth in rows_by_depth(known, 5, 1000)]
        [([0], 5), ([2, 3], 21), ([1], 261)]
    """
    counts = np.diff(known.indptr)
    more = np.where(counts > 0, _MORE[np.searchsorted(_MORE, counts)], 0)
    for level in np.unique(more):
        depth = min(k + int(level), num_labels)
        rows, step = np.flatnonzero(more == level), max(_MOST_ASKED // depth, 1)
        for start in range(0, len(rows), step):
            yield rows[start : start + step], depth
