"""Products and losses on sets that groups of samples share: as on a set for each sample."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.active_sets import draw, pick
from helpers.grids import pairs
from helpers.matrices import make_pattern

from slide.active_set import ActiveSet, Groups
from slide.backend import backend
from slide.functional import active_linear, active_linear_loss, loss_on_active
from slide.functional.losses import LOSSES
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient
from slide.sampling import ActiveSampler
from slide.sparse import Pattern, row_bounds

pytestmark = pytest.mark.usefixtures("one_thread")
D, N, LABELS = 3, 16, 4
KINDS = {
    # Samples of each group, and outputs of its set.
    "two groups": ([4, 3], [9, 7]),
    "samples alone": ([1, 1, 1], [5, 16, 6]),
    "one group": ([9], [8]),
    "a group of nobody": ([2, 0, 5], [6, 3, 5]),
    "empty sets": ([3, 2], [0, 4]),
    "no samples": ([], []),
}


def make_groups(kind, weighted=False, seed=1):
    """Groups in random order; the first four outputs of a set are those of targets."""
    (samples, sizes), rng = KINDS[kind], np.random.default_rng(seed)
    order, sets = rng.permutation(sum(samples)), make_pattern(rng, sizes, N)
    logs = [np.r_[np.zeros(LABELS), rng.uniform(0, 2, max(n - LABELS, 0))][:n] for n in sizes]
    set_of = np.empty(len(order), int)
    set_of[order] = np.repeat(np.arange(len(sizes)), samples)
    own = [sets.indices[a:z] for a, z in pairwise(sets.indptr)]
    ids, logs = (
        np.concatenate([np.empty(0), *(each[s] for s in set_of)]).astype(dtype)
        for each, dtype in ((own, np.int32), (logs, np.float32))
    )
    targets = make_pattern(rng, [min(b % 3, sizes[s]) for b, s in enumerate(set_of)], LABELS)
    groups = Groups(order, row_bounds(samples), sets.indices, sets.indptr)
    indptr = row_bounds([sizes[s] for s in set_of])
    return ActiveSet(N, ids, indptr, targets, logs if weighted else None, groups=groups)


def draw_layer(active, dtype=torch.float64):
    shapes = (len(active.indptr) - 1, D), (N, D), (N,)
    drawn = (draw(*shape, seed=i, grad=False) for i, shape in enumerate(shapes))
    return [each.to(dtype).requires_grad_() for each in drawn]


def draw_sampled():
    """A set of each group by a sampler."""
    sampler = ActiveSampler(D, N, active=9, mode="grouped", group_size=3, weighting="none")
    sampler.update(torch.zeros(N, D), None, torch.randn(7, D))
    return sampler.select(torch.randn(7, D), Pattern.from_lists([[b, b + 5] for b in range(7)]))


@pairs(kind=[*KINDS, "of a sampler"], has_bias=[False, True], way=["kernels", "torch"])
def test_products_against_dense_ones(kind, has_bias, way):
    active = draw_sampled() if kind == "of a sampler" else make_groups(kind)
    x, weight, bias = draw_layer(active)
    with backend(way):
        out = active_linear(x, weight, bias if has_bias else None, active)
    dense = torch.nn.functional.linear(x, weight, bias if has_bias else None)
    expected = pick(dense, active)
    torch.testing.assert_close(out, expected)
    upstream = torch.randn_like(out)
    leaves = [x, weight, *([bias] if has_bias else [])]
    wanted = torch.autograd.grad(expected, leaves, upstream)
    with backend(way):
        out.backward(upstream)
    assert weight.grad is bias.grad is None
    torch.testing.assert_close(x.grad, wanted[0])
    for leaf, each in zip(leaves[1:], wanted[1:], strict=True):
        torch.testing.assert_close(dense_gradient(leaf), each)
    assert has_bias or not hasattr(bias, "row_gradients")


@pytest.mark.parametrize("sparse_grad", [False, True])
def test_a_gradient_of_a_sum_and_strided_inputs(sparse_grad):
    """The gradient of a sum is one number, expanded."""
    active = make_groups("two groups")
    x, weight, bias = draw(D, 7), draw(N, D, seed=1), draw(N, seed=2)
    out = active_linear(x.T, weight, bias, active, sparse_grad=sparse_grad)
    expected = pick(x.T @ weight.T + bias, active)
    torch.testing.assert_close(out, expected)
    leaves = x, weight, bias
    wanted = torch.autograd.grad(expected.sum(), leaves)
    found = torch.autograd.grad(out.sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.to_dense(), other)


def test_gradcheck():
    active = make_groups("two groups")
    x, weight, bias = draw_layer(active)
    assert torch.autograd.gradcheck(lambda x: active_linear(x, weight, bias, active), x)


def numerical(function, leaves, step=1e-6):
    """Central differences of a function of tensors that it reads."""
    out = []
    for leaf in leaves:
        flat, found = leaf.data.view(-1), torch.empty(leaf.numel(), dtype=leaf.dtype)
        for i, value in enumerate(flat.tolist()):
            ends = []
            for change in (step, -step):
                flat[i] = value + change
                ends.append(function().item())
            flat[i], found[i] = value, (ends[0] - ends[1]) / (2 * step)
        out.append(found.view_as(leaf))
    return out


@pairs(
    name=["softmax", "squared_hinge", "bce"],
    weighted=[False, True],
    sparse_grad=[False, True],
    hard=[1.0, 0.5],
)
def test_gradients_of_losses_are_their_slopes(name, weighted, sparse_grad, hard):
    active = make_groups("two groups", weighted)
    leaves = draw_layer(active)
    options = {"hard_fraction": hard, "sparse_grad": sparse_grad}

    def loss():
        return active_linear_loss(*leaves, active, name, **options)

    with torch.no_grad():
        wanted = numerical(loss, leaves)
    loss().backward()
    x, *parameters = leaves
    torch.testing.assert_close(x.grad, wanted[0], atol=1e-7, rtol=1e-5)
    for parameter, each in zip(parameters, wanted[1:], strict=True):
        own = parameter.grad.to_dense() if sparse_grad else dense_gradient(parameter)
        torch.testing.assert_close(own, each, atol=1e-7, rtol=1e-5)


def gradients(loss, leaves, sparse_grad):
    """A loss, and gradients of inputs, weight and bias."""
    loss.backward()
    x, *parameters = leaves
    if sparse_grad:
        return [loss.detach(), x.grad, *(p.grad.to_dense() for p in parameters)]
    return [loss.detach(), x.grad, *map(dense_gradient, parameters)]


@pairs(
    name=LOSSES,
    weighted=[False, True],
    sparse_grad=[False, True],
    hard=[1.0, 0.4],
    dtype=[torch.float64, torch.float32, torch.bfloat16],
    way=["kernels", "torch"],
)
def test_as_sets_of_each_sample(name, weighted, sparse_grad, hard, dtype, way):
    """The same sets without what tells that groups share them; losses of a sample weighted."""
    active = make_groups("two groups", weighted)
    options = {"hard_fraction": hard, "sparse_grad": sparse_grad}
    each = np.linspace(0.2, 3, 7) if weighted else None
    found = []
    for some in (active, replace(active, groups=None)):
        leaves = draw_layer(active, dtype)
        with backend(way):
            loss = active_linear_loss(*leaves, some, name, **options, weights=each)
            found.append(gradients(loss, leaves, sparse_grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    if hard == 1:
        scores = torch.nn.functional.linear(*draw_layer(active))
        expected = loss_on_active(pick(scores, active), active, name, weights=each)
        tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-4
        assert found[0][0].item() == pytest.approx(expected.item(), rel=tolerance)


def test_only_what_needs_a_gradient_gets_one():
    active = make_groups("two groups")
    for needed in range(3):
        leaves = draw_layer(active)
        for i, leaf in enumerate(leaves):
            leaf.requires_grad_(i == needed)
        active_linear(*leaves, active).sum().backward()
        got = [leaves[0].grad is not None, *(hasattr(p, "row_gradients") for p in leaves[1:])]
        assert got == [i == needed for i in range(3)]


@pytest.mark.kernels_only
def test_outputs_without_a_gradient_have_no_row():
    """A hinge leaves outputs alone that are right by a margin; momentum must not move them."""
    active = make_groups("two groups")
    x, weight, bias = draw_layer(active)
    upstream = torch.zeros(len(active.ids), dtype=torch.float64)
    upstream[[2, 11, 30]] = torch.tensor([1.0, -2.0, torch.nan], dtype=torch.float64)
    active_linear(x, weight, bias, active).backward(upstream)
    rows = np.unique(active.ids[[2, 11, 30]]).tolist()
    for parameter in (weight, bias):
        (gradient,) = parameter.row_gradients
        assert gradient.ids.tolist() == rows
        assert len(gradient.coefficients) == 3
    samples = np.repeat(np.arange(7), np.diff(active.indptr))[[2, 11, 30]]
    assert np.flatnonzero(x.grad.isnan().any(1).numpy()).tolist() == [samples[2]]


@pytest.mark.parametrize("way", ["kernels", "torch"])
def test_no_gradient_at_all(way):
    active = make_groups("two groups")
    x, weight, bias = draw_layer(active)
    before, optimizer = weight.detach().clone(), RowSparseAdam([weight, bias])
    with backend(way):
        (active_linear(x, weight, bias, active) * 0).sum().backward()
        optimizer.step()
    assert not x.grad.any()
    assert torch.equal(weight, before)


def test_inputs_and_gradients_may_change_after_the_backward_pass():
    """The gradient of the weight waits for the step of the optimizer."""
    active, found = make_groups("two groups"), []
    for change in (1, 7):
        x, weight, bias = draw_layer(active)
        upstream = draw(len(active.ids), seed=5, grad=False)
        active_linear(x, weight, bias, active).backward(upstream)
        upstream *= change
        x.data *= change
        found.append([dense_gradient(weight), dense_gradient(bias)])
    for one, other in zip(*found, strict=True):
        assert one.any()
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["softmax", "bce"])
def test_training_is_that_of_sets_of_each_sample(name):
    """Where each output of a set has a gradient, rows move alike."""
    after = []
    for grouped in (True, False):
        _, *parameters = draw_layer(make_groups("two groups"))
        optimizer = RowSparseAdam(parameters, lr=0.1)
        for step in range(4):
            active = make_groups("two groups", weighted=True, seed=step)
            active = active if grouped else replace(active, groups=None)
            x = draw(7, D, seed=step, grad=False)
            active_linear_loss(x, *parameters, active, name).backward()
            optimizer.step()
            optimizer.zero_grad()
        after.append(parameters)
    for one, other in zip(*after, strict=True):
        torch.testing.assert_close(one, other)


def test_a_score_that_is_no_number_is_kept():
    active = make_groups("two groups")
    x, weight, bias = draw_layer(active)
    with torch.no_grad():
        weight[active.ids[0]] = torch.nan
    assert active_linear_loss(x, weight, bias, active, "softmax").isnan()


@pytest.mark.parametrize(
    "change",
    [
        {"ids": np.array([0, 9], np.int32)},
        {"order": np.array([0, 0])},
        {"bounds": np.array([0, 3])},
        {"indptr": np.array([0, 1])},
    ],
)
def test_groups_that_kernels_cannot_read_are_refused(change):
    groups = Groups(np.arange(2), np.array([0, 2]), np.array([0, 1], np.int32), np.array([0, 2]))
    ids, indptr = np.array([0, 1, 0, 1], np.int32), np.array([0, 2, 4])
    active = ActiveSet(5, ids, indptr, groups=groups._replace(**change))
    x, weight = torch.randn(2, 3), torch.randn(5, 3)
    with pytest.raises(ValueError, match="groups of an active set must divide its 2 samples"):
        active_linear(x, weight, None, active)
