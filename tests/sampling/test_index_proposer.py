"""The index over rows as a source of candidates."""

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from helpers.inner_products import draw_clusters
from helpers.layers import D, N, draw_layer, draw_queries, every_mode, recall
from helpers.matrices import make_pattern
from helpers.samplers import index_sampler

from slide.nn import ActiveLoss, SampledLinear
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.sampling import ActiveSampler, IndexProposer, LSHProposer
from slide.sampling.schedules import fixed
from slide.search import RowIndex, exact_top_k
from slide.sparse import CSR, Pattern


def draw_labels(seed, counts=(2, 1, 0, 3, 1)):
    return make_pattern(np.random.default_rng(seed), list(counts), N)


def rows_of(pattern):
    return [
        pattern.indices[a:b].tolist()
        for a, b in zip(pattern.indptr[:-1], pattern.indptr[1:], strict=True)
    ]


class TestCandidates:
    @pytest.mark.parametrize("best", [1, 5, 40])
    def test_of_few_rows_are_exact(self, best):
        """The longest rows are seen by all, and here there are no others."""
        layer, queries, labels = draw_layer(), draw_queries(5), draw_labels(0)
        proposer = IndexProposer(D, N, best=best)
        proposer.rebuild(*layer)
        order = exact_top_k(queries, *layer, N)[1].tolist()
        wanted = [
            [i for i in ids if i not in own][:best]
            for ids, own in zip(order, rows_of(labels), strict=True)
        ]
        assert rows_of(proposer.look_up(queries, labels)) == wanted
        assert rows_of(proposer.candidates(queries)) == [ids[:best] for ids in order]

    def test_recall_among_many_rows(self):
        layer, queries = draw_clusters(), draw_queries(30)
        wanted = exact_top_k(queries, *layer, 8)[1].numpy()
        found = []
        for seen in (100, 4096):
            sampler = index_sampler(
                *(D, len(layer[0])), most_seen=seen, active=40, mode="per_sample"
            )
            sampler.update(*layer, None)
            found.append(recall(sampler.select(queries, None), wanted))
            assert sampler.statistics()["look_up/rows_seen"] < 0.5 * len(layer[0])
        assert found[0] < found[1]
        assert found[1] > 0.9

    def test_nothing_before_the_first_build(self):
        with pytest.raises(RuntimeError, match="the index is empty"):
            IndexProposer(D, N).candidates(draw_queries(1))

    def test_sparse_inputs_are_refused(self):
        rows = CSR(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        with pytest.raises(TypeError, match="IndexProposer takes dense inputs only"):
            IndexProposer(D, N).candidates(rows)

    @pytest.mark.parametrize("name", ["best", "most_seen"])
    def test_options_out_of_range(self, name):
        with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
            IndexProposer(D, N, **{name: 0})


class TestState:
    @every_mode
    def test_resumes(self, mode):
        """Bit for bit, in the middle of an interval between rebuilds."""
        rows = 9_000
        make = partial(
            index_sampler, D, rows, active=30, mode=mode, rebuild=partial(fixed, every=20), best=3
        )
        sampler, other = make(), make()
        weight, bias = draw_clusters(rows)

        def step(each, number):
            queries = draw_queries(5, number)
            each.update(weight, bias, queries)
            return each.select(queries, draw_labels(number)).ids

        def move(number):
            weight.add_(torch.randn(rows, D, generator=torch.Generator().manual_seed(number)))

        for number in range(3):
            step(sampler, number)
            move(number)
        other.load_state_dict(sampler.state_dict())
        again = other.state_dict()["proposer"]
        assert again["index"].keys() == sampler.state_dict()["proposer"]["index"].keys()
        for number in range(3, 9):
            np.testing.assert_array_equal(step(sampler, number), step(other, number))
            move(number)
        assert other.rebuilds == sampler.rebuilds == 3

    def test_of_before_with_rows_twice(self):
        """Earlier versions wrote them."""
        proposer = IndexProposer(D, N)
        proposer.rebuild(draw_layer()[0], None)
        state = proposer.state_dict() | {"moved": np.array([5, 3, 5], np.int32)}
        proposer.load_state_dict(state)
        assert proposer.state_dict()["moved"].tolist() == [3, 5]

    def test_a_rebuild_forgets_what_was_loaded(self):
        weight = draw_layer()[0]
        one, other = IndexProposer(D, N), IndexProposer(D, N)
        one.rebuild(weight, None)
        other.load_state_dict(one.state_dict())
        other.rebuild(weight, None)
        assert not other._saved

    def test_without_an_index(self):
        """As after a change of the outputs: the next lists are those of the next seed."""
        weight, bias = draw_clusters()
        sampler, other = (index_sampler(D, len(weight), active=9) for _ in range(2))
        sampler.update(weight, bias, None)
        sampler.resize(len(weight) - 1)
        other.resize(len(weight) - 1)
        other.load_state_dict(sampler.state_dict())
        assert not other.holds_index
        ids = []
        for each in (sampler, other):
            each.update(weight[1:], bias[1:], None)
            ids.append(each.proposer.state_dict()["index"]["ids"])
        np.testing.assert_array_equal(*ids)

    def test_of_before_without_an_index(self):
        """Such a state of the proposer was empty."""
        sampler, other = (index_sampler(D, N, active=9) for _ in range(2))
        state = sampler.state_dict() | {"proposer": {}}
        other.update(*draw_layer(), None)
        other.load_state_dict(state)
        assert not other.holds_index
        other.update(*draw_layer(), None)
        assert other.rebuilds == 1

    def test_of_another_shape(self):
        sampler, other = index_sampler(D, N, active=9), index_sampler(D, N + 1, active=9)
        sampler.update(*draw_layer(), None)
        other.load_state_dict(sampler.state_dict())
        weight, bias = draw_layer()
        with pytest.raises(ValueError, match=r"an index of \(400, 16\) does not fit rows of"):
            other.update(torch.cat([weight, weight[:1]]), torch.cat([bias, bias[:1]]), None)

    def test_copies_search_their_own_weight(self):
        layer = SampledLinear(D, N, index_sampler(D, N, active=16, best=1, mode="per_sample"))
        x, nobody = draw_queries(5), Pattern(np.zeros(6, np.int64), np.empty(0, np.int32))
        first = layer(x, nobody).active.row(0)[0]
        other = copy.deepcopy(layer)
        with torch.no_grad():
            other.weight[first] = -9 * x[0]
        assert other(x, nobody).active.row(0)[0] != first
        assert layer(x, nobody).active.row(0)[0] == first


def test_predicting_threads_update_the_lists_once(monkeypatch):
    """The first one after a training step does; twice, the means of lists would move too far."""
    layer = SampledLinear(D, N, index_sampler(D, N, active=50))
    x, labels = draw_queries(5), draw_labels(0)
    layer(x, labels)
    with torch.no_grad():
        layer.weight.mul_(1.5)
    begun = []
    update = RowIndex.update

    def slow(index, numbers):
        begun.append(len(numbers))
        time.sleep(0.3)
        update(index, numbers)

    monkeypatch.setattr(RowIndex, "update", slow)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: layer.top_k(x, 3, "sampler")[1], range(3)))
    assert len(begun) == 1
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("proposer", [IndexProposer, LSHProposer])
@every_mode
def test_an_index_of_inference_mode_can_follow_training(mode, proposer):
    """PyTorch does not let tensors that were made in this mode change outside of it."""
    layer = SampledLinear(D, N, ActiveSampler(D, N, proposer, active=40, mode=mode))
    optimizer, labels, x = RowSparseAdam(layer.parameters()), draw_labels(0), draw_queries(5)
    with torch.inference_mode():
        layer.top_k(x, 2, "sampler")
        layer.loss(x, labels, ActiveLoss("bce"))
    for _ in range(12):
        layer.loss(x, labels, ActiveLoss("bce"))[0].backward()
        optimizer.step()
    layer.load_state_dict(layer.state_dict())
