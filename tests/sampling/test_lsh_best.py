"""Hash tables as proposer: further buckets, and candidates that are scored."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from helpers.layers import FAMILIES, D, N, draw_layer, draw_queries, every_mode
from helpers.matrices import make_pattern
from helpers.samplers import lsh_sampler

from slide.backend import backend
from slide.hashing import SimHash
from slide.nn import SparseInputLinear
from slide.sampling import ActiveSampler, LookUp, LSHProposer, Upkeep, best_ids, lsh_proposer
from slide.search import exact_top_k
from slide.sparse import CSR, Pattern
from slide.testing import check_sampler

KEY = np.uint64(3)
SMALL = partial(SimHash, hashes_per_table=4, num_tables=6)
# With all buckets of a table, all ids are candidates.
ALL = {"probes": 15, "capacity": N}


def draw_labels(count, seed=0):
    return make_pattern(np.random.default_rng(seed), [b % 4 for b in range(count)], N)


def rows_of(pattern):
    bounds = zip(pattern.indptr[:-1], pattern.indptr[1:], strict=True)
    return [pattern.indices[a:b].tolist() for a, b in bounds]


def exact_without(labels, layer, queries, best):
    order = exact_top_k(queries, *layer, N)[1].tolist()
    pairs = zip(order, rows_of(labels), strict=True)
    return [[i for i in ids if i not in own][:best] for ids, own in pairs]


def make(family=SMALL, capacity=128, rehash_after=None, **look_up):
    options = {"bucket_capacity": capacity, "upkeep": Upkeep(rehash_after)}
    proposer = LSHProposer(D, N, family=family, look_up=LookUp(**look_up), **options)
    proposer.rebuild(*draw_layer())
    return proposer


@pytest.fixture(params=["kernels", "torch"])
def either(request):
    with backend(request.param):
        yield


@pytest.mark.usefixtures("either")
class TestBest:
    @pytest.fixture(autouse=True)
    def everything_is_scored(self, monkeypatch):
        monkeypatch.setattr(lsh_proposer, "POOL", N)

    def test_of_all_ids_is_the_exact_answer(self):
        layer, queries, labels = draw_layer(), draw_queries(9), draw_labels(9)
        proposer = make(best=5, **ALL)
        found = proposer.propose(queries, labels, np.array([9, 5, 3, 0, 5, 5, 5, 5, 5]), KEY)
        wanted = exact_without(labels, layer, queries, 5)
        assert found.counts.tolist() == [5, 5, 3, 0, 5, 5, 5, 5, 5]
        for b, count in enumerate(found.counts):
            assert found.ids[b, :count].tolist() == wanted[b][:count]

    @pytest.mark.parametrize("places", [4, 9, 30, 100])
    def test_a_shared_set_takes_turns(self, places):
        layer, queries, labels = draw_layer(), draw_queries(9), draw_labels(9)
        found = make(best=5, **ALL).propose_shared(queries, labels, places, KEY)
        turns = exact_without(labels, layer, queries, 5)
        wanted, complete = [], 0
        for rank in range(5):
            new = [row[rank] for row in turns if row[rank] not in wanted]
            wanted += sorted(set(new), key=lambda i: (-sum(i in row for row in turns), i))
            complete = len(wanted) if len(wanted) <= places else complete
        assert found.dtype == np.int32
        assert found.tolist() == wanted[:places]

    def test_rows_that_moved_are_scored_as_they_are(self):
        (weight, bias), queries = draw_layer(), draw_queries(3)
        nobody = Pattern(np.zeros(4, np.int64), np.empty(0, np.int32))
        proposer = make(best=4, rehash_after=0, **ALL)
        before = proposer.propose(queries, nobody, np.full(3, 4), KEY).ids
        moved = weight.clone()
        moved[before[0, 0]] = -9 * queries[0]
        proposer.refresh(moved, bias)
        after = proposer.propose(queries, nobody, np.full(3, 4), KEY).ids
        assert after[0, :3].tolist() == before[0, 1:].tolist()


@pytest.mark.usefixtures("either")
def test_only_the_most_voted_are_scored(monkeypatch):
    """The best of the ids with the most votes; without `best`, those ids themselves."""
    monkeypatch.setattr(lsh_proposer, "POOL", 3)
    layer, queries, labels = draw_layer(), draw_queries(9), draw_labels(9)
    places = 3 * 2 + np.diff(labels.indptr)
    voted = make().propose(queries, labels, places, KEY)
    found = make(best=2).propose(queries, labels, np.full(9, 2), KEY)
    exact = exact_without(labels, layer, queries, N)
    for b in range(9):
        pool = set(voted.ids[b, : voted.counts[b]].tolist())
        assert len(pool) == places[b]
        wanted = [i for i in exact[b] if i in pool][:2]
        assert found.ids[b, : found.counts[b]].tolist() == wanted


def test_turns_of_lists_of_any_length():
    found = np.array([[7, 3, -1], [-1, -1, -1], [5, 7, 1], [3, -1, -1]], np.int32)
    # First 7, 5 and 3, of which two samples have 7 and 3; then nothing new; then 1.
    assert best_ids.in_turns(found, 9).tolist() == [3, 7, 5, 1]
    assert best_ids.in_turns(found, 2).tolist() == [3, 7]
    assert best_ids.in_turns(found[1:2], 2).tolist() == []
    ranked = best_ids.ranked(found, np.array([1, 4, 2, 0]))
    assert ranked.counts.tolist() == [1, 0, 2, 0]
    assert ranked.ids[0, 0] == 7
    assert ranked.ids[2, :2].tolist() == [5, 7]


@pytest.mark.parametrize("family", FAMILIES)
@every_mode
def test_further_buckets_hold_further_candidates(family, mode):
    layer, queries = draw_layer(), draw_queries(3)
    counts = []
    for probes in (0, 1, 3):
        proposer = make(FAMILIES[family], probes=probes, capacity=N)
        proposer.rebuild(*layer)
        found = proposer.candidates(queries)
        codes = proposer.hash.query_codes(queries, probes).reshape(1 + probes, -1, 3)
        rows = proposer.hash.row_codes(*layer)
        for b in range(3):
            votes = np.bincount(rows_of(found)[b], minlength=N)
            assert votes.tolist() == (codes[:, :, b, None] == rows).any(0).sum(0).tolist()
        counts.append(len(found.indices))
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("options", [{"probes": 2}, {"best": 3}, {"probes": 1, "best": 3}])
@every_mode
def test_samplers(mode, options):
    """Sets are sound and reproducible, and a state resumes."""
    check_sampler(
        partial(lsh_sampler, D, N, active=40, mode=mode, family=SMALL, look_up=LookUp(**options)), D
    )


@pytest.mark.parametrize("options", [{"probes": 2}, {"best": 3}])
def test_a_state_without_them_goes_in(options):
    """They only say how tables are asked, so tables of other settings are the same ones."""
    saved, other = make(), make(**options)
    other.load_state_dict(saved.state_dict())
    assert other.state_dict().keys() == saved.state_dict().keys()
    assert (other.probes, other.best) == (options.get("probes", 0), options.get("best"))


def test_a_copy_takes_the_weights_of_its_layer():
    sampler = lsh_sampler(D, N, active=40, family=SMALL, look_up=LookUp(best=3))
    (weight, bias), queries = draw_layer(), draw_queries(4)
    sampler.update(weight, bias, queries)
    other = copy.deepcopy(sampler)
    assert other.proposer._rows is None
    other.update(weight, bias, queries)
    sampler.update(weight, bias, queries)
    assert other.select(queries, None).ids.tolist() == sampler.select(queries, None).ids.tolist()


@pytest.mark.parametrize("value", [0, -2, 1.5, True])
def test_best_out_of_range(value):
    with pytest.raises(ValueError, match="best must be a whole number of at least 1"):
        LSHProposer(D, N, look_up=LookUp(best=value))


@pytest.mark.parametrize("value", [-1, 65, None])
def test_probes_out_of_range(value):
    with pytest.raises(ValueError, match="probes must be"):
        LSHProposer(D, N, look_up=LookUp(probes=value))


@pytest.mark.parametrize("options", [{"probes": 2}, {"best": 3}])
def test_sparse_inputs_are_refused(options):
    with pytest.raises(ValueError, match=r"takes dense inputs only.*LSHProposer as published"):
        SparseInputLinear(
            D, N, ActiveSampler(D, N, partial(LSHProposer, look_up=LookUp(**options)), active=9)
        )


def test_sparse_inputs_are_not_scored():
    rows = CSR(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    nobody = Pattern(np.zeros(2, np.int64), np.empty(0, np.int32))
    with pytest.raises(TypeError, match="LSHProposer with best takes dense inputs only"):
        make(best=3).propose(rows, nobody, np.ones(1, np.int64), KEY)


def test_bfloat16_weights_are_scored():
    weight, bias = draw_layer()
    proposer = make(best=3)
    proposer.refresh(weight.bfloat16(), bias.bfloat16())
    found = proposer.propose(draw_queries(2), draw_labels(2), np.full(2, 3), KEY)
    assert found.counts.tolist() == [3, 3]


def test_a_larger_layer(recwarn):
    proposer = make(probes=2, best=3)
    proposer.resize(N + 50)
    weight = torch.cat([draw_layer()[0], 9 * draw_queries(50)])
    proposer.rebuild(weight, None)
    found = proposer.propose(draw_queries(50), draw_labels(50), np.full(50, 3), KEY)
    assert (found.ids >= N).any()


def test_more_than_there_are():
    found = make(best=10**12, probes=15, capacity=N).propose(
        draw_queries(2), draw_labels(2), np.full(2, N), KEY
    )
    assert found.ids.shape == (2, N)
