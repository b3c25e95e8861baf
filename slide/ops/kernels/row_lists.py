"""Lists of rounded rows, and the mean and the spread of each list."""

from typing import NamedTuple

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.ops.kernels.prefetch import AHEAD, prefetch_row

# Bits of a float without its sign, and those of infinity; a NaN has larger ones.
_NO_SIGN, _INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
# The codes of a row with a smaller scale are zeros.
_LEAST_SCALE = np.float32(1e-30)
# The squared spread of a list whose rows were too long for it to be known: it is seen first.
_UNKNOWN = 1e30


class RowLists(NamedTuple):
    """L lists that hold each of N rows once, rounded to 8 bits.

    Attributes:
        starts: ``(L + 1,)`` int64, where each list begins.
        ids: ``(N,)`` int32, numbers of the rows, list by list.
        codes: ``(N, D)`` int8; a row is ``scales * codes``.
        scales: ``(N,)`` float32; NaN for a row that is not finite.
        biases: ``(N,)`` float32; zeros if there is no bias.
        means: ``(L, D)`` float32, the mean of the rounded rows of each list; with a bias as one
            more coordinate ``(L, D + 1)``. A row that is not finite counts as zeros.
        spreads: ``(L,)`` float32, the root of the mean squared distance from this mean.
    """

    starts: np.ndarray
    ids: np.ndarray
    codes: np.ndarray
    scales: np.ndarray
    biases: np.ndarray
    means: np.ndarray
    spreads: np.ndarray


class ChangedRows(NamedTuple):
    """n rows to put into lists.

    Attributes:
        rows: ``(r, D)`` float32.
        bits: the same memory as int32.
        biases: ``(r,)`` float32; empty if there is no bias.
        ids: ``(n,)`` integers, which of the rows.
        places: ``(n,)`` int32, where in the lists: distinct, list by list.
    """

    rows: np.ndarray
    bits: np.ndarray
    biases: np.ndarray
    ids: np.ndarray
    places: np.ndarray


@serial
def _scale(bits, r, width):
    """A 127th of the largest entry of row ``r``; NaN if an entry is not finite.

    A loop over integers finds their maximum faster than one over floats that may be NaN.
    """
    largest = np.int32(0)
    for j in range(width):
        largest = max(largest, bits[r, j] & _NO_SIGN)
    if largest >= _INFINITY:
        return np.float32(np.nan)
    return np.int32(largest).view(np.float32) / np.float32(127)


@serial
def _put_row(changed, i, lists, change):
    """Put one row into its place, and add what this changes in the sum of the rounded rows.

    Returns:
        What it changes in the sum of their squared lengths.
    """
    r, p, rows, codes = changed.ids[i], changed.places[i], changed.rows, lists.codes
    width, biased = rows.shape[1], len(changed.biases) > 0
    scale, bias = _scale(changed.bits, r, width), changed.biases[r] if biased else np.float32(0)
    inverse = np.float32(1) / scale if scale > _LEAST_SCALE else np.float32(0)
    old, old_bias, new, new_bias = lists.scales[p], lists.biases[p], scale, bias
    if not (np.isfinite(old) and np.isfinite(old_bias)):
        old = old_bias = np.float32(0)
    if not (np.isfinite(new) and np.isfinite(new_bias)):
        new = new_bias = np.float32(0)
    squares, total = np.float32(0), 0.0
    for j in range(width):
        before = old * np.float32(codes[p, j])
        code = np.rint(rows[r, j] * inverse) if inverse > 0 else np.float32(0)
        after = new * code
        codes[p, j] = np.int8(code)
        change[j] += after - before
        squares += after * after - before * before
    if biased:
        change[width] += new_bias - old_bias
        # Biases may be far from 0 and near each other.
        total = np.float64(new_bias) * new_bias - np.float64(old_bias) * old_bias
    lists.scales[p], lists.biases[p] = scale, bias
    return total + squares


@serial
def _put_rows(changed, begin, end, lists, number):
    """Put some rows into one list; see `put_rows`."""
    means, count = lists.means, lists.starts[number + 1] - lists.starts[number]
    change, squares = np.zeros(means.shape[1], np.float32), 0.0
    for i in range(begin, end):
        if i + AHEAD < len(changed.ids):
            prefetch_row(changed.rows, changed.ids[i + AHEAD])
            prefetch_row(lists.codes, changed.places[i + AHEAD])
        squares += _put_row(changed, i, lists, change)
    before, after = 0.0, 0.0
    for j in range(len(change)):
        mean = means[number, j]
        before += np.float64(mean) * mean
        mean = np.float32(mean + change[j] / count)
        after += np.float64(mean) * mean
        means[number, j] = mean
    # The mean square of a list is that of its mean and that of the distances from it.
    square = np.float64(lists.spreads[number]) ** 2 + before + squares / count - after
    lists.spreads[number] = np.sqrt(max(square, 0.0)) if square < _UNKNOWN else _UNKNOWN**0.5


@parallel
def put_rows(changed, bounds, numbers, lists):
    """Put rows into the places of others; means and spreads of their lists follow.

    A place with a scale of 0 counts as a row of zeros.

    Args:
        changed: `ChangedRows`.
        bounds: ``(m + 1,)`` int64, where the rows of each of m lists begin.
        numbers: ``(m,)`` int64, these lists.
        lists: `RowLists`, changed in place.
    """
    for t in prange(len(numbers)):
        _put_rows(changed, bounds[t], bounds[t + 1], lists, numbers[t])
