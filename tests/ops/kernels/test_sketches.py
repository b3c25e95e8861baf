"""The best rows of buckets by their sketches, against the looped twin."""

import numpy as np
import pytest
from helpers import naive_hashing

from slide.hashing.tables import HashTables
from slide.ops.kernels.active_sets import CODES, PRIOR, SCALE, WIDTH, rank_buckets
from slide.sparse import Pattern

ROWS, TABLES, BUCKETS, QUERIES = 150, 4, 6, 9


def draw_sketches(rng, num_rows):
    """Sketches of which many have equal scores, and some no score that counts."""
    sketches = np.zeros((num_rows, WIDTH), np.int8)
    # Whole numbers, so that sums are exact in any order.
    sketches[:, :CODES] = rng.integers(-1, 2, (num_rows, CODES)) * (rng.random(CODES) < 0.05)
    floats = sketches.view(np.float32)
    floats[:, SCALE] = rng.choice([0, 0.5, 1], num_rows)
    floats[:, PRIOR] = rng.integers(-2, 3, num_rows)
    lost = rng.random(num_rows) < 0.2
    floats[lost, PRIOR] = rng.choice([np.nan, -np.inf, np.inf], lost.sum())
    floats[rng.random(num_rows) < 0.05, SCALE] = np.nan
    return sketches


def draw_queries(rng, count):
    queries = np.zeros((count, WIDTH), np.float32)
    queries[:, :CODES] = rng.integers(-2, 3, (count, CODES))
    return queries


def rank(queries, tables, asked, built, sketches, left_out, largest, most):
    ids = np.full((len(queries), most), -7, np.int32)
    floats = sketches.view(np.float32)
    arrays = built.arrays()
    looked = rank_buckets(queries, tables, asked, arrays, sketches, floats, left_out, largest, ids)
    return ids, looked


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("most", [1, 7, ROWS])
@pytest.mark.parametrize("largest", [0, 25, ROWS])
def test_it_ranks_what_is_in_the_buckets(largest, most, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, BUCKETS, (TABLES, ROWS)).astype(np.int32)
    codes[1:, rng.random(ROWS) < 0.3] = 0  # Large buckets, beside the others.
    built = HashTables(TABLES, BUCKETS, bucket_capacity=None)
    built.build(codes)
    # Several buckets of a table, in any order of the tables, and one of them twice.
    tables = np.append(rng.permutation(np.repeat(np.arange(TABLES), 2)), 1)
    asked = rng.integers(0, BUCKETS, (len(tables), QUERIES)).astype(np.int32)
    sketches, queries = draw_sketches(rng, ROWS), draw_queries(rng, QUERIES)
    labels = [np.sort(rng.choice(ROWS, n, False)).tolist() for n in rng.integers(0, 40, QUERIES)]
    left_out = Pattern.from_lists(labels)
    ids, looked = rank(queries, tables, asked, built, sketches, left_out, largest, most)
    floats, sizes = sketches.view(np.float32), []
    for b in range(QUERIES):
        buckets = [np.flatnonzero(codes[t] == asked[i, b]).tolist() for i, t in enumerate(tables)]
        sizes += map(len, buckets)
        expected, seen = naive_hashing.rank_buckets(
            queries[b, :CODES],
            buckets,
            sketches[:, :CODES],
            floats[:, SCALE],
            floats[:, PRIOR],
            labels[b],
            largest,
            most,
        )
        assert ids[b].tolist() == expected + [-1] * (most - len(expected))
        assert looked[b] == seen
    assert min(sizes) < 25 < max(sizes) < ROWS, "buckets of one kind only: this tests too little"


def test_the_order_in_a_bucket_has_no_effect():
    rng = np.random.default_rng(0)
    sketches, queries = draw_sketches(rng, 60), draw_queries(rng, 3)
    nobody, found = Pattern.from_lists([[], [], []]), []
    for order in (np.arange(60), rng.permutation(60)):
        built = HashTables(1, 2, bucket_capacity=None)
        built.build(np.zeros((1, 0), np.int32))
        built.insert(order.astype(np.int32), np.zeros((1, 60), np.int32))
        asked = np.zeros((1, 3), np.int32)
        found.append(rank(queries, np.zeros(1, int), asked, built, sketches, nobody, 99, 8)[0])
    np.testing.assert_array_equal(*found)
    assert (found[0] >= 0).all()


def test_scores_that_are_no_whole_numbers():
    rng = np.random.default_rng(3)
    sketches = rng.integers(-127, 128, (ROWS, WIDTH)).astype(np.int8)
    floats = sketches.view(np.float32)
    floats[:, SCALE], floats[:, PRIOR] = rng.random(ROWS), 50 * rng.standard_normal(ROWS)
    queries = np.zeros((QUERIES, WIDTH), np.float32)
    queries[:, :CODES] = rng.standard_normal((QUERIES, CODES))
    built = HashTables(1, 1, bucket_capacity=None)
    built.build(np.zeros((1, ROWS), np.int32))
    asked, nobody = np.zeros((1, QUERIES), np.int32), Pattern.from_lists([[]] * QUERIES)
    ids, looked = rank(queries, np.zeros(1, int), asked, built, sketches, nobody, 0, 10)
    scores = queries[:, :CODES].astype(float) @ sketches[:, :CODES].T.astype(float)
    scores = scores * floats[:, SCALE] + floats[:, PRIOR]
    assert (scores < 0).any()
    np.testing.assert_array_equal(ids, np.argsort(-scores, axis=1)[:, :10])
    assert looked.tolist() == [ROWS] * QUERIES


def test_no_queries_no_places_and_empty_buckets():
    built = HashTables(2, 3, bucket_capacity=None)
    built.build(np.zeros((2, 5), np.int32))
    sketches, tables = draw_sketches(np.random.default_rng(0), 5), np.arange(2)
    empty = np.ones((2, 1), np.int32)
    queries, nobody = np.zeros((1, WIDTH), np.float32), Pattern.from_lists([[]])
    ids, looked = rank(queries, tables, empty, built, sketches, nobody, 9, 3)
    assert (ids.tolist(), looked.tolist()) == ([[-1, -1, -1]], [0])
    nothing = Pattern(np.zeros(1, np.int64), np.empty(0, np.int32))
    ids, looked = rank(queries[:0], tables, empty[:, :0], built, sketches, nothing, 9, 3)
    assert ids.shape == (0, 3)
    assert looked.shape == (0,)
