"""Lists of rounded rows: how they are scanned, and how they follow their rows."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.grids import pairs

from slide.ops.largest import ChangedRows, RowLists, put_rows, scan_lists

QUERIES = 9


@pairs(k=[1, 5, 40], limit=[1, 12, 400], lists=[1, 2, 64, 65, 200])
def test_lists_are_scanned_in_the_order_of_their_bounds(k, limit, lists):
    """Also if all bounds are negative; there are up to four groups of lists."""
    rng = np.random.default_rng(k + limit)
    rows, width = 230, 5
    starts = np.array([0, *np.sort(rng.choice(rows - 1, lists - 1, replace=False) + 1), rows])
    codes = rng.integers(-127, 128, (rows, width)).astype(np.int8)
    scales, biases = (rng.random(rows).astype(np.float32) for _ in range(2))
    biases -= 1000 * (k == 5)
    queries = rng.standard_normal((QUERIES, width)).astype(np.float32)
    every = queries @ (scales[:, None] * codes).T + biases
    # Some lists have rows above their bound: these may be missed.
    spread = rng.standard_normal((QUERIES, lists)) * 40
    bounds = (np.maximum.reduceat(every, starts[:-1], axis=1) + spread).astype(np.float32)
    best = np.full((QUERIES, k), -np.inf, np.float32)
    positions, seen = np.full((QUERIES, k), -1, np.int32), np.zeros(QUERIES, np.int64)
    arrays = starts, codes, scales, biases
    scan_lists(queries, bounds.copy(), *arrays, limit, best, positions, seen)
    for b in range(QUERIES):
        wanted, count = [], 0
        for number in np.argsort(-bounds[b], kind="stable"):
            full = len(wanted) == k and bounds[b, number] <= every[b, wanted[-1]]
            if count >= limit or full:
                break
            count += starts[number + 1] - starts[number]
            wanted = [*wanted, *range(starts[number], starts[number + 1])]
            wanted = sorted(wanted, key=lambda row, own=every[b]: -own[row])[:k]
        found = positions[b, positions[b] >= 0]
        assert sorted(found) == sorted(wanted)
        assert seen[b] == count
        assert (best[b, positions[b] < 0] == -np.inf).all()
        np.testing.assert_allclose(
            best[b, positions[b] >= 0], every[b, found], rtol=1e-4, atol=1e-3
        )


def test_a_bound_that_is_no_number_ends_no_search():
    """A NaN has a sign, too, which differs between processors."""
    codes, ones, bounds = np.ones((130, 2), np.int8), np.ones(130, np.float32), np.ones((2, 130))
    bounds[0, 70], bounds[1, 70] = np.nan, -np.nan
    best, positions = np.full((2, 130), -np.inf, np.float32), np.full((2, 130), -1, np.int32)
    seen, lists = np.zeros(2, np.int64), (np.arange(131), codes, ones, ones)
    given = np.ones((2, 2), np.float32), bounds.astype(np.float32), *lists
    scan_lists(*given, 500, best, positions, seen)
    assert (seen == 130).all()
    assert all(sorted(own) == list(range(130)) for own in positions)


STARTS, WIDTH = np.array([0, 1, 20, 23, 60]), 7
N = STARTS[-1]


def empty_lists(biased):
    """Whatever lies in the memory of the codes: a scale of 0 makes zeros of it."""
    codes = np.random.default_rng(9).integers(-128, 128, (N, WIDTH)).astype(np.int8)
    zeros = np.zeros((2, N), np.float32)
    means, spreads = np.zeros((4, WIDTH + biased), np.float32), np.zeros(4, np.float32)
    return RowLists(STARTS, np.arange(N, dtype=np.int32), codes, *zeros, means, spreads)


def put(lists, rows, biases, positions, ids):
    """Row ``ids[i]`` into position ``positions[i]``; positions are sorted."""
    owner = np.searchsorted(STARTS, positions, side="right") - 1
    numbers, begins = np.unique(owner, return_index=True)
    positions = positions.astype(np.int32)
    changed = ChangedRows(rows, rows.view(np.int32), biases, ids, positions)
    put_rows(changed, np.append(begins, len(positions)), numbers, lists)


def check(lists, rows, biases):
    """The lists are those of these rows, in their order."""
    biased, finite = len(biases) > 0, np.isfinite(rows).all(1)
    biases = biases if biased else np.zeros(N, np.float32)
    np.testing.assert_array_equal(lists.biases, biases)
    scales = np.where(finite, np.abs(np.nan_to_num(rows)).max(1) / np.float32(127), np.nan)
    np.testing.assert_allclose(lists.scales, scales, rtol=1e-6)
    known = np.where(finite[:, None], rows, 0)
    codes = np.rint(known.astype(float) / np.where(scales > 0, scales, 1)[:, None])
    assert np.abs(lists.codes - codes).max() <= (np.abs(codes) < 127).any()
    whole = lists.codes * np.nan_to_num(scales)[:, None]
    whole = np.column_stack([whole, biases] if biased else [whole])
    whole[~(finite & np.isfinite(biases))] = 0
    for number, (begin, end) in enumerate(pairwise(STARTS)):
        own = whole[begin:end]
        np.testing.assert_allclose(lists.means[number], own.mean(0), atol=1e-5)
        spread = np.sqrt(((own - own.mean(0)) ** 2).sum(1).mean())
        assert lists.spreads[number] == pytest.approx(spread, rel=1e-3, abs=5e-3)


@pytest.mark.parametrize("biased", [False, True])
def test_lists_follow_their_rows(biased):
    """From nothing, and then change by change, with rows that are not finite between others."""
    rng = np.random.default_rng(3)
    lists, rows = empty_lists(biased), rng.standard_normal((N, WIDTH)).astype(np.float32)
    biases = rng.standard_normal(N * biased).astype(np.float32)
    put(lists, rows, biases, np.arange(N), np.arange(N))
    check(lists, rows, biases)
    for step in range(6):
        positions = np.sort(rng.choice(N, 25, replace=False))
        rows[positions] = 3 * rng.standard_normal((25, WIDTH)) * rng.random((25, 1))
        if biased:
            biases[positions] = rng.standard_normal(25)
            biases[positions[3 * step]] = -np.inf
        rows[positions[step]] = 0
        rows[positions[2 + step], step] = (np.nan, np.inf, -np.inf)[step % 3]
        # As rows of their own, in any order.
        order = rng.permutation(25)
        own = biases[positions[order]] if biased else biases
        put(lists, rows[positions[order]], own, positions, np.argsort(order))
        check(lists, rows, biases)


def test_a_row_that_is_too_short_to_be_rounded():
    lists, biases = empty_lists(False), np.empty(0, np.float32)
    rows = np.full((N, WIDTH), 1e-37, np.float32)
    put(lists, rows, biases, np.arange(N), np.arange(N))
    assert not lists.codes.any()
    assert not lists.means.any()
    assert not lists.spreads.any()
