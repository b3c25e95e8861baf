"""Sparse matrices whose rows a kernel writes, some rows at a time; counts of what goes together."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from slide.ops.base_scorers import count_labels
from slide.ops.ragged import RowRoom, gather_ragged
from slide.runtime import num_threads
from slide.search.sparse_top_k import column_lists
from slide.sparse import CSR, Pattern, check_pattern, row_bounds
from slide.utils.progress_bar import ProgressBar

# Labels with the most rows that are kept of a feature.
MOST_LABELS = 512
# Added to the number of rows of a feature, so that features of few rows do not seem sure. The rows
# added have labels as all rows do (Zhai and Lafferty 2004, "A study of smoothing methods for
# language models applied to information retrieval", section 2).
_PRIOR = 3
# Entries of the rows that are made, or read, at a time; a longer row is alone.
MOST_ROOM = 1 << 22
# 256 items that share the most rows with an item are kept; of few items more, up to 8 million pairs
# in all.
_MOST_SHARING, _MOST_PAIRS = 256, 1 << 23


def ones_of(rows: Pattern | CSR) -> CSR:
    """The rows with 1 for each entry."""
    return CSR(rows.indptr, rows.indices, np.ones(len(rows.indices), np.float32))


def sums_over(lengths: np.ndarray, rows: Pattern | CSR) -> np.ndarray:
    """For each of N lists of rows the sum ``(N,)`` int64 of their lengths."""
    sums = np.zeros(rows.num_rows, np.int64)
    for begin, end, starts in _blocks(np.diff(rows.indptr)):
        some = np.diff(starts) > 0
        if some.any():
            of_rows = lengths[rows.indices[rows.indptr[begin] : rows.indptr[end]]]
            sums[begin:end][some] = np.add.reduceat(of_rows, starts[:-1][some], dtype=np.int64)
    return sums


def collect_rows(needed: np.ndarray, write: Callable[[int, int, RowRoom], None], title: str) -> CSR:
    """A matrix from N rows whose number of entries is not known before, at most ``needed``.

    ``write(begin, end, room)`` writes the entries and counts of the rows between; a bar of this
    title shows how many are written.
    """
    counts = np.zeros(len(needed), np.int64)
    columns, values = np.empty(0, np.int32), np.empty(0, np.float32)
    with ProgressBar(total=len(needed), desc=title, leave=False) as bar:
        for begin, end, starts in _blocks(needed):
            wide = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
            write(begin, end, RowRoom(starts[:-1], counts[begin:end], *wide))
            rows, bounds = np.arange(end - begin), row_bounds(counts[begin:end])
            for i, array in enumerate((columns, values)):
                # Made longer there: the parts of a list would stand beside their whole in the
                # end.
                filled = len(array)
                array.resize(filled + bounds[-1], refcheck=False)
                gather_ragged(starts, wide[i], rows, bounds, array[filled:])
            del wide  # The next block has as large a room.
            bar.update(end - begin)
    return CSR(row_bounds(counts), columns, values)


def count_together(
    rows: Pattern | CSR, labels: Pattern, num_labels: int, longest: int, title: str
) -> CSR:
    """The labels that go with each feature, and the number of rows that have both: ``(D, N)``.

    ``rows`` lists the rows of each feature, in [0, R), and ``labels`` the labels of each row. The
    ``longest`` labels with the most rows are kept of a feature.
    """
    threads, longest = num_threads(), min(longest, num_labels)
    lists = Pattern(rows.indptr, rows.indices)
    sums = np.zeros((threads, num_labels), np.int32)
    touched = np.empty((threads, num_labels + 1), np.int32)

    def write(begin: int, end: int, room: RowRoom) -> None:
        count_labels(lists.slice(begin, end), labels, longest, sums, touched, room)

    needed = np.minimum(sums_over(np.diff(labels.indptr), rows), longest)
    return collect_rows(needed, write, title)


def label_shares(
    features: CSR, labels: Pattern, num_features: int, num_labels: int
) -> tuple[CSR, np.ndarray]:
    """Feature-label co-occurrence: the labels of each feature ``(D, N)``, with their shares.

    A share is the number of rows that have both over that of the feature and 3 more; the second
    array ``(D,)`` float32 is the share of these 3.
    """
    rows = column_lists(features, num_features)
    lists = count_together(rows, labels, num_labels, MOST_LABELS, "co-occurrence")
    smoothed = np.diff(rows.indptr) + _PRIOR
    # In float32 and in place: there are millions of pairs.
    lists.values[:] /= np.repeat(smoothed.astype(np.float32), np.diff(lists.indptr))
    return lists, (_PRIOR / smoothed).astype(np.float32)


class ItemPairs(NamedTuple):
    """Items that share rows: ``(N,)`` int64 numbers of rows of each item, and lists ``(N, N)``.

    A list has the items that share the most rows with an item, itself among them, ascending, and
    the numbers of shared rows.
    """

    counts: np.ndarray
    lists: CSR


def count_pairs(items: Pattern, num_items: int) -> ItemPairs:
    """Count the rows that two of N items share; ValueError for an item out of range."""
    check_pattern("items", items, None, num_items)
    rows = column_lists(ones_of(items), num_items)
    most = num_sharing(num_items)
    lists = count_together(rows, items, num_items, most, "items of the same rows")
    return ItemPairs(np.diff(rows.indptr), lists)


def num_sharing(num_items: int) -> int:
    """How many of the items that share rows with an item are kept, of ``num_items``."""
    return max(_MOST_SHARING, _MOST_PAIRS // max(num_items, 1))


def _blocks(needed: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Runs of rows ``(begin, end)``, and bounds of their room: `MOST_ROOM`, or that of one row."""
    starts, begin = row_bounds(needed), 0
    while begin < len(needed):
        end = int(np.searchsorted(starts, starts[begin] + MOST_ROOM, "right")) - 1
        end = max(end, begin + 1)
        yield begin, end, starts[begin : end + 1] - starts[begin]
        begin = end
