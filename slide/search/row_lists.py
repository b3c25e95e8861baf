"""Lists of near rows, rounded: making them, following rows that change, and grouping them again."""

import numpy as np
import torch

from slide.backend import array_view
from slide.kernels.row_lists import ChangedRows, RowLists, put_rows
from slide.search.clusters import READ_AT_ONCE, WeightRows, near_rows


def make_lists(rows: WeightRows, seed: int) -> tuple[RowLists, np.ndarray]:
    """New lists of all rows, and their levels; see `regrouped`.

    Args:
        rows: N rows.
        seed: of the draws of k-means.
    """
    lists = near_rows(rows, torch.arange(len(rows)), seed)
    codes = np.empty(tuple(rows.stored.shape), np.int8)
    return _filled(rows, lists.starts.numpy(), lists.order.numpy(), codes), np.zeros(1, np.int64)


def regrouped(
    lists: RowLists, levels: np.ndarray, moved: np.ndarray, rows: WeightRows, seed: int
) -> tuple[RowLists, np.ndarray]:
    """Lists in which rows that moved are among near rows again; all rows are rounded anew.

    To group all rows again would take long, and most rows of a large layer hardly move. So the rows
    that moved get lists of their own, a new level, and the other rows stay in theirs. The rows of
    the youngest levels join them, until the next older level has at least as many rows. So there
    are usually few levels, and a row is grouped few times for each time that it moves (the
    logarithmic method of Bentley and Saxe 1980, "Decomposable searching problems"). If the oldest
    level joins, these are new lists of all rows.

    Args:
        lists: of N rows; their codes are overwritten.
        levels: int64, the number of the first list of each level, the oldest first.
        moved: places of rows in the lists. The longest rows, in the last list, join them.
        rows: the N rows as they are now.
        seed: of the draws of k-means.

    Returns:
        The lists and their levels.
    """
    check_lists_fit(lists, rows)
    kept = np.ones(len(rows), bool)
    kept[moved] = kept[lists.starts[-2] :] = False
    number = len(levels)
    while number:
        begin = lists.starts[levels[number - 1]]
        if np.count_nonzero(kept[begin:]) >= np.count_nonzero(~kept):
            break
        kept[begin:] = False
        number -= 1
    new = near_rows(rows, torch.from_numpy(np.sort(lists.ids[~kept])).long(), seed)
    counts = np.add.reduceat(kept, lists.starts[:-1], dtype=np.int64)
    # How many lists that keep a row there are before each one.
    before = np.append(0, np.cumsum(counts > 0))
    levels = before[np.append(levels[:number], len(counts))]
    lengths = np.concatenate([counts[counts > 0], np.diff(new.starts.numpy())])
    order = np.concatenate([lists.ids[kept], new.order.numpy()])
    return _filled(rows, np.append(0, np.cumsum(lengths)), order, lists.codes), levels


def explained(lists: RowLists) -> float:
    """How much the lists say about their rows: 0 if these might as well lie in any list.

    This is the share of the mean squared distance of rows from each other that is between lists, in
    [0, 1]; the list of the longest rows is left out.
    """
    counts = np.diff(lists.starts)[:-1].astype(np.float64)
    if not len(counts):
        return 0.0
    within = counts @ lists.spreads[:-1].astype(np.float64) ** 2
    means = lists.means[:-1]
    between = counts @ np.square(means - np.average(means, 0, counts)).sum(1)
    return float(between / max(within + between, 1e-30))


def check_lists_fit(lists: RowLists, rows: WeightRows) -> None:
    """Raise ValueError if lists do not fit rows: the kernels would write beside the arrays."""
    known, shape = lists.codes.shape, tuple(rows.stored.shape)
    if known != shape:
        raise ValueError(f"an index of {known} does not fit rows of {shape}")
    biased = lists.means.shape[1] > known[1]
    if biased != (rows.bias is not None):
        has, lacks = ("index", "layer") if biased else ("layer", "index")
        raise ValueError(f"the {has} has a bias and the {lacks} has none")


def put_rows_into(lists: RowLists, rows: WeightRows, places: np.ndarray) -> None:
    """Round rows as they are now; means and spreads of their lists follow.

    Args:
        lists: changed in place.
        rows: all rows.
        places: int32, where the rows are in the lists, distinct and sorted.

    Raises:
        ValueError: if the rows are not of the shape of those in the lists.
    """
    check_lists_fit(lists, rows)
    owner = np.searchsorted(lists.starts, places, side="right") - 1
    numbers, begins = np.unique(owner, return_index=True)
    taken, biases, ids = rows.some(lists.ids[places])
    block = array_view(taken)
    changed = ChangedRows(block, block.view(np.int32), array_view(biases), ids, places)
    put_rows(changed, np.append(begins, len(places)), numbers, lists)


def _filled(rows: WeightRows, starts: np.ndarray, order: np.ndarray, codes: np.ndarray) -> RowLists:
    """Lists that begin in these places of ``order``, with all that they hold."""
    count, size, biased = len(starts) - 1, len(rows), rows.bias is not None
    lists = RowLists(
        *(starts, order.astype(np.int32), codes),
        scales=np.zeros(size, np.float32),
        biases=np.zeros(size, np.float32),
        means=np.zeros((count, codes.shape[1] + biased), np.float32),
        spreads=np.zeros(count, np.float32),
    )
    for begin in range(0, size, READ_AT_ONCE):
        put_rows_into(
            lists, rows, np.arange(begin, min(begin + READ_AT_ONCE, size), dtype=np.int32)
        )
    return lists
