"""The index of candidates follows rows that change, and moves them to other lists."""

import copy

import numpy as np
import pytest
import torch
from helpers.inner_products import draw_clusters
from helpers.layers import D, N, draw_layer, draw_queries
from helpers.samplers import index_sampler

from slide.active_set import ActiveSet
from slide.sampling import IndexProposer
from slide.sampling.schedules import never
from slide.search import RowIndex
from slide.sparse import Pattern


def labels_of(rows, labels):
    """The set of a step for one sample with these labels."""
    ids, indptr = np.array(labels, np.int32), np.array([0, len(labels)])
    return ActiveSet(rows, ids, indptr, Pattern(indptr, np.arange(len(ids), dtype=np.int32)))


class TestFollowing:
    def test_labels_and_candidates_of_a_step(self):
        """Rows that moved are found where they went; without the step they are not."""
        weight, bias = draw_clusters()
        queries, labels = draw_queries(5), Pattern.from_lists([[7], [8], [9], [10], [11]])
        sampler = index_sampler(
            *(D, len(weight)), active=20, mode="per_sample", rebuild=never, most_seen=3000
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
        sampler = index_sampler(*(D, len(weight)), active=20, rebuild=never, most_seen=3000)
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

    def test_a_row_that_fell_is_not_proposed(self):
        weight, bias = draw_layer()
        queries = draw_queries(3)
        proposer = IndexProposer(D, N, best=4)
        proposer.rebuild(weight, bias)
        before = proposer.candidates(queries).indices[:4].tolist()
        weight[before[0]] = -9 * queries[0]
        assert proposer.candidates(queries).indices[:3].tolist() == before[1:]

    def test_update_is_a_build_with_the_old_lists(self):
        """Means, spreads and rounded rows are those of the changed weight."""
        weight, bias = draw_clusters()
        index = RowIndex(weight, bias)
        moved = np.arange(0, len(weight), 3)
        weight[moved] += torch.randn(len(moved), D, generator=torch.Generator().manual_seed(5))
        bias[moved] -= 2
        index.update(moved)
        state = index.state_dict()
        rows = torch.cat([weight, bias[:, None]], 1)[state["ids"].astype(np.int64)]
        scales = torch.from_numpy(state["scales"])[:, None]
        rounded = torch.from_numpy(state["codes"]) * scales
        assert (rounded - rows[:, :-1]).abs().max() <= 0.51 * scales.max()
        np.testing.assert_allclose(state["biases"], rows[:, -1])
        for number in range(0, index.num_lists, 20):
            own = rows[state["starts"][number] : state["starts"][number + 1]]
            mean = torch.from_numpy(state["means"][number])
            torch.testing.assert_close(mean, own.mean(0), rtol=0, atol=0.02)
            spread = (own - own.mean(0)).square().sum(1).mean().sqrt()
            assert abs(state["spreads"][number] - spread) < 0.05 * spread + 0.01


class TestRebuild:
    def rebuilt(self, monkeypatch, change=None, state=None):
        """The rows that a rebuild moves, after row 7 was a label five times and row 8 thrice."""
        weight, bias = draw_clusters()
        proposer, moved = IndexProposer(D, len(weight)), []
        proposer.rebuild(weight, bias)
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
        return moved

    def test_rows_that_several_steps_changed_move_once(self, monkeypatch):
        assert self.rebuilt(monkeypatch) == [[7], []]

    def test_also_in_a_resumed_run(self, monkeypatch):
        def resume(proposer):
            proposer.load_state_dict(proposer.state_dict())

        assert self.rebuilt(monkeypatch, resume) == [[7], []]

    def test_all_of_a_state_that_does_not_say_which(self, monkeypatch):
        def resume(proposer):
            state = proposer.state_dict()
            del state["steps"]
            proposer.load_state_dict(state)

        rows = list(range(len(draw_clusters()[0])))
        assert self.rebuilt(monkeypatch, resume) == [rows, []]

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
        weight, bias = draw_clusters()
        proposer = IndexProposer(D, len(weight))
        proposer.rebuild(weight, bias)
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
        weight, bias = draw_clusters()
        proposer = IndexProposer(D, len(weight))
        proposer.rebuild(weight, bias)
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
        with pytest.raises(RuntimeError, match="the index is empty; call rebuild first"):
            proposer.refresh(weight, bias)
        proposer.rebuild(weight, None)
        with pytest.raises(ValueError, match="the layer has a bias and the index has none"):
            proposer.refresh(weight, bias)
        proposer.rebuild(weight, bias)
        assert proposer.state_dict()["index"]["means"].shape[1] == D + 1

    def test_an_error_midway(self, monkeypatch):
        """Nothing is forgotten, and the next rebuild makes lists of all rows."""
        weight, bias = draw_clusters()
        proposer = IndexProposer(D, len(weight))
        proposer.rebuild(weight, bias)
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
