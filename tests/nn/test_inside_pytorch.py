"""Layers in programs of PyTorch: nn.Sequential, torch.compile, odd types."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr
from helpers.samplers import lsh_sampler, uniform_sampler
from helpers.small_layers import MODES, B, D, N, draw_labels, every_mode, make_layer
from torch import nn

from slide.active_set import ActiveSet
from slide.functional.csr_product import CSRMatrix
from slide.functional.linear import active_linear
from slide.nn import ActiveLoss
from slide.nn.activation import ToDense
from slide.nn.network import SlideNetwork
from slide.nn.sampled_conv2d import SampledConv2d
from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_input_linear import SparseInputLinear
from slide.nn.sparse_weight_linear import SparseWeightLinear
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient


class TestSequential:
    @every_mode
    def test_hidden_and_output_layers(self, mode):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(3, D), make_layer(mode), ToDense(), nn.ReLU(), make_layer(mode, N, 30)
        )
        x = torch.randn(B, 3, requires_grad=True)
        out = model(x)
        hidden = model[1](torch.zeros(1, D)).to_dense()
        assert hidden.shape == (1, N)
        out.values.square().sum().backward()
        assert x.grad.any()
        assert model[0].weight.grad.any()
        assert 0 < dense_gradient(model[1].weight).any(1).sum() < N
        model.eval()
        assert model(x).to_dense().shape == (B, 30)
        RowSparseAdam(model.parameters()).step()

    def test_dense_model_at_the_end(self):
        model = nn.Sequential(make_layer(), ToDense(), nn.Linear(N, 2))
        assert model(torch.randn(B, D)).shape == (B, 2)

    def test_without_to_dense(self):
        with pytest.raises(TypeError, match=r"not Activation; put a ToDense\(\) before this layer"):
            nn.Sequential(make_layer(), make_layer(in_features=N))(torch.randn(B, D))


@pytest.mark.usefixtures("one_thread")
class TestChain:
    """The second set depends on what comes out of the first layer."""

    @staticmethod
    def forward(first, second, x):
        first.sampler.load_state_dict(first.start)
        second.sampler.load_state_dict(second.start)
        hidden = first(x)
        return hidden, second(torch.tanh(hidden.to_dense()))

    @pytest.mark.parametrize("modes", [(a, b) for a in MODES for b in MODES])
    def test_gradients(self, modes):
        torch.manual_seed(3)
        options = {"candidate_share": 1.0, "weighting": "none"}
        first, second = (
            make_layer(mode, size, N, **options).double()
            for mode, size in zip(modes, (D, N), strict=True)
        )
        x = torch.randn(B, D, dtype=torch.float64, requires_grad=True)
        for layer, inputs in ((first, x), (second, torch.randn(B, N).double())):
            layer(inputs)  # Builds the tables.
            layer.start = layer.sampler.state_dict()
        hidden, out = self.forward(first, second, x)
        assert torch.autograd.gradcheck(
            lambda x: self.forward(first, second, x)[1].values, x, eps=1e-7, atol=1e-5
        )
        # Other inputs, other sets: the second one was chosen by what the first one gave.
        _, other = self.forward(first, second, -x)
        assert not np.array_equal(out.active.ids, other.active.ids)

        first.weight.row_gradients, second.weight.row_gradients = [], []
        hidden, out = self.forward(first, second, x)
        out.values.square().sum().backward()
        w1, w2 = (layer.weight.detach().requires_grad_() for layer in (first, second))
        masks = [a._replace(values=torch.ones_like(a.values)).to_dense() for a in (hidden, out)]
        dense = torch.tanh((x @ w1.T + first.bias.detach()) * masks[0])
        scores = (dense @ w2.T + second.bias.detach()) * masks[1]
        wanted = torch.autograd.grad(scores.square().sum(), [w1, w2])
        torch.testing.assert_close(dense_gradient(first.weight), wanted[0])
        torch.testing.assert_close(dense_gradient(second.weight), wanted[1])


@pytest.mark.compiled_only
@pytest.mark.filterwarnings("ignore")
class TestCompile:
    """Graph breaks at our layers, and the same results."""

    @staticmethod
    def train(model, x, labels, steps=3):
        optimizer, losses = RowSparseAdam(model.parameters(), lr=0.05), []
        for _ in range(steps):
            loss = model(x, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    @every_mode
    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_training(self, mode, backend):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder, self.output = nn.Linear(3, D), make_layer(mode)
                self.hidden, self.loss = make_layer("per_sample", D, D), ActiveLoss("softmax")

            def forward(self, x, labels):
                h = torch.relu(self.encoder(x) * 2)
                h = torch.relu(self.hidden(h + 1).to_dense())
                out = self.output(h, labels)
                return self.loss(out.values, out.active) + self.output.loss(h, labels, self.loss)[0]

        torch._dynamo.reset()
        torch.manual_seed(0)
        model, x, labels = Model(), torch.randn(B, 3), draw_labels()
        twin = copy.deepcopy(model)
        compiled = torch.compile(model, backend=backend)
        found, wanted = self.train(compiled, x, labels), self.train(twin, x, labels)
        assert found == pytest.approx(wanted, rel=1e-5)
        torch.testing.assert_close(model.output.weight, twin.output.weight)

    def test_other_layers(self):
        torch._dynamo.reset()
        features = make_csr(np.random.default_rng(0), [3, 0, 7, 1, 2], N)
        network = SlideNetwork(N, [D], N, lambda d, n: uniform_sampler(d, n, active=10))
        twin = copy.deepcopy(network)
        found = torch.compile(network, backend="eager")(features, draw_labels())
        wanted = twin(features, draw_labels())
        torch.testing.assert_close(found.values, wanted.values)
        layer = SparseWeightLinear(CSRMatrix(make_csr(np.random.default_rng(0), [3] * N, D), D))
        x = torch.randn(B, D)
        torch.testing.assert_close(torch.compile(layer, backend="eager")(x), layer(x))

    def test_convolution(self):
        torch._dynamo.reset()
        layer = SampledConv2d(2, 20, 3, sampler=lsh_sampler(18, 20, active=8))
        twin, x = copy.deepcopy(layer), torch.randn(B, 2, 6, 6)
        found, wanted = torch.compile(layer, backend="eager")(x), twin(x)
        assert found.active.ids.tolist() == wanted.active.ids.tolist()
        torch.testing.assert_close(found.values, wanted.values)


class TestUnsupported:
    @every_mode
    def test_devices(self, mode):
        layer, x = make_layer(mode), torch.randn(B, D)
        for moved, inputs in ((copy.deepcopy(layer).to("meta"), x), (layer, x.to("meta"))):
            message = f"input or bias is on {inputs.device} but the weight is on"
            for call in (moved, partial(moved.top_k, k=2), moved.eval()):
                with pytest.raises(ValueError, match=message):
                    call(inputs)
            with pytest.raises(ValueError, match=message):
                moved.loss(inputs, draw_labels(), ActiveLoss("bce"))

    @every_mode
    @pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.complex64])
    def test_types(self, mode, dtype):
        layer, x = make_layer(mode), torch.randn(B, D)
        with pytest.raises(TypeError, match=f"input is {dtype} but weight is torch.float32"):
            layer(x.to(dtype))
        weight, active = torch.ones(N, D).to(dtype), ActiveSet(N, np.arange(3, dtype=np.int32))
        with pytest.raises(TypeError, match=f"must be float32, bfloat16 or float64, not {dtype}"):
            active_linear(x.to(dtype), weight, None, active)

    def test_shapes_and_kinds(self):
        for x in (torch.zeros(D), torch.zeros(2, 3, D), torch.zeros(B, D + 1)):
            with pytest.raises(ValueError, match="does not fit weight"):
                make_layer()(x)
        with pytest.raises(TypeError, match="the input must be a tensor, not list"):
            make_layer()([[0.0] * D])
        with pytest.raises(ValueError, match="sparse_grad must be true or false, not 1"):
            SampledLinear(D, N, sparse_grad=1)

    def test_float16_sparse_input(self):
        x = make_csr(np.random.default_rng(0), [3], N)
        with pytest.raises(TypeError, match=r"must be float32 or float64, not torch.float16"):
            SparseInputLinear(N, D).half()(x)
