"""Largest scores, and lists of rounded rows."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.grids import pairs
from helpers.matrices import make_csr, make_pattern, to_dense

from slide.ops.kernels.largest import (
    ChangedRows,
    RowLists,
    add_to_sum,
    best_first,
    keep_largest,
    keep_largest_bounds,
    leave_out,
    put_rows,
    replace_least,
    scan_lists,
    top_products,
)
from slide.sparse import CSR, Pattern

ROWS, COLUMNS, OUTPUTS = 9, 7, 12
every_k = pytest.mark.parametrize("k", [1, 4, 11])


def run(x, lists, k, left_out=None, threads=2):
    left_out = Pattern.from_lists([[]] * x.num_rows) if left_out is None else left_out
    sums = np.zeros((threads, OUTPUTS), np.float32)
    touched = np.full((threads + 1, OUTPUTS + 1), -7, np.int32)
    ids = np.full((x.num_rows, k), -1, np.int32)
    scores = np.zeros((x.num_rows, k), np.float32)
    top_products(x, lists, left_out, sums, touched[:threads], ids, scores)
    assert (sums == 0).all(), "the scratch is not handed back as it was"
    assert (touched[threads] == -7).all(), "beyond the scratch"
    return ids, scores


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_noted_once(dtype):
    """Also where they are zero on the way, or are too small for float32."""
    rng = np.random.default_rng(0)
    total, seen, count = np.zeros(OUTPUTS, np.float32), np.full(OUTPUTS + 2, -7, np.int32), 0
    expected = {}
    for _ in range(500):
        n, value = int(rng.integers(OUTPUTS)), dtype(rng.choice([0, 1, -1, 2, 1e-30, 1e-50]))
        count = int(add_to_sum(total, seen, count, n, value))
        expected[n] = expected.get(n, 0) + float(value)
        assert seen[:count].tolist() == list(expected)
    assert seen[-1] == -7, "beyond the scratch"
    np.testing.assert_allclose(total[list(expected)], list(expected.values()), atol=1e-6)


def test_outputs_are_left_out():
    total = np.array([0, 3, 0.5, 0, 2, 0], np.float32)
    leave_out(total, np.array([4, 0, 2, 2], np.int32))
    assert total[[0, 1, 3, 5]].tolist() == [0, 3, 0, 0], "outputs without a sum stay so"
    assert (total[[2, 4]] < 0).all(), "marked as seen"


@pytest.mark.parametrize("k", [1, 3, OUTPUTS])
def test_it_finds_the_largest_products(k):
    rng = np.random.default_rng(k)
    x = make_csr(rng, rng.integers(0, COLUMNS, ROWS), COLUMNS)
    lists = make_csr(rng, rng.integers(0, OUTPUTS, COLUMNS), OUTPUTS)
    left_out = make_pattern(rng, rng.integers(0, 5, ROWS), OUTPUTS)
    every = (to_dense(x, COLUMNS) @ to_dense(lists, OUTPUTS)).numpy()
    every[left_out.entry_rows(), left_out.indices] = 0
    found = [run(x, lists, k, left_out, threads) for threads in (1, 3)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    ids, scores = found[0]
    best = -np.sort(-every.clip(0), axis=1)[:, :k]
    np.testing.assert_allclose(scores, best, rtol=1e-5)
    assert ((ids >= 0) == (best > 0)).all()
    at = np.nonzero(ids >= 0)
    np.testing.assert_allclose(every[at[0], ids[at]], scores[at], rtol=1e-5)


def lists_of(values, repeats=1):
    """One row of 1, ..., and one list of all outputs with some values."""
    x = CSR(np.array([0, repeats]), np.zeros(repeats, np.int32), np.ones(repeats, np.float32))
    own = np.array([*values, *[0] * (OUTPUTS - len(values))], np.float32)
    return x, CSR(np.array([0, OUTPUTS]), np.arange(OUTPUTS, dtype=np.int32), own)


def test_sums_that_pass_zero_on_the_way_count_once():
    """Zero is the mark of an output that was not seen yet."""
    x, lists = lists_of([0, 0, 0, 2], repeats=5 * OUTPUTS)
    ids, scores = run(x, lists, 2, threads=1)
    assert (ids.tolist(), scores.tolist()) == ([[3, -1]], [[10 * OUTPUTS, 0]])
    x.values[1::2] = -1
    x.values[0] = 4
    assert run(x, lists, 2, threads=1)[1].tolist() == [[6, 0]]


def test_sums_below_all_numbers_are_no_answers():
    """A sum that was minus infinity stays it."""
    most = np.float32(3e38)
    x = CSR(np.array([0, 3]), np.arange(3, dtype=np.int32), np.array([2, 1, 1], np.float32))
    values = np.array([-most, most, most], np.float32)
    ids, scores = run(x, CSR(np.arange(4), np.zeros(3, np.int32), values), 2)
    assert ids.tolist() == [[-1, -1]]
    assert not scores.any()


@every_k
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bounds", [False, True])
def test_the_largest_of_blocks_are_those_of_the_whole(bounds, dtype, k):
    if bounds and dtype == np.float64:
        return
    rng = np.random.default_rng(k)
    scores = rng.standard_normal((6, 11)).astype(dtype)
    of_query, of_row, biases = (rng.random(n).astype(dtype) for n in (6, 11, 11))
    best, ids = np.full((6, k), -np.inf, dtype), np.full((6, k), -1)
    for first in range(0, 11, 4):
        part = slice(first, first + 4)
        if bounds:
            added = of_query, of_row[part], biases[part]
            keep_largest_bounds(scores[:, part].copy(), *added, first, best, ids)
        else:
            keep_largest(scores[:, part].copy(), first, best, ids)
    every = scores + (of_query[:, None] * of_row + biases if bounds else 0)
    order = np.argsort(-best, axis=1)
    np.testing.assert_array_equal(np.take_along_axis(ids, order, 1), np.argsort(-every, 1)[:, :k])
    np.testing.assert_allclose(-np.sort(-best, 1), -np.sort(-every, 1)[:, :k], rtol=1e-6)


@pairs(k=[1, 5, 40], limit=[1, 12, 400], lists=[1, 2, 64, 65, 200])
def test_lists_are_scanned_in_the_order_of_their_bounds(k, limit, lists):
    """Also if all bounds are negative; there are up to four groups of lists."""
    rng = np.random.default_rng(k + limit)
    rows, width = 230, 5
    starts = np.array([0, *np.sort(rng.choice(rows - 1, lists - 1, replace=False) + 1), rows])
    codes = rng.integers(-127, 128, (rows, width)).astype(np.int8)
    scales, biases = (rng.random(rows).astype(np.float32) for _ in range(2))
    biases -= 1000 * (k == 5)
    queries = rng.standard_normal((ROWS, width)).astype(np.float32)
    every = queries @ (scales[:, None] * codes).T + biases
    # Some lists have rows above their bound: these may be missed.
    spread = rng.standard_normal((ROWS, lists)) * 40
    bounds = (np.maximum.reduceat(every, starts[:-1], axis=1) + spread).astype(np.float32)
    best = np.full((ROWS, k), -np.inf, np.float32)
    positions, seen = np.full((ROWS, k), -1, np.int32), np.zeros(ROWS, np.int64)
    arrays = starts, codes, scales, biases
    scan_lists(queries, bounds.copy(), *arrays, limit, best, positions, seen)
    for b in range(ROWS):
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


def test_heaps_of_scores():
    """The best come first, and equal ones stay in order; the least one is replaced."""
    scores = np.array([1, 3, 0, 3, 1], np.float32)
    ids = np.array([9, 4, -1, 2, 5], np.int32)
    best_first(scores, ids)
    assert (scores.tolist(), ids.tolist()) == ([3, 3, 1, 1, 0], [4, 2, 9, 5, -1])
    scores, ids = np.full(6, -np.inf, np.float32), np.full(6, -1, np.int32)
    for number, score in enumerate(np.random.default_rng(0).permutation(30).astype(np.float32)):
        if score > scores[0]:
            replace_least(scores, ids, score, number)
        assert scores[0] == scores.min()
    assert sorted(scores) == [24, 25, 26, 27, 28, 29]


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
