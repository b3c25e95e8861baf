"""States that do not belong to the optimizer, and options that change between steps."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import RowGradient, add_row_gradient


def trained(shape=(4, 2), steps=((0, 1), (2,)), kind=RowSparseAdam, **options):
    weight = nn.Parameter(torch.ones(shape, dtype=torch.float64))
    optimizer = kind([weight], lr=0.1, **options)
    for ids in steps:
        step(optimizer, weight, ids)
    return optimizer, weight


def step(optimizer, weight, ids):
    optimizer.zero_grad()
    if isinstance(optimizer, RowSparseAdam):
        rows = torch.ones(len(ids), weight.shape[1], dtype=weight.dtype)
        add_row_gradient(weight, RowGradient(np.array(ids, np.int32), rows))
    else:
        weight.grad = torch.zeros_like(weight)
        weight.grad[list(ids)] = 1
    optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_the_state_of_another_optimizer_is_refused(kind):
    optimizer, weight = trained()
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"no state of a RowSparseAdam: its groups lack .*rowwise"):
        optimizer.load_state_dict(trained(kind=kind)[0].state_dict())
    assert str(optimizer.state_dict()) == str(before)
    step(optimizer, weight, [3])


@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("shape", [(3, 2), (5, 2), (4, 3)])
def test_moments_of_another_shape_are_refused(shape, corrected, rowwise):
    """Kernels would read and write outside of them."""
    options = {"correct_skipped": corrected, "rowwise": rowwise}
    optimizer, other = trained(**options)[0], trained(shape, **options)[0]
    with pytest.raises(ValueError, match=rf"exp_avg \({shape[0]}, {shape[1]}\) does not fit a par"):
        optimizer.load_state_dict(other.state_dict())


def test_a_parameter_that_never_had_a_gradient_has_no_state():
    optimizer, weight = trained(steps=())
    optimizer.load_state_dict(trained(steps=())[0].state_dict())
    state = trained()[0].state_dict()
    state["state"][0] = {}
    optimizer.load_state_dict(state)
    step(optimizer, weight, [0])
    assert optimizer.state[weight]["step"] == 1


def test_weights_that_are_not_contiguous_are_refused():
    optimizer, weight = trained(shape=(4, 2), steps=())
    weight.data = weight.data.T.contiguous().T
    with pytest.raises(ValueError, match=r"has strides \(1, 4\), but its rows must lie in order"):
        step(optimizer, weight, [0])


def test_a_state_without_moments_is_refused():
    optimizer, _ = trained()
    state = optimizer.state_dict()
    del state["state"][0]["exp_avg_sq"]
    with pytest.raises(ValueError, match="lacks exp_avg_sq"):
        optimizer.load_state_dict(state)


def test_correction_may_be_switched_on():
    """Steps before the switch are not corrected, steps after it are."""
    optimizer, weight = trained(steps=[(0, 1, 2, 3), (0,)])
    optimizer.param_groups[0]["correct_skipped"] = True
    begin = optimizer.state[weight]["exp_avg"].clone()
    twin = nn.Parameter(weight.detach().clone())
    dense = torch.optim.Adam([twin], lr=0.1)
    dense.load_state_dict(
        {
            "param_groups": dense.state_dict()["param_groups"],
            "state": {
                0: {
                    "step": torch.tensor(2.0),
                    "exp_avg": begin,
                    "exp_avg_sq": optimizer.state[weight]["exp_avg_sq"].clone(),
                }
            },
        }
    )
    for ids in ([1], [1, 2], [0, 1, 2, 3]):
        step(optimizer, weight, ids)
        step(dense, twin, ids)
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(optimizer.state[weight][name], dense.state[twin][name])


def test_correction_may_be_switched_off_and_on():
    """What happened in between is not taken for skipped."""
    optimizer, weight = trained(steps=[(0, 1)], correct_skipped=True)
    group = optimizer.param_groups[0]
    group["correct_skipped"] = False
    for _ in range(3):
        step(optimizer, weight, [0])
    group["correct_skipped"] = True
    before = optimizer.state[weight]["exp_avg"][0].clone()
    step(optimizer, weight, [0])
    torch.testing.assert_close(optimizer.state[weight]["exp_avg"][0], 0.9 * before + 0.1)


def test_the_first_moment_may_come_and_go():
    optimizer, weight = trained(steps=[(0, 1)], betas=(0.0, 0.9))
    state, (group,) = optimizer.state[weight], optimizer.param_groups
    assert "exp_avg" not in state
    group["betas"] = (0.5, 0.9)
    step(optimizer, weight, [0])
    torch.testing.assert_close(state["exp_avg"], weight.new_tensor([[0.5] * 2, *[[0.0] * 2] * 3]))
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["state"][0]["exp_avg"]
    with pytest.raises(ValueError, match="lacks exp_avg"):
        optimizer.load_state_dict(saved)
    assert "exp_avg" in state
    group["betas"] = (0.0, 0.9)
    step(optimizer, weight, [0])
    assert "exp_avg" not in state
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.state[weight].keys() == {"step", "exp_avg_sq"}


@pytest.mark.parametrize("saved", [False, True])
def test_a_state_brings_its_options(saved):
    other, _ = trained(correct_skipped=saved)
    optimizer, weight = trained(correct_skipped=not saved)
    optimizer.load_state_dict(other.state_dict())
    step(optimizer, weight, [0, 3])
    assert ("last_step" in optimizer.state[weight]) == saved
