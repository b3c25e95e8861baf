"""What an item says of other items in a recommender: ridge regressions on all rows."""

import numpy as np

from slide.ops.kernels.base_scorers import regress_items
from slide.ops.kernels.ragged import RowRoom
from slide.ranking.row_blocks import collect_rows, count_together
from slide.runtime import num_threads
from slide.search import column_lists
from slide.sparse import CSR, Pattern

# Number of items of each item that share the most rows with it, for the sums of products; and of
# such pairs, up to which more of each item are kept.
_MOST_SHARING, _MOST_PAIRS = 256, 1 << 23
# Largest number of weights of an item, factor of |w|^2, and passes over the weights of an item.
WEIGHTS, _PENALTY, _SWEEPS = 64, 30.0, 20


def num_sharing(num_items: int) -> int:
    """How many of the items that share rows with an item are kept, of ``num_items``.

    Example:
        >>> from slide.ranking.item_regressions import num_sharing
        >>> num_sharing(10_000), num_sharing(1_000_000)
        (838, 256)
    """
    return max(_MOST_SHARING, _MOST_PAIRS // max(num_items, 1))


def item_regressions(items: Pattern, num_features: int, num_items: int) -> CSR:
    """The weights by which the items of a row say how likely each other item is.

    Each item is regressed on the 64 other items that are closest to it, over all rows: its weights
    minimise the squared error with a penalty on |w|^2. No item has a weight for itself. With all
    items in place of the closest ones this is the model of Steck 2019, "Embarrassingly shallow
    autoencoders for sparse data", section 3; with few it is solved for millions of items, as in
    Steck 2019, "Markov random fields for collaborative filtering", section 3.2. Unlike counts of
    pairs, weights do not count again what two similar items say.

    Args:
        items: the items of each row, each once.
        num_features: D, items from here on are no features.
        num_items: N.

    Returns:
        ``(N, D)``; the columns of a row ascend. A row of items ``x`` of 0 and 1 gives the items the
        scores ``weights @ x``.

    Example:
        >>> from slide.ranking.item_regressions import item_regressions
        >>> from slide.sparse import Pattern
        >>> baskets = Pattern.from_lists([[0, 1, 2]] * 60 + [[0, 1]] * 60 + [[2, 3]] * 60)
        >>> item_regressions(baskets, num_features=4, num_items=4)[1]
        array([1, 2, 0, 2, 0, 1, 3, 2], dtype=int32)
    """
    ones = CSR(*items, np.ones(len(items.indices), np.float32))
    rows, threads = column_lists(ones, num_items), num_threads()
    counts = np.diff(rows.indptr)
    most = num_sharing(num_items)
    lists = count_together(rows, items, num_items, most, "items that go together")
    places = np.zeros((threads, num_items), np.int32)
    close = np.empty((threads, WEIGHTS), np.int32)
    gram = np.empty((threads, WEIGHTS + 1, WEIGHTS + 1), np.float32)

    def regress(begin: int, end: int, room: RowRoom) -> None:
        how = num_features, np.float32(_PENALTY), _SWEEPS
        regress_items(lists, counts, begin, *how, places, close, gram, room)

    return collect_rows(np.minimum(np.diff(lists.indptr), WEIGHTS), regress, "regressions of items")
