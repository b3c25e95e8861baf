"""Layers that get more or fewer outputs, or features: sampler, optimizer and index follow."""

from functools import partial
from itertools import cycle

import numpy as np
import pytest
import scipy.sparse
import torch
from helpers.samplers import (
    faiss_sampler,
    full_sampler,
    lsh_sampler,
    published_sampler,
    recent_sampler,
    sketch_sampler,
    uniform_sampler,
)

from slide.hashing import SimHash
from slide.nn import (
    ActiveLoss,
    SampledLinear,
    SparseInputLinear,
    add_features,
    add_outputs,
    remove_outputs,
)
from slide.optim import RowSparseAdam
from slide.testing import check_sampler

pytestmark = pytest.mark.usefixtures("one_thread")
D, N = 16, 400
SAMPLERS = {
    "full": full_sampler,
    "uniform": partial(uniform_sampler, active=40),
    "small": partial(uniform_sampler, active=N + 5),
    "lsh": partial(lsh_sampler, active=40),
    "lsh, per sample": partial(lsh_sampler, active=40, mode="per_sample"),
    "lsh, grouped": partial(lsh_sampler, active=40, mode="grouped", group_size=2),
    "published": partial(published_sampler, hashes_per_table=2, num_tables=9, active=40),
    "sketch": partial(sketch_sampler, active=40),
    "faiss": partial(faiss_sampler, factory="Flat", active=40),
    "recent": partial(recent_sampler, active=40, mode="per_sample"),
}


# Proposers that take no sparse inputs.
DENSE = ("lsh", "lsh, per sample", "lsh, grouped", "sketch", "faiss", "recent")
LABELS = [[N + 2], [3], [N + 29, 5]]


def trained(name, steps=3):
    layer = SampledLinear(D, N, SAMPLERS[name](D, N))
    optimizer = RowSparseAdam(layer.parameters(), lr=0.01)
    for _ in range(steps):
        learn(layer, optimizer, [[1], [3], [5, 7]])
    return layer, optimizer


def learn(layer, optimizer, labels):
    loss, active = layer.loss(torch.randn(3, D), labels, ActiveLoss("squared_hinge"))
    loss.backward()
    optimizer.step()
    return active


@pytest.mark.parametrize("name", SAMPLERS)
def test_outputs_are_added(name):
    layer, optimizer = trained(name)
    before = layer.weight.detach().clone()
    moments = optimizer.state[layer.weight]["exp_avg"].clone()
    add_outputs(layer, 30, optimizer, init_scale=0.5)
    assert layer.weight.shape == (N + 30, D)
    assert layer.out_features == layer.sampler.out_features == N + 30
    assert torch.equal(layer.weight[:N], before)
    assert 0.3 / D**0.5 < layer.weight[N:].abs().max() <= 0.5 / D**0.5
    assert torch.equal(optimizer.state[layer.weight]["exp_avg"][:N], moments)
    assert not optimizer.state[layer.weight]["exp_avg"][N:].any()
    first = layer.weight[N + 2].clone()
    for _ in range(3):
        active = learn(layer, optimizer, LABELS)
    assert not torch.equal(layer.weight[N + 2], first)
    assert active.out_features == N + 30
    again = SampledLinear(D, N + 30, SAMPLERS[name](D, N + 30))
    again.load_state_dict(layer.state_dict())
    RowSparseAdam(again.parameters()).load_state_dict(optimizer.state_dict())


def test_the_first_bias_is_that_of_rare_labels():
    layer = SampledLinear(D, N)
    layer.bias.data.copy_(torch.linspace(-1, 1, N)[torch.randperm(N)])
    add_outputs(layer, 2)
    assert layer.bias[N:].tolist() == pytest.approx([-0.8, -0.8], abs=0.01)
    add_outputs(layer, 1, bias=0.25)
    assert layer.bias[-1] == 0.25


@pytest.mark.parametrize("name", SAMPLERS)
def test_outputs_are_removed(name):
    layer, optimizer = trained(name)
    weight = layer.weight.detach().clone()
    kept = remove_outputs(layer, np.arange(0, N, 2), optimizer)
    assert kept.tolist() == list(range(1, N, 2))
    assert torch.equal(layer.weight, weight[1::2])
    x = torch.randn(4, D)
    found = layer.top_k(x, 3)[1]
    expected = (x @ weight[1::2].T).topk(3).indices
    assert torch.equal(found, expected)
    assert len(layer(x, [[0], [199], [], [7]]).active.ids) <= 200 * 4
    learn(layer, optimizer, [[0], [199], [3]])


@pytest.mark.parametrize("name", DENSE)
def test_what_was_looked_up_before_does_not_count(name):
    """The sets after the change are full of labels, so nothing new is looked up."""
    layer, optimizer = trained(name)
    layer.eval()(torch.randn(3, D), [[1], [N - 9], [7]])  # No step follows.
    layer.train()
    remove_outputs(layer, np.arange(100, N), optimizer)
    for _ in range(3):
        learn(layer, optimizer, [list(range(50, 100))] * 3)
    learn(layer, optimizer, [[0], [99], [3]])
    assert layer.out_features == 100


@pytest.mark.parametrize("name", ["lsh", "sketch", "faiss"])
def test_the_index_of_the_sampler_has_the_new_rows(name):
    layer, optimizer = trained(name)
    add_outputs(layer, 30, optimizer)
    layer.weight.data[N:] *= 5
    found = layer.candidates(10 * layer.weight.detach()[N : N + 10])
    hit = [N + row in found.indices[slice(*found.indptr[row : row + 2])] for row in range(10)]
    assert all(hit)


@pytest.mark.parametrize(("name", "size"), [*zip(SAMPLERS, cycle([90, 30]))])
def test_a_resized_sampler_is_a_sampler(name, size):
    def make():
        sampler = SAMPLERS[name](D, 60)
        sampler.resize(size)
        return sampler

    check_sampler(make, D, sparse_inputs=name not in DENSE)


def test_features_are_added():
    layer = SparseInputLinear(6, 8)
    optimizer = RowSparseAdam(layer.parameters())
    before = layer.weight.detach().clone()
    add_features(layer, 3, optimizer, init_scale=0.2)
    x = scipy.sparse.csr_array(np.eye(9, dtype=np.float32)[[2, 8]])
    out = layer(x).to_dense()
    torch.testing.assert_close(out[0], before[2])
    torch.testing.assert_close(out[1], layer.weight[8])
    assert layer.weight[6:].std() < 0.2
    first = layer.weight.detach().clone()
    out.square().sum().backward()
    optimizer.step()
    assert (layer.weight != first).any(1).tolist() == [n in (2, 8) for n in range(9)]
    sampler = published_sampler(6, 8, family=SimHash, hashes_per_table=2, active=4)
    hashed = SparseInputLinear(6, 8, sampler)
    with pytest.raises(ValueError, match="the sampler of the layer hashes its features"):
        add_features(hashed, 1)
    add_features(SparseInputLinear(6, 8, uniform_sampler(6, 8, active=4)), 1)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_an_optimizer_of_one_parameter_changes_nothing(name):
    layer = SampledLinear(D, 5, uniform_sampler(D, 5, active=3))
    optimizer = RowSparseAdam([getattr(layer, name)])
    for change, what in ((add_outputs, 2), (remove_outputs, [1])):
        with pytest.raises(ValueError, match="the optimizer does not have this parameter"):
            change(layer, what, optimizer)
        assert layer.weight.shape == (5, D)
        assert layer.bias.shape == (5,)
    assert layer(torch.randn(3, D), [[1], [2], [4]]).values.shape == (3, 4)


def test_numbers_that_cannot_be():
    layer = SampledLinear(D, 3)
    for call in (lambda: add_outputs(layer, 0), lambda: add_features(layer, -1)):
        with pytest.raises(ValueError, match="count must be a whole number of at least 1"):
            call()
    with pytest.raises(ValueError, match=r"outputs must lie in \[0, 3\), not \[3\]"):
        remove_outputs(layer, [3])
    with pytest.raises(ValueError, match="one of the 3 outputs must stay"):
        remove_outputs(layer, [0, 1, 2])
