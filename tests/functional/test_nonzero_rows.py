"""A loss over part of a batch: gradients are the same, and other samples are not visited."""

import numpy as np
import pytest
import torch
from helpers.active_sets import draw
from helpers.grids import pairs
from helpers.matrices import make_csr, make_pattern

from slide.active_set import ActiveSet
from slide.functional import loss_on_active
from slide.functional.linear import active_linear
from slide.functional.losses import LOSSES, hardest_count
from slide.functional.sparse_linear import sparse_linear
from slide.nn import ActiveLoss, hardest
from slide.ops.ragged import select_rows
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient
from slide.sparse import Pattern

B, D, N = 8, 5, 30
every_mode = pytest.mark.parametrize("mode", ["shared", "per_sample"])


def make_active(mode, seed=0):
    """An active set whose first entries of a sample are its targets."""
    rng = np.random.default_rng(seed)
    lengths = [6] * B if mode == "shared" else [6, 1, 4, 9, 3, 5, 2, 7]
    sets = make_pattern(rng, lengths, N)
    targets = make_pattern(rng, [1] * B, 1)
    if mode == "shared":
        return ActiveSet(N, sets.indices[:6], None, targets)
    return ActiveSet(N, sets.indices, sets.indptr, targets)


def restrict(active, rows):
    """The same set for some of the samples."""
    _, positions = select_rows(active.targets.indptr, rows, active.targets.indices)
    targets = Pattern(np.arange(len(rows) + 1), positions)
    if active.shared:
        return ActiveSet(N, active.ids, None, targets)
    indptr, ids = select_rows(active.indptr, rows, active.ids)
    return ActiveSet(N, ids, indptr, targets)


def losses_of(x, weight, bias, active, name):
    """The loss of each sample, one by one."""
    with torch.no_grad():
        parts = []
        for b in range(B):
            own = restrict(active, np.array([b]))
            out = active_linear(x[b : b + 1], weight, bias, own)
            parts.append(loss_on_active(out, own, name).item())
    return np.array(parts)


@pytest.mark.parametrize(
    ("fraction", "num_samples", "count"),
    [(0.25, 8, 2), (0.1, 30, 3), (0.01, 8, 1), (1.0, 8, 8), (1, 7, 7), (0.5, 0, 0)],
)
def test_hardest_count(fraction, num_samples, count):
    assert hardest_count(fraction, num_samples) == count


@pairs(mode=["shared", "per_sample"], name=LOSSES, fraction=[0.25, 0.9, 1.0])
def test_equals_two_passes(mode, name, fraction):
    """The twin selects samples in a first pass, and learns from them in a second one."""
    active = make_active(mode)
    parameters = draw(B, D), draw(N, D, seed=1), draw(N, seed=2)
    twins = [p.detach().clone().requires_grad_() for p in parameters]
    losses = losses_of(*twins, active, name)
    count = hardest_count(fraction, B)
    hard = np.sort(np.argsort(-losses)[:count])
    own = restrict(active, hard)
    x, weight, bias = twins
    expected = loss_on_active(active_linear(x[hard], weight, bias, own), own, name)
    expected.backward()
    loss = ActiveLoss(name, fraction)(active_linear(*parameters, active), active)
    loss.backward()
    torch.testing.assert_close(loss, expected)
    assert loss.item() == pytest.approx(np.sort(losses)[-count:].mean())
    torch.testing.assert_close(parameters[0].grad, x.grad)
    for parameter, twin in zip(parameters[1:], twins[1:], strict=True):
        torch.testing.assert_close(dense_gradient(parameter), dense_gradient(twin))


@pytest.mark.kernels_only
@every_mode
def test_only_the_kept_are_visited(mode, monkeypatch):
    active, weight = make_active(mode), draw(N, D, seed=1)
    x = draw(B, D)
    losses = losses_of(x, weight, None, active, "bce")
    hard = np.sort(np.argsort(-losses)[:2])
    ActiveLoss("bce", 0.25)(active_linear(x, weight, None, active), active).backward()
    (gradient,) = weight.row_gradients
    touched = active.ids if mode == "shared" else np.concatenate([active.row(b) for b in hard])
    assert set(gradient.ids.tolist()) == set(touched.tolist())
    if mode == "per_sample":
        assert len(gradient.coefficients) == len(touched)
        assert len(gradient.vectors) == 2
    assert sorted(np.flatnonzero(x.grad.numpy().any(1))) == hard.tolist()
    assert (active.scratch.filled("slots", (active.out_features,), np.int32, -1) == -1).all()


@pytest.mark.kernels_only
def test_sparse_input():
    x = make_csr(np.random.default_rng(0), [3, 0, 5, 1], N, np.float64)
    weight, bias = draw(N, D), draw(D)
    upstream = torch.zeros(4, D, dtype=torch.float64)
    upstream[2] = torch.arange(D) + 1.0
    sparse_linear(x, weight, bias).backward(upstream)
    (gradient,) = weight.row_gradients
    assert sorted(gradient.ids) == sorted(x.indices[3:8])
    expected = torch.zeros(N, D, dtype=torch.float64)
    for p in range(3, 8):
        expected[x.indices[p]] += x.values[p] * upstream[2]
    torch.testing.assert_close(dense_gradient(weight), expected)
    torch.testing.assert_close(bias.grad, upstream.sum(0))


def test_no_gradient_at_all():
    x, weight = draw(B, D), draw(N, D, seed=1)
    optimizer, before = RowSparseAdam([weight]), weight.detach().clone()
    for mode in ("shared", "per_sample"):
        (active_linear(x, weight, None, make_active(mode)) * 0).sum().backward()
        optimizer.step()
    assert not x.grad.any()
    assert torch.equal(weight, before)


def test_hardest():
    losses = torch.tensor([1.0, 5.0, 3.0, 2.0], requires_grad=True)
    value = hardest(0.5)(losses)
    value.backward()
    assert value.item() == 4
    assert losses.grad.tolist() == [0, 0.5, 0.5, 0]
    assert torch.isnan(hardest(0.25)(torch.tensor([1.0, torch.nan, 9.0, 2.0])))
    assert hardest(0.5)(losses[:0]).item() == 0


def test_nan_is_kept():
    active = make_active("shared")
    scores = torch.ones(B, 6)
    scores[3, 4] = torch.nan
    assert torch.isnan(loss_on_active(scores, active, "bce", 0.25))


@pytest.mark.parametrize("fraction", [None, 0, 1.5, float("nan")])
def test_errors(fraction):
    with pytest.raises(ValueError, match="hard_fraction must be"):
        ActiveLoss("bce", fraction)
    with pytest.raises(ValueError, match="fraction must be"):
        hardest(fraction)
    with pytest.raises(ValueError, match=r"losses must be \(B,\), one for each sample, not \(2"):
        hardest(0.5)(torch.ones(2, 3))
