"""The best rows of buckets by their sketches; `slide.check` has the formulas of rounding."""

import numpy as np
import pytest
from helpers import matrices
from helpers.grids import pairs

from slide.hashing.hash_tables import HashTables
from slide.ops.sketches import (
    CODES,
    FIRST,
    LINE,
    NUMBERS,
    PRIOR,
    REST,
    SCALE,
    WIDTH,
    Rows,
    no_keys,
    rank_buckets,
    rank_rows,
    rows_of,
)
from slide.sparse import Pattern

ROWS, TABLES, BUCKETS, QUERIES = 150, 4, 6, 9


def draw_sketches(rng, num_rows):
    """Sketches of which many have equal scores, and some no score that counts."""
    sketches = np.zeros((num_rows, WIDTH), np.int8)
    # Whole numbers, so that sums are exact in any order.
    sketches[:, NUMBERS] = rng.integers(-1, 2, (num_rows, CODES)) * (rng.random(CODES) < 0.05)
    floats = sketches.view(np.float32)
    floats[:, REST] = np.linalg.norm(sketches[:, LINE:].astype(float), axis=1)
    floats[:, SCALE] = rng.choice([0, 0.5, 1], num_rows)
    floats[:, PRIOR] = rng.integers(-2, 3, num_rows)
    lost = rng.random(num_rows) < 0.2
    floats[lost, PRIOR] = rng.choice([np.nan, -np.inf, np.inf], lost.sum())
    floats[rng.random(num_rows) < 0.05, SCALE] = np.nan
    return sketches


def draw_queries(rng, count):
    queries = np.zeros((count, WIDTH), np.float32)
    queries[:, NUMBERS] = rng.integers(-2, 3, (count, CODES))
    return queries


def rank(
    queries, tables, asked, built, sketches, most, left_out=None, largest=ROWS, head=(), part=2
):
    """`rank_rows` of some rows, `rank_buckets` after it, and the number of rows looked at."""
    left_out = Pattern.from_lists([[]] * len(queries)) if left_out is None else left_out
    keys, rows = no_keys((len(queries), most)), np.array(head, np.int32)
    floats = sketches.view(np.float32)
    products = queries[:, NUMBERS].astype(np.int32) @ sketches[rows, NUMBERS].T.astype(np.int32)
    found = Rows(rows, floats[rows, SCALE], floats[rows, PRIOR])
    rank_rows(products, np.ones(len(queries), np.float32), found, left_out, keys)
    limits = left_out, largest, np.float32(part)
    asked = queries, tables, asked, built.arrays(), (sketches, floats)
    looked = rank_buckets(*asked, *limits, keys)
    return rows_of(keys), looked + len(rows)


@pairs(share=[0, 0.4, 1], most=[1, 3, ROWS], largest=[0, 25, ROWS])
def test_it_ranks_the_head_and_what_is_in_the_buckets(largest, most, share):
    rng = np.random.default_rng(most)
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
    ids, looked = rank(queries, tables, asked, built, sketches, most, left_out, largest, head)
    floats = sketches.view(np.float32)
    scores = queries[:, NUMBERS].astype(float) @ sketches[:, NUMBERS].T.astype(float)
    with np.errstate(invalid="ignore"):
        scores = scores * floats[:, SCALE] + floats[:, PRIOR]
    scores[np.isnan(scores)] = -np.inf
    for b, own in enumerate(matrices.rows_of(left_out)):
        buckets = [np.flatnonzero(codes[t] == asked[i, b]) for i, t in enumerate(tables)]
        read = np.concatenate([head, *(each for each in buckets if len(each) <= largest)])
        assert looked[b] == len(read)
        seen = np.setdiff1d(read, own).astype(int)
        seen = seen[scores[b, seen] > -np.inf]
        # The sort is stable, so equal scores stay in the order of the rows.
        expected = seen[np.argsort(-scores[b, seen], kind="stable")][:most]
        assert ids[b].tolist() == [*expected, *[-1] * (most - len(expected))]


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
    empty, queries = np.ones((2, 1), np.int32), np.zeros((1, WIDTH), np.float32)
    ids, looked = rank(queries, tables, empty, built, sketches, 3)
    assert (ids.tolist(), looked.tolist()) == ([[-1, -1, -1]], [0])
    ids, looked = rank(queries[:0], tables, empty[:, :0], built, sketches, 3)
    assert (ids.shape, looked.shape) == ((0, 3), (0,))


@pytest.mark.parametrize("part", [0, 1])
def test_second_lines_count_where_first_ones_are_likely(part):
    """Row 1 is better than row 0 of the head by its second line alone."""
    built, sketches = HashTables(1, 2, bucket_capacity=None), np.zeros((2, WIDTH), np.int8)
    built.build(np.array([[0, 1]], np.int32))
    floats, queries = sketches.view(np.float32), np.ones((1, WIDTH), np.float32)
    queries[:, :FIRST], sketches[1, LINE] = 0, 5
    floats[:, SCALE], floats[:, PRIOR], floats[1, REST] = 1, [2, 0], 5
    asked = np.ones((1, 1), np.int32)
    ids, _ = rank(queries, np.zeros(1, int), asked, built, sketches, 1, head=[0], part=part)
    assert ids.tolist() == [[part]]
