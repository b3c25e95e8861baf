"""Gradients as sparse tensors: what PyTorch's own optimizers and tools make of them."""

import warnings

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr
from helpers.samplers import uniform_sampler
from helpers.sparse_layers import (
    OPTIMIZERS,
    B,
    D,
    N,
    draw_labels,
    every_mode,
    every_output,
    make_layer,
)
from torch import nn

from slide import row_gradients
from slide.functional.linear import active_linear
from slide.nn import ActiveLoss
from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_input_linear import SparseInputLinear
from slide.ops.backend import plain
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient
from slide.sparse import Pattern

# Of PyTorch's Adagrad, once a process.
quiet = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")


def on_set(dense, active):
    if active.shared:
        return dense[:, torch.from_numpy(active.ids).long()]
    rows = [dense[b, torch.from_numpy(active.row(b)).long()] for b in range(len(dense))]
    return torch.cat(rows)


class TestGradients:
    @every_mode
    def test_are_those_left_on_the_weight(self, mode):
        found = []
        for sparse in (False, True):
            layer = make_layer(mode, sparse)
            out = layer(torch.ones(B, D), draw_labels())
            ActiveLoss("bce")(out.values, out.active).backward()
            found.append(layer)
        for name in ("weight", "bias"):
            rows, sparse = (getattr(layer, name) for layer in found)
            assert sparse.grad.layout == torch.sparse_coo
            assert sparse.grad.shape == sparse.shape
            assert sparse.grad.sparse_dim() == 1
            ids = sparse.grad._indices()[0]
            assert set(ids.tolist()) == set(out.active.ids.tolist())
            assert plain() or len(ids) == len(set(ids.tolist()))
            assert rows.grad is None
            assert not hasattr(sparse, "row_gradients")
            torch.testing.assert_close(sparse.grad.to_dense(), dense_gradient(rows))

    @every_mode
    @pytest.mark.parametrize("hard", [1.0, 0.4])
    def test_of_the_loss_in_one_pass(self, mode, hard):
        loss, x = ActiveLoss("softmax", hard), torch.randn(B, D)
        one, other = make_layer(mode), make_layer(mode, sparse_grad=False)
        for layer in (one, other):
            layer.loss(x, draw_labels(), loss)[0].mul(3).backward()
        for name in ("weight", "bias"):
            wanted = dense_gradient(getattr(other, name))
            torch.testing.assert_close(getattr(one, name).grad.to_dense(), wanted)

    def test_of_the_loss_may_be_changed_in_place(self):
        layer = make_layer()
        mean, _ = layer.loss(torch.randn(B, D), draw_labels(), ActiveLoss("bce"))
        mean.backward(retain_graph=True)
        first = layer.weight.grad.to_dense()
        layer.weight.grad.mul_(100)
        layer.weight.grad = None
        mean.backward()
        torch.testing.assert_close(layer.weight.grad.to_dense(), first)

    @every_mode
    def test_add_up(self, mode):
        layer, twin = make_layer(mode), make_layer(mode, sparse_grad=False)
        for i in range(3):
            x = torch.randn(B, D)
            for one in (layer, twin):
                one(x, draw_labels(i)).values.square().sum().backward()
        for name in ("weight", "bias"):
            wanted = dense_gradient(getattr(twin, name))
            torch.testing.assert_close(getattr(layer, name).grad.to_dense(), wanted)
        layer.zero_grad()
        assert layer.weight.grad is None

    def test_of_a_sparse_input(self):
        found = []
        for sparse in (False, True):
            torch.manual_seed(0)
            layer = SparseInputLinear(N, D, sparse_grad=sparse)
            x = make_csr(np.random.default_rng(0), [3, 0, 7, 1], N)
            layer(x).values.square().sum().backward()
            found.append(layer)
        rows, sparse = found
        torch.testing.assert_close(sparse.weight.grad.to_dense(), dense_gradient(rows.weight))
        torch.testing.assert_close(sparse.bias.grad, rows.bias.grad)
        torch.optim.SparseAdam([sparse.weight]).step()

    def test_in_eval_all_rows_have_one(self):
        layer, linear = make_layer().eval(), nn.Linear(D, N)
        linear.load_state_dict({"weight": layer.weight, "bias": layer.bias})
        x = torch.randn(B, D)
        layer(x).values.square().sum().backward()
        linear(x).square().sum().backward()
        torch.testing.assert_close(layer.weight.grad.to_dense(), linear.weight.grad)


class TestOptimizers:
    """With all outputs active they do what dense training does."""

    @quiet
    @every_mode
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_equal_dense_training(self, name, mode):
        ours, theirs, options = OPTIMIZERS[name]
        linear = nn.Linear(D, N, dtype=torch.float64)
        weight, bias = (nn.Parameter(p.detach().clone()) for p in linear.parameters())
        active = every_output(mode)
        one, other = ours([weight, bias], **options), theirs(linear.parameters(), **options)
        for step in range(4):
            one.zero_grad()
            other.zero_grad()
            # The second step accumulates two batches.
            for part in range(1 + (step == 1)):
                generator = torch.Generator().manual_seed(10 * step + part)
                x = torch.randn(B, D, dtype=torch.float64, generator=generator)
                out = active_linear(x, weight, bias, active, sparse_grad=True)
                wanted = on_set(linear(x), active)
                torch.testing.assert_close(out, wanted)
                (out**2).mean().backward()
                (wanted**2).mean().backward()
            one.step()
            other.step()
            torch.testing.assert_close(weight, linear.weight, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(bias, linear.bias, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("name", ["SparseAdam", "SGD", "RowSparseAdam"])
    def test_move_the_active_rows_alone(self, name):
        layer = make_layer("per_sample")
        optimizer = OPTIMIZERS[name][0](layer.parameters(), lr=0.1)
        before = layer.weight.detach().clone()
        out = layer(torch.randn(B, D), draw_labels())
        ActiveLoss("bce")(out.values, out.active).backward()
        optimizer.step()
        changed = (layer.weight != before).any(1).nonzero().flatten().tolist()
        assert changed == sorted(set(out.active.ids.tolist()))

    def test_a_gradient_that_is_not_of_rows(self):
        weight = nn.Parameter(torch.zeros(3, 2))
        weight.grad = torch.sparse_coo_tensor([[0], [1]], [1.0], (3, 2))
        with pytest.raises(ValueError, match="needs 1 sparse dimension, not 2"):
            RowSparseAdam([weight]).step()

    def test_a_weight_that_is_used_by_an_embedding_too(self):
        """Tied input and output: sparse and row gradients of one weight add up, and dense ones."""
        embedding, sets = nn.Embedding(N, D, sparse=True), every_output("shared")
        dense = nn.Parameter(embedding.weight.detach().clone())
        tokens = torch.tensor([3, 7, 3, 1, 0])
        for sparse in (False, True):
            embedding.weight.grad, embedding.weight.row_gradients, dense.grad = None, [], None
            x = embedding(tokens)
            active_linear(
                x, embedding.weight, None, sets, sparse_grad=sparse
            ).square().sum().backward()
            (dense[tokens] @ dense.T).square().sum().backward()
            twin = nn.Parameter(dense.detach().clone())
            twin.grad = dense.grad
            RowSparseAdam([twin]).step()
            copied = nn.Parameter(embedding.weight.detach().clone())
            copied.grad, copied.row_gradients = (
                embedding.weight.grad,
                embedding.weight.row_gradients,
            )
            RowSparseAdam([copied]).step()
            torch.testing.assert_close(copied, twin)

    def test_a_weight_that_two_layers_share(self):
        first, second = make_layer("shared"), make_layer("per_sample")
        second.weight = first.weight
        x = torch.randn(B, D)
        out = first(x), second(x)
        (out[0].values.sum() + out[1].values.sum()).backward()
        counts = np.zeros(N)
        np.add.at(counts, out[0].active.ids, 1)
        wanted = torch.from_numpy(counts)[:, None] * x.sum(0)
        for b in range(B):
            wanted[torch.from_numpy(out[1].active.row(b)).long()] += x[b]
        torch.testing.assert_close(first.weight.grad.to_dense(), wanted.float())


class TestComputedWeights:
    @every_mode
    def test_get_a_gradient_through_autograd(self, mode):
        weight = torch.randn(N, D, requires_grad=True)
        x, active = torch.randn(B, D), every_output(mode)
        active_linear(x, 2 * weight, None, active, sparse_grad=True).square().sum().backward()
        found, weight.grad = weight.grad.to_dense(), None
        (x @ (2 * weight).T).square().sum().backward()
        torch.testing.assert_close(found, weight.grad)

    @every_mode
    def test_are_refused_otherwise(self, mode):
        weight, bias = torch.randn(N, D, requires_grad=True), torch.randn(N, requires_grad=True)
        for w, b in ((2 * weight, bias), (weight, 2 * bias)):
            with pytest.raises(ValueError, match=r"other tensors.* sparse_grad=True"):
                active_linear(torch.randn(B, D), w, b, every_output(mode))
        with torch.no_grad():
            active_linear(torch.randn(B, D), 2 * weight, bias, every_output(mode))

    def test_parametrized_layer(self):
        layer = SampledLinear(D, N)
        nn.utils.parametrizations.weight_norm(layer, "weight")
        with pytest.raises(ValueError, match="sparse_grad=True"):
            layer(torch.randn(B, D))


def test_a_weight_that_no_optimizer_takes(monkeypatch):
    monkeypatch.setattr(row_gradients, "MANY_PENDING", 3)
    weight = nn.Parameter(torch.randn(N, D))
    x, active = torch.randn(B, D), every_output("shared")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            active_linear(x, weight, None, active).sum().backward()
    with pytest.warns(UserWarning, match="no RowSparseAdam took them"):
        active_linear(x, weight, None, active).sum().backward()


def test_stratified_uniform_sets_train_with_sparse_adam():
    layer = SampledLinear(D, N, uniform_sampler(D, N, active=12), sparse_grad=True)
    optimizer = torch.optim.SparseAdam(layer.parameters(), lr=0.05)
    x, labels, loss = torch.randn(2, D), Pattern.from_lists([[1], [2, 3]]), ActiveLoss("softmax")
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        mean, _ = layer.loss(x, labels, loss)
        mean.backward()
        optimizer.step()
        losses.append(mean.item())
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])
