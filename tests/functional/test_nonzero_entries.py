"""Gradients that are mostly zero: their entries are found, and products equal the dense ones."""

import numpy as np
import pytest
import torch
from helpers.grids import pairs

from slide.active_set import ActiveSet
from slide.functional import active_linear_loss, loss_on_active
from slide.functional.linear import active_linear
from slide.ops import products as nonzeros
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import FactoredRowGradient, RowGradient, dense_gradient
from slide.sparse import Pattern

B, A, D, N = 12, 30, 5, 40


def draw(*shape, share=None, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(shape, dtype=dtype, generator=generator)
    return out if share is None else out * (torch.rand(shape, generator=generator) < share)


def use(monkeypatch, few):
    """Use the path for few entries always, or never."""
    monkeypatch.setattr(nonzeros, "DENSE_ENTRY_SHARE", 1.0 if few else 0.0)


@pytest.mark.kernels_only
def test_many_are_not_taken():
    entries = int(nonzeros.DENSE_ENTRY_SHARE * 64 * 100)
    gradient = torch.zeros(64, 100)
    gradient.view(-1)[:: 6400 // entries][:entries] = 1
    assert len(nonzeros.nonzeros(gradient).indices) == entries
    gradient[gradient == 0] = torch.cat([torch.ones(1), torch.zeros(6399 - entries)])
    assert nonzeros.nonzeros(gradient) is None
    assert nonzeros.nonzeros(torch.ones(64, 100)) is None


@pytest.fixture(params=["some", "complete"])
def layer(request):
    """Inputs, weight, bias, and an active set with targets."""
    size = N if request.param == "complete" else A
    ids = np.random.default_rng(0).permutation(N)[:size].astype(np.int32)
    ids = np.arange(N, dtype=np.int32) if size == N else ids
    targets = Pattern(np.arange(B + 1), np.arange(B, dtype=np.int32))
    x, weight, bias = draw(B, D), draw(N, D, seed=1), draw(N, seed=2)
    return *(t.requires_grad_() for t in (x, weight, bias)), ActiveSet(N, ids, None, targets)


def gradients(out, x, weight, bias, upstream=None):
    x.grad, weight.row_gradients, bias.row_gradients = None, [], []
    out.backward(upstream)
    kind = type(weight.row_gradients[0])
    return kind, x.grad, dense_gradient(weight), dense_gradient(bias)


@pytest.mark.kernels_only
@pytest.mark.parametrize("hard", [False, True])
def test_backward_of_the_layer(layer, monkeypatch, hard):
    x, weight, bias, active = layer
    upstream = draw(B, len(active.ids), share=0.05, seed=5)
    upstream[3:] *= not hard
    found = {}
    for few in (False, True):
        use(monkeypatch, few)
        found[few] = gradients(active_linear(x, weight, bias, active), x, weight, bias, upstream)
    assert (found[False][0], found[True][0]) == (RowGradient, FactoredRowGradient)
    for one, other in zip(found[False][1:], found[True][1:], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.kernels_only
@pairs(hard=[1.0, 0.4], factor=[1.0, 0.5], sparse_grad=[False, True])
def test_backward_of_a_loss(layer, monkeypatch, hard, factor, sparse_grad):
    x, weight, bias, active = layer
    with torch.no_grad():
        bias -= 4  # Most outputs are clearly wrong, and the hinge leaves them alone.
    found = {}
    for few in (False, True):
        use(monkeypatch, few)
        loss = active_linear_loss(
            *(x, weight, bias, active, "squared_hinge"), hard_fraction=hard, sparse_grad=sparse_grad
        )
        if sparse_grad:
            found[few] = torch.autograd.grad(factor * loss, (x, weight, bias))
            found[few] = [part.to_dense() for part in found[few]]
        else:
            kind, *found[few] = gradients(factor * loss, x, weight, bias)
            assert kind == (FactoredRowGradient if few else RowGradient)
    for one, other in zip(found[False], found[True], strict=True):
        torch.testing.assert_close(one, other)
    dense = (x @ weight.T + bias)[:, active.ids.astype(np.int64)]
    loss_on_active(dense, active, "squared_hinge", hard).backward(torch.tensor(factor))
    torch.testing.assert_close(found[True][1], weight.grad)


@pytest.mark.kernels_only
def test_in_bfloat16_the_scores_alone_are_rounded(monkeypatch):
    use(monkeypatch, few=True)
    x, weight = draw(B, D, dtype=torch.float32), draw(N, D, dtype=torch.float32, seed=1)
    ids = np.arange(3, 33, dtype=np.int32)
    active = ActiveSet(N, ids, None, Pattern(np.arange(B + 1), np.arange(B, dtype=np.int32)))
    bias = torch.full((N,), -4.0, requires_grad=True)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    loss = active_linear_loss(*leaves, bias, active, "squared_hinge", precision="bfloat16")
    _, grad_x, grad_weight, _ = gradients(loss, *leaves, bias)
    with torch.no_grad():
        at = torch.from_numpy(ids).long()
        scores = (x.bfloat16() @ weight[at].bfloat16().T).float() + bias[at]
    scores.requires_grad_()
    loss_on_active(scores, active, "squared_hinge").backward()
    torch.testing.assert_close(grad_x, scores.grad @ weight[at])
    torch.testing.assert_close(grad_weight[at], scores.grad.T @ x)


@pytest.mark.parametrize("kind", ["few entries", "shared", "per_sample", "fused"])
def test_inputs_and_gradients_may_change_after_the_backward_pass(monkeypatch, kind):
    use(monkeypatch, kind == "few entries")
    weight, ids = draw(N, D, seed=1).requires_grad_(), np.arange(A, dtype=np.int32)
    bounds = np.arange(B + 1) * A if kind == "per_sample" else None
    targets = Pattern(np.arange(B + 1), np.arange(B, dtype=np.int32))
    active = ActiveSet(N, ids if bounds is None else np.tile(ids, B), bounds, targets)

    def run(change):
        x, weight.row_gradients = draw(B, D), []
        if kind == "fused":
            active_linear_loss(x, weight, None, active, "squared_hinge").backward()
        else:
            scores = active_linear(x, weight, None, active)
            upstream = draw(*scores.shape, share=0.1, seed=5)
            scores.backward(upstream)
            upstream *= change
        x *= change
        return dense_gradient(weight)

    assert run(1.0).any()
    torch.testing.assert_close(run(7.0), run(1.0))


@pytest.mark.parametrize("shape", [(0, A), (B, 0)])
def test_empty(shape):
    count, size = shape
    x, weight = draw(count, D).requires_grad_(), draw(N, D, seed=1).requires_grad_()
    targets = Pattern(np.zeros(count + 1, np.int64), np.empty(0, np.int32))
    active = ActiveSet(N, np.arange(size, dtype=np.int32), None, targets)
    active_linear_loss(x, weight, None, active, "squared_hinge").backward()
    assert not x.grad.any()
    assert not dense_gradient(weight).any()


def test_a_weight_in_another_order_of_memory(monkeypatch):
    use(monkeypatch, few=True)
    x, weight = draw(B, D).requires_grad_(), draw(D, N, seed=1).T.requires_grad_()
    active = ActiveSet(N, np.arange(N, dtype=np.int32))
    upstream = draw(B, N, share=0.02, seed=5)
    active_linear(x, weight, None, active, sparse_grad=True).backward(upstream)
    torch.testing.assert_close(x.grad, upstream @ weight)
    torch.testing.assert_close(weight.grad.to_dense(), upstream.T @ x)


def test_momentum_moves_all_active_rows_either_way(layer, monkeypatch):
    x, weight, bias, active = layer
    after = []
    for few in (False, True):
        use(monkeypatch, few)
        leaves = [torch.nn.Parameter(t.detach().clone()) for t in (weight, bias)]
        optimizer = RowSparseAdam(leaves, lr=0.1)
        for shift in (-1.0, -6.0):  # In the second step fewer outputs have a gradient.
            scores = active_linear(x.detach(), *leaves, active)
            loss_on_active(scores + shift, active, "squared_hinge").backward()
            optimizer.step()
            optimizer.zero_grad()
        after.append(leaves)
    for one, other in zip(*after, strict=True):
        torch.testing.assert_close(one, other)
