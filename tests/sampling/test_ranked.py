"""What indexes over rows share: exact scores of what they find, and rows that steps changed."""

import copy
import pickle

import numpy as np
import pytest
import torch
from helpers.layers import D, N, draw_layer, draw_queries
from helpers.matrices import make_pattern, rows_of
from torch import nn

from slide.active_set import ActiveSet
from slide.backend import backend
from slide.sampling import ActiveSampler, LSHProposer, SketchProposer
from slide.sampling.ranked import ChangedRows, RankedProposer
from slide.sparse import Pattern

pytestmark = pytest.mark.usefixtures("one_thread")


def labels_of(rows):
    """The set of a step for one sample with these labels."""
    ids, indptr = np.array(rows, np.int32), np.array([0, len(rows)])
    return ActiveSet(N, ids, indptr, Pattern(indptr, np.arange(len(ids), dtype=np.int32)))


def ids_of(*rows):
    return np.array(rows, np.int32)


class TestChangedRows:
    weight = torch.ones(N, D)

    def noted(self, *steps):
        """Rows of steps that have these labels."""
        changed = ChangedRows()
        for rows in steps:
            changed.touched(labels_of(rows))
        return changed

    def test_labels_and_candidates_of_a_step(self):
        changed = ChangedRows()
        changed.propose(ids_of(9, 3))
        changed.propose(ids_of(5, 3))  # Those of the coming step alone.
        changed.touched(labels_of([7, 1]))
        changed.touched(labels_of([2]))
        assert changed.rows().tolist() == [7, 1, 5, 3, 2]
        taken = changed.take(self.weight, None)
        assert taken.tolist() == [1, 2, 3, 5, 7]
        assert taken.dtype == np.int32
        assert not len(changed.take(self.weight, None)), "each once"

    def test_uniform_draws_of_a_set_are_not_noted(self):
        indptr = np.array([0, 4])
        labelled = Pattern(np.array([0, 1]), np.array([2], np.int32))
        changed = ChangedRows()
        changed.touched(ActiveSet(N, ids_of(8, 4, 6, 9), indptr, labelled))
        changed.touched(ActiveSet(N, ids_of(1, 2, 3, 5), indptr))
        assert changed.rows().tolist() == [6]

    def test_rows_of_fewer_steps_wait(self):
        changed = self.noted([1], [2])
        assert not len(changed.take(self.weight, None, least=3))
        changed.touched(labels_of([1]))
        assert changed.take(self.weight, None, least=3).tolist() == [1, 2]

    @pytest.mark.parametrize("which", ["weight", "bias"])
    def test_rows_wait_until_the_weights_change(self, which):
        weight, bias = nn.Parameter(torch.ones(N, D)), nn.Parameter(torch.ones(N))
        changed = ChangedRows()
        changed.settle(weight, bias)
        changed.touched(labels_of([1]))
        assert not len(changed.take(weight, bias))
        with torch.no_grad():
            (weight if which == "weight" else bias).add_(1)
        assert changed.take(weight, bias).tolist() == [1]

    def test_none_after_all_rows_were_taken(self):
        changed = self.noted([1])
        changed.propose(ids_of(4))
        changed.forget()
        changed.touched(labels_of([2]))
        assert changed.rows().tolist() == [2]

    def test_a_state_and_a_copy(self):
        changed, again = self.noted([1], [3, 3]), ChangedRows()
        again.propose(ids_of(8))
        again.restore(changed.rows())
        copied = pickle.loads(pickle.dumps(copy.deepcopy(changed)))
        for each in (again, copied):
            assert each.rows().tolist() == [1, 3, 3]
            assert each.take(self.weight, None).tolist() == [1, 3]
        assert changed.rows().tolist() == [1, 3, 3], "the copies are others"


class Ordered(RankedProposer):
    """An index of a user, which finds the first rows in the order of a secret list."""

    scored = 3

    def __init__(self, in_features, out_features, *, best=4, seed=0):
        super().__init__(in_features, out_features, best=best, seed=seed)
        self.order = np.random.default_rng(0).permutation(out_features).astype(np.int32)
        self.asked = []

    def rebuild(self, weight, bias):
        self._rows = weight, bias
        self.changed.settle(weight, bias)

    refresh = rebuild

    def find(self, queries, labels, most):
        self.asked.append(most)
        found = []
        for own in rows_of(labels):
            free = self.order[~np.isin(self.order, own)][:most].tolist()
            found.append(free + [-1] * (most - len(free)))
        return torch.tensor(found, dtype=torch.int32)


def built(**options):
    proposer = Ordered(D, N, **options)
    proposer.rebuild(*draw_layer())
    return proposer


def exact(ids, query, most):
    """The rows with the largest scores of some, in float64, the best first."""
    weight, bias = (each.double() for each in draw_layer())
    scores = weight[ids] @ query.double() + bias[ids]
    return [int(ids[i]) for i in scores.argsort(descending=True)[:most]]


@pytest.mark.parametrize("way", ["kernels", "torch"])
class TestRankedProposer:
    def test_of_what_is_found_the_best_by_exact_scores(self, way):
        proposer, queries = built(best=4), draw_queries(5)
        labels = make_pattern(np.random.default_rng(0), [0, 3, 60, 1, 0], N)
        wanted = np.array([9, 2, 4, 0, 3])
        with backend(way):
            found = proposer.propose(queries, labels, wanted, np.uint64(0))
        # Twelve rows of each sample are scored for the four that any sample takes.
        assert proposer.asked == [12]
        for b, own in enumerate(rows_of(labels)):
            free = torch.from_numpy(proposer.order[~np.isin(proposer.order, own)][:12]).long()
            expected = exact(free, queries[b], 4)[: min(4, wanted[b])]
            assert found.ids[b, : found.counts[b]].tolist() == expected
        taken = [found.ids[b, : found.counts[b]] for b in range(5)]
        proposer.touched(labels_of([0]))
        assert proposer.changed.rows().tolist() == [0, *np.concatenate(taken).tolist()]

    def test_candidates_of_a_batch_come_in_turns(self, way):
        """The best of each sample, then the second ones; none that is a label of a sample."""
        proposer, queries = built(best=4), draw_queries(3)
        labels = Pattern.from_lists([[int(proposer.order[0])], [], []])
        with backend(way):
            found = proposer.propose_shared(queries, labels, 5, np.uint64(0))
        every = torch.from_numpy(proposer.order.astype(np.int64))
        best = [exact(every[1:13], queries[0], 4)]
        best += [exact(every[:12], queries[b], 4) for b in (1, 2)]
        turns = [row[k] for k in range(4) for row in best if row[k] != every[0]]
        assert len(found) == 5
        firsts = dict.fromkeys(row[0] for row in best if row[0] != every[0])
        assert set(found[: len(firsts)].tolist()) == set(firsts)
        assert set(found.tolist()) <= set(turns)
        assert len(set(found.tolist())) == 5

    def test_prediction_gets_what_is_found(self, way):
        proposer = built()
        with backend(way):
            found = proposer.candidates(draw_queries(2))
        assert [row == proposer.order[:128].tolist() for row in rows_of(found)] == [True, True]

    @pytest.mark.parametrize("kind", [Ordered, LSHProposer, SketchProposer])
    @pytest.mark.parametrize(("count", "wanted"), [(0, 5), (3, 0), (0, 0)])
    def test_nobody_and_nothing_to_find(self, way, kind, count, wanted):
        """Kernels would write beside an empty array."""
        with backend(way):
            proposer = kind(D, N)
            proposer.rebuild(*draw_layer())
            queries = draw_queries(count)
            labels = Pattern.from_lists([[b] for b in range(count)])
            found = proposer.propose(queries, labels, np.full(count, wanted), np.uint64(0))
            assert len(found.counts) == count
            assert not found.counts.any()
            assert not len(proposer.propose_shared(queries, labels, wanted, np.uint64(0)))
            assert proposer.candidates(queries).num_rows == count


def test_a_copy_of_a_layer_scores_with_its_own_weight():
    sampler = ActiveSampler(D, N, Ordered, active=20, mode="per_sample")
    weight, bias = draw_layer()
    sampler.update(weight, bias, None)
    twin = copy.deepcopy(sampler)
    assert twin.proposer._rows is None
    assert sampler.proposer._rows is not None
    twin.update(-weight, bias, None)
    one, other = (each.select(draw_queries(1), None).ids[:4].tolist() for each in (sampler, twin))
    first = torch.from_numpy(sampler.proposer.order[:12].astype(np.int64))
    scores = weight[first] @ draw_queries(1)[0]
    expected = {
        sign: {int(first[i]) for i in (sign * scores + bias[first]).argsort(descending=True)[:4]}
        for sign in (1, -1)
    }
    assert set(one) == expected[1]
    assert set(other) == expected[-1]


def test_statistics_are_of_the_last_look_up():
    proposer = built()
    assert proposer.statistics() == {"look_up/rows_seen": 0}
    proposer.rows_scanned = 5.0
    assert proposer.statistics() == {"look_up/rows_seen": 5}
