"""Gradients of sampled layers: rows or sparse tensors, partial backward passes, copies."""

import copy
import io
import pickle
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from helpers.active_sets import pick
from helpers.samplers import all_modes
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
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from slide import row_gradients
from slide.backend import uses_reference
from slide.functional import active_conv2d, sparse_linear
from slide.functional.linear import active_linear
from slide.nn import ActiveLoss
from slide.nn.sampled_conv2d import SampledConv2d
from slide.nn.sampled_linear import SampledLinear
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient
from slide.sampling import ActiveSampler

# Of PyTorch's Adagrad, once a process.
quiet = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")


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
                wanted = pick(linear(x), active)
                torch.testing.assert_close(out, wanted)
                (out**2).mean().backward()
                (wanted**2).mean().backward()
            one.step()
            other.step()
            torch.testing.assert_close(weight, linear.weight, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(bias, linear.bias, rtol=1e-9, atol=1e-9)

    def test_a_gradient_that_is_not_of_rows(self):
        weight = nn.Parameter(torch.zeros(3, 2))
        weight.grad = torch.sparse_coo_tensor([[0], [1]], [1.0], (3, 2))
        with pytest.raises(ValueError, match="needs 1 sparse dimension, not 2"):
            RowSparseAdam([weight]).step()

    def test_a_weight_that_is_used_by_an_embedding_too(self):
        """Tied input and output: sparse and row gradients of one weight add up, and dense ones."""
        sets, first = every_output("shared"), torch.randn(N, D)
        tokens = torch.tensor([3, 7, 3, 1, 0])
        for sparse in (False, True):
            embedding = nn.Embedding.from_pretrained(first.clone(), freeze=False, sparse=True)
            x, dense = embedding(tokens), nn.Parameter(first.clone())
            out = active_linear(x, embedding.weight, None, sets, sparse_grad=sparse)
            out.square().sum().backward()
            (dense[tokens] @ dense.T).square().sum().backward()
            for weight in (embedding.weight, dense):
                RowSparseAdam([weight]).step()
            torch.testing.assert_close(embedding.weight, dense)


def half_of(module, name):
    parametrize.register_parametrization(module, name, Half())


class Half(nn.Module):
    def forward(self, weight):
        return weight / 2


COMPUTED = {
    "weight_norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "prune": lambda module: prune.l1_unstructured(module, "weight", 0.5),
    "bias": lambda module: [half_of(module, "bias"), half_of(module, "weight")],
}


class TestComputedWeights:
    @every_mode
    def test_get_a_gradient_through_autograd(self, mode):
        weight = torch.randn(N, D, requires_grad=True)
        x, active = torch.randn(B, D), every_output(mode)
        active_linear(x, 2 * weight, None, active, sparse_grad=True).square().sum().backward()
        found, weight.grad = weight.grad.to_dense(), None
        (x @ (2 * weight).T).square().sum().backward()
        torch.testing.assert_close(found, weight.grad)

    @pytest.mark.parametrize("computed", COMPUTED.values(), ids=COMPUTED)
    def test_of_modules_train_as_those_of_a_linear_layer(self, computed):
        torch.manual_seed(0)
        linear = nn.Linear(D, N)
        layer, draws = SampledLinear.from_linear(linear), torch.get_rng_state()
        for module in (linear, layer):
            torch.set_rng_state(draws)
            computed(module)
        optimizers = [RowSparseAdam(each.parameters(), lr=0.1) for each in (linear, layer)]
        for _ in range(2):
            x = torch.randn(B, D)
            linear(x).square().mean().backward()
            layer(x).values.square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        torch.testing.assert_close(dict(layer.named_parameters()), dict(linear.named_parameters()))

    def test_by_hooks_of_the_forward_pass_are_refused_elsewhere(self):
        """There they would be those of the forward pass before."""
        layer, x = SampledLinear(D, N), torch.randn(B, D)
        prune.l1_unstructured(layer, "weight", 0.5)
        calls = layer.to_linear, layer.row_index, partial(layer.top_k, x, 1)
        for call in (*calls, partial(layer.loss, x, draw_labels(), "bce")):
            with pytest.raises(TypeError, match=r"^a hook computes the weight .* runs it: take"):
                call()
        prune.remove(layer, "weight")
        layer.loss(x, draw_labels(), "bce")

    def test_of_convolutions_and_sparse_inputs(self):
        kernels, rows = (
            torch.randn(*shape, requires_grad=True) for shape in ((4, 3, 2, 2), (D, 2))
        )
        x, image = torch.randn(B, D), torch.randn(2, 3, 5, 5)
        some = active_conv2d(image, 2 * kernels, None, None, np.array([1, 3]))
        (some.square().sum() + sparse_linear(x, 2 * rows, None).square().sum()).backward()
        found = [each.grad.clone() for each in (kernels, rows)]
        kernels.grad = rows.grad = None
        some = nn.functional.conv2d(image, 2 * kernels)[:, [1, 3]]
        (some.square().sum() + (x @ (2 * rows)).square().sum()).backward()
        torch.testing.assert_close(found, [kernels.grad, rows.grad])


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


def in_two_steps(layer, x):
    out = layer(x, draw_labels())
    return ActiveLoss("bce")(out.values, out.active)


def in_one(layer, x):
    return layer.loss(x, draw_labels(), ActiveLoss("bce"))[0]


ways = pytest.mark.parametrize("loss", [in_two_steps, in_one])


def pair(mode):
    """Two equal layers, of rows and of sparse gradients, and an input."""
    x = torch.randn(B, D, requires_grad=True)
    return make_layer(mode, sparse_grad=False), make_layer(mode), x


def pending(layer):
    return [getattr(p, "row_gradients", []) for p in layer.parameters()]


@all_modes
@ways
def test_parts_of_a_backward_pass(loss, mode):
    """It goes to the input alone, to one of two parameters, or returns gradients of both."""
    layer, twin, x = pair(mode)
    mean, weights = loss(layer, x), [layer.weight, layer.bias]
    loss(twin, x).backward()
    wanted, x.grad = x.grad, None
    for parameter in twin.parameters():
        assert (parameter.grad.layout, parameter.grad.sparse_dim()) == (torch.sparse_coo, 1)
        ids = parameter.grad._indices()[0]
        assert uses_reference() or len(ids) == len(set(ids.tolist()))
        assert not hasattr(parameter, "row_gradients")
    for _ in range(2):  # What came back may be changed.
        (found,) = torch.autograd.grad(mean, x, retain_graph=True)
        torch.testing.assert_close(found, wanted)
        found.sign_()
    for gradient in torch.autograd.grad(mean, weights, retain_graph=True):
        gradient.mul_(100)
    found = torch.autograd.grad(mean, weights, retain_graph=True)
    for one, other in zip(found, (twin.weight, twin.bias), strict=True):
        torch.testing.assert_close(one.to_dense(), other.grad.to_dense())
    assert pending(layer) == [[], []]
    mean.backward(inputs=[layer.weight])
    assert x.grad is None
    assert pending(layer)[1] == []
    torch.testing.assert_close(dense_gradient(layer.weight), twin.weight.grad.to_dense())


@all_modes
def test_checkpointed_layers_keep_their_gradients(mode):
    layer, _, x = pair(mode)
    loss = checkpoint(in_one, layer, x, use_reentrant=False)
    loss.backward()
    # The sampler drew other outputs in the second forward pass, so values are not compared.
    assert len(layer.weight.row_gradients) == len(layer.bias.row_gradients) == 1


@all_modes
def test_checkpointed_scores_of_another_set_are_an_error(mode):
    layer, _, x = pair(mode)
    out = checkpoint(lambda x: layer(x).values.square(), x, use_reentrant=False)
    with pytest.raises(RuntimeError, match=r"drew another active set of \d+ ids, as in torch"):
        out.sum().backward()
    assert pending(layer) == [[], []]


def test_checkpointed_convolution_of_another_set_is_an_error():
    sampler = ActiveSampler(2 * 3 * 3, 30, active=5)
    layer, x = SampledConv2d(2, 30, 3, sampler=sampler), torch.randn(2, 2, 5, 5)
    out = checkpoint(lambda x: layer(x).values, x.requires_grad_(), use_reentrant=False)
    with pytest.raises(RuntimeError, match="drew another active set of 5 ids"):
        out.sum().backward()


@pytest.mark.parametrize("per_sample", [False, True])
def test_checkpointed_layers_with_a_given_set_are_right(per_sample):
    x, weight = torch.randn(B, D, requires_grad=True), torch.randn(N, D, requires_grad=True)
    active = every_output("per_sample" if per_sample else "shared")
    found = []
    for call in (active_linear, partial(checkpoint, active_linear, use_reentrant=False)):
        call(x, weight, None, active).square().sum().backward()
        found.append([x.grad, dense_gradient(weight)])
        x.grad, weight.row_gradients = None, []
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    # Ids that hooks give back are other tensors with the same numbers.
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept):
        active_linear(x, weight, None, active).square().sum().backward()
    assert torch.equal(x.grad, found[0][0])


@all_modes
def test_copies_go_on_as_the_first_one_does(mode):
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
    x = torch.randn(B, D)
    wanted = layer(x, draw_labels(9))
    for twin in copies:
        found = twin(x, draw_labels(9))
        np.testing.assert_array_equal(found.active.ids, wanted.active.ids)
        torch.testing.assert_close(found.values, wanted.values)
        found.values.sum().backward()
        assert twin.weight.grad is not layer.weight.grad


@pytest.mark.parametrize("sparse", [False, True])
def test_copies_with_gradients_pending(sparse):
    """A copy has none, as with PyTorch's own layers; a pickle keeps row gradients."""
    layer = make_layer("per_sample", sparse)
    layer(torch.randn(B, D), draw_labels()).values.sum().backward()
    twin = copy.deepcopy(layer)
    assert twin.weight.grad is None
    assert not getattr(twin.weight, "row_gradients", [])
    assert bool(layer.weight.grad is not None) == sparse
    loaded = pickle.loads(pickle.dumps(layer))
    if not sparse:
        torch.testing.assert_close(dense_gradient(loaded.weight), dense_gradient(layer.weight))


class Model(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.encoder, self.output = nn.Linear(3, D), make_layer(sparse_grad=sparse)

    def backward(self):
        out = self.output(self.encoder(torch.randn(B, 3)), draw_labels())
        out.values.square().mean().backward()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.SparseAdam])
def test_the_first_step_warns(kind):
    model = Model()
    parameters = model.output.parameters() if kind is torch.optim.SparseAdam else model.parameters()
    optimizer = kind(parameters, lr=0.1)
    model.backward()
    before = model.output.weight.detach().clone()
    with pytest.warns(UserWarning, match=rf"{kind.__name__} does not update .*RowSparseAdam"):
        optimizer.step()
    assert torch.equal(model.output.weight, before)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_no_warning_where_another_optimizer_takes_the_rows(copied):
    """Before it or after it, and also in copies of both."""
    model = Model()
    several = [torch.optim.AdamW(model.parameters()), RowSparseAdam(model.output.parameters())]
    model, several = copied((model, several))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for order in (several, several[::-1]):
            model.backward()
            for optimizer in order:
                optimizer.step()
                optimizer.zero_grad()
