"""Autograd is told that a step changed the weights: old activations cannot be used any more."""

import pytest
import torch
from helpers.sparse_layers import B, D, N, draw_labels, every_mode, make_layer
from torch import nn

from slide.nn.sampled_linear import SampledLinear
from slide.optim.row_sparse_adam import RowSparseAdam

changed = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
REFUSED = r"modified by an inplace operation"


@changed
def test_a_dense_layer_before(dtype):
    first, second = nn.Linear(3, 4).to(dtype), nn.Linear(4, 2).to(dtype)
    optimizer = RowSparseAdam([*first.parameters(), *second.parameters()])
    loss = second(first(torch.randn(B, 3, dtype=dtype))).square().sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match=REFUSED):
        loss.backward()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_set_for_each_sample(sparse):
    layer, x = make_layer("per_sample", sparse), torch.randn(B, D, requires_grad=True)
    optimizer = RowSparseAdam(layer.parameters())
    loss = layer(x, draw_labels()).values.square().sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)  # Without a step in between this is allowed.
    optimizer.step()
    with pytest.raises(RuntimeError, match=REFUSED):
        loss.backward()


def test_all_outputs():
    layer, x = SampledLinear(D, N), torch.randn(B, D, requires_grad=True)
    loss = layer(x).values.square().sum()
    loss.backward(retain_graph=True)
    RowSparseAdam(layer.parameters()).step()
    with pytest.raises(RuntimeError, match=REFUSED):
        loss.backward()


@every_mode
def test_the_gradient_of_the_input_after_a_step(mode):
    """A shared set copies its rows, so its gradient is right; other sets refuse."""
    layer, x = make_layer(mode), torch.randn(B, D, requires_grad=True)
    optimizer = RowSparseAdam(layer.parameters(), lr=10.0)
    loss = layer(x, draw_labels()).values.square().sum()
    (wanted,) = torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward(retain_graph=True)
    optimizer.step()
    if mode == "per_sample":
        with pytest.raises(RuntimeError, match=REFUSED):
            torch.autograd.grad(loss, x)
    else:
        torch.testing.assert_close(torch.autograd.grad(loss, x)[0], wanted)


def test_a_step_without_gradients_changes_no_version():
    weight = nn.Parameter(torch.zeros(2, 2))
    RowSparseAdam([weight]).step()
    assert weight._version == 0
