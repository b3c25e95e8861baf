"""Backward passes to some tensors: no gradient stays on a weight that was not asked for one."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr
from helpers.sparse_layers import B, D, N, draw_labels, every_mode, every_output, make_layer
from torch.utils.checkpoint import checkpoint

from slide.functional.linear import active_linear
from slide.nn import ActiveLoss
from slide.nn.sampled_conv2d import SampledConv2d
from slide.nn.sparse_input_linear import SparseInputLinear
from slide.ops.backend import backend, plain
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient
from slide.sampling import ActiveSampler


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


@every_mode
@ways
def test_grad_of_the_input_may_be_changed(loss, mode):
    layer, twin, x = pair(mode)
    mean, wanted = loss(layer, x), torch.autograd.grad(loss(twin, x), x)[0]
    torch.autograd.grad(mean, x, retain_graph=True)[0].sign_()
    torch.testing.assert_close(torch.autograd.grad(mean, x)[0], wanted)


@every_mode
def test_grad_of_the_scores_may_be_changed(mode):
    out = pair(mode)[0](torch.randn(B, D), draw_labels())
    mean = ActiveLoss("softmax")(out.values, out.active)
    first = torch.autograd.grad(mean, out.values, retain_graph=True)[0]
    wanted = first.clone()
    first.sign_()
    torch.testing.assert_close(torch.autograd.grad(mean, out.values)[0], wanted)


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
    loss = checkpoint(in_one, layer, x, use_reentrant=reentrant)
    if plain(x) and not reentrant:  # Plain torch keeps scores, which belong to another set then.
        with pytest.raises(RuntimeError, match="drew another active set"):
            loss.backward()
        return
    loss.backward()
    # The sampler drew other outputs in the second forward pass, so values are not compared.
    assert len(layer.weight.row_gradients) == len(layer.bias.row_gradients) == 1


@every_mode
def test_checkpointed_scores_of_another_set_are_an_error(mode):
    layer, _, x = pair(mode)
    out = checkpoint(lambda x: layer(x).values.square(), x, use_reentrant=False)
    with pytest.raises(RuntimeError, match=r"drew another active set of \d+ ids, as in torch"):
        out.sum().backward()
    assert pending(layer) == [[], []]


def test_checkpointed_convolution_of_another_set_is_an_error():
    sampler = ActiveSampler(2 * 3 * 3, 30, active=5)
    layer, x = SampledConv2d(2, 30, 3, sampler=sampler), torch.randn(2, 2, 5, 5)
    out = checkpoint(lambda x: layer(x).values, x.requires_grad_(), use_reentrant=False)
    with pytest.raises(RuntimeError, match="drew another active set of 5 ids"):
        out.sum().backward()


def test_checkpointed_host_rows_of_another_set_are_an_error():
    layer, _, x = pair("shared")
    layer.keep_rows_on_host()
    with backend("torch"):
        out = checkpoint(lambda x: layer(x).values, x, use_reentrant=False)
        with pytest.raises(RuntimeError, match="drew another active set"):
            out.sum().backward()


@pytest.mark.parametrize("per_sample", [False, True])
def test_checkpointed_layers_with_a_given_set_are_right(per_sample):
    x, weight = torch.randn(B, D, requires_grad=True), torch.randn(N, D, requires_grad=True)
    active = every_output("per_sample" if per_sample else "shared")
    found = []
    for call in (active_linear, partial(checkpoint, active_linear, use_reentrant=False)):
        call(x, weight, None, active).square().sum().backward()
        found.append([x.grad, dense_gradient(weight)])
        x.grad, weight.row_gradients = None, []
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    # Ids that hooks give back are other tensors with the same numbers.
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept):
        active_linear(x, weight, None, active).square().sum().backward()
    assert torch.equal(x.grad, found[0][0])
