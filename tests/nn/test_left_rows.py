"""An optimizer that leaves the rows of a layer: a warning after its first step."""

import copy
import inspect
import pickle
import warnings

import pytest
import torch
from helpers.sparse_layers import B, D, draw_labels, make_layer
from torch import nn

from slide.optim.row_sparse_adam import RowSparseAdam


def dense_optimizers():
    """All of PyTorch that take any parameters without a closure."""
    named = vars(torch.optim).items()
    kinds = [kind for _, kind in named if inspect.isclass(kind)]
    found = [kind for kind in kinds if issubclass(kind, torch.optim.Optimizer)]
    left_out = (torch.optim.Optimizer, torch.optim.LBFGS, getattr(torch.optim, "Muon", None))
    return [kind for kind in found if kind not in left_out]


class Model(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.encoder, self.output = nn.Linear(3, D), make_layer(sparse_grad=sparse)

    def backward(self):
        out = self.output(self.encoder(torch.randn(B, 3)), draw_labels())
        out.values.square().mean().backward()


def test_there_are_ten():
    assert len(dense_optimizers()) >= 10


@pytest.mark.parametrize("kind", dense_optimizers())
def test_the_first_step_warns(kind):
    model = Model()
    parameters = model.output.parameters() if kind is torch.optim.SparseAdam else model.parameters()
    optimizer = kind(parameters, lr=0.1)
    model.backward()
    before = model.output.weight.detach().clone()
    with pytest.warns(UserWarning, match=rf"{kind.__name__} does not update .*RowSparseAdam"):
        optimizer.step()
    assert torch.equal(model.output.weight, before)


@pytest.mark.parametrize("first", ["torch", "slide"])
@pytest.mark.parametrize("copied", [lambda o: o, copy.deepcopy, "pickle"])
def test_no_warning_where_another_optimizer_takes_the_rows(first, copied):
    model = Model()
    several = [torch.optim.AdamW(model.parameters()), RowSparseAdam(model.output.parameters())]
    if first == "slide":
        several.reverse()
    if copied == "pickle":
        model, several = pickle.loads(pickle.dumps((model, several)))
    else:
        model, several = copied((model, several))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(2):
            model.backward()
            for optimizer in several:
                optimizer.step()
                optimizer.zero_grad()


def test_no_warning_for_sparse_gradients():
    model = Model(sparse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
