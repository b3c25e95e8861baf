"""The sets of the released program, against its rules in loops."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from helpers.layers import D, N, draw_layer, draw_queries
from helpers.matrices import make_pattern

from slide.hashing import DWTA
from slide.sampling import ActiveSampler, PublishedLSHProposer, fixed, never
from slide.sparse import Pattern

FAMILY = partial(DWTA, bin_size=4, packing="released")
SIZES = {"hashes_per_table": 3, "num_tables": 20}
REDRAW = partial(fixed, every=100, first=10)


def draw_inputs(count):
    return torch.relu(draw_queries(count))


def make(fill=0, active=1, seed=0, **options):
    proposer = partial(PublishedLSHProposer, family=FAMILY, **SIZES, fill=fill, **options)
    shape = {"mode": "per_sample", "weighting": "none", "candidate_share": None}
    sampler = ActiveSampler(D, N, proposer, active=active, rebuild=never, seed=seed, **shape)
    weight, bias = draw_layer()
    sampler.update(weight, bias, None)
    return sampler


def released_codes(vectors, family):
    """Codes by the rules of the released program: of equal coordinates the first wins."""
    codes = np.zeros((20, len(vectors)), int)
    for i, vector in enumerate(vectors.tolist()):
        for h, members in enumerate(family.coordinates.tolist()):
            best = min(range(4), key=lambda place: (-vector[members[place]], members[place]))
            codes[h // 3, i] = 2 * codes[h // 3, i] + best  # floor(ln 4) is 1 bit.
    return codes


def buckets_of(sampler, queries):
    """The ids in the buckets of each input."""
    family = sampler.proposer.hash
    rows, asked = released_codes(draw_layer()[0], family), released_codes(queries, family)
    return [set(np.flatnonzero((rows == asked[:, [b]]).any(0))) for b in range(len(queries))]


def test_a_set_holds_labels_and_all_that_the_tables_give():
    sampler, queries = make(), draw_inputs(5)
    labels = make_pattern(np.random.default_rng(0), [2, 0, 1, 5, 1], N)
    active = sampler.select(queries, labels)
    expected = buckets_of(sampler, queries)
    assert 20 < np.mean([len(ids) for ids in expected]) < N - 50, "neither few nor all"
    for b, found in enumerate(expected):
        own = labels.indices[labels.indptr[b] : labels.indptr[b + 1]]
        assert active.row(b)[: len(own)].tolist() == own.tolist()
        assert sorted(active.row(b)) == sorted(found | set(own))
    retrieved = sampler.statistics()["look_up/rows_seen"]
    assert retrieved == pytest.approx(active.mean_size())


def test_small_sets_are_filled_from_one_list():
    sampler, queries = make(fill=300), draw_inputs(4)
    labels = make_pattern(np.random.default_rng(1), [1, 2, 0, 3], N)
    active, found = sampler.select(queries, labels), buckets_of(sampler, queries)
    order = sampler.proposer._order.tolist()
    assert sorted(order) == list(range(N))
    own = [set(ids.tolist()) for ids in np.split(labels.indices, labels.indptr[1:-1])]
    starts = set()
    for b in range(4):
        known = found[b] | own[b]
        assert len(known) < 300 == len(active.row(b)) == len(set(active.row(b)))
        rest = active.row(b)[len(known) :].tolist()
        # One after the other in the list, but for those that are known.
        at = order.index(rest[0])
        while order[at - 1] in known:
            at -= 1
        run = [i for i in order[at:] + order[:at] if i not in known]
        assert rest == run[: len(rest)]
        starts.add(order.index(rest[0]))
    assert max(starts) - min(starts) < 30, "from one place for the batch"
    said, retrieved = sampler.statistics(), sum(len(found[b] - own[b]) for b in range(4)) / 4
    assert said["selection/candidates"] == pytest.approx(retrieved)
    assert said["selection/filled"] == pytest.approx(300 - retrieved - len(labels.indices) / 4)
    again = sampler.select(queries, labels)
    assert sorted(again.row(0)) != sorted(active.row(0)), "from another place in the next one"


def test_a_layer_that_is_no_larger_than_the_fill_is_not_filled_up():
    sampler, queries = make(fill=N), draw_inputs(3)
    sizes = np.diff(sampler.select(queries, None).indptr)
    assert sizes.tolist() == [len(ids) for ids in buckets_of(sampler, queries)]


def test_a_shared_set_does_not_grow():
    proposer = partial(PublishedLSHProposer, family=FAMILY, **SIZES, fill=0)
    sampler = ActiveSampler(D, N, proposer, active=30, candidate_share=None, weighting="none")
    sampler.update(*draw_layer(), None)
    queries = draw_inputs(8)
    active = sampler.select(queries, Pattern.from_lists([[b] for b in range(8)]))
    assert len(active.ids) == 30
    assert set(active.ids[8:]) <= set.union(*buckets_of(sampler, queries)), "no uniform draws"


def test_the_most_voted_where_places_are_few():
    sampler = make()
    sampler.candidate_share, sampler.active = 1.0, 8
    queries = draw_inputs(3)
    rows = released_codes(draw_layer()[0], sampler.proposer.hash)
    votes = rows[:, None] == released_codes(queries, sampler.proposer.hash)[:, :, None]
    votes = votes.sum(0)
    active = sampler.select(queries, None)
    for b in range(3):
        least = np.sort(votes[b])[-8]
        assert set(np.flatnonzero(votes[b] > least)) <= set(active.row(b))
        assert votes[b][active.row(b)].min() == least


def test_hash_functions_change_with_the_schedule():
    sampler, inputs = make(redraw=REDRAW), draw_inputs(10)
    sampler.rebuild_due = partial(fixed, every=10)
    (weight, bias), draws = draw_layer(), []
    for _ in range(12):
        sampler.update(weight, bias, inputs)
        draws.append(sampler.proposer.draw)
    assert draws == [0, *[1] * 10, 2]


def test_resumes_from_codes():
    sampler, queries = make(redraw=REDRAW, bucket_capacity=3), draw_inputs(6)
    sampler.rebuild_due = partial(fixed, every=10)
    weight, bias = draw_layer()
    for _ in range(3):
        sampler.update(weight, bias, queries)
    state = pickle.loads(pickle.dumps(sampler.state_dict()))
    assert set(state["proposer"]) == {"settings", "samples", "rebuilds", "draw", "codes"}
    other = make(redraw=REDRAW, bucket_capacity=3)
    other.load_state_dict(state)
    for tables in zip(other.proposer.tables.buckets, sampler.proposer.tables.buckets, strict=True):
        np.testing.assert_array_equal(*tables)
    found, expected = other.select(queries, None), sampler.select(queries, None)
    for b in range(6):
        assert sorted(found.row(b)) == sorted(expected.row(b))
    with pytest.raises(ValueError, match="fill"):
        make(fill=5, redraw=REDRAW, bucket_capacity=3).load_state_dict(state)
    state["proposer"]["codes"] = state["proposer"]["codes"][:, :-1]
    with pytest.raises(ValueError, match="do not fit 400 outputs"):
        other.load_state_dict(state)
