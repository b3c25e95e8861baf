"""Proposed ids, and active sets from them, against looped twins."""

import numpy as np
import pytest
from helpers import naive, naive_ranking
from helpers.matrices import chi_square_p, make_pattern

from slide.hashing.tables import HashTables
from slide.ops.kernels import active_sets as kernels
from slide.ops.kernels.active_sets import (
    RankedIds,
    best_of_lists,
)
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


VOTED_ROWS = 30


def draw_tables(seed, num_tables=6, capacity=4, num_buckets=5):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, num_buckets, (num_tables, VOTED_ROWS), dtype=np.int32)
    tables = HashTables(num_tables, num_buckets, capacity, "reservoir", seed)
    tables.build(codes)
    twin = naive.Tables(num_tables, capacity, "reservoir", random_key(seed))
    for i in range(VOTED_ROWS):
        twin.insert(i, codes[:, i])
    return tables, twin


def draw_voters(seed, num_samples, probes=0, num_tables=6, num_buckets=5):
    """Codes of some buckets in each table, distinct ones for each sample."""
    rng = np.random.default_rng(seed + 100)
    every = np.tile(np.arange(num_buckets, dtype=np.int32), (num_tables, num_samples, 1))
    chosen = rng.permuted(every, axis=2)[:, :, : 1 + probes]
    return np.ascontiguousarray(chosen.transpose(2, 0, 1)).reshape(
        num_tables * (1 + probes), num_samples
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("probes", [0, 2])
@pytest.mark.parametrize("num_samples", [0, 1, 7])
class TestVotes:
    @pytest.mark.parametrize("runs", [1, 3])
    @pytest.mark.parametrize("budget", [0, 3, 24])
    def test_per_sample(self, budget, runs, num_samples, probes, seed):
        tables, twin = draw_tables(seed)
        codes, key = draw_voters(seed, num_samples, probes), random_key(seed, 7)
        budgets = np.maximum(budget - np.arange(num_samples), 0)
        lists = RankedIds(np.full((num_samples, budget), -1, np.int32), budgets.copy())
        votes = np.zeros((runs, VOTED_ROWS), np.uint8)
        candidates = np.empty((runs, VOTED_ROWS), np.int32)
        kernels.vote_per_sample(tables.buckets, codes, 4, key, votes, candidates, lists)
        expected = naive.vote_per_sample(twin, codes, key, budgets)
        assert [lists.ids[b, :n].tolist() for b, n in enumerate(lists.counts)] == expected
        assert not votes.any()

    def test_all_ids_found(self, num_samples, probes, seed):
        tables, twin = draw_tables(seed)
        codes = draw_voters(seed, num_samples, probes)
        found = tables.query(codes)
        for b in range(num_samples):
            part = found.indices[found.indptr[b] : found.indptr[b + 1]].tolist()
            assert part == twin.query(codes[:, b])


def test_more_votes_than_a_byte_holds():
    # 300 tables, all with id 0 in the bucket asked for; id 1 in 299 of them.
    codes = np.zeros((300, 3), np.int32)
    codes[0, 1] = codes[2:, 2] = 1
    tables = HashTables(300, 2)
    tables.build(codes)
    lists = RankedIds(np.empty((1, 2), np.int32), np.array([2]))
    votes = np.zeros((1, 3), np.uint8)
    kernels.vote_per_sample(
        tables.buckets,
        np.zeros((300, 1), np.int32),
        128,
        np.uint64(0),
        votes,
        np.empty((1, 3), np.int32),
        lists,
    )
    assert sorted(lists.ids[0].tolist()) == [0, 1]
    assert not votes.any()


def test_ties_are_not_always_won_by_the_first_table():
    # Each table holds another id, so all ids have one vote.
    tables = HashTables(4, 5)
    codes = np.full((4, 4), 4, np.int32)
    np.fill_diagonal(codes, 0)
    tables.build(codes)
    winners = set()
    for i in range(30):
        lists = RankedIds(np.empty((1, 1), np.int32), np.array([1]))
        votes, candidates = np.zeros((1, 4), np.uint8), np.empty((1, 4), np.int32)
        asked = np.zeros((4, 1), np.int32)
        kernels.vote_per_sample(tables.buckets, asked, 128, random_key(i), votes, candidates, lists)
        winners.add(int(lists.ids[0, 0]))
    assert winners == {0, 1, 2, 3}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("best", [1, 4, 20])
def test_best_of_lists(best, has_bias, dtype):
    rng = np.random.default_rng(best)
    # Few different values, so that scores are equal now and then.
    vectors, rows = (rng.integers(-2, 3, (n, 3)).astype(dtype) for n in (6, 30))
    rows[4] = np.nan
    bias = rng.integers(-2, 3, 30 if has_bias else 0).astype(dtype)
    counts = np.array([0, 12, 1, 12, 7, 3])
    ids = np.stack([rng.permutation(30)[:12] for _ in counts]).astype(np.int32)
    lists = [row[:count].tolist() for row, count in zip(ids, counts, strict=True)]
    labels = [row[:3] for row in lists]
    out = np.empty((6, best), np.int32)
    ranked, own = RankedIds(ids, counts), Pattern.from_lists(labels)
    best_of_lists(ranked, own, vectors, rows, bias, out)
    wanted = naive_ranking.best_of_lists(lists, labels, vectors, rows, bias, best)
    assert [row[row >= 0].tolist() for row in out] == wanted
    assert all((row[len(w) :] == -1).all() for row, w in zip(out, wanted, strict=True))
