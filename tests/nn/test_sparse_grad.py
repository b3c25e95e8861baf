"""Gradients as sparse tensors: what PyTorch's own optimizers and tools make of them."""

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, make_pattern
from helpers.samplers import lsh_sampler, uniform_sampler
from torch import nn

from slide import active_set as row_gradients
from slide.active_set import ActiveSet
from slide.functional.linear import active_linear
from slide.hashing.simhash import SimHash
from slide.nn import ActiveLoss
from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_input_linear import SparseInputLinear
from slide.optim.clipping import clip_grad_norm_
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient
from slide.sparse import Pattern

B, D, N = 5, 6, 40
MODES = ["per_sample", "shared"]
every_mode = pytest.mark.parametrize("mode", MODES)
OPTIMIZERS = {
    # SparseAdam adds eps elsewhere: before the bias correction.
    "SparseAdam": (torch.optim.SparseAdam, torch.optim.Adam, {"lr": 0.1, "eps": 1e-16}),
    "SGD": (torch.optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, torch.optim.Adagrad, {"lr": 0.1}),
    "RowSparseAdam": (RowSparseAdam, torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}),
}
# Of PyTorch's Adagrad, once a process.
quiet = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")


def every_output(mode):
    """All outputs, in another order, as a set of either kind."""
    rng = np.random.default_rng(0)
    if mode == "shared":
        return ActiveSet(N, rng.permutation(N).astype(np.int32))
    ids = [rng.permutation(N).astype(np.int32) for _ in range(B)]
    return ActiveSet(N, np.concatenate(ids), N * np.arange(B + 1))


def on_set(dense, active):
    if active.shared:
        return dense[:, torch.from_numpy(active.ids).long()]
    rows = [dense[b, torch.from_numpy(active.row(b)).long()] for b in range(len(dense))]
    return torch.cat(rows)


def draw_labels(seed=0):
    return make_pattern(np.random.default_rng(seed), [2, 1, 0, 3, 1], N)


def make_layer(mode="shared", sparse_grad=True, active=12):
    torch.manual_seed(1)
    sampler = lsh_sampler(
        D, N, family=lambda d, **keys: SimHash(d, 3, 4, seed=keys["seed"]), active=active, mode=mode
    )
    return SampledLinear(D, N, sampler, sparse_grad=sparse_grad)


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
            assert sorted(ids.tolist()) == sorted(set(out.active.ids.tolist()))
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


class TestClipping:
    @pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
    @pytest.mark.parametrize("max_norm", [0.01, 1e6])
    def test_all_kinds_of_gradients(self, norm_type, max_norm):
        sparse, rows, linear = make_layer(), make_layer("per_sample", False), nn.Linear(D, 3)
        x = torch.randn(B, D)
        for _ in range(2):
            for layer in (sparse, rows):
                layer(x, draw_labels()).values.square().sum().backward()
        linear(x).square().sum().backward()
        both = [rows.weight, rows.bias]
        dense = [p.grad.to_dense() for p in [sparse.weight, sparse.bias, *linear.parameters()]]
        twins = [nn.Parameter(g.clone()) for g in dense + [dense_gradient(p) for p in both]]
        for twin in twins:
            twin.grad = twin.detach().clone()
        wanted = nn.utils.clip_grad_norm_(twins, max_norm, norm_type)
        parameters = [*sparse.parameters(), *linear.parameters(), *rows.parameters()]
        found = clip_grad_norm_(parameters, max_norm, norm_type)
        torch.testing.assert_close(found, wanted)
        clipped = [p.grad.to_dense() for p in [sparse.weight, sparse.bias, *linear.parameters()]]
        for got, twin in zip(clipped + [dense_gradient(p) for p in both], twins, strict=True):
            torch.testing.assert_close(got, twin.grad)

    def test_one_weight_with_both(self):
        weight = nn.Parameter(torch.randn(N, D))
        active_linear(torch.randn(B, D), weight, None, every_output("shared")).sum().backward()
        weight.sum().backward()
        wanted = (dense_gradient(weight) + weight.grad).norm()
        torch.testing.assert_close(clip_grad_norm_(weight, 1.0), wanted.detach())
        assert dense_gradient(weight).norm() == pytest.approx(1, rel=1e-4)

    def test_nothing_to_clip_and_errors(self):
        assert clip_grad_norm_(make_layer().parameters(), 1.0) == 0
        with pytest.raises(ValueError, match="max_norm must be a number above 0, not 0"):
            clip_grad_norm_([], 0)
        with pytest.raises(ValueError, match="norm_type must be"):
            clip_grad_norm_([], 1, -1)

    def test_pytorchs_own_does_not_take_them(self):
        """What the documentation says; once this fails, it can say something better."""
        layer = make_layer()
        layer(torch.randn(B, D)).values.sum().backward()
        with pytest.raises((NotImplementedError, RuntimeError)):
            nn.utils.clip_grad_norm_(layer.parameters(), 1.0)


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
