"""Second derivatives do not exist: to ask for one is an error, and never zero or a lost term."""

import copy
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.active_sets import B, D, N, draw, make_active
from helpers.matrices import make_csr
from torch.autograd.functional import hessian

import slide
from slide.backend import backend
from slide.distributed import Group, ShardedSampledLinear
from slide.distributed.sharded_layers import _OfAllRanks, _SumOverRanks
from slide.functional import (
    CSRMatrix,
    active_conv2d,
    active_linear,
    active_linear_loss,
    csr_matmul,
    loss_on_active,
    relu_dropout,
    sparse_linear,
)
from slide.nn import ActiveLoss, SampledLinear
from slide.row_gradients import dense_gradient
from slide.sparse import Pattern

# Of PyTorch: it would rather see `torch.autograd.grad`.
pytestmark = pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
TARGETS = Pattern.from_lists([[0]] * B)
MATRIX = CSRMatrix(make_csr(np.random.default_rng(0), [2] * N, D, np.float64), D)
FEATURES = make_csr(np.random.default_rng(0), [2] * B, N, np.float64)


def linear(kind):
    x = draw(B, D)
    return active_linear(x, draw(N, D, seed=1), None, make_active(kind)).sum(), x


def by_weight(kind):
    weight, bias = draw(N, D, seed=1), draw(N, seed=2)
    return active_linear(draw(B, D), weight, bias, make_active(kind)).sum(), bias


def linear_loss():
    x, active = draw(B, D), make_active("shared", targets=TARGETS)
    return active_linear_loss(x, draw(N, D, seed=1), None, active, "softmax"), x


def scores_loss():
    scores = draw(B, 4)
    return loss_on_active(scores, make_active("shared", targets=TARGETS), "bce"), scores


def sparse_input():
    bias = draw(D)
    return sparse_linear(FEATURES, draw(N, D, seed=1), bias).sum(), bias


def convolution():
    x = draw(2, 3, 5, 5)
    return active_conv2d(x, draw(4, 3, 2, 2, seed=1), out_channels=np.array([1, 3])).sum(), x


def sparse_matrix():
    x = draw(D, 2)
    return csr_matmul(MATRIX, x).sum(), x


def dropout():
    x = draw(9)
    return relu_dropout(x, 0.5).sum(), x


def dropout_of_a_scalar():
    x = draw(1).sum().abs().detach().requires_grad_()
    return relu_dropout(2 * x, 1e-6), x


def loss_over_ranks():
    layer = ShardedSampledLinear(D, N, group=Group.alone())
    x = torch.randn(B, D, requires_grad=True)
    return layer.loss(x, TARGETS, ActiveLoss("softmax"))[0], x


CASES = {
    "SharedLinear": lambda: linear("shared"),
    "SharedLinear of all outputs": lambda: linear("complete"),
    "SharedLinear by its bias": lambda: by_weight("shared"),
    "PerSampleLinear": lambda: linear("per_sample"),
    "PerSampleLinear by its bias": lambda: by_weight("per_sample"),
    "SparseLinear": sparse_input,
    "ActiveConv2d": convolution,
    "Product": sparse_matrix,
    "LossOverRanks": loss_over_ranks,
    "SharedLinearLoss": linear_loss,
    "ActiveLoss": scores_loss,
    "ReluDropout": dropout,
    "ReluDropout of a scalar": dropout_of_a_scalar,
}


@pytest.mark.parametrize(("name", "way"), [*zip(CASES, cycle(["kernels", "torch"]))])
class TestEachOperation:
    def test_a_gradient_penalty_is_refused(self, name, way):
        with backend(way):
            loss, x = CASES[name]()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        size = gradient.to_dense().square().sum()
        with pytest.raises(RuntimeError, match=rf"{name.split()[0]} has first derivatives only"):
            (loss + size).backward()

    def test_the_graph_alone_changes_nothing(self, name, way):
        """Some programs always set ``create_graph``, and differentiate once."""
        with backend(way):
            loss, x = CASES[name]()
            (wanted,) = torch.autograd.grad(loss, x, retain_graph=True)
            assert not wanted.requires_grad
            (found,) = torch.autograd.grad(loss, x, create_graph=True)
            assert torch.equal(found.to_dense(), wanted.to_dense())
            with torch.no_grad():
                found.mul_(2)  # As a clip of gradients would.
            assert torch.equal(found.to_dense(), 2 * wanted.to_dense())
            loss.backward()
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                loss.backward()


@pytest.mark.parametrize("with_loss", [False, True])
class TestLayers:
    @staticmethod
    def value(with_loss):
        layer = SampledLinear(D, 40, slide.ActiveSampler(D, 40, active=9))
        if with_loss:
            return lambda x: layer.loss(x, TARGETS, ActiveLoss("squared_hinge"))[0]
        return lambda x: layer(x).values.sum()

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Of PyTorch, with ``vectorize``.
    def test_hessian(self, with_loss):
        value, x = self.value(with_loss), torch.randn(B, D)
        for vectorize in (False, True):
            with pytest.raises(RuntimeError, match="first derivatives only"):
                hessian(value, x, vectorize=vectorize)
        with pytest.raises(RuntimeError, match=r"setup_context|data pointer"):  # Of PyTorch.
            torch.func.hessian(value)(x)

    @pytest.mark.parametrize("asked", ["all", "weight", "factor"])
    def test_a_penalty_of_an_encoder(self, with_loss, asked):
        """A part of the penalty's gradient does not pass this layer: the rest must not be lost."""
        encoder, factor = torch.nn.Linear(3, D), torch.ones((), requires_grad=True)
        x = torch.randn(B, 3, requires_grad=True)
        loss = factor * self.value(with_loss)(encoder(x))
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        inputs = {"all": None, "weight": [encoder.weight], "factor": [factor]}[asked]
        with pytest.raises(RuntimeError, match="first derivatives only"):
            (loss + gradient.norm()).backward(inputs=inputs)


def test_rows_that_are_left_on_a_weight_have_no_graph():
    weight = draw(N, D)
    loss = active_linear(draw(B, D, grad=False), weight, None, make_active("shared")).sum()
    loss.backward(create_graph=True)
    assert not dense_gradient(weight).requires_grad
    copy.deepcopy(weight)


def test_operations_that_can_be_differentiated_again():
    group = Group.alone()
    for operation in (
        lambda x: _OfAllRanks.apply(x, [B], group),
        lambda x: _SumOverRanks.apply(x.clone(), group),
    ):
        assert torch.autograd.gradgradcheck(operation, draw(B, D))


# The backward passes of the last two use only operations of autograd, on the gradient that comes
# in. What they need other ranks for is never reached: the loss that follows the one, and the
# product before the other, refuse.
EXCEPTIONS = {"functional/autograd.py", "distributed/sharded_layers.py"}


def test_every_operation_says_it():
    package, found = Path(slide.__file__).parent, set()
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "autograd.Function" in text or "once_differentiable" in text:
            found.add(path.relative_to(package).as_posix())
    assert found == EXCEPTIONS
