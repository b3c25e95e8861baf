"""Rows that come and go under an optimizer: moments follow their rows."""

import numpy as np
import pytest
import torch
from torch import nn

from slide.optim import RowSparseAdam, resize_rows
from slide.row_gradients import RowGradient, add_row_gradient

OPTIONS = [{}, {"rowwise": True}, {"correct_skipped": True}]


def step(optimizer, p, ids, seed):
    """A step with gradients that depend on the row number and the seed."""
    rows = torch.stack([torch.sin(torch.arange(3.0) + i + 7 * seed) for i in ids])
    add_row_gradient(p, RowGradient(np.array(ids, np.int32), rows))
    optimizer.step()


def made(rows, **options):
    p = nn.Parameter(torch.arange(3.0 * rows).reshape(rows, 3))
    return p, RowSparseAdam([p], lr=0.1, **options)


@pytest.mark.parametrize("options", OPTIONS)
def test_appended_rows_are_as_if_they_had_been_there(options):
    (small, one), (large, other) = made(4, **options), made(6, **options)
    for seed, ids in enumerate([(0, 2), (1,), (0, 3)]):
        for p, optimizer in ((small, one), (large, other)):
            step(optimizer, p, ids, seed)
    resize_rows(small, None, torch.arange(12.0, 18).reshape(2, 3), one)
    for seed, ids in enumerate([(5, 0), (4, 1, 5)], start=3):
        for p, optimizer in ((small, one), (large, other)):
            step(optimizer, p, ids, seed)
    assert torch.equal(small, large)
    again, fresh = made(6, **options)
    fresh.load_state_dict(one.state_dict())  # Which checks the shapes of all state.
    assert len(again) == len(small)


@pytest.mark.parametrize("options", OPTIONS)
def test_rows_keep_their_moments_where_others_leave(options):
    (p, optimizer), (whole, other) = made(5, **options), made(5, **options)
    for parameter, each in ((p, optimizer), (whole, other)):
        step(each, parameter, (0, 1, 2, 3, 4), 0)
    kept = torch.tensor([4, 0, 3])
    resize_rows(p, kept, torch.empty(0, 3), optimizer)
    rows = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    add_row_gradient(p, RowGradient(np.arange(3, dtype=np.int32), rows))
    add_row_gradient(whole, RowGradient(kept.int().numpy(), rows))
    optimizer.step()
    other.step()
    assert torch.equal(p, whole[kept])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kept", [None, torch.tensor([2])])
def test_a_step_with_moments_of_other_rows_is_refused(options, kept):
    """Kernels would write outside of them."""
    p, optimizer = made(3, **options)
    step(optimizer, p, (0, 1, 2), 0)
    resize_rows(p, kept, torch.zeros(1, 3))
    before = p.detach().clone()
    with pytest.raises(ValueError, match=r"does not fit a parameter .*: give the optimizer to"):
        step(optimizer, p, (0,), 1)
    assert torch.equal(p, before)


@pytest.mark.parametrize("options", [*OPTIONS, {"rowwise": True, "correct_skipped": True}])
@pytest.mark.parametrize("kernels", [1, 2])
def test_state_of_each_kernel_follows_its_output(options, kernels):
    p = nn.Parameter(torch.randn(3, kernels, 2, 2))
    optimizer = RowSparseAdam([p], lr=0.1, **options)
    p.square().sum().backward()
    optimizer.step()
    state = optimizer.state[p]
    before = {name: value for name, value in state.items() if name != "step"}
    resize_rows(p, torch.tensor([2, 0]), torch.ones(1, kernels, 2, 2), optimizer)
    for name, value in before.items():
        by_output = value.unflatten(0, (3, -1)) if len(value) == 3 * kernels else value
        found = state[name].view(3, *by_output.shape[1:])
        assert torch.equal(found[:2], by_output[[2, 0]])
        assert (found[2] == (1 if name == "last_step" else 0)).all()
    p.square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    "kind", [torch.optim.Adam, torch.optim.Adagrad, lambda p: torch.optim.SGD(p, momentum=0.9)]
)
def test_optimizers_of_pytorch_follow(kind):
    p = nn.Parameter(torch.ones(4, 3))
    optimizer = kind([p])
    p.sum().backward()
    optimizer.step()
    resize_rows(p, torch.tensor([1, 3]), torch.zeros(3, 3), optimizer)
    assert p.grad is None
    (2 * p).sum().backward()
    optimizer.step()
    assert p.shape == (5, 3)
    assert not torch.equal(p[0], p[4])


def test_gradients_that_wait_are_dropped():
    p, optimizer = made(3)
    add_row_gradient(p, RowGradient(np.array([2], np.int32), torch.ones(1, 3)))
    resize_rows(p, torch.tensor([0, 1]), torch.empty(0, 3), optimizer)
    before = p.detach().clone()
    optimizer.step()
    assert torch.equal(p, before)


def test_what_does_not_fit_is_refused():
    p, optimizer = made(3)
    with pytest.raises(ValueError, match=r"new rows \(1, 2\) do not fit a weight \(3, 3\)"):
        resize_rows(p, None, torch.zeros(1, 2), optimizer)
    with pytest.raises(ValueError, match=r"rows to keep must lie in \[0, 3\)"):
        resize_rows(p, torch.tensor([0, 3]), torch.zeros(0, 3), optimizer)
    with pytest.raises(ValueError, match=r"optimizer does not have this parameter, \(2,\)"):
        resize_rows(nn.Parameter(torch.zeros(2)), None, torch.zeros(1), optimizer)
    assert p.shape == (3, 3)
