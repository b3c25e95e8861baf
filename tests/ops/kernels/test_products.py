"""Products of sets that groups share, and entries that are not zero, against float64."""

from itertools import pairwise

import numpy as np
from helpers.grids import pairs
from helpers.matrices import make_pattern

from slide.active_set import Groups
from slide.ops.compile import AHEAD
from slide.ops.products import block_product_kernel, nonzero_entries
from slide.sparse import row_bounds

NUM_ROWS = 60
SIZES = {
    # Samples of each group, and outputs of its set.
    "one": ([9], [5]),
    "each remainder of four": ([1, 2, 3, 4, 5, 6, 7, 8], [3, 1, 4, 2, 7, 1, 3, 6]),
    "empty sets and groups": ([3, 0, 4, 2], [0, 4, 6, 0]),
    "more rows than are asked for ahead": ([5, 2], [AHEAD + 3, 2 * AHEAD]),
    "none": ([], []),
}


def draw_groups(rng, name, num_rows=NUM_ROWS):
    """Groups of samples, the bounds of each sample's set, and its outputs."""
    samples, sizes = SIZES[name]
    order, sets = rng.permutation(sum(samples)), make_pattern(rng, sizes, num_rows)
    groups = Groups(order, row_bounds(samples), sets.indices, sets.indptr)
    set_of = np.empty(len(order), int)
    set_of[order] = np.repeat(np.arange(len(sizes)), samples)
    every = [sets.indices[a:z] for a, z in pairwise(sets.indptr)]
    own = [every[s] for s in set_of]
    return groups, row_bounds([len(ids) for ids in own]), np.concatenate([*own, sets.indices[:0]])


@pairs(name=SIZES, has_bias=[False, True], dtype=[np.float32, np.float64], width=[1, 17])
def test_products_of_groups(name, has_bias, dtype, width):
    rng = np.random.default_rng(0)
    groups, indptr, ids = draw_groups(rng, name)
    count = len(groups.order)
    vectors, rows = (rng.standard_normal((n, width)).astype(dtype) for n in (count, NUM_ROWS))
    bias = rng.standard_normal(NUM_ROWS if has_bias else 0).astype(dtype)
    out = np.full(len(ids), np.nan, dtype)
    block_product_kernel(groups, indptr, vectors, rows, bias, out)
    scores = vectors.astype(float) @ rows.astype(float).T + (bias if has_bias else 0)
    expected = scores[np.repeat(np.arange(count), np.diff(indptr)), ids]
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)


def test_a_row_without_numbers_counts_in_its_products_alone():
    rng = np.random.default_rng(0)
    groups, indptr, ids = draw_groups(rng, "each remainder of four")
    vectors, rows = rng.standard_normal((36, 5)), rng.standard_normal((NUM_ROWS, 5))
    rows[ids[4]], vectors[7, 2] = np.nan, np.inf
    out = np.zeros(len(ids))
    block_product_kernel(groups, indptr, vectors, rows, np.empty(0), out)
    lost = (ids == ids[4]) | (np.repeat(np.arange(36), np.diff(indptr)) == 7)
    np.testing.assert_array_equal(~np.isfinite(out), lost)


@pairs(lengths=[[3, 0, 5, 1], [0, 0], [], [40]], dtype=[np.float32, np.float64], share=[0, 0.4, 1])
def test_entries_that_are_not_zero(lengths, dtype, share):
    rng = np.random.default_rng(0)
    pattern = make_pattern(rng, lengths, NUM_ROWS)
    values = rng.standard_normal(len(pattern.indices)).astype(dtype)
    values[rng.random(len(values)) >= share] = 0
    # Not a number is not zero.
    values[1:2], values[2:3], values[4:5] = -0.0, np.finfo(dtype).smallest_subnormal, np.nan
    found = nonzero_entries(*pattern, values)
    kept = values != 0
    assert found.indptr.tolist() == [int(kept[:end].sum()) for end in pattern.indptr]
    np.testing.assert_array_equal(found.indices, pattern.indices[kept])
    np.testing.assert_array_equal(found.values, values[kept])
    assert [each.dtype for each in found] == [np.int64, np.int32, dtype]


def test_all_rows_of_zeros_give_no_entries():
    pattern = make_pattern(np.random.default_rng(0), [4, 4], NUM_ROWS)
    found = nonzero_entries(*pattern, np.zeros(8, np.float32))
    assert [each.tolist() for each in found] == [[0, 0, 0], [], []]
