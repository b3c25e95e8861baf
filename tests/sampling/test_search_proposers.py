"""Candidates by an index over rows, which follows training."""

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from helpers.inner_products import COMPILED, ROWS, draw_clusters
from helpers.layers import D, N, draw_layer, draw_queries, every_mode, recall
from helpers.matrices import make_pattern, rows_of
from helpers.samplers import index_sampler

from slide.active_set import ActiveSet
from slide.nn import ActiveLoss, SampledLinear
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.sampling import ActiveSampler, IndexProposer, LSHProposer
from slide.sampling.schedules import fixed, never
from slide.search import RowIndex, exact_top_k
from slide.sparse import Pattern

pytestmark = pytest.mark.usefixtures("one_thread")


def draw_labels(seed, counts=(2, 1, 0, 3, 1)):
    return make_pattern(np.random.default_rng(seed), list(counts), N)


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
        for seen in (100, 4096 if COMPILED else 1000):
            sampler = index_sampler(
                *(D, len(layer[0])), most_seen=seen, active=40, mode="per_sample"
            )
            sampler.update(*layer, None)
            found.append(recall(sampler.select(queries, None), wanted))
            assert sampler.statistics()["look_up/rows_seen"] < 0.5 * len(layer[0])
        assert found[0] < found[1]
        assert found[1] > 0.9


class TestState:
    @pytest.mark.not_as_python
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
def test_an_index_of_inference_mode_can_follow_training(proposer):
    """PyTorch does not let tensors that were made in this mode change outside of it."""
    layer = SampledLinear(D, N, ActiveSampler(D, N, proposer, active=40))
    optimizer, labels, x = RowSparseAdam(layer.parameters()), draw_labels(0), draw_queries(5)
    with torch.inference_mode():
        layer.top_k(x, 2, "sampler")
        layer.loss(x, labels, ActiveLoss("bce"))
    for _ in range(12):
        layer.loss(x, labels, ActiveLoss("bce"))[0].backward()
        optimizer.step()
    layer.load_state_dict(layer.state_dict())


def labels_of(rows, labels):
    """The set of a step for one sample with these labels."""
    ids, indptr = np.array(labels, np.int32), np.array([0, len(labels)])
    return ActiveSet(rows, ids, indptr, Pattern(indptr, np.arange(len(ids), dtype=np.int32)))


def built():
    """Clusters of rows, their biases, and a proposer that has indexed them."""
    weight, bias = draw_clusters()
    proposer = IndexProposer(D, len(weight))
    proposer.rebuild(weight, bias)
    return weight, bias, proposer


class TestFollowing:
    def test_labels_and_candidates_of_a_step(self):
        """Rows that moved are found where they went; without the step they are not."""
        weight, bias = draw_clusters()
        queries, labels = draw_queries(5), Pattern.from_lists([[7], [8], [9], [10], [11]])
        sampler = index_sampler(
            *(D, len(weight)), active=20, mode="per_sample", rebuild=never, most_seen=ROWS // 6
        )
        sampler.update(weight, bias, queries)
        ends = sampler.select(queries, labels).row(0)
        codes = sampler.proposer._index.state_dict()["codes"].copy()
        weight[7:12] = 9 * queries[0]
        sampler.update(weight, bias, queries)
        changed = sampler.proposer._index.state_dict()["codes"] != codes
        assert 5 <= changed.any(1).sum() <= 5 * 9
        assert len(ends) == 20
        assert {7, 8, 9, 10, 11} <= set(sampler.select(queries[:1], None).row(0).tolist())

    def test_rows_of_all_batches_of_a_step(self):
        """With accumulated gradients rows change only after the last batch, in each step again."""
        weight, bias = draw_clusters()
        queries, batches = draw_queries(1), ([7, 8], [9], [10, 11])
        sampler = index_sampler(*(D, len(weight)), active=20, rebuild=never, most_seen=ROWS // 6)
        for length in (-9, 9):
            for labels in batches:
                sampler.update(weight, bias, queries)
                sampler.select(queries, Pattern.from_lists([labels]))
            weight[7:12] = length * queries[0]
        sampler.update(weight, bias, None)
        assert {7, 8, 9, 10, 11} <= set(sampler.candidates(queries).indices.tolist())
        assert not len(sampler.proposer.state_dict()["moved"])

    def test_a_step_with_frozen_weights_takes_no_more_time_than_the_first(self, monkeypatch):
        """Rows that wait for a change of the weights are not gone through in each step."""
        weight, bias = draw_clusters()
        queries, most = draw_queries(1), 50
        sampler = index_sampler(*(D, len(weight)), active=most, rebuild=never)
        sampler.update(weight, bias, queries)
        sizes, sort = [], np.sort

        def counted(array):
            sizes.append(np.size(array))
            return sort(array)

        monkeypatch.setattr(np, "sort", counted)
        for number in range(40):
            sampler.update(weight, bias, queries)
            sampler.select(queries, Pattern.from_lists([range(20 * number, 20 * number + 20)]))
        assert 0 < max(sizes) <= most
        assert set(range(800)) <= set(sampler.proposer.state_dict()["moved"].tolist())


class TestRebuild:
    def rebuilt(self, monkeypatch, change=None):
        """The rows that a rebuild moves, after row 7 was a label five times and row 8 thrice."""
        (weight, bias, proposer), moved = built(), []
        for step in range(5):
            proposer.touched(labels_of(len(weight), [7, 8] if step < 3 else [7]))
            weight[7:9] += 1
            proposer.refresh(weight, bias)
        if change:
            change(proposer)
        regroup = RowIndex.regroup

        def noted(index, rows, seed):
            moved.append(rows.tolist())
            regroup(index, rows, seed)

        monkeypatch.setattr(RowIndex, "regroup", noted)
        for _ in range(2):
            proposer.rebuild(weight, bias)
            proposer.touched(labels_of(len(weight), [8]))
            weight[8] += 1
        return moved

    def test_rows_that_several_steps_changed_move_once(self, monkeypatch):
        assert self.rebuilt(monkeypatch) == [[7], [8]]

    def test_lists_of_all_rows_if_all_may_be_others(self, monkeypatch):
        """As after the weights of another layer were loaded."""
        assert self.rebuilt(monkeypatch, IndexProposer.forget) == [[]]
        sampler, (weight, bias) = index_sampler(D, N, active=20), draw_layer()
        for _ in range(2):
            sampler.update(weight, bias, None)
            sampler.forget_index()
            assert sampler.proposer._index is not None
        monkeypatch.setattr(RowIndex, "regroup", None)
        sampler.update(weight, bias, None)
        assert sampler.rebuilds == 3

    def test_rows_of_all_batches_of_a_step(self):
        """A rebuild between two batches does not lose those of the first one."""
        weight, bias, proposer = built()
        for labels in ([7], [8]):
            proposer.touched(labels_of(len(weight), labels))
            proposer.rebuild(weight, bias)
        assert not proposer.state_dict()["steps"].any()
        weight[7:9] = 9
        proposer.refresh(weight, bias)
        state = proposer.state_dict()
        assert np.flatnonzero(state["steps"]).tolist() == [7, 8]
        places = np.flatnonzero(np.isin(state["index"]["ids"], [7, 8]))
        assert (state["index"]["codes"][places] == 127).all()

    def test_rows_wait_in_a_resumed_run_too(self):
        weight, bias, proposer = built()
        for _ in range(3):
            proposer.touched(labels_of(len(weight), [7]))
            proposer.refresh(weight, bias)
            state, proposer = proposer.state_dict(), IndexProposer(D, len(weight))
            proposer.load_state_dict(state)
            proposer = copy.deepcopy(proposer)
        assert proposer.state_dict()["moved"].tolist() == [7]
        proposer.refresh(weight, bias)
        weight[7] = 9
        proposer.refresh(weight, bias)
        assert proposer.state_dict()["steps"][7] == 1

    def test_of_other_rows(self):
        """Which makes a new index, where it can: `refresh` has no such right."""
        weight, bias = draw_clusters()
        proposer = IndexProposer(D, len(weight))
        for call in (lambda: proposer.refresh(weight, bias), lambda: proposer.candidates(weight)):
            with pytest.raises(RuntimeError, match="the index is empty; call rebuild first"):
                call()
        proposer.rebuild(weight, None)
        with pytest.raises(ValueError, match="the layer has a bias and the index has none"):
            proposer.refresh(weight, bias)
        proposer.rebuild(weight, bias)
        assert proposer.state_dict()["index"]["means"].shape[1] == D + 1

    def test_an_error_midway(self, monkeypatch):
        """Nothing is forgotten, and the next rebuild makes lists of all rows."""
        weight, bias, proposer = built()
        proposer.touched(labels_of(len(weight), [7]))
        weight[7] += 1

        def fail(*arguments):
            raise MemoryError

        regroup = RowIndex.regroup
        monkeypatch.setattr(RowIndex, "regroup", fail)
        with pytest.raises(MemoryError):
            proposer.rebuild(weight, bias)
        monkeypatch.setattr(RowIndex, "regroup", regroup)
        proposer.touched(labels_of(len(weight), [7]))
        assert proposer.state_dict()["moved"].tolist() == [7]
        proposer.rebuild(weight, bias)
        assert proposer.rebuilds == 2
