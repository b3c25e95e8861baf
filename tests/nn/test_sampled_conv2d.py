"""Layers that convolve on some channels, and their optimizers."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.active_sets import draw
from helpers.convolution import ORDERS, I, O
from helpers.samplers import lsh_sampler, uniform_sampler
from torch.nn import functional as torch_F

from slide import RowSparseAdam, SampledConv2d
from slide.functional.convolution import active_conv2d
from slide.sampling.schedules import fixed


def lsh(num_in, num_out, active, kernel=3, **options):
    options |= {"active": active, "rebuild": partial(fixed, every=16)}
    return lsh_sampler(num_in * kernel**2, num_out, **options)


class TestSampledConv2d:
    def test_without_a_sampler_is_nn_conv2d(self):
        options = {"stride": 2, "padding": (1, 2), "dilation": (2, 1), "groups": 2}
        layer = SampledConv2d(I, O, (3, 2), **options)
        conv = torch.nn.Conv2d(I, O, (3, 2), **options)
        conv.load_state_dict({"weight": layer.weight, "bias": layer.bias})
        x = torch.randn(2, I, 9, 9)
        out = layer(x)
        assert out.active.complete
        torch.testing.assert_close(out.values, conv(x))
        torch.testing.assert_close(out.to_dense(), conv(x))

    @pytest.mark.parametrize("make", [lsh, lambda i, o, a: uniform_sampler(i * 9, o, active=a)])
    def test_computes_the_chosen_channels(self, make):
        layer = SampledConv2d(I, 32, 3, padding=1, sampler=make(I, 32, 8))
        x = torch.randn(4, I, 6, 6)
        out = layer(x)
        ids = torch.from_numpy(out.active.ids)
        assert len(ids) == 8
        assert (ids.diff() > 0).all()
        # Each channel drawn by chance stands for as many others.
        assert out.active.log_weights.shape == (8,)
        assert np.exp(out.active.log_weights).sum() == pytest.approx(32)
        full = torch_F.conv2d(x, layer.weight, layer.bias, padding=1)
        torch.testing.assert_close(out.values, full[:, ids])
        assert layer.eval()(x).values.shape == full.shape

    def test_layers_chain(self):
        first = SampledConv2d(3, 16, 3, padding=1, sampler=lsh(3, 16, 6))
        second = SampledConv2d(16, 24, 3, stride=2, padding=1, sampler=lsh(16, 24, 10))
        optimizer = RowSparseAdam([*first.parameters(), *second.parameters()], correct_skipped=True)
        before, x = second.weight.detach().clone(), torch.randn(8, 3, 8, 8, requires_grad=True)
        a = first(x)
        b = second(torch.relu(a.values), a.active.ids)
        full = torch_F.conv2d(torch.relu(a.to_dense()), second.weight, second.bias, 2, 1)
        torch.testing.assert_close(b.values, full[:, torch.from_numpy(b.active.ids)])
        b.values.square().sum().backward()
        assert x.grad is not None
        optimizer.step()
        moved = (second.weight != before).flatten(2).any(2).nonzero().tolist()
        pairs = [[o, i] for o in b.active.ids for i in a.active.ids]
        assert all(pair in pairs for pair in moved)
        assert len(moved) > len(pairs) / 2

    def test_filters_that_fit_are_chosen(self):
        """The images show one filter's pattern everywhere."""
        sampler = lsh(4, 64, 12, kernel=2, candidate_share=1.0)
        layer = SampledConv2d(4, 64, 2, stride=2, sampler=sampler)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(64, 4, 2, 2))
        wanted = [10, 30, 50]
        found = layer(layer.weight.detach()[wanted].repeat(4, 1, 5, 5)).active.ids
        assert set(wanted) <= {*found}

    @pytest.mark.parametrize("padding", [0, 2])
    def test_patches(self, padding):
        layer = SampledConv2d(3, 8, (3, 2), stride=(1, 2), padding=padding, dilation=(2, 1))
        x = torch.randn(5, 3, 8, 7)
        every = torch_F.unfold(x, (3, 2), (2, 1), padding, (1, 2))
        found = layer._patches(x, None)
        positions = [(every[b] == found[b][:, None]).all(0).nonzero().flatten() for b in range(5)]
        assert all(len(position) for position in positions)
        assert len({int(position[0]) for position in positions}) == 5
        some = np.array([0, 2])
        partial_ = layer._patches(x[:, some], some).view(5, 3, -1)
        torch.testing.assert_close(partial_, layer._patches(x, some).view(5, 3, -1))
        torch.testing.assert_close(partial_[:, some], found.view(5, 3, -1)[:, some])
        assert not partial_[:, 1].any()

    def test_errors(self):
        with pytest.raises(ValueError, match="a sampler needs groups=1, not 2"):
            SampledConv2d(I, O, 3, groups=2, sampler=lsh(I, O, 4))
        with pytest.raises(ValueError, match="in_channels must be a whole number of at least 1"):
            SampledConv2d(0, O, 3)
        with pytest.raises(ValueError, match="a height and width of at least 1, not "):
            SampledConv2d(I, O, 3, padding=1)(torch.zeros(2, I, 5, 0))
        assert SampledConv2d(I, O, 3)(torch.zeros(0, I, 5, 5)).values.shape == (0, O, 3, 3)
        with pytest.raises(ValueError, match="6 and 8 channels do not divide into 4 groups"):
            SampledConv2d(I, O, 3, groups=4)
        with pytest.raises(ValueError, match="a sampler of 9 outputs does not fit a layer of 8"):
            SampledConv2d(I, O, 3, sampler=lsh(I, 9, 4))
        for mode in ("per_sample", "grouped"):
            sampler = uniform_sampler(I * 9, O, active=4, mode=mode)
            with pytest.raises(ValueError, match="one set for the batch"):
                SampledConv2d(I, O, 3, sampler=sampler)(torch.zeros(2, I, 5, 5))
        with pytest.raises(ValueError, match=r"x \(2, 5, 5, 5\) must have 6 channels"):
            SampledConv2d(I, O, 3)(torch.zeros(2, 5, 5, 5))


def test_a_model_in_channels_last():
    x, grown = torch.randn(4, I, 6, 6), []
    for order in ORDERS:
        torch.manual_seed(0)
        model = torch.nn.Sequential(SampledConv2d(I, O, 3)).to(memory_format=order)
        optimizer = RowSparseAdam(model.parameters(), lr=0.01)
        for _ in range(2):
            model(x.contiguous(memory_format=order)).values.square().sum().backward()
            optimizer.step()
        grown.append(model[0].weight.detach())
    torch.testing.assert_close(*grown)
    # A weight that is not part of a layer.
    weight = draw(O, I, 3, 3).detach().contiguous(memory_format=torch.channels_last)
    weight.requires_grad_()
    active_conv2d(x.double(), weight).sum().backward()
    with pytest.raises(ValueError, match=r"\(8, 6, 3, 3\) has strides .*contiguous\(\)"):
        RowSparseAdam([weight]).step()


@pytest.mark.parametrize(
    ("kind", "sparse_grad"),
    [(torch.optim.SparseAdam, True), (RowSparseAdam, True), (RowSparseAdam, False)],
)
def test_optimizers_of_sparse_gradients(kind, sparse_grad):
    layer = SampledConv2d(I, O, 3, groups=2, sparse_grad=sparse_grad)
    conv = torch.nn.Conv2d(I, O, 3, groups=2)
    conv.load_state_dict(layer.state_dict())
    x, ours = torch.randn(4, I, 6, 6), kind(layer.parameters(), lr=0.01)
    theirs = torch.optim.Adam(conv.parameters(), lr=0.01)
    for _ in range(3):
        for optimizer, values in ((ours, layer(x).values), (theirs, conv(x))):
            optimizer.zero_grad()
            values.square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(layer.weight, conv.weight, rtol=1e-3, atol=1e-5)
