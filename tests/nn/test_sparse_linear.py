"""A linear layer with a sparse weight, against ``torch.nn.Linear``."""

import copy
import io

import numpy as np
import pytest
import torch
from helpers.csr import LENGTHS, D, N, make
from helpers.matrices import to_dense

from slide.nn.sparse_linear import SparseWeightLinear
from slide.ops.csr import CSRMatrix


def make_layer(trainable=True, seed=0, dtype=np.float32):
    return SparseWeightLinear(CSRMatrix(make(dtype=dtype, seed=seed), D), trainable=trainable)


@pytest.mark.parametrize(
    "pattern",
    [{}, {"indptr": None}, {"indices": torch.eye(3).to_sparse()}, {"indptr": torch.rand(9)}],
    ids=["empty", "lacks bounds", "sparse columns", "fractions"],
)
def test_patterns_of_other_kinds_are_refused_in_a_sentence(pattern):
    layer = make_layer()
    state = layer.state_dict()
    edited = {**state["_extra_state"], **pattern} if pattern else None
    with pytest.raises(ValueError, match="the pattern of the layer is damaged"):
        layer.load_state_dict({**state, "_extra_state": edited})


@pytest.mark.parametrize("trainable", [False, True])
class TestSparseWeightLinear:
    @pytest.mark.parametrize("lead", [(), (2, 3), (0,)])
    def test_equals_nn_linear(self, trainable, lead):
        layer, linear = make_layer(trainable), torch.nn.Linear(D, N)
        dense = to_dense(make(dtype=np.float32), D)
        layer.bias.data.normal_()
        linear.load_state_dict({"weight": dense, "bias": layer.bias})
        x = torch.randn(*lead, D, requires_grad=True)
        y, expected = layer(x), linear(x)
        torch.testing.assert_close(y, expected)
        upstream = torch.randn_like(y)
        (wanted,) = torch.autograd.grad(expected, x, upstream, retain_graph=True)
        expected.backward(upstream)
        x.grad = None
        y.backward(upstream)
        torch.testing.assert_close(x.grad, wanted)
        torch.testing.assert_close(layer.bias.grad, linear.bias.grad)
        if trainable:
            own = linear.weight.grad[tuple(np.nonzero(to_dense(make(), D).numpy()))]
            order = np.lexsort((layer.matrix.indices, np.repeat(np.arange(N), LENGTHS)))
            torch.testing.assert_close(layer.values.grad[order], own)

    def test_state_and_copies(self, trainable):
        layer, x = make_layer(trainable), torch.randn(5, D)
        y = layer(x)
        y.sum().backward()
        buffer = io.BytesIO()
        torch.save(layer.state_dict(), buffer)
        buffer.seek(0)
        other = make_layer(trainable, seed=1)
        before = other(x.requires_grad_())
        before.sum().backward()
        other.load_state_dict(torch.load(buffer))
        assert not torch.equal(before, y)
        for twin in (other, copy.deepcopy(layer)):
            assert torch.equal(twin(x), y)
            gradients = [torch.autograd.grad(m(x).sum(), x)[0] for m in (twin, layer)]
            assert torch.equal(*gradients)
        smaller = SparseWeightLinear(
            CSRMatrix(make([1, 2, 48], 50, np.float32), 50), trainable=trainable
        )
        with pytest.raises((RuntimeError, ValueError), match=r"bias|pattern of 23 rows"):
            smaller.load_state_dict(layer.state_dict())

    @pytest.mark.usefixtures("one_thread")
    def test_double_precision(self, trainable):
        layer, x = make_layer(trainable), torch.randn(5, D, dtype=torch.float64, requires_grad=True)
        single = layer(x.float())
        layer.double()
        for _ in range(2):
            torch.testing.assert_close(layer(x).float(), single)
            layer(x).sum().backward()
            assert trainable or layer.matrix.values is layer.values
        assert torch.autograd.gradcheck(layer, x)
        with pytest.raises(TypeError, match=r"x is torch.float32 but values are torch.float64"):
            layer(x.float())
        with pytest.raises(ValueError, match=r"input \(5, 10\) does not fit a matrix \(23, 9\)"):
            layer(torch.randn(5, D + 1, dtype=torch.float64))


def test_a_state_does_not_get_into_a_matrix_that_others_use():
    matrix = make_layer(trainable=False).matrix
    one, other = (SparseWeightLinear(matrix, trainable=False) for _ in range(2))
    x = torch.randn(3, matrix.shape[1], requires_grad=True)
    before = other(x)
    state = one.state_dict()
    one.load_state_dict(state | {"values": 2 * state["values"]})
    torch.testing.assert_close(one(x), 2 * before)
    torch.testing.assert_close(other(x), before)


@pytest.mark.parametrize("change", ["layer", "matrix"])
def test_a_change_of_the_entries_in_place_reaches_the_gradient(change):
    layer, x = make_layer(trainable=False), torch.randn(3, D, requires_grad=True)
    layer(x).sum().backward()  # Now the transpose is kept.
    before, x.grad = x.grad, None
    (layer.values if change == "layer" else layer.matrix.values).mul_(2)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * before)
    kept = layer.matrix.transpose()
    assert layer.matrix.transpose() is kept
