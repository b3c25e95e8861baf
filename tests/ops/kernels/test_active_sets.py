"""Proposed ids, and active sets from them; `slide.check` compares the draws of the fill."""

from collections import Counter

import numpy as np
import pytest
from helpers.buckets import contents
from helpers.grids import pairs
from helpers.matrices import chi_square_p, make_pattern, rows_of

from slide.hashing.hash_tables import HashTables
from slide.ops import active_sets as kernels
from slide.ops.active_sets import RankedIds
from slide.ops.random import random_below
from slide.sparse import Pattern
from slide.utils.random_keys import random_key

NUM_ROWS = 30
NO_LOGS = np.empty(0, np.float32)
ALL_BUT_TWO = np.delete(np.arange(3_000, dtype=np.int32), [5, 1_700])


def known_first(labels, proposed, size):
    """The ids that come before the fill."""
    labels = list(dict.fromkeys(labels))
    return (labels + [i for i in proposed if i not in labels])[: max(size, len(labels))]


def check_weights(logs, num_known):
    """Uniform ids stand for all rows that are not known; known ids for themselves."""
    assert not logs[:num_known].any()
    total = np.exp(logs[num_known:].astype(float)).sum()
    assert total == pytest.approx(NUM_ROWS - num_known if num_known < len(logs) else 0, rel=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
class TestAssembly:
    @pytest.mark.parametrize(
        ("labels", "proposed", "sizes"),
        [
            ([2, 0, 5, 1], [4, 6, 0, 9], [10, 5, 5, 8]),
            ([0], [0], [7]),
            ([], [], []),
            ([30, 29], [0, 3], [30, 30]),
            ([3, 4], [30, 30], [30, 12]),
        ],
    )
    def test_per_sample(self, labels, proposed, sizes, seed):
        rng = np.random.default_rng(seed)
        known, pattern = (make_pattern(rng, counts, NUM_ROWS) for counts in (labels, proposed))
        best = np.zeros((len(sizes), max(proposed, default=0)), np.int32)
        best[np.arange(best.shape[1]) < np.array(proposed, int)[:, None]] = pattern.indices
        ranked = RankedIds(best, np.array(proposed, np.int64))
        marks = np.zeros((1 + seed, NUM_ROWS), np.uint8)
        indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        ids, num_known = np.full(indptr[-1], -1, np.int32), np.empty(len(sizes), np.int64)
        logs, group = np.empty(len(ids), np.float32), 1 + seed
        key = random_key(seed)
        kernels.assemble_per_sample(
            known, ranked, NUM_ROWS, key, group, marks, indptr, ids, num_known, logs
        )
        parts = rows_of(known), rows_of(pattern), rows_of(Pattern(indptr, ids)), sizes
        for b, (own_labels, listed, own, size) in enumerate(zip(*parts, strict=True)):
            first = known_first(own_labels, listed, size)
            assert own[: num_known[b]] == first
            assert len({*own} & {*range(NUM_ROWS)}) == size
            check_weights(logs[indptr[b] : indptr[b + 1]], num_known[b])
        assert not marks.any()

    @pytest.mark.parametrize(
        ("labels", "proposed", "size"),
        [([2, 0, 3, 3], 6, 20), ([], 4, 9), ([0, 0], 0, 1), ([30, 1], 5, 30), ([1, 1], 30, 25)],
    )
    def test_shared(self, labels, proposed, size, seed):
        rng = np.random.default_rng(seed)
        known = make_pattern(rng, labels, NUM_ROWS)
        row = rng.permutation(NUM_ROWS)[:proposed].astype(np.int32)
        marks, slots = np.zeros(NUM_ROWS, np.uint8), np.full(NUM_ROWS, 77, np.int32)
        ids, positions = np.full(size, -1, np.int32), np.full(len(known.indices), -1, np.int32)
        logs = np.empty(size, np.float32)
        key = random_key(seed)
        num_known = kernels.assemble_shared(
            known, row, NUM_ROWS, key, marks, slots, ids, positions, logs
        )
        assert ids[:num_known].tolist() == known_first(known.indices.tolist(), row.tolist(), size)
        assert len({*ids.tolist()} & {*range(NUM_ROWS)}) == size
        assert ids[positions].tolist() == known.indices.tolist()
        assert not marks.any()
        assert (slots[ids] == -1).all(), "the scratch is handed back as it was"
        check_weights(logs, num_known)

    def test_a_nearly_full_fill_walks_to_the_end(self, seed):
        labels, none = Pattern(np.array([0, 2_998]), ALL_BUT_TWO), np.empty(0, np.int32)
        ids, positions = np.empty(2_999, np.int32), np.empty(2_998, np.int32)
        marks, slots = np.zeros(3_000, np.uint8), np.empty(3_000, np.int32)
        key = random_key(seed)
        kernels.assemble_shared(labels, none, 3_000, key, marks, slots, ids, positions, NO_LOGS)
        assert ids[-1] in (5, 1_700)
        assert not marks.any()


def test_the_last_free_ids_are_drawn_uniformly():
    """Draws seldom hit them where nearly all ids are taken; the free ones lie unevenly here."""
    rows, free = 1000, [3, 4, 5, 17, 750]
    taken = np.setdiff1d(np.arange(rows, dtype=np.int32), free)
    known, counts = Pattern(np.array([0, len(taken)]), taken), np.zeros(rows, int)
    none, size = RankedIds(np.empty((1, 0), np.int32), np.zeros(1, np.int64)), len(taken) + 2
    for seed in range(400):
        marks, ids = np.zeros((1, rows), np.uint8), np.full(size, -1, np.int32)
        indptr, num_known, key = np.array([0, size]), np.empty(1, np.int64), random_key(seed)
        kernels.assemble_per_sample(
            known, none, rows, key, 1, marks, indptr, ids, num_known, NO_LOGS
        )
        counts += np.bincount(ids, minlength=rows)
    assert counts[free].sum() == 2 * 400
    assert chi_square_p(counts[free], 400, 2) > 1e-3


def vote(tables, codes, key, budgets, runs=1):
    """The ids of each sample by `vote_per_sample`."""
    ranked = RankedIds(np.full((len(budgets), max(budgets)), -1, np.int32), np.array(budgets))
    ids = int(tables.buckets.pool.max()) + 1
    votes, found = np.zeros((runs, ids), np.uint8), np.empty((runs, ids), np.int32)
    kernels.vote_per_sample(tables.buckets, codes, tables.capacity, key, votes, found, ranked)
    assert not votes.any()
    return [ranked.ids[b, :count].tolist() for b, count in enumerate(ranked.counts)]


@pairs(seed=[0, 1], probes=[0, 2], runs=[1, 3], budget=[0, 3, 24])
def test_votes(budget, runs, probes, seed):
    """Of ids with equal votes the first to be found stay, from a random table on."""
    rng, key, samples = np.random.default_rng(seed), random_key(seed, 7), 7
    tables = HashTables(6, 5, 4, "reservoir", seed)
    tables.build(rng.integers(0, 5, (6, NUM_ROWS), dtype=np.int32))
    every = rng.permuted(np.tile(np.arange(5, dtype=np.int32), (6, samples, 1)), axis=2)
    codes = np.ascontiguousarray(every[:, :, : 1 + probes].transpose(2, 0, 1)).reshape(-1, samples)
    budgets, buckets, expected = [max(budget - b, 0) for b in range(samples)], contents(tables), []
    for b, most in enumerate(budgets):
        first = int(random_below(key, b, 6))
        order = [begin + (first + i) % 6 for begin in range(0, len(codes), 6) for i in range(6)]
        counts = Counter(i for at in order for i in buckets[at % 6][codes[at, b]])
        best = sorted(counts, key=lambda i, counts=counts: -counts[i])[:most]
        expected.append([i for i in counts if i in best])
    assert vote(tables, codes, key, budgets, runs) == expected


def test_more_votes_than_a_byte_holds():
    # 300 tables, all with id 0 in the bucket asked for; id 1 in 299 of them.
    codes = np.zeros((300, 3), np.int32)
    codes[0, 1] = codes[2:, 2] = 1
    tables = HashTables(300, 2)
    tables.build(codes)
    assert sorted(vote(tables, np.zeros((300, 1), np.int32), np.uint64(0), [2])[0]) == [0, 1]


def test_ties_are_not_always_won_by_the_first_table():
    # Each table holds another id, so all ids have one vote.
    tables, codes = HashTables(4, 5), np.full((4, 4), 4, np.int32)
    np.fill_diagonal(codes, 0)
    tables.build(codes)
    asked = np.zeros((4, 1), np.int32)
    winners = {vote(tables, asked, random_key(i), [1])[0][0] for i in range(30)}
    assert winners == {0, 1, 2, 3}


@pairs(dtype=[np.float32, np.float64], has_bias=[False, True], best=[1, 4, 20])
def test_best_of_lists(best, has_bias, dtype):
    rng = np.random.default_rng(best)
    # Few different values, so that scores are equal now and then.
    vectors, rows = (rng.integers(-2, 3, (n, 3)).astype(dtype) for n in (6, 30))
    rows[4] = np.nan
    bias = rng.integers(-2, 3, 30 if has_bias else 0).astype(dtype)
    counts, out = np.array([0, 12, 1, 12, 7, 3]), np.empty((6, best), np.int32)
    ids = np.stack([rng.permutation(30)[:12] for _ in counts]).astype(np.int32)
    lists = [row[:count].tolist() for row, count in zip(ids, counts, strict=True)]
    labels = Pattern.from_lists([own[:3] for own in lists])
    kernels.best_of_lists(RankedIds(ids, counts), labels, vectors, rows, bias, out)
    scores = vectors @ rows.T + (bias if has_bias else 0)
    for b, own in enumerate(lists):
        left = [i for i in own[3:] if i != 4]
        wanted = sorted(left, key=lambda i, own=scores[b]: -own[i])[:best]
        assert out[b].tolist() == wanted + [-1] * (best - len(wanted))
