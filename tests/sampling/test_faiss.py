"""Candidates of indexes of FAISS: what they find, wrong strings, a missing package, copies."""

import builtins
import copy
import pickle
import sys
from functools import partial

import numpy as np
import pytest
import torch
from helpers.layers import D, N, draw_layer, draw_queries
from helpers.matrices import make_pattern, rows_of
from helpers.samplers import all_modes, faiss_sampler

from slide.nn import SampledLinear
from slide.sampling import FaissProposer
from slide.search import exact_top_k
from slide.sparse import Pattern

pytest.importorskip("faiss")
pytestmark = pytest.mark.usefixtures("one_thread")


def built(**options):
    proposer = FaissProposer(D, N, **({"factory": "Flat"} | options))
    proposer.rebuild(*draw_layer())
    return proposer


def exact_order(queries, weight, bias):
    """All rows of each input in the order of their scores, in float64."""
    scores = queries.double() @ weight.double().T + (0 if bias is None else bias.double())
    return scores.argsort(dim=1, descending=True).tolist()


class TestFlat:
    @pytest.mark.parametrize("has_bias", [True, False])
    @pytest.mark.parametrize("best", [1, 5, 40])
    def test_finds_the_exact_best_without_labels(self, best, has_bias):
        weight, bias = draw_layer()
        bias = bias if has_bias else None
        proposer = FaissProposer(D, N, factory="Flat", best=best)
        proposer.rebuild(weight, bias)
        queries = draw_queries(5)
        labels = make_pattern(np.random.default_rng(0), [2, 0, 70, 1, 3], N)
        found = proposer.propose(queries, labels, np.full(5, N), np.uint64(0))
        order = exact_order(queries, weight, bias)
        for b, own in enumerate(rows_of(labels)):
            expected = [i for i in order[b] if i not in own][:best]
            assert found.ids[b, : found.counts[b]].tolist() == expected
        assert rows_of(proposer.candidates(queries)) == [row[:128] for row in order]

    def test_where_labels_leave_few_rows(self):
        proposer, queries = built(), draw_queries(2)
        labels = Pattern.from_lists([range(N - 3), range(N)])
        found = proposer.propose(queries, labels, np.full(2, 16), np.uint64(0))
        assert found.counts.tolist() == [3, 0]
        assert sorted(found.ids[0, :3].tolist()) == [N - 3, N - 2, N - 1]

    @all_modes
    def test_sets_have_the_best(self, mode):
        sampler = faiss_sampler(
            D, N, factory="Flat", active=40, mode=mode, candidate_share=1.0, group_size=2, lookups=2
        )
        weight, bias = draw_layer()
        sampler.update(weight, bias, None)
        queries = draw_queries(4)
        active = sampler.select(queries, None)
        best = exact_top_k(queries, weight, bias, 9)[1].numpy()
        for b, ids in enumerate(best):
            assert np.isin(ids, active.row(b)).all()

    def test_rows_of_other_kinds_of_numbers(self):
        weight, bias = draw_layer()
        queries, found = draw_queries(3), []
        for kind in (torch.float32, torch.float64):
            proposer = FaissProposer(D, N, factory="Flat")
            proposer.rebuild(weight.T.contiguous().T.to(kind), bias.to(kind))
            found.append(proposer.candidates(queries.to(kind)).indices.tolist())
        assert found[0] == found[1]


@pytest.mark.parametrize("factory", ["IVF8,Flat", "HNSW16", "IVF8,SQ8", "PCA8,Flat"])
def test_other_indexes_find_most_of_the_best(factory):
    weight, bias = draw_layer()
    proposer, queries = built(factory=factory), draw_queries(50)
    best = exact_top_k(queries, weight, bias, 5)[1].numpy()
    found = rows_of(proposer.candidates(queries))
    share = np.mean([np.isin(ids, own).mean() for ids, own in zip(best, found, strict=True)])
    # One list of eight is looked at, which would have an eighth of them by chance.
    assert share > (0.3 if "IVF" in factory else 0.9)


class TestErrors:
    @pytest.mark.parametrize("factory", ["flat", "IVF,", "IVF8,PQ5", "Nothing"])
    def test_a_string_that_faiss_does_not_know(self, factory):
        """When the proposer is made, and not first in training; here rows have 17 numbers."""
        with pytest.raises(ValueError, match=f"factory must be a string .* not '{factory}'"):
            FaissProposer(D, N, factory=factory)

    @pytest.mark.parametrize("factory", ["", " ", 3])
    def test_no_string(self, factory):
        with pytest.raises((TypeError, ValueError), match="factory must be"):
            FaissProposer(D, N, factory=factory)

    def test_fewer_rows_than_lists(self):
        proposer = FaissProposer(D, N, factory="IVF512,Flat")
        with pytest.raises(ValueError, match=f"factory='IVF512,Flat' does not fit {N} rows: .+"):
            proposer.rebuild(*draw_layer())

    def test_after_which_the_index_is_empty(self):
        """A sampler tries again at the next set."""
        sampler = faiss_sampler(D, N, factory="IVF512,Flat", active=16)
        for _ in range(2):
            with pytest.raises(ValueError, match="does not fit"):
                sampler.update(*draw_layer(), None)
        assert sampler.rebuilds == 0

    def test_a_package_that_is_missing(self, monkeypatch):
        find = builtins.__import__

        def without(name, *arguments, **keywords):
            if name == "faiss":
                raise ImportError("No module named 'faiss'")
            return find(name, *arguments, **keywords)

        monkeypatch.delitem(sys.modules, "faiss", raising=False)
        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(ImportError, match="pip install faiss-cpu, or choose LSHProposer"):
            FaissProposer(D, N)


class TestFollowing:
    def test_rebuilds_alone_follow_the_rows(self):
        """Candidates are those of the old rows, ranked by the scores of the new ones."""
        weight, bias = draw_layer()
        proposer, queries = FaissProposer(D, N, factory="Flat", best=3), draw_queries(1)
        proposer.rebuild(weight, bias)
        nobody, places = Pattern.from_lists([[]]), np.full(1, 3)
        before = exact_order(queries, weight, bias)[0]
        weight[before[40]] = 100 * queries[0]
        weight[before[5]] = 50 * queries[0]
        assert proposer.refresh(weight, bias) is False
        found = proposer.propose(queries, nobody, places, np.uint64(0)).ids[0]
        assert found[0] == before[5]
        assert before[40] not in found
        proposer.rebuild(weight, bias)
        found = proposer.propose(queries, nobody, places, np.uint64(0)).ids[0]
        assert found[:2].tolist() == [before[40], before[5]]

    def test_another_number_of_outputs(self):
        proposer, (weight, bias) = built(), draw_layer()
        proposer.resize(50)
        proposer.rebuild(weight[:50], bias[:50])
        found = proposer.candidates(draw_queries(2)).indices
        assert sorted(found[:50].tolist()) == list(range(50))

    @pytest.mark.parametrize("way", ["deepcopy", "pickle"])
    def test_copies_search_their_own_weight(self, way):
        """FAISS's index is not copied: the first set of a copy makes a new one."""
        make = partial(faiss_sampler, D, N, factory="Flat", active=16, best=1, mode="per_sample")
        layer, x, nobody = (
            SampledLinear(D, N, make()),
            draw_queries(5),
            Pattern.from_lists([[]] * 5),
        )
        first = layer(x, nobody).active.row(0)[0]
        other = copy.deepcopy(layer) if way == "deepcopy" else pickle.loads(pickle.dumps(layer))
        assert other.sampler.proposer._index is None
        with torch.no_grad():
            other.weight[first] = -9 * x[0]
        assert other(x, nobody).active.row(0)[0] != first
        assert other.sampler.rebuilds == 2
        assert layer(x, nobody).active.row(0)[0] == first

    def test_a_state_is_made_anew_from_the_weights(self):
        sampler, other = (faiss_sampler(D, N, factory="Flat", active=16) for _ in range(2))
        for _ in range(3):
            sampler.update(*draw_layer(), draw_queries(2))
            sampler.select(draw_queries(2), None)
        state = sampler.state_dict()
        assert not state["proposer"]
        other.load_state_dict(state)
        for each in (sampler, other):
            each.update(*draw_layer(), draw_queries(2))
        found = [each.select(draw_queries(2), None).ids for each in (sampler, other)]
        np.testing.assert_array_equal(*found)


def test_what_it_says():
    proposer = built(factory="HNSW8")
    assert proposer.description() == f"FAISS index HNSW8 over {N} outputs"
    assert proposer.statistics() == {}
    assert proposer.sizes() == {}
    assert proposer.cpu_only
    assert FaissProposer(D, N).factory == "Flat"
    assert FaissProposer(D, 10_240).factory == "IVF256,SQ8"
