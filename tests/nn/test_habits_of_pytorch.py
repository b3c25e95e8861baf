"""What people who know PyTorch do with a layer: each cell of the guide's table, states, results."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from helpers.grids import pairs
from helpers.samplers import all_modes
from helpers.sparse_layers import MODES, B, D, N, draw_labels, make_layer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from slide import (
    Activation,
    ActiveLoss,
    ActiveSampler,
    FullSampler,
    Pattern,
    RowSparseAdam,
    SampledConv2d,
    SampledLinear,
    SparseInputLinear,
)
from slide.backend import backend
from slide.row_gradients import dense_gradient
from slide.sampling import LSHProposer


class Column:
    """A weight with gradients of rows, in either form."""

    def __init__(self, kind, mode):
        self.module = make_layer(mode, sparse_grad=kind == "sparse")
        self.weight = self.module.weight
        self.optimizer = RowSparseAdam([self.weight], lr=0.1)

    def loss(self):
        x = torch.randn(B, D, generator=torch.Generator().manual_seed(0))
        return self.module.loss(x, draw_labels(), "bce")[0]

    def moves(self):
        before = self.weight.detach().clone()
        self.optimizer.step()
        return not torch.equal(before, self.weight)


@pytest.fixture(params=["rows", "sparse"])
def kind(request):
    return request.param


@all_modes
class TestGradientsAreAsThoseOfASparseEmbedding:
    def test_hooks_get_a_sparse_gradient_and_may_change_it(self, kind, mode):
        column, plain, seen = Column(kind, mode), Column(kind, mode), []
        column.weight.data, plain.weight.data = plain.weight.data.clone(), plain.weight.data
        column.weight.register_hook(lambda g: seen.append(g.layout) or 3 * g)
        column.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.layout))
        for each in (column, plain):
            each.loss().backward()
        assert seen == [torch.sparse_coo] * 2
        found = plain.weight.grad
        wanted = dense_gradient(plain.weight) if found is None else found.to_dense()
        torch.testing.assert_close(column.weight.grad.to_dense(), 3 * wanted)
        assert column.moves()

    def test_a_hook_may_change_it_in_place(self, mode):
        layer = make_layer(mode, sparse_grad=False)
        x, loss = torch.randn(B, D, requires_grad=True), ActiveLoss("bce")
        mean, _ = layer.loss(x, draw_labels(), loss)
        hook = layer.weight.register_hook(lambda g: [None, g._values().zero_()][0])
        mean.backward(retain_graph=True)
        hook.remove()
        layer.weight.grad = None
        mean.backward()
        assert dense_gradient(layer.weight).any()

    def test_zero_grad_of_a_module_skips_a_batch(self, kind, mode):
        column = Column(kind, mode)
        for to_none in (True, False):
            column.loss().backward()
            nn.Sequential(column.module).zero_grad(set_to_none=to_none)
            assert not column.moves()
            if to_none or kind == "rows":  # PyTorch cannot add to a sparse gradient it emptied.
                column.loss().backward()
                assert column.moves()

    @pytest.mark.parametrize("way", ["kernels", "torch"])
    def test_an_input_that_changes_before_the_backward_pass(self, mode, way):
        layer = make_layer(mode, sparse_grad=False)
        calls = lambda x: layer.loss(x, draw_labels(), "bce")[0], lambda x: layer(x).values.sum()
        for call in calls:
            x = torch.randn(B, D, requires_grad=True) * 1
            with backend(way):
                out = call(x)
                with torch.no_grad():
                    x.mul_(2)
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    out.backward()

    def test_a_reentrant_checkpoint(self, mode):
        layer, x = make_layer(mode), torch.randn(B, D, requires_grad=True)
        step = layer.sampler.selections

        def forward(x):
            return layer.loss(x, draw_labels(), "bce")[0]

        loss = checkpoint(forward, x, use_reentrant=True)
        with pytest.raises(RuntimeError, match=r"runs this layer again.* call slide.active_linear"):
            loss.backward()
        assert layer.sampler.selections == step + 1
        layer.sampler = FullSampler(D, N)  # Its sets are always the same.
        checkpoint(forward, x, use_reentrant=True).backward()
        assert x.grad.any()

    def test_a_layer_in_a_hook(self, mode):
        """A whole step inside of a backward pass has the gradient of its own set."""
        layer, x = make_layer(mode, sparse_grad=False), torch.randn(B, D, requires_grad=True)

        @torch.enable_grad()
        def step(_):
            layer.loss(x.detach(), draw_labels(), "bce")[0].backward()

        x.register_hook(step)
        x.sum().backward()
        assert layer.weight.row_gradients


def lsh_layer():
    return SampledLinear(D, N, ActiveSampler(D, N, LSHProposer, active=12))


class TestStates:
    @pytest.mark.parametrize("form", ["saved", "copied", "before"])
    def test_the_sampler_goes_on(self, form):
        """Also from a state of earlier versions, which has it as extra state."""
        layer, again, x = lsh_layer(), lsh_layer(), torch.randn(B, D)
        for _ in range(3):
            layer(x)
        state = layer.state_dict()
        if form == "saved":
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            state = torch.load(file, weights_only=True)
        elif form == "copied":
            state = copy.deepcopy(state)
        else:
            state = {**state, "_extra_state": layer.sampler_state()}
        again.load_state_dict(state)
        assert again.sampler.selections == 3
        np.testing.assert_array_equal(again(x).active.ids, layer(x).active.ids)


LAYERS = {
    "linear": (make_layer, (B, D)),
    "convolution": (lambda: SampledConv2d(2, N, 1), (B, 2, 3, 3)),
    "sparse input": (lambda: SparseInputLinear(D, N), (B, D)),
}


class TestResultsInEval:
    @pytest.mark.parametrize("name", LAYERS)
    def test_they_are_tensors(self, name):
        make, shape = LAYERS[name]
        layer, x = make(), torch.randn(shape)
        assert isinstance(layer(x), Activation)
        out = layer.eval()(x)
        assert isinstance(out, torch.Tensor)
        assert out.shape[:2] == (B, N)
        loss = cross_entropy(out, torch.zeros(B, *out.shape[2:]).long())
        assert type(loss) is type(out.argmax(1)) is type(out[0]) is torch.Tensor
        loss.backward()
        assert layer.bias.grad is not None or layer.bias.row_gradients
        # What an `Activation` has, it has, too.
        assert out.active.complete
        assert out.num_samples == B
        assert type(out.values) is type(out.to_dense()) is torch.Tensor
        assert torch.equal(out._replace(values=out.values + 1).to_dense(), out + 1)

    @pytest.mark.parametrize("lead", [(), (2, 3), (0, 4)])
    def test_leading_dimensions_stay_as_in_a_linear_layer(self, lead):
        layer, x = make_layer(), torch.randn(*lead, D)
        trained, flat = layer(x), make_layer()(x.reshape(-1, D))  # The same draws.
        assert trained.num_samples == math.prod(lead)
        torch.testing.assert_close(trained.to_dense(), flat.to_dense().view(*lead, N))
        labels = torch.randint(N, lead)
        active = layer(x, labels).active
        assert active.ids[active.targets.indices].tolist() == labels.flatten().tolist()
        out, wanted = layer.eval()(x), layer.to_linear()(x)
        torch.testing.assert_close(out.values, wanted)
        assert out.num_samples == math.prod(lead)
        found = layer.top_k(x, 3)
        for one, other in zip(found, wanted.topk(3), strict=True):
            torch.testing.assert_close(one, other)

    def test_with_labels_it_is_a_set(self):
        layer, x = make_layer().eval(), torch.randn(B, D)
        assert isinstance(layer(x, draw_labels()), Activation)


OPTIONS = [
    {"label_smoothing": 0.3, "temperature": 2.0},
    {"class_weights": np.linspace(0, 2, N)},
    {"class_weights": torch.linspace(0, 2, N), "temperature": 0.5},
]


class TestOptionsOfCrossEntropy:
    @pairs(options=OPTIONS, way=["kernels", "torch"], fused=[True, False])
    def test_on_all_outputs_it_is_that_of_pytorch(self, options, way, fused):
        layer, x = SampledLinear(D, N).double(), torch.randn(B, D, dtype=torch.float64)
        x.requires_grad_()
        loss, labels = ActiveLoss("softmax", **options), torch.tensor([3, -100, 7, 0, 3])
        with backend(way):
            if fused:
                found, _ = layer.loss(x, labels, loss)
            else:
                kept = labels >= 0
                out = layer(x[kept], labels[kept])
                found = loss(out.values, out.active)
            (grad,) = torch.autograd.grad(found, x)
        weight = options.get("class_weights")
        scores = (x @ layer.weight.T + layer.bias) / options.get("temperature", 1)
        wanted = cross_entropy(
            scores,
            labels,
            None if weight is None else torch.as_tensor(weight).double(),
            label_smoothing=options.get("label_smoothing", 0.0),
        )
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(grad, torch.autograd.grad(wanted, x)[0])

    @pytest.mark.usefixtures("one_thread")
    @pairs(name=["softmax", "bce", "squared_hinge", "decoupled_softmax"], mode=MODES)
    def test_gradients_on_sets(self, name, mode):
        layer = SampledLinear(D, N, ActiveSampler(D, N, active=6, mode=mode)).double()
        smoothing = {"label_smoothing": 0.2} if name == "softmax" else {}
        loss = ActiveLoss(name, temperature=0.7, **smoothing)
        active = layer(torch.randn(B, D).double(), draw_labels()).active
        scores = torch.randn(len(active.ids) * (B if active.shared else 1), dtype=torch.float64)
        scores = scores.view(B, -1) if active.shared else scores
        found = []
        for way in ("kernels", "torch"):
            with backend(way):
                assert torch.autograd.gradcheck(lambda s: loss(s, active), scores.requires_grad_())
                found.append(loss(scores, active).detach())
        torch.testing.assert_close(*found)

    @pytest.mark.usefixtures("one_thread")
    def test_a_set_estimates_the_smoothing_of_all_outputs(self):
        layer = SampledLinear(D, 500, ActiveSampler(D, 500, active=100))
        x, labels = torch.randn(B, D), torch.arange(B)
        loss = ActiveLoss("softmax", label_smoothing=0.5)
        with torch.no_grad():
            layer.weight.mul_(3)
            found = np.mean([layer.loss(x, labels, loss)[0].item() for _ in range(200)])
            wanted = cross_entropy(layer.to_linear()(x), labels, label_smoothing=0.5)
        assert found == pytest.approx(wanted.item(), rel=0.03)

    def test_samples_of_several_labels_and_none(self):
        """As targets of 1 / |y| in PyTorch; samples without a label have no loss."""
        layer, x = SampledLinear(D, N), torch.randn(3, D)
        found, _ = layer.loss(x, [[1, 4], [], [2]], ActiveLoss("softmax", label_smoothing=0.3))
        targets = torch.zeros(2, N)
        targets[0, [1, 4]], targets[1, 2] = 0.5, 1.0
        scores = (x @ layer.weight.T + layer.bias)[[0, 2]]
        torch.testing.assert_close(
            found, cross_entropy(scores, targets, label_smoothing=0.3) * 2 / 3
        )

    def test_prior_scores_of_a_temperature(self):
        labels = Pattern.from_lists([[0], [0], [1]])
        plain = ActiveLoss("softmax").prior_scores(labels, 3)
        hot = ActiveLoss("softmax", temperature=2.0).prior_scores(labels, 3)
        torch.testing.assert_close(hot, 2 * plain)
        assert ActiveLoss("squared_hinge", temperature=2.0).record.score_range == (-2.0, 2.0)

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("bce", {"label_smoothing": 0.1}, "label_smoothing needs the loss softmax, not bce"),
            ("softmax", {"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\), not 1.0"),
            ("softmax", {"temperature": 0}, "temperature must be a number above 0, not 0"),
            ("bce", {"class_weights": np.ones(N)}, "class_weights need a softmax, not bce"),
            ("softmax", {"class_weights": [-1.0]}, "finite and at least 0, not -1.0"),
            ("softmax", {"class_weights": np.ones(3)}, f"3 class_weights do not fit {N} outputs"),
            (
                "softmax",
                {"class_weights": np.ones(N), "label_smoothing": 0.1},
                "class_weights and label_smoothing do not go together",
            ),
            (
                "softmax",
                {"class_weights": np.ones(N)},
                "one label for each sample, and sample 0 has 2",
            ),
        ],
    )
    def test_what_cannot_be(self, name, options, message):
        layer = make_layer()
        with pytest.raises(ValueError, match=message):
            layer.loss(torch.randn(2, D), [[1, 2], [3]], ActiveLoss(name, **options))

    def test_losses_and_targets_of_pytorch_are_refused(self):
        layer, x, marks = make_layer(), torch.randn(2, D), torch.eye(2, N)
        for loss, name in ((nn.CrossEntropyLoss(), r"CrossEntropyLoss\(\)"), (None, "None")):
            with pytest.raises(TypeError, match=r"name such as 'softmax' .* not " + name):
                layer.loss(x, [1, 2], loss)
        with pytest.raises(TypeError, match="weights of samples need an ActiveLoss"):
            layer.loss(x, [1, 2], lambda scores, active: scores.sum(), torch.ones(2))
        for call in (lambda out: cross_entropy(out, torch.arange(2)), torch.relu):
            with pytest.raises(TypeError, match=r"layer\.loss\(x, labels, 'softmax'\)"):
                call(layer(x))
        with pytest.raises(AttributeError, match=r"no argmax: a tensor has it\. For a loss call"):
            layer(x).argmax(1)
        with pytest.raises(AttributeError, match=r"sampled layer has no scores$"):
            _ = layer(x).scores
        assert layer.loss(x, marks, "softmax")[1].targets.num_rows == 2
        for shares in (marks.softmax(1), marks.softmax(1).numpy()):
            with pytest.raises(ValueError, match="labels have fractions: probabilities"):
                layer.loss(x, shares, "softmax")


@pytest.mark.parametrize("kind", ["pandas", "polars", "torch", "list", "numpy"])
def test_labels_and_weights_of_one_for_each_sample(kind):
    """Series, too, as a column of a frame is one."""
    makers = {"torch": torch.tensor, "list": list, "numpy": np.array}
    make = makers.get(kind) or pytest.importorskip(kind).Series
    layer, x, weights = make_layer(), torch.randn(4, D), [1.0, 2.0, 0.5, 1.0]
    found, _ = layer.loss(x, make([-100, 1, -100, 1]), "softmax", weights=make(weights))
    kept, labels = [1, 3], torch.tensor([1, 1])
    wanted, _ = make_layer().loss(x[kept], labels, "softmax", weights=torch.tensor(weights)[kept])
    torch.testing.assert_close(found, wanted)


def test_many_outputs_without_a_sampler_are_computed_and_it_says_so_once():
    layer, x = SampledLinear(2, 2**14), torch.randn(1, 2)
    with torch.no_grad():
        layer(x)
    layer.eval()(x)
    with pytest.warns(UserWarning, match=r"SampledLinear\(2, 16384\) has no sampler, so each"):
        layer.train()(x)
    layer(x)
    # Who asks for all, or later gives it a sampler, is not told.
    SampledLinear(2, 2**14, FullSampler(2, 2**14))(x)
    layer = SampledLinear(2, 2**14)
    layer.sampler = ActiveSampler(2, 2**14, active=5)
    layer(x)
