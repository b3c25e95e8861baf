"""Sampled layers as modules, beside ``nn.Linear``."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, make_pattern, to_dense
from helpers.samplers import faiss_sampler, lsh_sampler, published_sampler, uniform_sampler

from slide.hashing import SimHash
from slide.nn import ActiveLoss
from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_input_linear import SparseInputLinear
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient
from slide.sampling import FullSampler
from slide.sampling.schedules import fixed
from slide.sparse import CSR, Pattern

B, D, N = 5, 6, 40
MODES = ["per_sample", "shared"]
SAMPLERS = {
    "uniform": uniform_sampler,
    "lsh": partial(
        lsh_sampler,
        rebuild=partial(fixed, every=2 * B),
    ),
    "published": partial(
        published_sampler, family=SimHash, hashes_per_table=3, num_tables=4, fill=0
    ),
    "faiss": partial(faiss_sampler, kind="flat", rebuild=partial(fixed, every=2 * B)),
}

every_mode = pytest.mark.parametrize("mode", MODES)
every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def draw_labels(seed=0, num_outputs=N):
    return make_pattern(np.random.default_rng(seed), [2, 1, 0, 3, 1], num_outputs)


def make_layer(name, mode, active=12):
    torch.manual_seed(1)
    return SampledLinear(D, N, SAMPLERS[name](D, N, active=active, mode=mode))


def train(layer, optimizer, first, last):
    """Steps on random inputs; returns their losses."""
    losses = []
    for i in range(first, last):
        x = torch.randn(B, D, generator=torch.Generator().manual_seed(i))
        optimizer.zero_grad()
        out = layer(x, draw_labels(i))
        loss = ActiveLoss("softmax")(out.values, out.active)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class TestSampledLinear:
    @every_mode
    @every_sampler
    def test_computes_entries_of_the_full_product(self, name, mode):
        layer, x = make_layer(name, mode), torch.randn(B, D)
        out = layer(x, draw_labels())
        assert out.num_samples == B
        full = x @ layer.weight.T + layer.bias
        dense = out.to_dense()
        for b in range(B):
            ids = torch.from_numpy(out.active.row(b)).long()
            torch.testing.assert_close(dense[b, ids], full[b, ids])
        assert (dense != 0).sum() == out.values.numel()
        if mode == "shared":
            assert out.values.shape == (B, 12)
        else:
            assert out.values.shape == (len(out.active.ids),)

    def test_without_a_sampler_is_nn_linear(self):
        layer = SampledLinear(D, N)
        linear = torch.nn.Linear(D, N)
        linear.load_state_dict({"weight": layer.weight, "bias": layer.bias})
        x = torch.randn(B, D)
        out = layer(x)
        torch.testing.assert_close(out.to_dense(), linear(x))
        out.values.square().sum().backward()
        linear(x).square().sum().backward()
        torch.testing.assert_close(dense_gradient(layer.weight), linear.weight.grad)
        torch.testing.assert_close(dense_gradient(layer.bias), linear.bias.grad)

    def test_without_a_bias(self):
        layer = SampledLinear(D, N, uniform_sampler(D, N, active=5), bias=False)
        assert layer.bias is None
        assert [name for name, _ in layer.named_parameters()] == ["weight"]
        layer(torch.randn(B, D)).values.sum().backward()
        assert dense_gradient(layer.weight).any(1).sum() == 5

    def test_first_weights(self):
        layer = SampledLinear(16, 500)
        assert layer.weight.abs().max() <= 1 / 4
        assert layer.weight.std().item() == pytest.approx(1 / 4 / math.sqrt(3), rel=0.05)
        assert not layer.bias.any()

    @every_mode
    @every_sampler
    @pytest.mark.usefixtures("one_thread")
    def test_training_lowers_the_loss(self, name, mode):
        layer = make_layer(name, mode)
        optimizer = RowSparseAdam(layer.parameters(), lr=0.1)
        labels = draw_labels()
        x = torch.randn(B, D)
        losses = []
        for _ in range(30):
            optimizer.zero_grad()
            out = layer(x, labels)
            loss = ActiveLoss("softmax")(out.values, out.active)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])

    @every_mode
    def test_only_the_set_is_updated(self, mode):
        layer = make_layer("uniform", mode)
        optimizer = RowSparseAdam(layer.parameters(), lr=0.1)
        before = layer.weight.detach().clone(), layer.bias.detach().clone()
        out = layer(torch.randn(B, D), draw_labels())
        ActiveLoss("bce")(out.values, out.active).backward()
        optimizer.step()
        touched = np.zeros(N, bool)
        touched[out.active.ids] = True
        assert not touched.all()
        for old, new in zip(before, (layer.weight, layer.bias), strict=True):
            changed = (old != new).view(N, -1).any(1).numpy()
            np.testing.assert_array_equal(changed, touched)

    @every_mode
    @every_sampler
    @pytest.mark.usefixtures("one_thread")
    def test_resumes_exactly(self, name, mode, tmp_path):
        layer = make_layer(name, mode)
        optimizer = RowSparseAdam(layer.parameters(), lr=0.05)
        train(layer, optimizer, 0, 3)
        state = {"layer": layer.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, tmp_path / "state.pt")
        expected = train(layer, optimizer, 3, 8)

        state = torch.load(tmp_path / "state.pt", weights_only=True)
        resumed = SampledLinear(D, N, SAMPLERS[name](D, N, active=12, mode=mode))
        other = RowSparseAdam(resumed.parameters())
        resumed.load_state_dict(state["layer"])
        other.load_state_dict(state["optimizer"])
        assert train(resumed, other, 3, 8) == expected
        assert torch.equal(resumed.weight, layer.weight)

    @every_mode
    @every_sampler
    def test_copies_go_their_own_way(self, name, mode):
        layer = make_layer(name, mode)
        optimizer = RowSparseAdam(layer.parameters(), lr=0.05)
        train(layer, optimizer, 0, 3)
        twin = copy.deepcopy(layer)
        before = twin.weight.detach().clone()
        train(twin, RowSparseAdam(twin.parameters(), lr=0.05), 3, 6)
        assert not torch.equal(twin.weight, before)
        assert torch.equal(layer.weight, before)

    def test_evaluation_does_not_move_the_schedule(self):
        layer = make_layer("lsh", "shared")
        layer.eval()
        for _ in range(10):
            assert layer(torch.randn(B, D)).active.complete
        assert (layer.sampler.rebuilds, layer.sampler.samples) == (0, 0)
        layer.train()
        for _ in range(3):
            layer(torch.randn(B, D))
        assert (layer.sampler.rebuilds, layer.sampler.samples) == (2, 3 * B)

    @pytest.mark.parametrize("name", ["uniform", "lsh"])
    @pytest.mark.parametrize("mode", ["shared", "per_sample"])
    @pytest.mark.parametrize("hard", [1.0, 0.4])
    def test_loss_is_that_of_the_values(self, name, mode, hard):
        layer, x, labels = make_layer(name, mode), torch.randn(B, D), draw_labels()
        twin, loss = copy.deepcopy(layer), ActiveLoss("softmax", hard)
        found, active = layer.loss(x.requires_grad_(), labels, loss)
        (grad,) = torch.autograd.grad(found, x)
        out = twin(x, labels)
        np.testing.assert_array_equal(active.ids, out.active.ids)
        wanted = loss(out.values, out.active)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(grad, torch.autograd.grad(wanted, x)[0])

    def test_errors(self):
        with pytest.raises(ValueError, match="sampler of 7 outputs does not fit a layer of 8"):
            SampledLinear(D, 8, FullSampler(D, 7))
        for sizes in ((0, 3), (3, 0)):
            with pytest.raises(ValueError, match=r"_features must be .* at least 1"):
                SampledLinear(*sizes)

    def test_says_what_it_is(self):
        assert repr(make_layer("lsh", "shared")) == "SampledLinear(6, 40, sampler=ActiveSampler)"


@pytest.mark.parametrize("wrong", [FullSampler, "lsh"])
def test_what_is_no_sampler(wrong):
    with pytest.raises(TypeError, match=r"sampler must be a slide\.Sampler, not "):
        SampledLinear(D, N, wrong)


class TestSparseInputLinear:
    def test_without_a_sampler_is_nn_linear(self):
        layer = SparseInputLinear(N, D)
        linear = torch.nn.Linear(N, D)
        linear.load_state_dict({"weight": layer.weight.T, "bias": layer.bias})
        x = make_csr(np.random.default_rng(0), [3, 0, 7, 1], N)
        out = layer(x)
        expected = linear(to_dense(x, N))
        torch.testing.assert_close(out.to_dense(), expected)
        out.values.square().sum().backward()
        expected.square().sum().backward()
        assert layer.weight.grad is None
        torch.testing.assert_close(dense_gradient(layer.weight), linear.weight.grad.T)
        torch.testing.assert_close(layer.bias.grad, linear.bias.grad)

    @every_mode
    @pytest.mark.parametrize("name", ["uniform", "published"])
    def test_with_a_sampler(self, name, mode):
        layer = SparseInputLinear(N, 30, SAMPLERS[name](N, 30, active=8, mode=mode))
        x = make_csr(np.random.default_rng(0), [3, 0, 7, 1], N)
        out = layer(x)
        assert out.active.mean_size() == 8
        mask = np.zeros((4, 30), bool)
        for b in range(4):
            mask[b, out.active.row(b)] = True
        full = to_dense(x, N) @ layer.weight + layer.bias
        expected = full * torch.from_numpy(mask)
        torch.testing.assert_close(out.to_dense(), expected)
        wanted = torch.autograd.grad(expected.square().sum(), [layer.weight, layer.bias])
        out.values.square().sum().backward()
        torch.testing.assert_close(dense_gradient(layer.weight), wanted[0])
        torch.testing.assert_close(layer.bias.grad, wanted[1])

    def test_rows_of_absent_features_are_not_updated(self):
        layer = SparseInputLinear(N, D)
        optimizer = RowSparseAdam(layer.parameters(), lr=0.1)
        before = layer.weight.detach().clone()
        x = make_csr(np.random.default_rng(0), [3, 0, 7, 1], N)
        layer(x).values.sum().backward()
        optimizer.step()
        changed = (layer.weight != before).any(1)
        assert sorted(set(x.indices.tolist())) == changed.nonzero().flatten().tolist()

    def test_first_weights(self):
        layer = SparseInputLinear(500, 16)
        assert layer.weight.std().item() == pytest.approx(1 / 4, rel=0.05)
        assert not layer.bias.any()

    def test_no_gradient_asked_for(self):
        layer = SparseInputLinear(N, D)
        x = make_csr(np.random.default_rng(0), [3], N)
        with torch.no_grad():
            assert not layer(x).values.requires_grad
        layer.weight.requires_grad_(False)
        layer(x).values.sum().backward()
        assert layer.bias.grad is not None
        assert not hasattr(layer.weight, "row_gradients")

    @pytest.mark.parametrize("column", [-1, N])
    def test_columns_out_of_range(self, column):
        x = CSR(np.array([0, 1]), np.array([column], np.int32), np.ones(1, np.float32))
        with pytest.raises(ValueError, match=rf"features must lie in \[0, {N}\)"):
            SparseInputLinear(N, D)(x)

    def test_errors(self):
        with pytest.raises(ValueError, match="sampler of 7 outputs does not fit a layer of 8"):
            SparseInputLinear(D, 8, FullSampler(D, 7))
        for sizes in ((0, 3), (3, 0)):
            with pytest.raises(ValueError, match=r"_features must be .* at least 1"):
                SparseInputLinear(*sizes)

    def test_says_what_it_is(self):
        assert repr(SparseInputLinear(4, 3)) == "SparseInputLinear(4, 3, sampler=FullSampler)"


def test_labels_that_cover_all_outputs():
    """A shared set of all N outputs in another order is no complete set."""
    layer = SampledLinear(D, 4, uniform_sampler(D, 4, active=2))
    labels = Pattern(np.array([0, 2, 4]), np.array([3, 1, 0, 2], np.int32))
    x = torch.randn(2, D)
    out = layer(x, labels)
    ids = out.active.ids.astype(np.int64)
    assert ids.tolist() == [3, 1, 0, 2]
    torch.testing.assert_close(out.values, (x @ layer.weight.T)[:, ids])
    torch.testing.assert_close(out.to_dense(), x @ layer.weight.T)
    out.values[0, 0].backward()
    assert dense_gradient(layer.weight).any(1).tolist() == [False, False, False, True]
