"""The graph of labels: a plain twin, what it finds, and its state."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.layers import D, N, draw_layer, draw_queries, every_mode, recall
from helpers.matrices import make_pattern
from helpers.samplers import neighbour_sampler

from slide.nn import SampledLinear
from slide.sampling import NeighbourProposer
from slide.search import exact_top_k
from slide.sparse import CSR, Pattern


def draw_labels(seed, counts=(2, 1, 0, 3, 1)):
    return make_pattern(np.random.default_rng(seed), list(counts), N)


def rows_of(pattern):
    return [
        pattern.indices[a:b].tolist()
        for a, b in zip(pattern.indptr[:-1], pattern.indptr[1:], strict=True)
    ]


class Naive:
    """The graph as a dictionary from a label to its neighbours."""

    def __init__(self, width, explore, best):
        self.width, self.explore, self.best, self.graph = width, explore, best, {}

    def step(self, queries, labels, weight, bias):
        """The candidates of each sample; the graph changes after all of them are known."""
        flat, ranked, end = labels.indices.tolist(), [], 0
        for query, own in zip(queries.double(), rows_of(labels), strict=True):
            end += len(own)
            scored = {*own, *(i for a in own for i in self.graph.get(a, []))}
            scored |= {flat[(end + i) % len(flat)] for i in range(self.explore)}
            score = {i: float(query @ weight[i].double() + bias[i]) for i in scored}
            ranked.append((own, sorted(scored, key=lambda i, score=score: -score[i])))
        for own, order in ranked:
            kept = max(self.width, self.best) + max(map(len, rows_of(labels)))
            for a in own:
                self.graph[a] = [i for i in order[:kept] if i != a][: self.width]
        return [[i for i in order if i not in own][: self.best] for own, order in ranked]


@pytest.mark.parametrize(
    ("width", "explore", "best"), [(3, 2, 2), (5, 0, 3), (2, 20, 6), (1, 1, 1)]
)
def test_is_the_same_as_its_twin(width, explore, best):
    weight, bias = draw_layer()
    sampler = neighbour_sampler(
        *(D, N), width=width, explore=explore, best=best, active=30, mode="per_sample"
    )
    naive, generator = Naive(width, explore, best), torch.Generator().manual_seed(0)
    for step in range(12):
        # Few different labels, so that samples share them and the lists fill up.
        drawn = draw_labels(step)
        labels = Pattern(drawn.indptr, drawn.indices % 50 + np.arange(7, dtype=np.int32) * 50)
        if step % 3 == 2:  # A label of two samples.
            labels.indices[-1] = labels.indices[0]
        queries = draw_queries(5, step)
        sampler.update(weight, bias, queries)
        found = sampler.proposer.look_up(queries, labels)
        sampler.select(queries, labels)
        assert rows_of(found) == naive.step(queries, labels, weight, bias)
        weight += 0.3 * torch.randn(N, D, generator=generator)
    for label in range(N):
        assert sampler.proposer.neighbours(label).tolist() == naive.graph.get(label, [])
    assert max(map(len, naive.graph.values())) == width


def test_recall_grows_as_the_graph_does():
    """The same samples again and again: what is best for them is found among neighbours."""
    layer = draw_layer()
    queries = draw_queries(60)
    labels = Pattern(
        np.arange(61), exact_top_k(queries, *layer, 1)[1].ravel().numpy().astype(np.int32)
    )
    sampler = neighbour_sampler(D, N, explore=4, active=24, mode="per_sample")
    known = np.unique(labels.indices)
    answers = exact_top_k(queries, layer[0][known], layer[1][known], 5)[1].numpy()
    wanted, found = known[answers], []
    generator = np.random.default_rng(0)
    for _ in range(30):
        order = generator.permutation(60)
        mixed = Pattern(labels.indptr, labels.indices[order])
        sampler.update(*layer, queries[order])
        found.append(recall(sampler.select(queries[order], mixed), wanted[order]))
    assert found[0] < 0.6
    assert found[-1] > 0.75


def test_scores_that_are_no_numbers_and_samples_without_labels():
    weight, bias = draw_layer()
    weight[7] = torch.nan
    sampler = neighbour_sampler(D, N, active=20, mode="per_sample")
    for _ in range(2):
        sampler.update(weight, bias, draw_queries(3))
        active = sampler.select(draw_queries(3), Pattern.from_lists([[7, 8], [], [9]]))
    assert all(len(np.unique(active.row(b))) == 20 for b in range(3))
    nobody = Pattern(np.zeros(4, np.int64), np.empty(0, np.int32))
    assert not len(sampler.proposer.look_up(draw_queries(3), nobody).indices)


def test_evaluation_leaves_the_graph():
    sampler = neighbour_sampler(D, N, active=16, mode="per_sample")
    sampler.update(*draw_layer(), None)
    sampler.select(draw_queries(5), draw_labels(0))
    assert (sampler.proposer.graph == -1).all()


def test_is_no_index_for_prediction():
    layer = SampledLinear(D, N, neighbour_sampler(D, N, active=16))
    with pytest.raises(ValueError, match="needs a sampler with an index"):
        layer.top_k(draw_queries(2), 3, search="sampler")


def test_sparse_inputs_are_refused():
    rows = CSR(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    with pytest.raises(TypeError, match="NeighbourProposer takes dense inputs only"):
        NeighbourProposer(D, N).look_up(rows, Pattern.from_lists([[1]]))


@every_mode
def test_resumes(mode):
    make = partial(neighbour_sampler, D, N, width=4, explore=3, best=3, active=20, mode=mode)
    sampler, other, layer = make(), make(), draw_layer()

    def steps(each, first, last):
        for step in range(first, last):
            each.update(*layer, draw_queries(5, step))
            ids = each.select(draw_queries(5, step), draw_labels(step)).ids
        return ids

    steps(sampler, 0, 3)
    other.load_state_dict(sampler.state_dict())
    np.testing.assert_array_equal(steps(sampler, 3, 6), steps(other, 3, 6))
    np.testing.assert_array_equal(sampler.proposer.graph, other.proposer.graph)


def test_state_of_another_shape():
    state = NeighbourProposer(D, N, width=3).state_dict()
    with pytest.raises(ValueError, match=r"a graph of shape \(400, 3\) does not fit one of"):
        NeighbourProposer(D, N).load_state_dict(state)


@pytest.mark.parametrize(("name", "least"), [("width", 1), ("explore", 0), ("best", 1)])
def test_options_out_of_range(name, least):
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least {least}"):
        NeighbourProposer(D, N, **{name: least - 1})
