"""SampledLinear and SparseInputLinear as modules: sets, training, search, samplers."""

import copy
import gc
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from helpers.inner_products import COMPILED
from helpers.matrices import make_csr, to_dense
from helpers.samplers import all_modes, lsh_sampler, uniform_sampler
from helpers.sparse_layers import B, D, N, draw_labels
from torch import nn

from slide.active_set import ActiveSet
from slide.functional.losses import ActiveLoss
from slide.nn.sampled_conv2d import SampledConv2d
from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_linear import SparseInputLinear
from slide.nn.stored_layers import StoredLinear
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient
from slide.sampling import ActiveSampler, FullSampler
from slide.sampling.schedules import fixed
from slide.sparse import Pattern
from slide.utils.quantized import QuantizedRows


def make_layer(mode):
    torch.manual_seed(1)
    schedule = partial(fixed, every=2 * B)
    return SampledLinear(D, N, lsh_sampler(D, N, active=12, mode=mode, rebuild=schedule))


class TestSampledLinear:
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

    def test_first_weights(self):
        layer = SampledLinear(16, 500)
        assert layer.weight.abs().max() <= 1 / 4
        assert layer.weight.std().item() == pytest.approx(1 / 4 / math.sqrt(3), rel=0.05)
        assert not layer.bias.any()

    def test_evaluation_does_not_move_the_schedule(self):
        layer = make_layer("shared")
        layer.eval()
        for _ in range(10):
            assert layer(torch.randn(B, D)).active.complete
        assert (layer.sampler.rebuilds, layer.sampler.samples) == (0, 0)
        layer.train()
        for _ in range(3):
            layer(torch.randn(B, D))
        assert (layer.sampler.rebuilds, layer.sampler.samples) == (2, 3 * B)

    def test_errors(self):
        with pytest.raises(ValueError, match="sampler of 7 outputs does not fit a layer of 8"):
            SampledLinear(D, 8, FullSampler(D, 7))
        for sizes in ((0, 3), (3, 0)):
            with pytest.raises(ValueError, match=r"_features must be .* at least 1"):
                SampledLinear(*sizes)
        for wrong in (FullSampler, "lsh", False):  # nn.Linear has its bias in this place.
            with pytest.raises(TypeError, match=r"must be a slide\.Sampler, such as slide\.Act"):
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

    @all_modes
    def test_with_a_sampler(self, mode):
        layer = SparseInputLinear(N, 30, uniform_sampler(N, 30, active=8, mode=mode))
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

    def test_no_gradient_asked_for(self):
        layer = SparseInputLinear(N, D)
        x = make_csr(np.random.default_rng(0), [3], N)
        with torch.no_grad():
            assert not layer(x).values.requires_grad
        layer.weight.requires_grad_(False)
        layer(x).values.sum().backward()
        assert layer.bias.grad is not None
        assert not hasattr(layer.weight, "row_gradients")


OF_ANOTHER = r"another layer, SampledLinear\(6, 40.* for each layer"


def test_a_second_layer_is_refused():
    """As long as the first one is there."""
    sampler = lsh_sampler(D, N, active=8)
    layer = SampledLinear(D, N, sampler)
    for second in (
        lambda: SampledLinear(D, N, sampler),
        lambda: SparseInputLinear(D, N, sampler),
        lambda: SampledConv2d(D, N, 1, sampler=sampler),
    ):
        with pytest.raises(ValueError, match=OF_ANOTHER):
            second()
    layer(torch.randn(2, D))
    del layer
    gc.collect()
    SampledLinear(D, N, sampler)


USES = {
    "forward": lambda layer: layer(torch.randn(2, D)),
    "loss": lambda layer: layer.loss(torch.randn(2, D), [[1], [2]], ActiveLoss("bce")),
    "search": lambda layer: layer.top_k(torch.randn(2, D), 3, search="sampler"),
}


@pytest.mark.parametrize(
    ("given", "use", "used"),
    [("to the constructor", "forward", True), ("later", "loss", False), ("copied", "search", True)],
)
def test_an_assigned_sampler_of_another_layer(given, use, used):
    first, second = (SampledLinear(D, N, lsh_sampler(D, N, active=8)) for _ in range(2))
    if given == "later":
        first.sampler = lsh_sampler(D, N, active=8)
    elif given == "copied":
        first = copy.deepcopy(first)
    if used:
        USES[use](first)
    second.sampler = first.sampler
    if not used:  # Then it is the layer that first uses it.
        USES[use](second)
        first, second = second, first
    with pytest.raises(ValueError, match=OF_ANOTHER):
        USES[use](second)


def test_an_assigned_sampler_of_another_width():
    layer = SampledLinear(D, N)
    layer.sampler = lsh_sampler(7, N, active=8)
    with pytest.raises(ValueError, match=r"inputs of 7 numbers does not fit .* inputs of 6"):
        layer(torch.randn(2, D))


def test_a_layer_of_stored_rows_hands_its_sampler_on():
    rows = QuantizedRows.of(torch.randn(N, D), "bfloat16")
    stored, x = StoredLinear(rows, torch.randn(N)), torch.randn(2, D)
    stored.sampler = lsh_sampler(D, N, active=8)
    found = stored.top_k(x, 3, search="sampler")
    layer = stored.trainable()  # The other one, which searches by the same rows, stays.
    for one, other in zip(found, layer.top_k(x, 3, search="sampler"), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(stored.to_linear().weight, layer.weight)
    layer(x)


@all_modes
def test_a_loss_in_eval_mode_does_not_move_the_draws_of_training(mode):
    layer, other, found = make_layer(mode), make_layer(mode), []
    x, labels = torch.randn(3, D), [[1], [2], [3]]
    for step in range(3):
        sets = [each.loss(x, labels, "bce")[1].ids.tolist() for each in (layer, other)]
        assert sets[0] == sets[1]
        layer.eval()
        found += [layer.loss(x, labels, "bce")[1].ids.tolist() for _ in range(step + 1)]
        layer.train()
    assert len({tuple(ids) for ids in found}) == len(found), "each loss draws a set of its own"
    before, after = (each.sampler.state_dict() for each in (other, layer))
    assert before["selections"] == after["selections"] == 3
    assert before.keys() == after.keys()


def test_a_sampler_that_chooses_by_itself_does_so_in_eval_mode():
    class Last(ActiveSampler):
        def select(self, queries, labels):
            return ActiveSet(N, np.arange(N - 5, N, dtype=np.int32))

    layer = SampledLinear(D, N, Last(D, N, active=5)).eval()
    assert layer(torch.randn(3, D), [[1], [2], [3]]).active.ids.tolist() == [*range(N - 5, N)]


WIDTH, OUTPUTS, QUERIES = 8, 6_000 if COMPILED else 2_000, 50


def make_large(**options):
    torch.manual_seed(0)
    layer = SampledLinear(WIDTH, OUTPUTS, uniform_sampler(WIDTH, OUTPUTS, active=40), **options)
    with torch.no_grad():
        layer.weight *= torch.exp(torch.randn(OUTPUTS, 1))
    return layer


def inputs():
    return torch.randn(QUERIES, WIDTH, generator=torch.Generator().manual_seed(1))


def agreement(layer):
    """Share of the answers of exact search that the index gives, with the same scores."""
    x = inputs()
    (scores, wanted), (found, ids) = (layer.top_k(x, 3, search) for search in ("exact", "index"))
    same = ids == wanted
    assert ((found - scores).abs() <= rounding(layer, x, wanted))[same].all()
    return same.float().mean().item()


def rounding(layer, x, ids):
    """How far two sums of the same terms in different orders can be apart (Higham 2002, 4.2)."""
    terms = x.abs()[:, None] * layer.weight.detach().abs()[ids]
    total = terms.sum(2) + (0 if layer.bias is None else layer.bias.detach().abs()[ids])
    return 2 * (WIDTH + 1) * torch.finfo(total.dtype).eps * total


@pytest.mark.parametrize("optimizer", ["RowSparseAdam", "SGD"])
def test_it_follows_training(optimizer):
    layer = make_large(sparse_grad=optimizer == "SGD")
    kind, lr = {"RowSparseAdam": (RowSparseAdam, 10.0), "SGD": (torch.optim.SGD, 0.5)}[optimizer]
    step = kind(layer.parameters(), lr=lr)
    first, before = layer.row_index(), layer.top_k(inputs(), 1, "index")[0]
    assert layer.row_index() is first
    labels = Pattern.from_lists([[b] for b in range(QUERIES)])
    for _ in range(10):
        step.zero_grad()
        layer.loss(inputs(), labels, ActiveLoss("squared_hinge"))[0].backward()
        step.step()
    assert layer.row_index() is not first
    assert agreement(layer) > 0.95
    assert (layer.top_k(inputs(), 1, "index")[0] != before).any()


def test_it_follows_every_other_change():
    layer, other = make_large(), make_large()
    changes = [
        lambda: layer.load_state_dict(other.state_dict()),
        lambda: layer.weight.data.neg_(),
        lambda: setattr(layer, "weight", other.weight),
        lambda: setattr(layer, "bias", None),
        layer.double,
        layer.float,
    ]
    for change in changes:
        index = layer.row_index()
        assert layer.row_index() is index
        change()
        assert layer.row_index() is not index
    assert agreement(layer) > 0.95


def test_copies_make_their_own():
    layer = make_large()
    layer.row_index()
    without = len(pickle.dumps(make_large()))
    assert len(pickle.dumps(layer)) < without + 1_000
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            twin.weight.neg_()
        assert agreement(twin) > 0.95
    assert not any("index" in name for name in layer.state_dict())
    assert agreement(layer) > 0.95


@pytest.mark.not_as_python
def test_threads_may_predict_at_the_same_time():
    layer, x = make_large().eval(), inputs()
    calls = {
        "index": lambda: layer.top_k(x, 3, "index")[1],
        "exact": lambda: layer.top_k(x, 3)[1],
        "scores": lambda: layer(x).values,
    }
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: (name, calls[name]()), [*calls] * 8))
    for name, answer in found:
        assert torch.equal(answer, calls[name]())


@pytest.mark.parametrize("search", ["exact", "index"])
def test_searches_that_cannot_be(search):
    layer, x = make_large(), inputs()
    with pytest.raises(ValueError, match=rf"k must be in \[1, {OUTPUTS}\], not {OUTPUTS + 1}"):
        layer.top_k(x, OUTPUTS + 1, search)
    with pytest.raises(ValueError, match=r"k must be a whole number of at least 1, not 2\.5"):
        layer.top_k(x, 2.5, search)
    with pytest.raises(ValueError, match="search must be one of exact, index, sampler"):
        layer.top_k(x, 1, search="tables")
    with pytest.raises(ValueError, match="search=sampler needs a sampler with an index"):
        layer.top_k(x, 1, search="sampler")


class TestLossOfUsers:
    """What people pass who know ``nn.Linear`` and ``nn.CrossEntropyLoss``."""

    def test_a_name(self):
        layer, twin = make_layer("shared"), make_layer("shared")
        x, labels = torch.randn(B, D), draw_labels()
        found, active = layer.loss(x, labels, "softmax")
        wanted, other = twin.loss(x, labels, ActiveLoss("softmax"))
        assert found == wanted
        assert active.ids.tolist() == other.ids.tolist()
        with pytest.raises(ValueError, match=r"loss must be one of .*softmax.*, not 'cross"):
            layer.loss(x, labels, "cross_entropy")
        with pytest.raises(TypeError, match="loss must be a name such as 'softmax'"):
            layer.loss(x, labels, torch.nn.CrossEntropyLoss())
        with pytest.raises(TypeError, match="weights of samples need an ActiveLoss"):
            layer.loss(x, labels, lambda *_: 0, torch.ones(B))

    def test_leading_dimensions_and_ignored_labels(self):
        layer, x = SampledLinear(D, N), torch.randn(3, 4, D, requires_grad=True)
        labels = torch.randint(N, (3, 4))
        labels[0, 1:] = labels[2, 3] = -100
        found, _ = layer.loss(x, labels, "softmax")
        scores = x.reshape(12, D) @ layer.weight.T + layer.bias
        wanted = torch.nn.functional.cross_entropy(scores, labels.flatten())
        torch.testing.assert_close(found, wanted)
        (grad,) = torch.autograd.grad(found, x)
        torch.testing.assert_close(grad, torch.autograd.grad(wanted, x)[0])

    def test_weights_and_another_ignored_label(self):
        layer = SampledLinear(D, N)
        x, weights = torch.randn(2, 2, D), torch.tensor([[1.0, 2.0], [0.5, 3.0]])
        labels = torch.tensor([[7, 0], [3, 5]])
        found, _ = layer.loss(x, labels, "bce", weights, ignore_index=0)
        kept = [0, 2, 3]
        wanted, _ = layer.loss(x.view(4, D)[kept], [[7], [3], [5]], "bce", weights.view(4)[kept])
        torch.testing.assert_close(found, wanted)

    @all_modes
    def test_all_labels_ignored(self, mode):
        found, _ = make_layer(mode).loss(torch.randn(2, D), torch.full((2,), -100), "softmax")
        assert found == 0
        found.backward()


def naive_loss(name, scores, active):
    """The loss of each sample's set in plain PyTorch; softmax and sums by `log_weights`."""
    total = torch.zeros((), dtype=scores.dtype)
    for b in range(len(scores)):
        at = slice(*active.indptr[b : b + 2])
        logs = torch.from_numpy(active.log_weights[at]).to(scores.dtype)
        own = scores[b, torch.from_numpy(active.ids[at]).long()]
        targets = active.targets.indices[slice(*active.targets.indptr[b : b + 2])]
        aimed = torch.from_numpy(targets).long()
        if name == "softmax":
            if len(aimed):
                total = total + (own + logs).logsumexp(0) - own[aimed].mean()
            continue
        signs = -torch.ones_like(own)
        signs[aimed] = 1
        loss = nn.functional.softplus(-signs * own)
        total = total + (loss * logs.exp()).sum()
    return total / len(scores)


class TestGroups:
    """Layers whose samples share sets in groups of two."""

    def make(self, **options):
        torch.manual_seed(1)
        options = {"active": 12, "group_size": 2, "lookups": 1, "mode": "grouped"} | options
        return SampledLinear(D, N, lsh_sampler(D, N, **options), dtype=torch.float64)

    @pytest.mark.parametrize("name", ["softmax", "bce"])
    @pytest.mark.parametrize("step", ["loss", "forward"])
    def test_values_and_gradients(self, name, step):
        layer, loss = self.make(), ActiveLoss(name)
        x, labels = torch.randn(B, D, dtype=torch.float64, requires_grad=True), draw_labels()
        if step == "loss":
            found, active = layer.loss(x, labels, loss)
        else:
            out = layer(x, labels)
            found, active = loss(out.values, out.active), out.active
        assert len(active.groups.bounds) == 4, "three groups of five samples"
        scores = x @ layer.weight.T + layer.bias
        wanted = naive_loss(name, scores, active)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        expected = torch.autograd.grad(wanted, [x, layer.weight, layer.bias])
        found.backward()
        parts = x.grad, dense_gradient(layer.weight), dense_gradient(layer.bias)
        for one, other in zip(parts, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)

    def test_scores_of_each_sample(self):
        layer, x = self.make(), torch.randn(B, D, dtype=torch.float64)
        out = layer(x, draw_labels())
        scores = x @ layer.weight.T + layer.bias
        mask = torch.zeros(B, N, dtype=torch.bool)
        for b in range(B):
            mask[b, torch.from_numpy(out.active.row(b)).long()] = True
        torch.testing.assert_close(out.to_dense(), scores * mask)
        assert out.active.row(out.active.groups.order[0]).tolist() == (
            out.active.row(out.active.groups.order[1]).tolist()
        )

    def test_leading_dimensions(self):
        """Samples are those of all leading dimensions."""
        layer, x = self.make(), torch.randn(2, 3, D, dtype=torch.float64)
        flat = self.make()(x.view(6, D))
        torch.testing.assert_close(layer(x).values.view(-1), flat.values.view(-1))

    @pytest.mark.not_as_python
    def test_learns_as_with_sets_of_each_sample(self):
        """Each of 40 labels has a direction of its own among the inputs."""
        centres, found = torch.randn(N, D, dtype=torch.float64), {}
        for mode in ("grouped", "per_sample"):
            layer = self.make(mode=mode)
            optimizer = RowSparseAdam(layer.parameters(), lr=0.05)
            generator = torch.Generator().manual_seed(0)
            for _ in range(150):
                labels = torch.randint(N, (16,), generator=generator)
                layer.loss(centres[labels], labels[:, None].tolist(), "softmax")[0].backward()
                optimizer.step()
                optimizer.zero_grad()
            best = layer.top_k(centres, 1)[1][:, 0]
            found[mode] = (best == torch.arange(N)).double().mean().item()
        assert found["per_sample"] > 0.8
        assert found["grouped"] > 0.8

    def test_a_hidden_layer_without_labels(self):
        hidden = SampledLinear(D, N, uniform_sampler(D, N, active=8, mode="grouped", group_size=2))
        output, x = nn.Linear(N, 3), torch.randn(B, D, requires_grad=True)
        out = hidden(x)
        dense = out.to_dense().relu()
        assert ((dense != 0).sum(1) <= 8).all()
        output(dense).square().sum().backward()
        mask = torch.zeros(B, N)
        for b in range(B):
            mask[b, torch.from_numpy(out.active.row(b)).long()] = 1
        again = x.detach().clone().requires_grad_()
        wanted = ((again @ hidden.weight.T + hidden.bias) * mask).relu()
        output(wanted).square().sum().backward()
        torch.testing.assert_close(x.grad, again.grad)
        assert dense_gradient(hidden.weight).any()
