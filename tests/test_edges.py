"""Numbers and shapes at the edge: each layer and loss against dense formulas in float64."""

from functools import partial
from itertools import cycle

import pytest
import torch
from helpers.samplers import full_sampler, lsh_sampler, sketch_sampler, uniform_sampler

from slide.functional.losses import LOSSES
from slide.nn import ActiveLoss, SampledLinear
from slide.optim import RowSparseAdam
from slide.row_gradients import dense_gradient
from slide.sparse import Pattern

pytestmark = pytest.mark.usefixtures("one_thread")

D, N = 6, 20
SAMPLERS = {
    "uniform shared": partial(uniform_sampler, mode="shared"),
    "uniform per sample": partial(uniform_sampler, mode="per_sample"),
    "uniform grouped": partial(uniform_sampler, mode="grouped", group_size=2),
    "tables shared": partial(lsh_sampler, mode="shared"),
    "tables per sample": partial(lsh_sampler, mode="per_sample"),
    "tables grouped": partial(lsh_sampler, mode="grouped", group_size=2, lookups=1),
    "sketches shared": partial(sketch_sampler, mode="shared"),
    "sketches grouped": partial(sketch_sampler, mode="grouped", weighting="none"),
    "all": lambda inputs, outputs, active: full_sampler(inputs, outputs),
}


def expected(x, weight, bias, labels, active, name):
    """The mean loss over the sets, from all scores in float64."""
    scores, total = x @ weight.T + bias, 0.0
    for b, row in enumerate(scores):
        ids = torch.from_numpy(active.row(b)).long()
        begin = 0 if active.indptr is None else active.indptr[b]
        own = torch.from_numpy(labels.indices[labels.indptr[b] : labels.indptr[b + 1]])
        truth = torch.isin(ids, own)
        assert int(truth.sum()) == len(own), "a label is not in the set"
        weights = active.log_weights
        if weights is not None:
            weights = torch.from_numpy(weights[begin : begin + len(ids)]).double()[None]
        lone = truth.all() if name == "decoupled_softmax" else not truth.any()
        if lone and name.endswith("softmax"):  # There is nothing to compare with.
            total = total + 0 * row.sum()
            continue
        total = total + LOSSES[name].dense(row[None, ids], truth[None], weights).sum()
    return total / len(x)


def assert_step_is_right(layer, x, labels, name):
    """Loss and gradients of a layer equal those of the formula, and a step stays finite."""
    x = x.clone().requires_grad_()
    loss, active = layer.loss(x, labels, ActiveLoss(name))
    loss.backward()
    leaves = [each.detach().double().requires_grad_() for each in (x, layer.weight, layer.bias)]
    wanted = expected(*leaves, labels, active, name)
    wanted.backward()
    assert torch.isfinite(loss)
    close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-3)
    close(loss.double(), wanted)
    close(x.grad.double(), leaves[0].grad)
    for own, plain in zip((layer.weight, layer.bias), leaves[1:], strict=True):
        close(dense_gradient(own).double(), plain.grad)
    RowSparseAdam(layer.parameters(), lr=0.1).step()
    assert all(torch.isfinite(each).all() for each in layer.parameters())
    return active


def make_layer(kind, active=8, inputs=D, outputs=N):
    return SampledLinear(inputs, outputs, SAMPLERS[kind](inputs, outputs, active=active))


@pytest.mark.parametrize(("kind", "name"), [*zip(SAMPLERS, cycle(LOSSES))])
class TestLabels:
    def test_more_than_there_are_places(self, name, kind):
        labels = Pattern.from_lists([list(range(12)), [3], [15, 14, 13, 1, 2, 5]])
        active = assert_step_is_right(make_layer(kind, active=4), torch.randn(3, D), labels, name)
        assert len(active.row(0)) >= 12

    def test_rows_without_labels(self, name, kind):
        x, layer = torch.randn(3, D), make_layer(kind)
        assert_step_is_right(layer, x, Pattern.from_lists([[], [4], []]), name)
        assert_step_is_right(make_layer(kind), x, Pattern.from_lists([[], [], []]), name)

    def test_fewer_outputs_than_places(self, name, kind):
        layer = make_layer(kind, active=50, outputs=3)
        labels = Pattern.from_lists([[2], [0, 1], [], [0, 1, 2]])
        active = assert_step_is_right(layer, torch.randn(4, D), labels, name)
        assert sorted(active.row(0).tolist()) == [0, 1, 2]

    def test_one_row_one_output_one_input(self, name, kind):
        layer = make_layer(kind, inputs=2 if "tables" in kind else 1, outputs=1)
        x = torch.full((1, layer.in_features), 0.5)
        for lists in ([[0]], [[]]):
            active = assert_step_is_right(layer, x, Pattern.from_lists(lists), name)
            assert active.row(0).tolist() == [0]
        assert layer.top_k(x, 1)[1].tolist() == [[0]]
