"""The best rows of buckets by their sketches, against the looped twin."""

import numpy as np
import pytest
from helpers import naive_hashing

from slide.hashing.tables import HashTables
from slide.ops.kernels.sketches import (
    CODES,
    PRIOR,
    SCALE,
    WIDTH,
    Head,
    largest_scores,
    rank_buckets,
    sketch_rows,
)
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


def rank(queries, tables, asked, built, sketches, left_out, largest, most, head=()):
    """`rank_buckets` with some rows as the head."""
    ids, rows = np.full((len(queries), most), -7, np.int32), np.array(head, np.int32)
    floats = sketches.view(np.float32)
    scales, priors = floats[rows, SCALE], floats[rows, PRIOR]
    with np.errstate(invalid="ignore"):
        products = queries[:, :CODES] @ sketches[rows, :CODES].T.astype(np.float32)
    first = products, Head(rows, scales, priors), queries, tables, asked, built.arrays()
    looked = rank_buckets(*first, (sketches, floats), left_out, largest, ids)
    return ids, looked


@pytest.mark.parametrize("share", [0, 0.4, 1])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("most", [1, 3, ROWS])
@pytest.mark.parametrize("largest", [0, 25, ROWS])
def test_it_ranks_the_head_and_what_is_in_the_buckets(largest, most, seed, share):
    rng = np.random.default_rng(seed)
    codes = rng.integers(1, BUCKETS, (TABLES, ROWS)).astype(np.int32)
    codes[1:, rng.random(ROWS) < 0.3] = 1  # Large buckets, beside the others.
    head = rng.permutation(np.flatnonzero(rng.random(ROWS) < share))
    codes[:, head] = 0
    built = HashTables(TABLES, BUCKETS, bucket_capacity=None)
    built.build(codes)
    # Several buckets of a table, in any order of the tables, and one of them twice.
    tables = np.append(rng.permutation(np.repeat(np.arange(TABLES), 2)), 1)
    asked = rng.integers(1, BUCKETS, (len(tables), QUERIES)).astype(np.int32)
    sketches, queries = draw_sketches(rng, ROWS), draw_queries(rng, QUERIES)
    labels = [np.sort(rng.choice(ROWS, n, False)).tolist() for n in rng.integers(0, 40, QUERIES)]
    left_out = Pattern.from_lists(labels)
    ids, looked = rank(queries, tables, asked, built, sketches, left_out, largest, most, head)
    floats, sizes = sketches.view(np.float32), []
    for b in range(QUERIES):
        buckets = [np.flatnonzero(codes[t] == asked[i, b]).tolist() for i, t in enumerate(tables)]
        sizes += map(len, buckets)
        expected, seen = naive_hashing.rank_buckets(
            queries[b, :CODES],
            [head.tolist(), *buckets],
            sketches[:, :CODES],
            floats[:, SCALE],
            floats[:, PRIOR],
            labels[b],
            largest,
            most,
        )
        assert ids[b].tolist() == expected + [-1] * (most - len(expected))
        assert looked[b] == seen
    if not share:
        assert min(sizes) < 25 < max(sizes) < ROWS, "buckets of one kind only: it tests too little"


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
    built = HashTables(1, 2, bucket_capacity=None)
    built.build((np.arange(ROWS) < 90).astype(np.int32)[None])
    asked, nobody = np.ones((1, QUERIES), np.int32), Pattern.from_lists([[]] * QUERIES)
    tables, head = np.zeros(1, int), range(90, ROWS)
    ids, looked = rank(queries, tables, asked, built, sketches, nobody, ROWS, 10, head)
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


def test_rounding_of_rows():
    rng = np.random.default_rng(0)
    projected, offset = (rng.standard_normal(s).astype(np.float32) for s in ((40, 9), 9))
    projected[3, 2], projected[4, 8], projected[5, 0] = np.nan, np.inf, -np.inf
    projected[6] = offset
    sketches = np.full((40, WIDTH), 7, np.int8)
    floats = sketches.view(np.float32)
    sketch_rows(projected, offset, (sketches, floats))
    for i, row in enumerate(projected):
        numbers, scale, prior = naive_hashing.sketch(row, offset)
        # A quotient that is nearly half a number may be rounded to either side.
        np.testing.assert_allclose(sketches[i, :8], numbers, atol=1)
        assert (sketches[i, 8:CODES] == 0).all()
        np.testing.assert_allclose(floats[i, [SCALE, PRIOR]], [scale, prior], rtol=1e-5)
    assert (np.abs(sketches[0, :8]) == 127).any()


def test_largest_scores():
    rng = np.random.default_rng(0)
    sketches, variances = draw_sketches(rng, ROWS), np.zeros(WIDTH, np.float32)
    variances[:CODES] = rng.random(CODES)
    floats, found = sketches.view(np.float32), np.empty(ROWS, np.float32)
    floats[:, [SCALE, PRIOR]] = rng.random((ROWS, 2))
    largest_scores((sketches, floats), variances, np.float32(2), found)
    expected = [
        naive_hashing.largest_score(row[:CODES], *floats[i, [SCALE, PRIOR]], variances, 2)
        for i, row in enumerate(sketches)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
