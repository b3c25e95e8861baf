"""Layers whose rows stay on the CPU while they compute on another device.

Plain torch on the CPU fetches rows as another device does, so it can be compared. On ``meta``,
whose tensors have no values, it shows what a step sends where.
"""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr

import slide
from slide.distributed import Group, ShardedNetwork, ShardedOutputLinear, Shares
from slide.ops.backend import backend

UNIFORM = partial(slide.ActiveSampler, active=12)
LSH = partial(UNIFORM, proposer=slide.LSHProposer)
SAMPLERS = {
    "full": slide.FullSampler,
    "uniform": UNIFORM,
    "uniform per sample": partial(UNIFORM, mode="per_sample"),
    "lsh": LSH,
    "lsh per sample": partial(LSH, mode="per_sample"),
}
LABELS = slide.Pattern.from_lists([[3], [5, 7], [], [5]])


def make(name, host_rows=True, **options):
    torch.manual_seed(0)
    network = slide.SlideNetwork(50, [8], 200, SAMPLERS[name], **options)
    return network.keep_rows_on_host() if host_rows else network


def features(step=0):
    return make_csr(np.random.default_rng(step), [3, 0, 5, 1], 50)


def train(network, steps=4, optimizer=None, clip=1.0):
    optimizer = optimizer or slide.RowSparseAdam(
        network.parameters(), lr=0.05, correct_skipped=True
    )
    losses, loss = [], slide.ActiveLoss("softmax", 0.5)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(2):  # Two backward passes, whose gradients are added up.
            hidden = network.encode(features(2 * step + part))
            value, active = network.output.loss(hidden, LABELS, loss)
            assert active.out_features == 200
            value.backward()
            losses.append(value.item())
        slide.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()
    return losses, optimizer


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "float32") for name in SAMPLERS), ("uniform", "bfloat16")],
)
def test_as_if_all_rows_were_on_the_device(name, precision):
    """Losses, weights, moments and answers are equal in each bit, but for what clipping rounds."""
    found = []
    with backend("torch"):
        for host_rows in (False, True):
            network = make(name, host_rows, dropout=0.3, precision=precision)
            losses, optimizer = train(network, clip=1e9)
            moments = [s[key] for s in optimizer.state.values() for key in ("exp_avg", "last_step")]
            tensors = [*network.parameters(), *moments]
            answers = network.eval().predict(features(), k=5)
            found.append((losses, tensors, [*answers, network(features()).values]))
    assert found[0][0] == found[1][0]
    for index in (1, 2):
        for one, other in zip(found[0][index], found[1][index], strict=True):
            assert torch.equal(one, other)


def test_functions_as_losses_see_the_set_of_the_layer():
    seen = []

    def loss(values, active):
        seen.append((active.out_features, max(active.ids)))
        return values.square().mean()

    with backend("torch"):
        make("uniform").output.loss(torch.ones(4, 8), LABELS, loss)[0].backward()
    ((outputs, largest),) = seen
    assert outputs == 200
    assert largest > 12


@pytest.mark.parametrize("name", ["full", "uniform", "uniform per sample"])
def test_a_step_sends_rows_of_the_active_set_only(name):
    """On the device are inputs, scores and the rows of the set; nothing comes back before step."""
    network = make(name, dropout=0.3).to("meta")
    places = {n: p.device.type for n, p in network.named_parameters()}
    assert places == {
        "first.weight": "cpu",
        "first.bias": "meta",
        "output.weight": "cpu",
        "output.bias": "cpu",
    }
    optimizer = slide.RowSparseAdam(network.parameters())
    x = features()
    value, active = network.output.loss(network.encode(x), LABELS, slide.ActiveLoss("softmax"))
    value.backward()
    slide.clip_grad_norm_(network.parameters(), 1.0)
    assert isinstance(active.ids, np.ndarray)
    for layer, ids in ((network.first, x.indices), (network.output, active.ids)):
        (gradient,) = layer.weight.row_gradients
        assert gradient.rows.device.type == "meta"
        assert gradient.rows.shape == (len(np.unique(ids)), 8)
        np.testing.assert_array_equal(np.sort(gradient.ids), np.unique(ids))
    with pytest.raises(NotImplementedError, match="meta"):  # The optimizer takes rows to the host.
        optimizer.step()
    scores, _ = network.eval().predict(x, k=3)
    assert scores.device.type == "meta"


def test_rows_without_features():
    """Nothing is fetched, and the gradient has no rows."""
    with backend("torch"):
        network, empty = make("uniform"), make_csr(np.random.default_rng(0), [0, 0, 0, 0], 50)
        value, _ = network.output.loss(network.encode(empty), LABELS, slide.ActiveLoss("softmax"))
        value.backward()
        (gradient,) = network.first.weight.row_gradients
    assert gradient.rows.shape == (0, 8)


def test_a_layer_that_was_moved_is_refused():
    network = make("uniform", host_rows=False).to("meta")
    with pytest.raises(ValueError, match="on meta: call keep_rows_on_host before"):
        network.keep_rows_on_host()


def test_an_index_waits_for_the_inputs():
    network = make("lsh").to("meta")
    with pytest.raises(NotImplementedError, match="meta"):
        network.output(torch.ones(2, 8, device="meta"), [[1], [2]])


def test_kernels_read_rows_where_they_are():
    """On the CPU the option changes nothing."""
    losses = [train(make("lsh", host_rows))[0] for host_rows in (False, True)]
    assert losses[0] == losses[1]


def test_types_copies_and_states_follow():
    network = make("uniform").double()
    assert {p.dtype for p in network.parameters()} == {torch.float64}
    twin = copy.deepcopy(network).to("meta")
    assert twin.output.weight.device.type == "cpu"
    twin.output.load_state_dict(make("uniform", host_rows=False).double().output.state_dict())
    assert make("uniform").to(torch.bfloat16).output.bias.dtype == torch.bfloat16
    made = slide.SampledLinear(4, 9, host_rows=True, device="meta")
    assert made.weight.device.type == "cpu"
    twin = slide.SampledLinear.from_linear(torch.nn.Linear(4, 9), host_rows=True)
    assert twin.host_rows


def test_gradients_for_autograd():
    with backend("torch"):
        layer = make("uniform").output
        values = layer(torch.ones(2, 8), [[1], [2]]).values
        grad = torch.autograd.grad(values.sum(), layer.weight)[0]
    assert grad.to_dense().sum() == 2 * 8 * 12


def test_what_does_not_go_together():
    with pytest.raises(ValueError, match=r"rows to slide.RowSparseAdam: set sparse_grad=False"):
        slide.SampledLinear(4, 9, sparse_grad=True, host_rows=True)
    with pytest.raises(ValueError, match="use a sampler without a proposer on this layer"):
        slide.SparseInputLinear(4, 9, LSH(4, 9), host_rows=True)
    with pytest.raises(ValueError, match="on their devices: leave out host_rows"):
        ShardedNetwork(9, [4], 9, slide.FullSampler, Group.alone()).keep_rows_on_host()
    with pytest.raises(ValueError, match="on their devices: leave out host_rows"):
        ShardedOutputLinear(4, Shares("labels", 9, 0, 1), Group.alone(), host_rows=True)
