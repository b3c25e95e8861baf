"""The stack of layers: forward, prediction, training, its state; to PyTorch and back."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.grids import pairs
from helpers.matrices import make_csr, make_pattern, to_dense
from helpers.samplers import lsh_sampler, uniform_sampler
from torch import nn

import slide
from slide.nn.network import SlideNetwork
from slide.sampling import FullSampler

pytestmark = pytest.mark.usefixtures("one_thread")
FEATURES, N, K = 40, 50, 4
FLOATS = [torch.float32, torch.float64]
LSH = partial(lsh_sampler, active=16)
SOME = partial(uniform_sampler, active=5, mode="per_sample")


def make(hidden=(8, 7), sampler=LSH, **options):
    torch.manual_seed(0)
    return SlideNetwork(FEATURES, list(hidden), N, sampler, **options)


def draw_batch(seed=0, num_samples=6):
    rng = np.random.default_rng(seed)
    features = make_csr(rng, rng.integers(1, 9, num_samples), FEATURES)
    return features, make_pattern(rng, rng.integers(1, 4, num_samples), N)


def dense_hidden(network, features):
    x = torch.relu(to_dense(features, FEATURES) @ network.first.weight + network.first.bias)
    for layer in network.hidden:
        x = torch.relu(x @ layer.weight.T + layer.bias)
    return x


@pytest.mark.parametrize("hidden", [(8,), (8, 7, 9)])
def test_forward_is_the_dense_network_on_the_set(hidden):
    network = make(hidden)
    features, labels = draw_batch()
    out = network(features, labels)
    x = dense_hidden(network, features)
    torch.testing.assert_close(network.encode(features), x)
    full = x @ network.output.weight.T + network.output.bias
    ids = torch.from_numpy(out.active.ids).long()
    torch.testing.assert_close(out.values, full[:, ids])
    assert set(labels.indices.tolist()) <= set(ids.tolist())
    assert [type(layer).__name__ for layer in network.layers()] == [
        "SparseInputLinear",
        *["SampledLinear"] * len(hidden),
    ]


@pytest.mark.parametrize("mode", ["per_sample", "grouped"])
def test_hidden_samplers(mode):
    some = partial(SOME, mode=mode, group_size=2)
    network = make((20, 15), hidden_samplers=[some, None])
    features, _ = draw_batch()
    x = network._activate(network.first(features))
    assert ((x != 0).sum(1) <= 5).all()
    assert type(network.hidden[0].sampler) is FullSampler
    network = make((20, 15), hidden_samplers=[None, some])
    assert ((network.encode(features) != 0).sum(1) <= 5).all()


def test_a_prediction_changes_no_mode():
    network = make((400, 300), hidden_samplers=[None, SOME], dropout=0.5, input_dropout=0.5)
    network.hidden[0].eval()
    modes, seen = [m.training for m in network.modules()], []
    network.first.register_forward_hook(
        lambda *_: seen.extend(m.training for m in network.modules())
    )
    features, _ = draw_batch()
    scores, _ = network.predict(features)
    assert not scores.requires_grad
    assert seen == modes == [m.training for m in network.modules()]
    network.eval()
    assert torch.equal(scores, network.predict(features)[0])


def test_scales_of_first_weights():
    plain, first, output = make(), make(init_scale=0.25), make(output_scale=0.25)
    for other, scaled in ((first, "first.weight"), (output, "output.weight")):
        for name, weight in plain.named_parameters():
            factor = 0.25 if name == scaled else 1
            torch.testing.assert_close(other.get_parameter(name), factor * weight)


def test_each_parameter_is_in_one_group():
    network = make()
    rest, first = network.parameter_groups(0.01, 3.0)
    assert (rest["lr"], first["lr"]) == (0.01, 0.03)
    assert [*map(id, first["params"])] == [*map(id, network.first.parameters())]
    found = sorted(id(p) for group in (rest, first) for p in group["params"])
    assert found == sorted(map(id, network.parameters()))
    for options in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match=r"(lr|input_rate) must be a number above 0, not 0"):
            network.parameter_groups(*options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": []}, "hidden must name at least one width"),
        ({"hidden": [0]}, "hidden must be .* at least 1"),
        ({"dropout": 1.0}, "dropout must be in"),
        ({"init_scale": 0}, "init_scale must be a number above 0, not 0"),
        ({"output_scale": -1}, "output_scale must be a number above 0, not -1"),
        ({"hidden_samplers": [None]}, "1 hidden samplers do not fit 2 layers"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def make_network(hidden=(8, 6)):
    network = make(hidden, FullSampler)
    for parameter in network.parameters():  # Biases, too.
        nn.init.normal_(parameter)
    return network.eval()


def draw_rows(sizes, dtype=np.float32):
    return make_csr(np.random.default_rng(0), sizes, FEATURES, dtype)


def assert_same_answers(twin, network, rows):
    scores, ids = twin(*map(torch.from_numpy, rows))
    expected, expected_ids = network.predict(rows, K)
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(ids, expected_ids)


@pairs(dtype=[*FLOATS, torch.bfloat16], bias=[True, False])
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


@pytest.mark.parametrize(("dtype", "bias"), [("float32", True), ("float64", False)])
def test_sparse_input_linear_from_and_to_linear(dtype, bias):
    linear = nn.Linear(FEATURES, 8, bias=bias, dtype=getattr(torch, dtype))
    layer = slide.SparseInputLinear.from_linear(linear)
    rows = draw_rows([3, 0, 7], dtype)
    x, again = to_dense(rows, FEATURES), layer.to_linear()
    torch.testing.assert_close(layer(rows).values, linear(x))
    torch.testing.assert_close(again(x), linear(x))


def test_only_linear_layers_are_taken():
    with pytest.raises(TypeError, match=r"come from an nn\.Linear, not Embedding"):
        slide.SampledLinear.from_linear(nn.Embedding(3, 4))
    for kind in (slide.SampledLinear, slide.SparseInputLinear):
        with pytest.raises(TypeError, match=r"not torch\.float16"):
            kind.from_linear(nn.Linear(3, 4, dtype=torch.float16))


@pytest.mark.parametrize(
    "make",
    [
        partial(slide.SampledLinear, 4, 9),
        partial(slide.SparseInputLinear, 4, 9),
        partial(slide.SparseWeightLinear, slide.CSRMatrix(draw_rows([3, 4]), FEATURES)),
        partial(slide.SampledConv2d, 2, 4, 3),
    ],
)
def test_device_and_dtype(make):
    assert {parameter.dtype for parameter in make().parameters()} == {torch.float32}
    layer = make(device=torch.device("cpu", 0), dtype=torch.float64)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}
    with pytest.raises(TypeError, match=r"one of torch\.float32, .*, not torch\.float16"):
        make(dtype=torch.float16)


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
    nn.Linear(8, 60).load_state_dict(layer.state_dict())


def test_other_missing_keys_are_still_errors():
    layer = slide.SampledLinear(8, 60)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "bias"'):
        layer.load_state_dict(nn.Linear(8, 60, bias=False).state_dict())
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "weight", "bias"\. '):
        layer.load_state_dict({})


@pytest.mark.parametrize("hidden", [(8,), (8, 7, 6)])
def test_the_twin_answers_alike(hidden):
    network = make_network(hidden)
    twin = network.to_torch(K)
    for sizes in ([1], [0], [0, 5, 0], [3, 1, 20, 8]):
        assert_same_answers(twin, network, draw_rows(sizes))


def test_a_wrong_k_is_a_sentence():
    with pytest.raises(ValueError, match=r"k must be"):
        make_network().to_torch(N + 1)


def test_a_trained_twin_goes_back():
    network = make_network()
    twin, rows = network.to_torch(K), draw_rows([4, 9])
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.1)
    twin(*map(torch.from_numpy, rows))[0].sum().backward()
    optimizer.step()
    other = make_network()
    other.load_state_dict(twin.state_dict())
    assert_same_answers(twin, other, rows)
    assert not torch.equal(other.output.weight, network.output.weight)
    network.to_torch(K).load_state_dict(other.state_dict())
