"""From voted ids to active sets, against the looped twins."""

import numpy as np
import pytest
from helpers import naive
from helpers.matrices import chi_square_p, make_pattern

from slide.kernels import assemble_sets as kernels
from slide.kernels.votes import RankedIds
from slide.sparse import Pattern
from slide.utils.random_keys import random_key

NUM_ROWS = 30


def draw_lists(rng, budgets):
    pattern = make_pattern(rng, budgets, NUM_ROWS)
    rows = naive.rows_of(*pattern)
    ids = np.full((len(rows), max(budgets, default=0)), -1, np.int32)
    for b, row in enumerate(rows):
        ids[b, : len(row)] = row
    return RankedIds(ids, np.array(budgets, np.int64)), rows


@pytest.mark.parametrize("seed", [0, 1, 2])
class TestAssembly:
    @pytest.mark.parametrize("runs", [1, 3])
    @pytest.mark.parametrize(
        ("labels", "listed", "sizes"),
        [
            ([2, 0, 5, 1], [4, 6, 0, 9], [10, 5, 5, 8]),
            ([0], [0], [7]),
            ([], [], []),
            ([30, 29], [0, 3], [30, 30]),
            ([3, 4], [30, 30], [30, 12]),
        ],
    )
    def test_per_sample(self, labels, listed, sizes, runs, seed):
        rng, key = np.random.default_rng(seed), random_key(seed)
        known = Pattern(*make_pattern(rng, labels, NUM_ROWS))
        lists, rows = draw_lists(rng, listed)
        marks = np.zeros((runs, NUM_ROWS), np.uint8)
        indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        ids, num_hard = np.full(indptr[-1], -1, np.int32), np.empty(len(sizes), np.int64)
        kernels.assemble_per_sample(known, lists, NUM_ROWS, key, marks, indptr, ids, num_hard)
        expected = [
            naive.assemble(y, row, size, NUM_ROWS, key, b, kernels._DRAWS_PER_PLACE)
            for b, (y, row, size) in enumerate(zip(naive.rows_of(*known), rows, sizes, strict=True))
        ]
        assert naive.rows_of(indptr, ids) == [own for own, _ in expected]
        assert num_hard.tolist() == [hard for _, hard in expected]
        assert not marks.any()

    @pytest.mark.parametrize(
        ("labels", "listed", "size"),
        [
            ([2, 0, 3, 3], 6, 20),
            ([2, 3], 0, 5),
            ([], 4, 9),
            ([0, 0], 0, 1),
            ([30, 1], 5, 30),
            ([1, 1], 30, 25),
        ],
    )
    def test_shared(self, labels, listed, size, seed):
        rng, key = np.random.default_rng(seed), random_key(seed)
        known = Pattern(*make_pattern(rng, labels, NUM_ROWS))
        row = rng.permutation(NUM_ROWS)[:listed].astype(np.int32)
        marks, slots = np.zeros(NUM_ROWS, np.uint8), np.full(NUM_ROWS, 77, np.int32)
        ids, positions = np.full(size, -1, np.int32), np.full(len(known.indices), -1, np.int32)
        num_hard = kernels.assemble_shared(known, row, NUM_ROWS, key, marks, slots, ids, positions)
        expected, hard = naive.assemble(
            known.indices.tolist(), row.tolist(), size, NUM_ROWS, key, 0, kernels._DRAWS_PER_PLACE
        )
        assert ids.tolist() == expected
        assert num_hard == hard
        assert ids[positions].tolist() == known.indices.tolist()
        assert not marks.any()
        assert (slots[ids] == -1).all(), "the scratch is handed back as it was"

    def test_a_nearly_full_fill_walks_to_the_end(self, seed):
        marks = np.zeros(3_000, np.uint8)
        labels = np.delete(np.arange(3_000, dtype=np.int32), [5, 1_700])
        ids, positions = np.empty(2_999, np.int32), np.empty(len(labels), np.int32)
        kernels.assemble_shared(
            Pattern(np.array([0, len(labels)]), labels),
            np.empty(0, np.int32),
            3_000,
            random_key(seed),
            marks,
            np.empty(3_000, np.int32),
            ids,
            positions,
        )
        assert ids[-1] in (5, 1_700)
        assert not marks.any()


def test_the_last_free_ids_are_drawn_uniformly():
    """Draws seldom hit them where nearly all ids are taken; the free ones lie unevenly here."""
    rows, free = 4000, [3, 4, 5, 17, 3000]
    taken = np.setdiff1d(np.arange(rows, dtype=np.int32), free)
    known, counts = Pattern(np.array([0, len(taken)]), taken), np.zeros(rows, int)
    none, size = RankedIds(np.empty((1, 0), np.int32), np.zeros(1, np.int64)), len(taken) + 2
    for seed in range(400):
        marks, ids = np.zeros((1, rows), np.uint8), np.full(size, -1, np.int32)
        out = np.array([0, size]), ids, np.empty(1, np.int64)
        kernels.assemble_per_sample(known, none, rows, random_key(seed), marks, *out)
        counts += np.bincount(ids, minlength=rows)
    assert counts[free].sum() == 2 * 400
    assert chi_square_p(counts[free], 400, 2) > 1e-3


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_count_distinct(seed):
    ids = np.random.default_rng(seed).integers(0, 12, 9 * seed, dtype=np.int32)
    marks = np.zeros(12, np.uint8)
    assert kernels.count_distinct(ids, marks) == naive.count_distinct(ids)
    assert not marks.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("sizes", "num_hard"), [([4, 0, 3, 9], [1, 0, 3, 0]), ([1], [0]), ([], []), ([30], [29])]
)
def test_stratified_log_weights(sizes, num_hard, dtype):
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    out = np.full(indptr[-1], np.nan, dtype)
    kernels.stratified_log_weights(indptr, np.array(num_hard, np.int64), NUM_ROWS, out)
    expected = naive.stratified_log_weights(sizes, num_hard, NUM_ROWS)
    np.testing.assert_allclose(out, expected, atol=1e-6)
