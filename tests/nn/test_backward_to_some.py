"""Backward passes to some tensors: no gradient stays on a weight that was not asked for one."""

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr
from helpers.sparse_layers import B, D, N, draw_labels, every_mode, make_layer
from torch.utils.checkpoint import checkpoint

from slide.nn import ActiveLoss
from slide.nn.sampled_conv2d import SampledConv2d
from slide.nn.sparse_input_linear import SparseInputLinear
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient


def in_two_steps(layer, x):
    out = layer(x, draw_labels())
    return ActiveLoss("bce")(out.values, out.active)


def in_one(layer, x):
    return layer.loss(x, draw_labels(), ActiveLoss("bce"))[0]


ways = pytest.mark.parametrize("loss", [in_two_steps, in_one])


def pair(mode):
    """Two equal layers, of rows and of sparse gradients, and an input."""
    x = torch.randn(B, D, requires_grad=True)
    return make_layer(mode, sparse_grad=False), make_layer(mode), x


def pending(layer):
    return [getattr(p, "row_gradients", []) for p in layer.parameters()]


@every_mode
@ways
def test_grad_of_the_input_leaves_nothing(loss, mode):
    layer, twin, x = pair(mode)
    (found,) = torch.autograd.grad(loss(layer, x), x)
    (wanted,) = torch.autograd.grad(loss(twin, x), x)
    torch.testing.assert_close(found, wanted)
    assert pending(layer) == [[], []]
    before = layer.weight.detach().clone()
    RowSparseAdam(layer.parameters()).step()
    assert torch.equal(layer.weight, before)


@every_mode
@ways
def test_backward_to_the_input_leaves_nothing(loss, mode):
    layer, _, x = pair(mode)
    loss(layer, x).backward(inputs=[x])
    assert x.grad.any()
    assert pending(layer) == [[], []]


@every_mode
@ways
def test_backward_to_one_of_two(loss, mode):
    layer, twin, x = pair(mode)
    loss(layer, x).backward(inputs=[layer.weight])
    assert x.grad is None
    loss(twin, x).backward()
    assert pending(layer)[1] == []
    torch.testing.assert_close(dense_gradient(layer.weight), twin.weight.grad.to_dense())


@every_mode
@ways
def test_grad_of_the_weight_is_returned(loss, mode):
    layer, twin, x = pair(mode)
    mean, weights = loss(layer, x), [layer.weight, layer.bias]
    for gradient in torch.autograd.grad(mean, weights, retain_graph=True):
        gradient.mul_(100)
    found = torch.autograd.grad(mean, weights)
    loss(twin, x).backward()
    for one, other in zip(found, (twin.weight, twin.bias), strict=True):
        torch.testing.assert_close(one.to_dense(), other.grad.to_dense())
    assert pending(layer) == [[], []]


def test_other_layers():
    layer, x = SparseInputLinear(N, D), make_csr(np.random.default_rng(0), [3, 0, 7, 1], N)
    scale = torch.ones(D, requires_grad=True)
    torch.autograd.grad((layer(x).values * scale).sum(), scale)
    assert not hasattr(layer.weight, "row_gradients")
    convolution, image = SampledConv2d(2, 6, 3), torch.randn(2, 2, 5, 5, requires_grad=True)
    torch.autograd.grad(convolution(image).values.sum(), image)
    assert pending(convolution) == [[], []]


@pytest.mark.parametrize("reentrant", [False, True])
@every_mode
def test_checkpointed_layers_keep_their_gradients(mode, reentrant):
    layer, _, x = pair(mode)
    checkpoint(in_one, layer, x, use_reentrant=reentrant).backward()
    # The sampler drew other outputs in the second forward pass, so values are not compared.
    assert len(layer.weight.row_gradients) == len(layer.bias.row_gradients) == 1
