"""Votes over buckets, against the looped twins."""

import numpy as np
import pytest
from helpers import naive

from slide.hashing.tables import HashTables
from slide.kernels import votes as kernels
from slide.kernels.votes import RankedIds
from slide.utils.random_keys import random_key

NUM_ROWS = 30


def draw_tables(seed, num_tables=6, capacity=4, num_buckets=5):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, num_buckets, (num_tables, NUM_ROWS), dtype=np.int32)
    tables = HashTables(num_tables, num_buckets, capacity, "reservoir", seed)
    tables.build(codes)
    twin = naive.Tables(num_tables, capacity, "reservoir", random_key(seed))
    for i in range(NUM_ROWS):
        twin.insert(i, codes[:, i])
    return tables, twin


def draw_queries(seed, num_samples, probes=0, num_tables=6, num_buckets=5):
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
        codes, key = draw_queries(seed, num_samples, probes), random_key(seed, 7)
        budgets = np.maximum(budget - np.arange(num_samples), 0)
        lists = RankedIds(np.full((num_samples, budget), -1, np.int32), budgets.copy())
        votes = np.zeros((runs, NUM_ROWS), np.uint8)
        candidates = np.empty((runs, NUM_ROWS), np.int32)
        kernels.vote_per_sample(tables.buckets, codes, 4, key, votes, candidates, lists)
        expected = naive.vote_per_sample(twin, codes, key, budgets)
        assert [lists.ids[b, :n].tolist() for b, n in enumerate(lists.counts)] == expected
        assert not votes.any()

    def test_all_ids_found(self, num_samples, probes, seed):
        tables, twin = draw_tables(seed)
        codes = draw_queries(seed, num_samples, probes)
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
