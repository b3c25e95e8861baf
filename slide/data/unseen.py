"""The best labels of rows that have seen some, which are no answers to them."""

from collections.abc import Callable

import numpy as np

from slide.data.dataset import take_labels
from slide.data.kind import first_unseen
from slide.sparse import Pattern

# A row is asked for 16, 64, 256, ... labels more, the first number not below that of its seen
# labels: so the number depends on the row alone, and there are few different ones.
_MORE = 16 * 4 ** np.arange(15, dtype=np.int64)
# 4 million labels at a time: 48 MB of scores and ids.
_MOST_ASKED = 1 << 22


def best_unseen(
    seen: Pattern, k: int, num_labels: int, best: Callable[[np.ndarray, int], np.ndarray]
) -> np.ndarray:
    """The first k labels ``(B, k)`` int64 that rows have not seen; -1: there are no more.

    ``best(rows, depth)`` names as many labels of some of the rows, best first.
    """
    found, counts = np.full((seen.num_rows, k), -1, np.int64), np.diff(seen.indptr)
    more = np.where(counts > 0, _MORE[np.searchsorted(_MORE, counts)], 0)
    for level in np.unique(more):
        depth = min(k + int(level), num_labels)
        rows, step = np.flatnonzero(more == level), max(_MOST_ASKED // depth, 1)
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            found[some] = first_unseen(best(some, depth), take_labels(seen, some), k)
    return found


def most_frequent(order: np.ndarray, seen: Pattern | None, num_rows: int, count: int) -> np.ndarray:
    """The first ``count`` labels of an order (N,) as ids ``(num_rows, count)``, without seen ones.

    -1: there are no more.
    """
    if seen is None:
        return np.broadcast_to(order[:count], (num_rows, count))

    def first(rows: np.ndarray, depth: int) -> np.ndarray:
        return np.broadcast_to(order[:depth], (len(rows), depth))

    return best_unseen(seen, count, len(order), first)
