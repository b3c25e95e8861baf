"""Copies and pickles of layers."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from helpers.sparse_layers import B, D, draw_labels, every_mode, make_layer

from slide.row_gradients import dense_gradient


class TestCopies:
    @every_mode
    def test_of_a_layer_in_training(self, mode):
        """deepcopy, pickle and torch.save give a layer that goes on as the first one does."""
        layer = make_layer(mode)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for i in range(3):
            layer(torch.randn(B, D), draw_labels(i)).values.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        # The sampler's schedule may be any function: that is what a pickle of it needs.
        copies = [copy.deepcopy(layer), torch.load(file, weights_only=False)]
        copies.append(pickle.loads(pickle.dumps(layer)))
        x = torch.randn(B, D)
        wanted = layer(x, draw_labels(9))
        for twin in copies:
            found = twin(x, draw_labels(9))
            np.testing.assert_array_equal(found.active.ids, wanted.active.ids)
            torch.testing.assert_close(found.values, wanted.values)
            found.values.sum().backward()
            assert twin.weight.grad is not layer.weight.grad

    @every_mode
    @pytest.mark.parametrize("sparse", [False, True])
    def test_with_gradients_pending(self, mode, sparse):
        """A copy has none, as with PyTorch's own layers; a pickle keeps row gradients."""
        layer = make_layer(mode, sparse)
        layer(torch.randn(B, D), draw_labels()).values.sum().backward()
        twin = copy.deepcopy(layer)
        assert twin.weight.grad is None
        assert not getattr(twin.weight, "row_gradients", [])
        assert bool(layer.weight.grad is not None) == sparse
        loaded = pickle.loads(pickle.dumps(layer))
        if not sparse:
            torch.testing.assert_close(dense_gradient(loaded.weight), dense_gradient(layer.weight))
        state = layer.state_dict()
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True)
