"""Layers and networks as modules of PyTorch, and back."""

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, to_dense
from helpers.small_layers import make_layer
from torch import nn

import slide
from slide.nn import TorchTwin

pytestmark = pytest.mark.usefixtures("one_thread")
FEATURES, LABELS, K = 40, 30, 4
FLOATS = [torch.float32, torch.float64]


def make_network(hidden=(8, 6), sampler=slide.FullSampler):
    network = slide.SlideNetwork(FEATURES, list(hidden), LABELS, sampler)
    for parameter in network.parameters():  # Biases, too.
        nn.init.normal_(parameter)
    return network.eval()


def draw_rows(sizes, dtype=np.float32):
    return make_csr(np.random.default_rng(0), sizes, FEATURES, dtype)


def tensors(rows):
    return [torch.from_numpy(array) for array in rows]


def assert_same_answers(found, network, rows):
    scores, ids = (torch.as_tensor(each) for each in found)
    expected, expected_ids = network.predict(rows, K)
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(ids, expected_ids)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_sampled_linear_from_and_to_linear(dtype, bias):
    linear = nn.Linear(8, 60, bias=bias, dtype=dtype)
    layer = slide.SampledLinear.from_linear(linear).eval()
    x = torch.randn(3, 8, dtype=dtype)
    again = layer.to_linear()
    torch.testing.assert_close(layer(x).to_dense(), linear(x).to(layer(x).values.dtype))
    assert torch.equal(again(x), linear(x))
    assert (again.in_features, again.out_features, again.weight.dtype) == (8, 60, dtype)
    with torch.no_grad():
        layer.weight.zero_()
    assert linear.weight.any(), "the weights are shared"
    assert again.weight.any()


def test_options_of_from_linear():
    sampler = slide.ActiveSampler(8, 60, active=16)
    options = {"sparse_grad": True, "precision": "bfloat16"}
    layer = slide.SampledLinear.from_linear(nn.Linear(8, 60), sampler, **options)
    assert layer(torch.randn(2, 8)).values.shape == (2, 16)
    assert (layer.sparse_grad, layer.precision) == (True, "bfloat16")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bias", [True, False])
def test_sparse_input_linear_from_and_to_linear(dtype, bias):
    linear = nn.Linear(FEATURES, 8, bias=bias, dtype=dtype)
    layer = slide.SparseInputLinear.from_linear(linear)
    rows = draw_rows([3, 0, 7], str(dtype).removeprefix("torch."))
    x, again = to_dense(rows, FEATURES), layer.to_linear()
    torch.testing.assert_close(layer(rows).values, linear(x))
    torch.testing.assert_close(again(x), linear(x))


def test_only_linear_layers_are_taken():
    with pytest.raises(TypeError, match=r"come from an nn\.Linear, not Embedding"):
        slide.SampledLinear.from_linear(nn.Embedding(3, 4))
    for kind in (slide.SampledLinear, slide.SparseInputLinear):
        with pytest.raises(TypeError, match=r"not torch\.float16"):
            kind.from_linear(nn.Linear(3, 4, dtype=torch.float16))


def matrix():
    return slide.CSRMatrix(draw_rows([3, 4]), FEATURES)


MAKERS = {
    "sampled": lambda **more: slide.SampledLinear(4, 9, **more),
    "sparse input": lambda **more: slide.SparseInputLinear(4, 9, **more),
    "sparse weight": lambda **more: slide.SparseWeightLinear(matrix(), **more),
    "convolution": lambda **more: slide.SampledConv2d(2, 4, 3, **more),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_device_and_dtype(make):
    for dtype in FLOATS:
        layer = make(device="cpu", dtype=dtype)
        assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    assert {parameter.dtype for parameter in make().parameters()} == {torch.float32}
    assert make(device=torch.device("cpu", 0)).bias is not None
    with pytest.raises(TypeError, match=r"one of torch\.float32, .*, not torch\.float16"):
        make(dtype=torch.float16)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_layers_are_made_on_any_device(make):
    layer = make(device="meta")
    assert {each.device.type for each in (*layer.parameters(), *layer.buffers())} == {"meta"}


def test_bfloat16_is_for_sampled_linear_alone():
    assert MAKERS["sampled"](dtype=torch.bfloat16).bias.dtype == torch.bfloat16
    with pytest.raises(TypeError, match=r"not torch\.bfloat16"):
        MAKERS["sparse input"](dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_sparse_weight_computes_in_its_dtype(dtype):
    layer = slide.SparseWeightLinear(matrix(), dtype=dtype, trainable=False)
    assert layer(torch.ones(1, FEATURES, dtype=dtype)).dtype == dtype


class Exact(slide.Proposer):
    """Keeps the rows that it was built from."""

    def rebuild(self, weight, bias):
        self.rows = weight.clone()

    def candidates(self, queries):
        return slide.Pattern.from_lists((queries @ self.rows.T).topk(5).indices.tolist())


def test_a_layer_loads_the_state_of_a_linear_layer():
    """Its index holds the new rows then."""
    linear = nn.Linear(8, 60)
    layer = slide.SampledLinear(8, 60, slide.ActiveSampler(8, 60, Exact, active=12))
    layer(torch.randn(2, 8))
    layer.load_state_dict(linear.state_dict())
    layer(torch.randn(2, 8))
    assert torch.equal(layer.sampler.proposer.rows, linear.weight)
    assert torch.equal(layer.to_linear().weight, linear.weight)
    nn.Linear(8, 60).load_state_dict(layer.to_linear().state_dict())


def test_other_missing_keys_are_still_errors():
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "bias"'):
        make_layer().load_state_dict(nn.Linear(8, 60, bias=False).state_dict())
    with pytest.raises(RuntimeError, match=r"_extra_state"):
        make_layer().load_state_dict({})


@pytest.mark.parametrize("hidden", [(8,), (8, 7, 6)])
def test_the_twin_answers_alike(hidden):
    network = make_network(hidden)
    twin = network.to_torch(K)
    assert isinstance(twin, TorchTwin)
    for sizes in ([1], [0], [0, 5, 0], [3, 1, 20, 8]):
        rows = draw_rows(sizes)
        assert_same_answers(twin(*tensors(rows)), network, rows)


def test_the_twin_copies_weights():
    network = make_network()
    twin = network.to_torch()
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    assert all(parameter.any() for parameter in network.parameters())


@pytest.mark.parametrize("k", [0, LABELS + 1, 2.0])
def test_a_wrong_k_is_a_sentence(k):
    with pytest.raises(ValueError, match=r"k must be"):
        make_network().to_torch(k)


def test_a_trained_twin_goes_back():
    network = make_network()
    twin, rows = network.to_torch(K), draw_rows([4, 9])
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.1)
    twin(*tensors(rows))[0].sum().backward()
    optimizer.step()
    other = make_network()
    other.load_state_dict(twin.state_dict())
    assert_same_answers(twin(*tensors(rows)), other, rows)
    assert not torch.equal(other.output.weight, network.output.weight)
    state = {name: each for name, each in other.state_dict().items() if "extra" not in name}
    network.to_torch(K).load_state_dict(state)
