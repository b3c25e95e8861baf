"""Sketches of rows, and the best rows of a head and of buckets by them, against float64."""

import numpy as np
import pytest
import torch
from helpers import matrices
from helpers.buckets import contents
from helpers.grids import pairs

from slide.backend import backend
from slide.hashing.hash_tables import HashTables
from slide.ops.sketches import (
    CODES,
    FIRST,
    LINE,
    PRIOR,
    SCALE,
    WIDTH,
    Rows,
    at_least,
    is_no_row,
    largest_scores,
    no_keys,
    rank_buckets,
    rank_rows,
    round_rows,
    rounded_queries,
    rows_of,
    sketches_of,
    torch_best_in_buckets,
)
from slide.sparse import Pattern

ROWS, TABLES, BUCKETS, QUERIES = 150, 4, 6, 9
FEW = LINE - FIRST  # Numbers of a sketch of one line.


def draw_sketches(rng, num_rows, width=LINE):
    """Sketches of which many have equal scores, and some no score that counts."""
    sketches = np.zeros((num_rows, width), np.int8)
    # Whole numbers, so that sums are exact in any order.
    kept = rng.random(width - FIRST) < 0.1
    sketches[:, FIRST:] = rng.integers(-1, 2, (num_rows, width - FIRST)) * kept
    floats = sketches.view(np.float32)
    floats[:, SCALE] = rng.choice([0, 0.5, 1], num_rows)
    floats[:, PRIOR] = rng.integers(-2, 3, num_rows)
    lost = rng.random(num_rows) < 0.2
    floats[lost, PRIOR] = rng.choice([np.nan, -np.inf, np.inf], lost.sum())
    floats[rng.random(num_rows) < 0.05, SCALE] = np.nan
    return sketches


def draw_queries(rng, count):
    return rng.integers(-2, 3, (count, FEW)).astype(np.float32)


def naive_scores(queries, sketches):
    """Scores of all rows in float64; -inf where there is no number."""
    floats = sketches.view(np.float32).astype(float)
    numbers = sketches[:, FIRST : FIRST + queries.shape[1]].astype(float)
    with np.errstate(invalid="ignore"):
        scores = queries.astype(float) @ numbers.T * floats[:, SCALE] + floats[:, PRIOR]
    return np.where(np.isnan(scores), -np.inf, scores)


def naive_best(scores, rows, most):
    """The rows with the largest scores, of equal ones the lower ones; then -1."""
    rows = [int(row) for row in np.unique(rows) if scores[row] > -np.inf]
    best = sorted(rows, key=lambda row: -scores[row])[:most]
    return best + [-1] * (most - len(best))


def nobody(count):
    return Pattern.from_lists([[]] * count)


def rank(queries, tables, asked, built, sketches, most, left_out=None, head=()):
    """`rank_rows` of some rows, `rank_buckets` after it, and the number of rows scanned."""
    left_out = nobody(len(queries)) if left_out is None else left_out
    keys, rows = no_keys((len(queries), most)), np.array(head, np.int32)
    floats = sketches.view(np.float32)
    products = queries.astype(np.int32) @ sketches[rows, FIRST:].T.astype(np.int32)
    found = Rows(rows, floats[rows, SCALE], floats[rows, PRIOR])
    rank_rows(products, np.ones(len(queries), np.float32), found, left_out, keys)
    padded = np.concatenate([np.zeros((len(queries), FIRST), np.float32), queries], 1)
    buckets = built.arrays()
    scanned = rank_buckets(padded, tables, asked, buckets, (sketches, floats), left_out, keys)
    return rows_of(keys), scanned + len(rows)


@pairs(
    share=[0, 0.4, 1],
    most=[1, 3, ROWS],
    capacity=[None, 5],
    growing=[False, True],
    policy=["fifo", "reservoir"],
)
def test_it_ranks_the_head_and_what_is_in_the_buckets(share, most, capacity, growing, policy):
    rng = np.random.default_rng(most)
    codes = rng.integers(1, BUCKETS, (TABLES, ROWS)).astype(np.int32)
    codes[1:, rng.random(ROWS) < 0.3] = 1  # Large buckets, beside the others.
    head = rng.permutation(np.flatnonzero(rng.random(ROWS) < share))
    built = HashTables(TABLES, BUCKETS, capacity, policy, growing=growing)
    built.build(codes)
    # Several buckets of a table, in any order of the tables, and one of them twice.
    tables = np.append(rng.permutation(np.repeat(np.arange(TABLES), 2)), 1)
    asked = rng.integers(0, BUCKETS, (len(tables), QUERIES)).astype(np.int32)
    sketches, queries = draw_sketches(rng, ROWS), draw_queries(rng, QUERIES)
    labels = [np.sort(rng.choice(ROWS, n, False)).tolist() for n in rng.integers(0, 40, QUERIES)]
    left_out = Pattern.from_lists(labels)
    ids, scanned = rank(queries, tables, asked, built, sketches, most, left_out, head)
    scores = naive_scores(queries, sketches)
    buckets = contents(built)
    for b, own in enumerate(matrices.rows_of(left_out)):
        read = [
            *head,
            *(i for t, c in zip(tables, asked[:, b], strict=True) for i in buckets[t][c]),
        ]
        assert scanned[b] == len(read)
        assert ids[b].tolist() == naive_best(scores[b], np.setdiff1d(read, own).astype(int), most)


def test_the_order_in_a_bucket_has_no_effect():
    rng = np.random.default_rng(0)
    sketches, queries, found = draw_sketches(rng, 60), draw_queries(rng, 3), []
    for order in (np.arange(60), rng.permutation(60)):
        built = HashTables(1, 2, bucket_capacity=None)
        built.build(np.zeros((1, 0), np.int32))
        built.insert(order.astype(np.int32), np.zeros((1, 60), np.int32))
        asked = np.zeros((1, 3), np.int32)
        found.append(rank(queries, np.zeros(1, int), asked, built, sketches, 8)[0])
    np.testing.assert_array_equal(*found)
    assert (found[0] >= 0).all()


def test_no_queries_no_ids_and_empty_buckets():
    built = HashTables(2, 3, bucket_capacity=None)
    built.build(np.zeros((2, 5), np.int32))
    sketches, tables = draw_sketches(np.random.default_rng(0), 5), np.arange(2)
    empty, queries = np.ones((2, 1), np.int32), np.zeros((1, FEW), np.float32)
    ids, scanned = rank(queries, tables, empty, built, sketches, 3)
    assert (ids.tolist(), scanned.tolist()) == ([[-1, -1, -1]], [0])
    ids, scanned = rank(queries[:0], tables, empty[:, :0], built, sketches, 3)
    assert (ids.shape, scanned.shape) == ((0, 3), (0,))


def test_a_row_of_the_head_counts_once_whatever_its_score_there():
    """The scores of a head are those of rounded inputs, a little larger or smaller."""
    built, sketches = HashTables(1, 2, bucket_capacity=None), np.zeros((3, LINE), np.int8)
    built.build(np.array([[0, 0, 0]], np.int32))
    floats = sketches.view(np.float32)
    sketches[:, FIRST], floats[:, SCALE] = [9, 5, 7], 1
    queries, asked = np.zeros((1, LINE), np.float32), np.zeros((1, 1), np.int32)
    queries[0, FIRST] = 1
    for products in ([8, 5, 7], [10, 5, 7]):
        keys, rows = no_keys((1, 4)), np.arange(3, dtype=np.int32)
        ones, zeros, none = np.ones(3, np.float32), np.zeros(3, np.float32), nobody(1)
        given = np.array([products], np.int32), np.ones(1, np.float32)
        rank_rows(*given, Rows(rows, ones, zeros), none, keys)
        arrays = built.arrays(), (sketches, floats)
        rank_buckets(queries, np.zeros(1, np.int64), asked, *arrays, none, keys)
        assert rows_of(keys).tolist() == [[0, 2, 1, -1]]


def test_only_rows_of_a_score_replace_keys_of_at_least_this_score():
    scores = np.array([5, 1, 3, 2, 4], np.float32)
    keys, floats = no_keys((1, 3)), np.zeros(5, np.float32)
    rows = Rows(np.arange(10, 15, dtype=np.int32), floats, scores)
    given = np.zeros((1, 5), np.int32), np.ones(1, np.float32), rows, nobody(1)
    rank_rows(*given, keys)
    assert rows_of(keys).tolist() == [[10, 14, 12]]
    first = np.repeat(at_least(keys[:, :1]), 5, axis=1)  # 3, the third-best score.
    assert is_no_row(first).all()
    rank_rows(*given, first)
    assert rows_of(first).tolist() == [[10, 14, 12, -1, -1]]
    assert is_no_row(first).sum() == 2


class TestBestInBuckets:
    @pairs(most=[1, 5, 40, 60], count=[0, 1, 7], lost=[0, 6])
    def test_of_torch(self, most, count, lost):
        """Ids occur several times, and equal scores too: the lower row comes first."""
        rng = np.random.default_rng(most)
        sketches, queries = draw_sketches(rng, ROWS), draw_queries(rng, count)
        found = rng.integers(-1, ROWS // 4, (count, 50)).astype(np.int32)
        left_out = rng.integers(-1, ROWS // 4, (count, lost)).astype(np.int32)
        ids = torch_best_in_buckets(
            *map(torch.from_numpy, (queries, found, sketches, left_out)), most
        )
        assert (ids.dtype, ids.shape) == (torch.int32, (count, most))
        scores = naive_scores(queries, sketches)
        for b in range(count):
            rows = np.setdiff1d(found[b][found[b] >= 0], left_out[b])
            assert ids[b].tolist() == naive_best(scores[b], rows, most)

    @pytest.mark.kernels_only
    @pairs(probes=[0, 2], capacity=[None, 5], most=[1, 20])
    def test_kernel_and_torch_from_the_same_heap_on(self, probes, capacity, most):
        rng = np.random.default_rng(most)
        sketches, queries = draw_sketches(rng, ROWS), draw_queries(rng, QUERIES)
        codes = rng.integers(0, BUCKETS, (TABLES, ROWS)).astype(np.int32)
        asked = rng.integers(0, BUCKETS, ((1 + probes) * TABLES, QUERIES)).astype(np.int32)
        left_out = matrices.make_pattern(rng, rng.integers(0, 30, QUERIES), ROWS)
        head, found = np.arange(0, ROWS, 5, dtype=np.int32), []
        floats = sketches.view(np.float32)
        for way in ("kernels", "torch"):
            keys = no_keys((QUERIES, most))
            products = queries.astype(np.int32) @ sketches[head, FIRST:].T.astype(np.int32)
            rows = Rows(head, floats[head, SCALE], floats[head, PRIOR])
            rank_rows(products, np.ones(QUERIES, np.float32), rows, left_out, keys)
            built = HashTables(TABLES, BUCKETS, capacity, "fifo")
            built.build(codes)
            given = torch.from_numpy(queries), torch.from_numpy(sketches), left_out
            with backend(way):
                ids, scanned = built.best(asked, *given, keys)
            found.append((ids.tolist(), round(scanned, 9)))
        assert found[0] == found[1]


def draw_projected(rng, numbers):
    """Projected rows and their offset; row 3 has no number, 4 no prior, and 5 is the offset."""
    projected, offset = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((50, numbers + 1), numbers + 1)
    )
    projected[3, 0], projected[4, -1], projected[5] = np.nan, np.inf, offset
    projected[6] *= 1e30
    return projected, offset


@pairs(
    way=["kernels", "torch"],
    size=[(1, LINE), (20, LINE), (FEW, LINE), (20, WIDTH), (FEW + 1, WIDTH), (CODES, WIDTH)],
)
def test_sketches_hold_rows_up_to_half_a_number(way, size):
    numbers, width = size
    projected, offset = draw_projected(np.random.default_rng(0), numbers)
    with backend(way):
        sketches = sketches_of(*map(torch.from_numpy, (projected, offset)), width)
    assert (sketches.shape, sketches.dtype) == ((50, width), torch.int8)
    floats = sketches.view(torch.float32).double().numpy()
    codes = sketches.double().numpy()
    known = np.setdiff1d(np.arange(50), [3, 4])
    rows = projected.astype(float) - offset.astype(float)
    longest = np.abs(rows[:, :-1]).max(1)
    np.testing.assert_allclose(floats[known, SCALE], longest[known] / 127, rtol=1e-5)
    np.testing.assert_allclose(floats[known, PRIOR], rows[known, -1], rtol=1e-5, atol=1e-6)
    held = codes[:, FIRST : FIRST + numbers] * floats[:, [SCALE]]
    error = np.abs(held - rows[:, :-1])[known]
    assert (error <= 0.5001 * longest[known, None] / 127).all()
    assert not codes[:, FIRST + numbers :].any()
    assert np.abs(codes[known][longest[known] > 0, FIRST:]).max(1).tolist() == [127] * 47
    assert (floats[[3, 4], PRIOR] == -np.inf).all(), "they are never found"
    assert not codes[[3, 4, 5], FIRST:].any()
    assert not floats[[3, 4, 5], SCALE].any()


@pairs(way=["kernels", "torch"], width=[LINE, WIDTH], deviations=[0.0, 3.0])
def test_the_largest_scores_of_rows(way, width, deviations):
    rng = np.random.default_rng(0)
    sketches, variances = np.zeros((40, width), np.int8), np.zeros(width, np.float32)
    sketches[:, FIRST:] = rng.integers(-127, 128, (40, width - FIRST))
    floats = sketches.view(np.float32)
    floats[:, [SCALE, PRIOR]] = rng.random((40, 2))
    floats[3, PRIOR], floats[3, SCALE] = -np.inf, 0
    variances[FIRST:] = rng.random(width - FIRST)
    with backend(way):
        found = largest_scores(*map(torch.from_numpy, (sketches, variances)), deviations)
    # The variance of a score, over inputs whose coordinates are independent.
    spread = (sketches[:, FIRST:].astype(float) ** 2 * variances[FIRST:]).sum(1)
    expected = floats[:, PRIOR] + deviations * floats[:, SCALE] * np.sqrt(spread)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_queries_are_rounded_to_half_a_number():
    queries = torch.randn(6, 9) * torch.tensor([1e-20, 1e-3, 1, 1e3, 1e20, 1])[:, None]
    queries[5] = 0
    numbers, factors = rounded_queries(queries)
    assert (numbers.dtype, factors.shape) == (torch.int8, (6,))
    longest = queries.double().abs().amax(1)
    held = numbers.double() * factors.double()[:, None]
    assert ((held - queries.double()).abs() <= 0.5001 * longest[:, None] / 127).all()
    assert numbers[:5].abs().amax(1).tolist() == [127] * 5


def test_queries_without_numbers_find_no_row():
    queries = torch.ones(3, 4)
    queries[0, 1], queries[1, 2] = torch.nan, -torch.inf
    numbers, factors = rounded_queries(queries)
    keys, ones = no_keys((3, 2)), np.ones(70, np.float32)
    rows = Rows(np.arange(70, dtype=np.int32), ones, ones)
    products = np.repeat(numbers.sum(1, dtype=torch.int32).numpy()[:, None], 70, 1)
    with np.errstate(invalid="ignore"):  # As plain Python.
        rank_rows(products, factors.numpy(), rows, nobody(3), keys)
    assert rows_of(keys).tolist() == [[-1, -1], [-1, -1], [0, 1]]


def test_rows_are_rounded_as_torch_does_and_multiplied_as_they_are():
    rng = np.random.default_rng(0)
    rows, vector = rng.standard_normal((40, 9)).astype(np.float32), np.ones(9, np.float32)
    rows[3, :4] = 1 + 2**-8, 1 + 3 * 2**-8, np.inf, np.nan  # Halves go to even numbers.
    ids, rounded = rng.permutation(40)[:30].astype(np.int32), np.full((33, 9), 7, np.uint16)
    ids[0], products = 3, np.empty(30, np.float32)
    round_rows(rows, ids, vector, rounded, products)
    wanted = torch.from_numpy(rows[ids]).bfloat16()
    found = torch.from_numpy(rounded).view(torch.bfloat16)
    torch.testing.assert_close(found[:30], wanted, rtol=0, atol=0, equal_nan=True)
    assert not rounded[30:].any()
    np.testing.assert_allclose(products, rows[ids].astype(float).sum(1), rtol=1e-5, atol=1e-6)
