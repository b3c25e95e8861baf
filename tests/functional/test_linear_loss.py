"""A linear layer and its loss in one operation, against the two one after the other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.grids import pairs

import slide
from slide.active_set import ActiveSet, Groups
from slide.backend import uses_reference
from slide.functional import active_linear, active_linear_loss, loss_on_active
from slide.functional.losses import LOSSES, ActiveLoss
from slide.ops import losses as kernels
from slide.ops.products import gather_rounded
from slide.ops.scratch import Scratch
from slide.row_gradients import dense_gradient
from slide.sparse import Pattern

N = 40


def draw_linear(mode, weighted, dtype):
    """Inputs, weight and bias of a layer, and an active set with targets."""
    rng = np.random.default_rng(5)
    x = torch.from_numpy(rng.standard_normal((7, 6))).to(dtype).requires_grad_()
    weight = torch.nn.Parameter(torch.from_numpy(rng.standard_normal((N, 6))).to(dtype))
    bias = torch.nn.Parameter(torch.from_numpy(rng.standard_normal(N)).to(dtype))
    positions = [[0, 2], [1], [], [3, 0], [4], [2], [1, 2, 3]]
    targets = Pattern(
        np.cumsum([0, *map(len, positions)]), np.concatenate(positions).astype(np.int32)
    )
    groups = None
    if mode == "shared":
        ids, indptr = rng.permutation(N)[:9].astype(np.int32), None
    elif mode == "grouped":
        set_of = np.array([0, 1, 1, 0, 1, 1, 1])
        sets = np.stack([rng.permutation(N)[:9] for _ in range(2)]).astype(np.int32)
        ids, indptr = sets[set_of].flatten(), np.arange(8) * 9
        order, bounds = np.argsort(set_of, kind="stable"), np.array([0, 2, 7])
        groups = Groups(order, bounds, sets.flatten(), np.arange(3) * 9)
    else:
        ids = np.concatenate([rng.permutation(N)[:9] for _ in range(7)]).astype(np.int32)
        indptr = np.arange(8) * 9
    log_weights = None
    if weighted:
        # Targets, of which there are five positions, have weight 1.
        one = np.r_[np.zeros(5), rng.uniform(0, 2, 4)].astype(np.float32)
        log_weights = one if mode == "shared" else np.tile(one, 7)
    return x, weight, bias, ActiveSet(N, ids, indptr, targets, log_weights, groups=groups)


def loss_and_gradients(loss, x, weight, bias):
    (3 * loss).backward()
    found = [loss.detach(), x.grad.clone(), dense_gradient(weight)]
    if bias is not None:
        found.append(dense_gradient(bias))
        bias.row_gradients = []
    x.grad, weight.row_gradients = None, []
    return found


@pairs(
    name=LOSSES,
    mode=["shared", "per_sample", "grouped"],
    weighted=[False, True],
    with_bias=[False, True],
    hard=[1.0, 0.3],
)
def test_loss_of_a_linear_layer_equals_the_two_steps(
    monkeypatch, name, mode, weighted, with_bias, hard
):
    monkeypatch.setattr(kernels, "_BLOCK_SCORES", 1)
    monkeypatch.setattr(kernels, "_LEAST_SAMPLES", 2)  # Two samples at a time, and one at last.
    x, weight, bias, active = draw_linear(mode, weighted, torch.float64)
    bias = bias if with_bias else None
    each = np.linspace(0.2, 3, 7) if with_bias else None
    whole = active_linear_loss(x, weight, bias, active, name, hard_fraction=hard, weights=each)
    found = loss_and_gradients(whole, x, weight, bias)
    steps = loss_on_active(active_linear(x, weight, bias, active), active, name, hard, each)
    for one, other in zip(found, loss_and_gradients(steps, x, weight, bias), strict=True):
        torch.testing.assert_close(one, other)


@pairs(name=LOSSES, hard=[1.0, 0.5], least=[2, 64])
def test_loss_of_a_linear_layer_in_bfloat16_is_near(monkeypatch, name, hard, least):
    monkeypatch.setattr(kernels, "_BLOCK_SCORES", 1)
    monkeypatch.setattr(kernels, "_LEAST_SAMPLES", least)
    x, weight, bias, active = draw_linear("shared", False, torch.float32)
    precise = active_linear_loss(x, weight, bias, active, name, hard_fraction=hard)
    wanted = loss_and_gradients(precise, x, weight, bias)
    rounded = active_linear_loss(
        x, weight, bias, active, name, precision="bfloat16", hard_fraction=hard
    )
    assert rounded.dtype == torch.float32
    found = loss_and_gradients(rounded, x, weight, bias)
    assert not torch.equal(found[1], wanted[1])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=0.02 * float(other.abs().max()), rtol=0.02)


@pytest.mark.kernels_only
@pairs(weighted=[False, True], with_bias=[False, True])
def test_one_visit_of_products_in_bfloat16_equals_those_of_another_kernel(weighted, with_bias):
    def doubled(rows, losses, gradient):
        kernels.squared_hinge(rows, losses, gradient)
        losses *= 2
        gradient *= 2

    x, weight, bias, active = draw_linear("shared", weighted, torch.float32)
    bias, one = bias if with_bias else None, LOSSES["squared_hinge"]
    found, wanted = (
        loss_and_gradients(
            active_linear_loss(x, weight, bias, active, loss, precision="bfloat16"), x, weight, bias
        )
        for loss in (one, replace(one, kernel=doubled))
    )
    for each, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(2 * each, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_ids_and_weights_may_be_tensors(precision):
    x, weight, bias, active = draw_linear("shared", True, torch.float32)
    ids, logs = map(torch.from_numpy, (active.ids, active.log_weights))
    found, wanted = (
        active_linear_loss(x, weight, bias, each, "squared_hinge", precision=precision).item()
        for each in (replace(active, ids=ids, log_weights=logs), active)
    )
    assert found == wanted


@pytest.mark.parametrize(("hard", "precision"), [(0.3, "float32"), (1.0, "bfloat16")])
def test_a_loss_from_which_nothing_learns_makes_no_gradients(monkeypatch, hard, precision):
    x, weight, bias, active = draw_linear("shared", True, torch.float32)
    options = {"hard_fraction": hard, "precision": precision}
    wanted = active_linear_loss(x, weight, bias, active, "squared_hinge", **options)
    monkeypatch.setattr(kernels, "LinearFactors", None)  # An error where they are made.
    with torch.no_grad():
        found = active_linear_loss(x, weight, bias, active, "squared_hinge", **options)
    fixed = x.detach(), weight.detach(), bias.detach()
    fresh = replace(active, scratch=Scratch())
    with torch.inference_mode():
        inferred = active_linear_loss(x, weight, bias, fresh, "squared_hinge", **options)
    for each in (found, inferred, active_linear_loss(*fixed, active, "squared_hinge", **options)):
        assert torch.equal(each, wanted.detach())
        assert not each.requires_grad
    monkeypatch.undo()
    # The buffers that were made there serve training, too.
    active_linear_loss(x, weight, bias, fresh, "squared_hinge", **options).backward()
    assert dense_gradient(weight).abs().sum() > 0


def test_a_hard_fraction_that_was_set_later_is_checked():
    layer, loss = slide.SampledLinear(4, N, slide.ActiveSampler(4, N, active=9)), ActiveLoss("bce")
    loss.hard_fraction = 0.0
    with pytest.raises(ValueError, match="hard_fraction must be a number above 0"):
        layer.loss(torch.ones(1, 4), Pattern.from_lists([[3]]), loss)


def test_rows_of_a_set_are_rounded_as_torch_does():
    bits = torch.arange(0, 2**32, 2**15 - 1, dtype=torch.int64).to(torch.int32)  # Halves, too.
    weight = bits[: len(bits) // 64 * 64].view(torch.float32).reshape(-1, 64).contiguous()
    weight[0, 0], weight[0, 1] = 1 + 2**-8, 1 + 3 * 2**-8  # To even: down, up.
    ids = torch.arange(len(weight), dtype=torch.int32).flip(0)
    rounded = gather_rounded(weight, ids, torch.bfloat16)
    wanted = weight.flip(0).bfloat16()
    torch.testing.assert_close(rounded[: len(ids)], wanted, rtol=0, atol=0, equal_nan=True)
    assert not rounded[len(ids) :].any()


@pytest.mark.skipif(uses_reference(), reason="plain torch adds no rows")
def test_sets_of_near_sizes_have_one_shape():
    weight, ids = torch.ones(2048, 4), torch.arange(2048, dtype=torch.int32)
    sizes = {len(gather_rounded(weight, ids[:n], torch.bfloat16)) for n in (1990, 2010)}
    assert sizes == {2016}


def test_two_losses_of_one_layer_can_wait_for_their_backward():
    x, weight, bias, active = draw_linear("shared", False, torch.float64)
    alone = loss_and_gradients(
        active_linear_loss(x, weight, bias, active, "softmax"), x, weight, bias
    )
    first = active_linear_loss(x, weight, bias, active, "softmax")
    active_linear_loss(2 * x.detach(), weight, bias, active, "softmax")
    for one, other in zip(loss_and_gradients(first, x, weight, bias), alone, strict=True):
        torch.testing.assert_close(one, other)


def test_loss_of_a_linear_layer_keeps_nan_and_names_what_does_not_fit():
    x, weight, bias, active = draw_linear("shared", False, torch.float32)
    with torch.no_grad():
        weight[active.ids[7]] = torch.nan
    assert active_linear_loss(x, weight, bias, active, "squared_hinge").isnan()
    for inputs, precision, message in [
        (x, "int8", "precision must be one of"),
        (x[:, 1:], "float32", "does not fit weight"),
        (x[1:], "float32", "7 rows of targets do not fit 6 inputs"),
    ]:
        with pytest.raises(ValueError, match=message):
            active_linear_loss(inputs, weight, bias, active, "bce", precision=precision)
    with pytest.raises(ValueError, match="7 rows of targets do not fit 6 inputs"):
        loss_on_active(torch.zeros(6, 9), active, "bce")
