"""Layers on other devices than the CPU.

Here the other device is ``meta``, whose tensors have no values: a step that runs there neither
copies anything to the host nor waits for a value.
"""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.buckets import contents
from helpers.matrices import make_csr

import slide
from slide.backend import backend, plain
from slide.functional.losses import LOSSES
from slide.sampling import lsh_proposer

RECENT = partial(slide.RecentProposer, recent=3, best=2)
SAMPLERS = {
    "full": slide.FullSampler,
    "uniform": partial(slide.ActiveSampler, active=12),
    "uniform per sample": partial(slide.ActiveSampler, active=12, mode="per_sample"),
    "lsh": partial(slide.ActiveSampler, proposer=slide.LSHProposer, active=12),
    "dwta per sample": partial(
        slide.ActiveSampler,
        proposer=partial(slide.LSHProposer, family=slide.DWTA),
        active=12,
        mode="per_sample",
    ),
    "recent": partial(slide.ActiveSampler, proposer=RECENT, active=12),
    "recent per sample": partial(
        slide.ActiveSampler, proposer=RECENT, active=12, mode="per_sample"
    ),
}
every_sampler = pytest.mark.parametrize("name", SAMPLERS)
# The host asks which rows were found, to project them again after the step.
WAITING = ("lsh", "dwta per sample")
LABELS = slide.Pattern.from_lists([[3], [5, 7], [], [5]])


def make(name, **options):
    torch.manual_seed(0)
    return slide.SlideNetwork(50, [8], 200, SAMPLERS[name], **options)


def draw_features(counts=(3, 0, 5, 1)):
    return make_csr(np.random.default_rng(0), list(counts), 50)


def step(network, optimizer, loss="softmax", share=0.5, features=None):
    hidden = network.encode(features or draw_features())
    value, active = network.output.loss(hidden, LABELS, slide.ActiveLoss(loss, share))
    optimizer.zero_grad()
    value.backward()
    slide.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return value, active


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name not in WAITING])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_does_not_wait_for_values(name, precision):
    network = make(name, dropout=0.3, precision=precision).to("meta")
    optimizer = slide.RowSparseAdam(network.parameters(), correct_skipped=True)
    for loss in LOSSES:
        value, active = step(network, optimizer, loss)
        assert value.device.type == "meta"
        assert name == "full" or active.ids.device.type == "meta"
    for p in network.parameters():
        assert p.device.type == optimizer.state[p]["exp_avg"].device.type == "meta"
    network.eval()
    scores, ids = network.predict(draw_features(), k=3)
    assert scores.shape == ids.shape == (4, 3)


@every_sampler
def test_both_ways_learn_the_same(name):
    found = []
    for way in ("kernels", "torch"):
        with backend(way):
            network = make(name).double()
            optimizer = slide.RowSparseAdam(network.parameters(), lr=0.05, rowwise=True)
            # All samples have a gradient: kernels leave out the others. None has equal scores for
            # all outputs, of which each way takes others.
            words = "bce", 1.0, draw_features((3, 2, 5, 1))
            losses = [step(network, optimizer, *words)[0].item() for _ in range(6)]
            found.append((losses, network.state_dict()["output.weight"]))
    exact = name not in WAITING  # Of the same sets, logarithms of weights are rounded in two ways.
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9 if exact else 1e-6)
    torch.testing.assert_close(
        *(each[1] for each in found), rtol=1e-7 if exact else 1e-4, atol=1e-7 if exact else 1e-5
    )


@every_sampler
@pytest.mark.parametrize("ways", [("kernels", "torch"), ("torch", "kernels")])
def test_states_move(name, ways):
    network = make(name)
    optimizer = slide.RowSparseAdam(network.parameters())
    with backend(ways[0]):
        step(network, optimizer)
    other = make(name)
    others = slide.RowSparseAdam(other.parameters())
    other.load_state_dict(network.state_dict())
    others.load_state_dict(optimizer.state_dict())
    with backend(ways[1]):
        if network.output.sampler.has_index:
            found, expected = (
                each.eval().output.candidates(torch.ones(2, 8)) for each in (other, network)
            )
            assert found.indices.tolist() == expected.indices.tolist()
        value, _ = step(other.train(), others)
        assert value.isfinite()


@pytest.mark.parametrize("ways", [("kernels", "torch"), ("torch",)])
def test_tables_are_right_after_steps_elsewhere(ways, monkeypatch):
    """In plain torch, as on other devices, rows are not in tables."""
    monkeypatch.setattr(lsh_proposer, "HEAD", 4)  # Else there are no buckets.
    network = make("lsh")
    optimizer = slide.RowSparseAdam(network.parameters(), lr=0.5)
    for way in ways:
        with backend(way):
            step(network, optimizer)
    # Tables that hold nothing say nothing.
    assert "tables/non_empty_share" not in network.output.sampler.statistics()
    with backend("kernels"):
        network.eval().output.candidates(torch.ones(2, 8))
        proposer = network.output.sampler.proposer
        codes = proposer._addresses(proposer.sketches)
        np.testing.assert_array_equal(proposer.codes, codes)
        expected = slide.HashTables(len(codes), proposer.tables.num_buckets, bucket_capacity=None)
        expected.build(codes)
        for found, wanted in zip(contents(proposer.tables), contents(expected), strict=True):
            assert list(map(sorted, found)) == list(map(sorted, wanted))


def test_layers_are_made_anywhere():
    for kind in (slide.SampledLinear, slide.SparseInputLinear):
        layer = kind(4, 9, device="meta")
        assert {p.device.type for p in layer.parameters()} == {"meta"}
        twin = kind.from_linear(torch.nn.Linear(4, 9, device="meta"))
        assert {p.device.type for p in twin.parameters()} == {"meta"}
    assert plain(layer.weight)


def test_sparse_grad_for_optimizers_of_torch():
    layer = slide.SampledLinear(4, 9, slide.ActiveSampler(4, 9, active=3), sparse_grad=True)
    layer.to("meta")(torch.ones(2, 4, device="meta")).values.sum().backward()
    assert layer.weight.grad.layout == torch.sparse_coo


def test_what_must_lie_together():
    layer = slide.SampledLinear(4, 9)
    with pytest.raises(ValueError, match="is on meta but the weight is on cpu; move one of them"):
        layer(torch.ones(2, 4, device="meta"))


def test_what_only_the_cpu_computes():
    faiss = slide.ActiveSampler(4, 9, slide.FaissProposer, active=3)
    layer, x = slide.SampledLinear(4, 9, faiss).to("meta"), torch.ones(2, 4, device="meta")
    with pytest.raises(ValueError, match=r"computes searches of FAISS .* on the CPU only; got a"):
        layer(x)
    with pytest.raises(ValueError, match="search by an index on the CPU only"):
        layer.top_k(x, 2, search="index")
    listed = slide.ActiveSampler(4, 9, slide.IndexProposer, active=3)
    with pytest.raises(ValueError, match="search by an index on the CPU only"):
        slide.SampledLinear(4, 9, listed).to("meta")(x)


def compare(work):
    """The results of ``work`` by kernels and in plain torch, which are equal but for rounding."""
    found = []
    for way in ("kernels", "torch"):
        torch.manual_seed(0)
        with backend(way):
            found.append(work())
    torch.testing.assert_close(*found)
    return found


def test_neighbours_both_ways():
    """Their graph is on the host, which waits for the best of them."""

    def work():
        sampler = partial(slide.ActiveSampler, proposer=slide.NeighbourProposer, active=12)
        network = slide.SlideNetwork(50, [8], 200, partial(sampler, mode="per_sample")).double()
        optimizer = slide.RowSparseAdam(network.parameters(), lr=0.05)
        for _ in range(4):
            step(network, optimizer, "bce", 1.0)
        return network.output.weight.detach()

    compare(work)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_convolutions_both_ways(groups, last):
    def work():
        conv = slide.SampledConv2d(4, 6, 3, groups=groups).double()
        x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
        x = x.to(memory_format=torch.channels_last) if last else x
        x.requires_grad_()
        out = slide.active_conv2d(
            x, conv.weight, conv.bias, np.array([0, 3]), np.array([5, 1, 2]), groups=groups
        )
        out.square().sum().backward()
        rows = slide.row_gradients.dense_gradient(conv.weight)
        return [out.detach(), x.grad, rows, conv(x.detach()).values.detach()]

    compare(work)


def test_convolutions_do_not_wait_for_values():
    conv, x = slide.SampledConv2d(4, 6, 3, device="meta"), torch.ones(2, 4, 6, 5, device="meta")
    conv(x.requires_grad_()).values.sum().backward()
    values = slide.active_conv2d(x, conv.weight, conv.bias, np.array([0, 3]), np.array([5, 1]))
    values.sum().backward()
    slide.RowSparseAdam(conv.parameters()).step()
    assert values.shape == (2, 2, 4, 3)
    sampled = slide.SampledConv2d(4, 6, 3, sampler=slide.ActiveSampler(36, 6, active=3)).to("meta")
    with pytest.raises(NotImplementedError, match="meta"):  # The host asks which were drawn.
        sampled(x)


@pytest.mark.parametrize("trainable", [False, True])
def test_sparse_weights_both_ways(trainable):
    csr = make_csr(np.random.default_rng(0), [3, 0, 5, 1], 7)

    def work():
        layer = slide.SparseWeightLinear(slide.CSRMatrix(csr, 7), trainable=trainable)
        x = torch.randn(5, 7, requires_grad=True)
        layer(x).square().sum().backward()
        return [x.grad, layer.bias.grad, *([layer.values.grad] if trainable else [])]

    compare(work)
    vector = [slide.csr_matmul(slide.CSRMatrix(csr, 7), torch.ones(7))]
    with backend("torch"):
        vector.append(slide.csr_matmul(slide.CSRMatrix(csr, 7), torch.ones(7)))
    torch.testing.assert_close(*vector)


@pytest.mark.parametrize("trainable", [False, True])
def test_sparse_weights_do_not_wait_for_values(trainable):
    matrix = slide.CSRMatrix(make_csr(np.random.default_rng(0), [3, 0, 5, 1], 7), 7)
    layer = slide.SparseWeightLinear(matrix, trainable=trainable, device="meta")
    x = torch.ones(2, 7, device="meta", requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.shape == x.shape
    assert {p.device.type for p in [*layer.parameters(), *layer.buffers()]} == {"meta"}
    twin = slide.SparseWeightLinear(matrix, trainable=trainable)
    twin.load_state_dict({**twin.state_dict()})


def test_unknown_backend():
    with pytest.raises(ValueError, match="backend must be one of kernels, torch, not 'cuda'"):
        backend("cuda").__enter__()
