"""Largest scores, and lists of rounded rows, against looped twins."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.matrices import make_csr, make_pattern, to_dense
from helpers.naive_arrays import round_list
from helpers.naive_ranking import add_to_sum as naive_add
from helpers.naive_ranking import best_first as naive_best_first
from helpers.naive_ranking import keep_largest as naive_largest
from helpers.naive_ranking import leave_out as naive_leave_out
from helpers.naive_ranking import replace_least as naive_replace
from helpers.naive_ranking import scan_lists as naive_scan
from helpers.naive_ranking import top_products as naive

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
NOTHING = Pattern.from_lists([[]] * ROWS)


def run(x, lists, left_out, k, threads=2):
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
        naive_add(expected, n, float(value))
        assert seen[:count].tolist() == list(expected)
        assert count <= OUTPUTS
    assert seen[-1] == -7, "beyond the scratch"
    np.testing.assert_allclose(total[list(expected)], list(expected.values()), atol=1e-6)


def test_outputs_are_left_out():
    total = np.array([0, 3, 0.5, 0, 2, 0], np.float32)
    expected = naive_leave_out({1: 3, 2: 0.5, 4: 2}, [4, 0, 2, 2])
    leave_out(total, np.array([4, 0, 2, 2], np.int32))
    assert {n: total[n] for n in np.flatnonzero(total > 0)} == expected
    assert total[[0, 3, 5]].tolist() == [0, 0, 0], "outputs without a sum stay so"
    assert (total[[2, 4]] < 0).all(), "marked as seen"


@pytest.mark.parametrize("k", [1, 3, OUTPUTS])
@pytest.mark.parametrize("with_left_out", [True, False])
def test_it_finds_the_largest_ones(k, with_left_out):
    rng = np.random.default_rng(k)
    x = make_csr(rng, rng.integers(0, COLUMNS, ROWS), COLUMNS)
    lists = make_csr(rng, rng.integers(0, OUTPUTS, COLUMNS), OUTPUTS)
    left_out = make_pattern(rng, rng.integers(0, 5, ROWS) * with_left_out, OUTPUTS)
    ids, scores = run(x, lists, left_out, k)
    dense = to_dense(x, COLUMNS).numpy(), to_dense(lists, OUTPUTS).numpy()
    bounds = left_out.indptr
    without = [left_out.indices[a:b].tolist() for a, b in pairwise(bounds)]
    every = naive(*dense, without if with_left_out else None)
    assert any(len(own) > k for own in every) or k == OUTPUTS
    for own, found, values in zip(every, ids, scores, strict=True):
        best = sorted(own.values(), reverse=True)[:k]
        np.testing.assert_allclose(sorted(values[found >= 0], reverse=True), best, rtol=1e-5)
        assert (found >= 0).sum() == len(best) == len(set(found[found >= 0]))
        for n, value in zip(found[found >= 0], values[found >= 0], strict=True):
            assert own[n] == pytest.approx(value, rel=1e-5)


def test_sums_that_pass_zero_on_the_way_count_once():
    rows = np.array([[1.0, 1.0, 1.0]])
    columns = np.array([[1.0, 2.0], [-1.0, 0.0], [3.0, 0.0]])
    x = make_csr(np.random.default_rng(0), [3], 3)._replace(
        indices=np.arange(3, dtype=np.int32), values=np.ones(3, np.float32)
    )
    flat = [(d, n) for d in range(3) for n in range(2) if columns[d, n]]
    lists = x._replace(
        indptr=np.array([0, 2, 3, 4]),
        indices=np.array([n for _, n in flat], np.int32),
        values=np.array([columns[place] for place in flat], np.float32),
    )
    ids, scores = run(x, lists, NOTHING, 3)
    found = dict(zip(ids[0].tolist(), scores[0].tolist(), strict=True))
    assert found == {**naive(rows, columns, None)[0], -1: 0.0}


def test_sums_that_are_often_zero_stay_within_the_scratch():
    """Zero is the mark of an output that was not seen yet."""
    repeats = 5 * OUTPUTS
    x = CSR(np.array([0, repeats]), np.zeros(repeats, np.int32), np.ones(repeats, np.float32))
    values = np.zeros(OUTPUTS, np.float32)
    values[3] = 2
    lists = CSR(np.array([0, OUTPUTS]), np.arange(OUTPUTS, dtype=np.int32), values)
    ids, scores = run(x, lists, NOTHING, 2, threads=1)
    assert ids.tolist() == [[3, -1]]
    assert scores.tolist() == [[2 * repeats, 0]]
    x.values[1::2] = -1
    x.values[0] = 4
    ids, scores = run(x, lists, NOTHING, 2, threads=1)
    assert (ids.tolist(), scores.tolist()) == ([[3, -1]], [[6, 0]])


def test_sums_below_all_numbers_are_no_answers():
    """A sum that was minus infinity stays it."""
    most = np.finfo(np.float32).max
    x = make_csr(np.random.default_rng(0), [3], 3)._replace(
        indices=np.arange(3, dtype=np.int32), values=np.array([2, 1, 1], np.float32)
    )
    lists = make_csr(np.random.default_rng(0), [1] * 3, 1)._replace(
        values=np.array([-most, most, most], np.float32)
    )
    ids, scores = run(x, lists, NOTHING, 2)
    assert ids.tolist() == [[-1, -1]]
    assert not scores.any()


def test_threads_do_not_matter():
    rng = np.random.default_rng(0)
    x = make_csr(rng, [COLUMNS] * ROWS, COLUMNS)
    lists = make_csr(rng, [OUTPUTS] * COLUMNS, OUTPUTS)
    found = [run(x, lists, NOTHING, 4, threads) for threads in (1, 3)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 4, 11])
def test_the_largest_of_blocks_are_those_of_the_whole(dtype, k):
    scores = np.random.default_rng(k).standard_normal((6, 11)).astype(dtype)
    best, ids = np.full((6, k), -np.inf, dtype), np.full((6, k), -1)
    for first in range(0, 11, 4):
        keep_largest(scores[:, first : first + 4].copy(), first, best, ids)
    for own, numbers, expected in zip(best, ids, naive_largest(scores, k), strict=True):
        assert sorted(zip(own, numbers, strict=True), reverse=True) == expected


@pytest.mark.parametrize("k", [1, 4, 11])
def test_the_largest_bounds_are_those_of_the_sums(k):
    rng = np.random.default_rng(k)
    products = rng.standard_normal((6, 11)).astype(np.float32)
    of_query, of_row, biases = (rng.random(n).astype(np.float32) for n in (6, 11, 11))
    best, ids = np.full((6, k), -np.inf, np.float32), np.full((6, k), -1)
    for first in range(0, 11, 4):
        part = slice(first, first + 4)
        added = of_query, of_row[part], biases[part]
        keep_largest_bounds(products[:, part].copy(), *added, first, best, ids)
    for b, expected in enumerate(naive_largest(products + of_query[:, None] * of_row + biases, k)):
        found = sorted(zip(best[b], ids[b], strict=True), reverse=True)
        assert [n for _, n in found] == [n for _, n in expected]
        np.testing.assert_allclose(*([s for s, _ in each] for each in (found, expected)), rtol=1e-6)


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("limit", [1, 12, 400])
@pytest.mark.parametrize("lists", [1, 2, 9, 64, 65, 200])
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
    places, seen = np.full((ROWS, k), -1, np.int32), np.zeros(ROWS, np.int64)
    scan_lists(queries, bounds.copy(), starts, codes, scales, biases, limit, best, places, seen)
    parts = [range(a, b) for a, b in pairwise(starts)]
    for b in range(ROWS):
        wanted, count = naive_scan(bounds[b], parts, every[b], limit, k)
        found = places[b, places[b] >= 0]
        assert sorted(found) == sorted(wanted)
        assert seen[b] == count
        assert (best[b, places[b] < 0] == -np.inf).all()
        np.testing.assert_allclose(best[b, places[b] >= 0], every[b, found], rtol=1e-4, atol=1e-3)


def test_a_bound_that_is_no_number_ends_no_search():
    """A NaN has a sign, too, which differs between processors."""
    codes, ones, bounds = np.ones((130, 2), np.int8), np.ones(130, np.float32), np.ones((2, 130))
    bounds[0, 70], bounds[1, 70] = np.nan, -np.nan
    best, places = np.full((2, 130), -np.inf, np.float32), np.full((2, 130), -1, np.int32)
    seen, starts = np.zeros(2, np.int64), np.arange(131)
    lists = starts, codes, ones, ones
    given = np.ones((2, 2), np.float32), bounds.astype(np.float32), *lists
    scan_lists(*given, 500, best, places, seen)
    assert (seen == 130).all()
    assert all(sorted(own) == list(range(130)) for own in places)


def test_the_best_come_first_and_equal_ones_stay_in_order():
    scores = np.array([1, 3, 0, 3, 1], np.float32)
    ids = np.array([9, 4, -1, 2, 5], np.int32)
    expected = naive_best_first(scores.tolist(), ids.tolist())
    best_first(scores, ids)
    assert list(zip(scores.tolist(), ids.tolist(), strict=True)) == expected


def test_the_least_of_a_heap_is_replaced():
    rng = np.random.default_rng(0)
    scores, ids = np.full(6, -np.inf, np.float32), np.full(6, -1, np.int32)
    pairs = [(-np.inf, -1)] * 6
    for number, score in enumerate(rng.permutation(30).astype(np.float32)):
        if score > scores[0]:
            replace_least(scores, ids, score, number)
            pairs = naive_replace(pairs, (float(score), number))
        assert sorted(zip(scores.tolist(), ids.tolist(), strict=True)) == pairs


STARTS, WIDTH = np.array([0, 1, 20, 23, 60]), 7
N = STARTS[-1]


def empty_lists(biased):
    return RowLists(
        STARTS,
        np.arange(N, dtype=np.int32),
        # Whatever lies in the memory: a scale of 0 makes zeros of it.
        np.random.default_rng(9).integers(-128, 128, (N, WIDTH)).astype(np.int8),
        *(np.zeros(N, np.float32) for _ in range(2)),
        np.zeros((len(STARTS) - 1, WIDTH + biased), np.float32),
        np.zeros(len(STARTS) - 1, np.float32),
    )


def put(lists, rows, biases, places, ids):
    """Row ``ids[i]`` into place ``places[i]``; places are sorted."""
    owner = np.searchsorted(STARTS, places, side="right") - 1
    numbers, begins = np.unique(owner, return_index=True)
    places = places.astype(np.int32)
    changed = ChangedRows(rows, rows.view(np.int32), biases, ids, places)
    put_rows(changed, np.append(begins, len(places)), numbers, lists)


def check(lists, rows, biases):
    """The lists are those of these rows, in their order."""
    biased = len(biases) > 0
    if not biased:
        biases = np.zeros(N, np.float32)
    np.testing.assert_array_equal(lists.biases, biases)
    for number, (begin, end) in enumerate(pairwise(STARTS)):
        own = slice(begin, end)
        codes, scales, mean, spread = round_list(rows[own], biases[own])
        np.testing.assert_array_equal(lists.codes[own], codes)
        np.testing.assert_allclose(lists.scales[own], scales, rtol=1e-6)
        np.testing.assert_allclose(lists.means[number], mean[: WIDTH + biased], atol=1e-5)
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
        places = np.sort(rng.choice(N, 25, replace=False))
        rows[places] = 3 * rng.standard_normal((25, WIDTH)) * rng.random((25, 1))
        if biased:
            biases[places] = rng.standard_normal(25)
            biases[places[3 * step]] = -np.inf
        rows[places[step]] = 0
        rows[places[2 + step], step] = (np.nan, np.inf, -np.inf)[step % 3]
        # As rows of their own, in any order.
        order = rng.permutation(25)
        own = biases[places[order]] if biased else biases
        put(lists, rows[places[order]], own, places, np.argsort(order))
        check(lists, rows, biases)


def test_a_row_that_is_too_short_to_be_rounded():
    lists, biases = empty_lists(False), np.empty(0, np.float32)
    rows = np.full((N, WIDTH), 1e-37, np.float32)
    put(lists, rows, biases, np.arange(N), np.arange(N))
    assert not lists.codes.any()
    assert not lists.means.any()
    assert not lists.spreads.any()
