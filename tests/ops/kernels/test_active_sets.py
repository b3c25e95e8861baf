"""Proposed ids, and active sets from them; `test_reference.py` compares the draws of the fill."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from helpers.buckets import contents
from helpers.grids import pairs
from helpers.matrices import chi_square_p, make_pattern, rows_of

from slide.hashing.hash_tables import HashTables
from slide.ops import active_sets as kernels
from slide.ops.active_sets import RankedIds
from slide.ops.random import random_below
from slide.sparse import Pattern, row_bounds
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


def assemble(labels, order, bounds, proposed, sizes, key, *, runs=1, num_rows=NUM_ROWS, logs=True):
    """Sets of groups, positions of labels, known ids, log weights; scratch must come back zero."""
    marks, slots = np.zeros((runs, num_rows), np.uint8), np.full((runs, num_rows), 77, np.int32)
    indptr = row_bounds(sizes)
    ids, num_known = np.full(indptr[-1], -1, np.int32), np.full(len(sizes), -1, np.int64)
    positions = np.full(len(labels.indices), -1, np.int32)
    weights = np.full(len(ids) if logs else 0, np.nan, np.float32)
    order, bounds = np.array(order, np.int64), np.array(bounds, np.int64)
    proposed = np.array(proposed, np.int32)
    kernels.assemble_groups(
        *(labels, order, bounds, proposed, num_rows, key),
        *(marks, slots, indptr, ids, positions, num_known, weights),
    )
    assert not marks.any()
    return rows_of(Pattern(indptr, ids)), positions, num_known, weights


def naive_set(known, size, key, stream):
    """Known ids, then draws of a stream that are new; fewer than ``size`` if these do not do."""
    own, missing = list(known), size - len(known)
    for i in range(64 * missing):
        candidate = int(random_below(key, (stream << 32) + i, NUM_ROWS))
        if len(own) < size and candidate not in own:
            own.append(candidate)
    return own


GROUPS = {
    # Labels of each sample, samples of each group, ids that a group may be proposed, sizes of sets.
    "some": ([2, 0, 3, 1, 4], [2, 3], 5, [12, 20]),
    "samples alone": ([1, 3, 0], [1, 1, 1], 4, [6, 5, 9]),
    "proposed ids do not fit": ([2, 2, 2, 2], [3, 1], 25, [9, 4]),
    "labels fill the set": ([9, 9], [2], 3, [0]),
    "all rows": ([30, 1], [1, 1], 6, [30, 30]),
    "nobody is proposed": ([0, 2, 0], [2, 1], 0, [7, 3]),
    "empty groups": ([1, 1], [0, 2, 0], 2, [3, 5, 0]),
    "no groups": ([], [], 3, []),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", GROUPS)
def test_sets_of_groups(name, seed):
    """Labels by first appearance, then proposed ids, then draws; labels know their places."""
    (labels, samples, most, sizes), rng = GROUPS[name], np.random.default_rng(seed)
    known, key = make_pattern(rng, labels, NUM_ROWS), random_key(seed)
    order, bounds = rng.permutation(len(labels)), row_bounds(samples)
    # An id may be proposed by several samples of a group, and be a label of another one.
    proposed = rng.integers(-1, NUM_ROWS, (len(sizes), most))
    rows, begins = rows_of(known), known.indptr
    own_labels = [[i for b in order[a:z] for i in rows[b]] for a, z in pairwise(bounds)]
    sizes = [max(n, len(set(own))) for n, own in zip(sizes, own_labels, strict=True)]
    sets, positions, num_known, logs = assemble(
        known, order, bounds, proposed, sizes, key, runs=1 + 2 * seed
    )
    logs = np.split(logs, row_bounds(sizes)[1:-1])
    for s, own in enumerate(sets):
        found = dict.fromkeys(own_labels[s] + [i for i in proposed[s].tolist() if i >= 0])
        first = list(found)[: sizes[s]]
        drawn = naive_set(first, sizes[s], key, s)
        assert own[: len(drawn)] == drawn
        assert num_known[s] == len(first)
        assert len({*own} & {*range(NUM_ROWS)}) == len(own) == sizes[s]
        check_weights(logs[s], len(first))
        for b in order[bounds[s] : bounds[s + 1]]:
            assert [own[i] for i in positions[begins[b] : begins[b + 1]]] == rows[b]


def test_groups_have_draws_of_their_own_and_no_log_weights_if_none_are_wanted():
    none, nobody = Pattern.from_lists([[], []]), np.empty((2, 0))
    found = [
        assemble(none, [1, 0], [0, 1, 2], nobody, [12, 12], random_key(3), runs=runs, logs=False)
        for runs in (1, 2)
    ]
    (one, other), _, _, logs = found[0]
    assert one != other
    assert len(logs) == 0
    assert found[1][0] == [one, other], "whatever thread makes them"


def test_a_set_of_a_batch_is_that_of_one_group():
    labels = Pattern.from_lists([[7, 2], [], [2, 9, 7]])
    sets, positions, num_known, logs = assemble(
        labels, [0, 1, 2], [0, 3], [[9, -1, 4, 4, 2]], [8], random_key(0)
    )
    assert sets[0][:4] == [7, 2, 9, 4]
    assert positions.tolist() == [0, 1, 1, 2, 0]
    assert num_known.tolist() == [4]
    np.testing.assert_allclose(logs[4:], np.log((NUM_ROWS - 4) / 4), rtol=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_nearly_full_fill_walks_to_the_end(seed):
    labels, key = Pattern(np.array([0, 2_998]), ALL_BUT_TWO), random_key(seed)
    (own,), *_ = assemble(
        labels, [0], [0, 1], np.empty((1, 0)), [2_999], key, num_rows=3_000, logs=False
    )
    assert own[-1] in (5, 1_700)


def test_sets_are_repeated_for_the_samples_of_a_group():
    sets, sizes = np.arange(100, 112, dtype=np.int32), [3, 0, 5, 4]
    set_of, begins = np.array([2, 0, 0, 1, 3, 2]), row_bounds(sizes)
    indptr = row_bounds([sizes[s] for s in set_of])
    for kind in (np.int32, np.float32):
        out = np.full(indptr[-1], -1, kind)
        kernels.repeat_sets(set_of, begins, indptr, sets.astype(kind), out)
        parts = [sets[begins[s] : begins[s + 1]] for s in set_of]
        assert out.tolist() == np.concatenate(parts).tolist()


class TestSimilarOrder:
    @pairs(count=[0, 1, 7, 64, 101], levels=[0, 1, 4], kind=["normal", "few values"])
    def test_each_level_halves_the_samples_by_a_direction(self, kind, levels, count):
        rng, shape = np.random.default_rng(count), (count, max(levels, 1))
        draws = rng.standard_normal(shape) if kind == "normal" else rng.integers(0, 3, shape)
        order = kernels.similar_order(draws.astype(np.float32), levels)
        assert sorted(order.tolist()) == list(range(count))
        for level in range(levels):
            ends = [part * count >> (level + 1) for part in range((2 << level) + 1)]
            assert np.ptp(np.diff(ends)) <= 1, "halves are equal"
            halves = [draws[order[a:z], level] for a, z in pairwise(ends)]
            for low, high in zip(halves[::2], halves[1::2], strict=True):
                assert max(low, default=-np.inf) <= min(high, default=np.inf)

    def test_similar_samples_meet(self):
        """In groups of 8 of 128 samples in 16 clusters most are of one cluster."""
        rng = np.random.default_rng(0)
        owner = rng.permutation(np.repeat(np.arange(16), 8))
        centres = rng.standard_normal((16, 20))
        x = centres[owner] + 0.05 * rng.standard_normal((128, 20))
        shares = {"similar": [], "by chance": []}
        for _ in range(20):
            projections = (x @ rng.standard_normal((20, 4))).astype(np.float32)
            order = kernels.similar_order(projections, 4)
            for name, each in (("similar", order), ("by chance", rng.permutation(128))):
                groups = owner[each].reshape(16, 8)
                shares[name] += [np.bincount(group).max() / 8 for group in groups]
        assert np.mean(shares["similar"]) > np.mean(shares["by chance"]) + 0.3

    def test_samples_without_numbers_are_in_it_once(self):
        projections = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
        projections[::3], projections[1] = np.nan, np.inf
        assert sorted(kernels.similar_order(projections, 3).tolist()) == list(range(50))


@pytest.mark.parametrize("sizes", [[3, 0, 4], [7], [1] * 7, [0, 7]])
def test_distinct_labels_of_groups(sizes):
    rng = np.random.default_rng(0)
    labels, bounds = make_pattern(rng, [4, 0, 3, 9, 1, 2, 2], 12), row_bounds(sizes)
    order, marks = rng.permutation(7), np.zeros(12, np.uint8)
    out, rows = np.full(len(sizes), -1, np.int64), rows_of(labels)
    kernels.count_distinct(labels, order, bounds, marks, out)
    groups = [order[a:z] for a, z in pairwise(bounds)]
    assert out.tolist() == [len({i for b in group for i in rows[b]}) for group in groups]
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
