"""Layers on other devices, with rows on the host, and in bfloat16."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from helpers.buckets import contents
from helpers.grids import pairs
from helpers.matrices import make_csr
from helpers.samplers import uniform_sampler
from helpers.sparse_layers import B, D, N, draw_labels, every_mode, every_output, make_layer
from torch import nn

import slide
from slide.backend import backend
from slide.functional.linear import active_linear
from slide.functional.losses import LOSSES
from slide.nn import ActiveLoss
from slide.nn.sampled_conv2d import SampledConv2d
from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_linear import SparseWeightLinear
from slide.ops.csr import CSRMatrix
from slide.row_gradients import dense_gradient

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
    "sketch": partial(slide.ActiveSampler, proposer=slide.SketchProposer, active=12),
    "grouped": partial(slide.ActiveSampler, active=12, mode="grouped", group_size=2),
    "lsh grouped": partial(
        slide.ActiveSampler, proposer=slide.LSHProposer, active=12, mode="grouped", group_size=2
    ),
    "recent": partial(slide.ActiveSampler, proposer=RECENT, active=12),
    "recent per sample": partial(
        slide.ActiveSampler, proposer=RECENT, active=12, mode="per_sample"
    ),
    "recent grouped": partial(
        slide.ActiveSampler, proposer=RECENT, active=12, mode="grouped", group_size=2
    ),
}


# The host asks which rows were found, to project them again after the step; or how many, which is
# the size of a group's set.
WAITING = ("lsh", "dwta per sample", "lsh grouped", "sketch", "recent grouped")
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


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "float32") for name in SAMPLERS if name not in WAITING), ("uniform", "bfloat16")],
)
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


@pytest.mark.parametrize("name", SAMPLERS)
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


@pytest.mark.parametrize("name", ["uniform", "lsh", "lsh grouped", "sketch", "recent per sample"])
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


@pytest.mark.parametrize("ways", [("kernels", "torch"), ("torch", "kernels"), ("torch",)])
def test_tables_are_right_after_steps_elsewhere(ways, monkeypatch):
    """Rows are in the buckets of their sketches, whichever way has moved them there."""
    monkeypatch.setitem(SAMPLERS, "lsh", partial(SAMPLERS["lsh"], rebuild=slide.sampling.never))
    network = make("lsh")
    optimizer = slide.RowSparseAdam(network.parameters(), lr=0.5)
    proposer, moved = network.output.sampler.proposer, []
    for way in ways:
        with backend(way):
            for _ in range(10):  # Rows of eight steps move at a time.
                before = proposer.sketches.clone()
                step(network, optimizer)
                moved.append(len(before) > 0 and not torch.equal(before, proposer.sketches))
    assert sum(moved) == len(ways)
    with backend("kernels"):
        network.eval().output.candidates(torch.ones(2, 8))
        # Kernels may round what is hashed to bfloat16.
        assert (proposer.codes == proposer._codes(proposer.sketches)).mean() > 0.99
        for codes, buckets in zip(proposer.codes, contents(proposer.tables), strict=True):
            assert all(row in buckets[code] for row, code in enumerate(codes))
    assert proposer.statistics()["tables/non_empty_share"] > 0


def test_what_only_the_cpu_computes():
    layer, x = slide.SampledLinear(4, 9, device="meta"), torch.ones(2, 4, device="meta")
    with pytest.raises(ValueError, match="search by an index on the CPU only"):
        layer.top_k(x, 2, search="index")


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


def outputs_of(out):
    return out if isinstance(out, torch.Tensor) else out.values


class TestMixedPrecision:
    """Autocast without GradScaler: bfloat16 has the range of float32."""

    @every_mode
    def test_autocast(self, mode):
        encoder, layer = nn.Linear(16, D), make_layer(mode)
        exact = copy.deepcopy(encoder), copy.deepcopy(layer)
        x, loss = torch.randn(B, 16), ActiveLoss("squared_hinge")
        with torch.autocast("cpu", torch.bfloat16):
            hidden = encoder(x)
            assert hidden.dtype == torch.bfloat16
            out = layer(hidden, draw_labels())
            assert out.values.dtype == torch.float32
            rounded = loss(out.values, out.active)
        rounded.backward()
        again = exact[1](exact[0](x), draw_labels())
        wanted = loss(again.values, again.active)
        wanted.backward()
        assert rounded.item() == pytest.approx(wanted.item(), rel=0.05)
        assert encoder.weight.grad.dtype == torch.float32
        if np.array_equal(np.sort(out.active.ids), np.sort(again.active.ids)):
            found, precise = (one.weight.grad.to_dense() for one in (layer, exact[1]))
            assert (found - precise).norm() <= 0.05 * precise.norm()
        with torch.autocast("cpu", torch.bfloat16):
            inside, _ = layer.loss(encoder(x), draw_labels(), loss)
            scores, ids = layer.top_k(encoder(x), 3)
        inside.backward()
        assert inside.dtype == scores.dtype == torch.float32
        assert ids.shape == (B, 3)

    @pairs(
        name=["conv", "csr", "linear"], dtype=[torch.float32, torch.bfloat16], inside=[False, True]
    )
    def test_layers_that_autocast_does_not_round(self, name, dtype, inside):
        """What they compute is that of the input, as it came, in float32; forward and backward."""
        if name == "conv":
            sampler = uniform_sampler(18, 8, active=4)
            layer, x = SampledConv2d(2, 8, 3, sampler=sampler), (B, 2, 6, 6)
        elif name == "linear":
            layer, x = SampledLinear(D, N), (B, D)
        else:
            matrix = CSRMatrix(make_csr(np.random.default_rng(0), [3] * N, D), D)
            layer, x = SparseWeightLinear(matrix), (B, D)
        twin, x = copy.deepcopy(layer), torch.randn(x).to(dtype).requires_grad_()
        exact = x.detach().float().requires_grad_()
        # To bfloat16, a sampled linear layer is rounded.
        with torch.autocast("cpu", torch.float16 if name == "linear" else torch.bfloat16):
            out = outputs_of(layer(x))
            loss = out.square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        wanted = outputs_of(twin(exact))
        wanted.square().sum().backward()
        torch.testing.assert_close(out, wanted)
        torch.testing.assert_close(x.grad, exact.grad.to(dtype))
        if name != "csr":
            torch.testing.assert_close(dense_gradient(layer.weight), dense_gradient(twin.weight))
        else:
            torch.testing.assert_close(layer.values.grad, twin.values.grad)

    @pytest.mark.parametrize("autocast", [False, True])
    def test_inputs_of_no_use(self, autocast):
        linear, conv = make_layer("shared"), SampledConv2d(2, 8, 3)
        images, loss = torch.randn(B, 2, 6, 6), ActiveLoss("bce")
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            hidden, pictures = linear(torch.randn(B, D)), conv(images)
            whole = torch.ones(B, D).int()
            for call in (linear, lambda x: linear.loss(x, draw_labels(), loss)):
                with pytest.raises(TypeError, match=r"put a ToDense\(\) before this layer"):
                    call(hidden)
                with pytest.raises(TypeError, match=r"input is torch.int32 but weight is"):
                    call(whole)
            with pytest.raises(TypeError, match="not Activation; give its values, and its active"):
                conv(pictures)
            with pytest.raises(TypeError, match=r"x is torch.int32 but weight is torch.float32"):
                conv(images.int())

    @every_mode
    def test_bfloat16_weights(self, mode):
        """Forward and backward, beside float32 with the same numbers."""
        active, found = every_output(mode), []
        exact = [torch.randn(B, D), torch.randn(N, D), torch.randn(N)]
        for dtype in (torch.bfloat16, torch.float32):
            x, weight, bias = (t.bfloat16().to(dtype).requires_grad_() for t in exact)
            out = active_linear(x, weight, bias, active, sparse_grad=True)
            assert out.dtype == dtype
            (out.float() ** 2).sum().backward()
            grads = [x.grad, weight.grad.to_dense(), bias.grad.to_dense()]
            assert all(g.dtype == dtype for g in grads)
            found.append([out.detach().float(), *(g.float() for g in grads)])
        for rounded, wanted in zip(*found, strict=True):
            assert (rounded - wanted).norm() <= 0.02 * wanted.norm()
