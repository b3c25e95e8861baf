"""Gradients that are zero outside of some rows, and changes of the row numbers."""

import warnings

import numpy as np
import pytest
import torch
from helpers.active_sets import B, D, N, draw, make_active
from helpers.grids import pairs
from helpers.matrices import make_csr

import slide
from slide import row_gradients
from slide.backend import backend
from slide.functional import active_conv2d, active_linear, active_linear_loss, sparse_linear
from slide.optim import resize_rows
from slide.row_gradients import dense_gradient
from slide.sparse import Pattern

# A backward pass after a change of the row numbers is an error, whatever the operation.


FEATURES = make_csr(np.random.default_rng(0), [2] * B, N, np.float64)
TARGETS = make_active("shared", targets=Pattern.from_lists([[0]] * B))
OPERATIONS = {
    "shared": lambda weight: active_linear(draw(B, D), weight, None, make_active("shared")),
    "per sample": lambda w: active_linear(draw(B, D), w, None, make_active("per_sample")),
    "loss": lambda weight: active_linear_loss(draw(B, D), weight, None, TARGETS, "bce"),
    "sparse input": lambda weight: sparse_linear(FEATURES, weight, None),
    "convolution": lambda weight: active_conv2d(draw(B, D, 5, 5), weight),
}


@pairs(name=OPERATIONS, kind=["kernels", "torch"], added=[0, 1, 2])
def test_a_backward_pass_of_other_rows_is_refused(name, kind, added):
    """Also where there are as many rows as before."""
    shape = (N, D, 3, 3) if name == "convolution" else (N, D)
    weight = torch.nn.Parameter(draw(*shape, grad=False))
    with backend(kind):
        out = OPERATIONS[name](weight).sum()
        resize_rows(weight, torch.arange(1, N), weight.detach()[:added].clone())
        with pytest.raises(RuntimeError, match=r"rows of a weight \(.*\) were added or removed"):
            out.backward()
        assert not weight.row_gradients


def test_a_step_changes_no_numbers():
    weight = torch.nn.Parameter(draw(N, D, grad=False))
    out = OPERATIONS["shared"](weight).sum()
    with torch.no_grad():
        weight.mul_(2)
    out.backward()
    assert weight.row_gradients


# Weights that no optimizer takes row gradients of.


OUTPUTS = 60


class Net(torch.nn.Module):
    def __init__(self, active=12):
        super().__init__()
        self.encoder = torch.nn.Linear(D, D)
        self.head = slide.SampledLinear(D, OUTPUTS, slide.ActiveSampler(D, OUTPUTS, active=active))

    def loss(self, x=None):
        x = torch.randn(B, D) if x is None else x
        return self.head.loss(self.encoder(x), torch.arange(B), "softmax")[0]


def entries(parameter):
    return sum(map(row_gradients._entries, parameter.row_gradients))


@pytest.mark.parametrize("active", [12, OUTPUTS])
@pytest.mark.parametrize("way", ["left out", "assigned"])
@pytest.mark.parametrize("kind", ["kernels", "torch"])
def test_gradients_that_nobody_takes_are_bounded_and_said(active, way, kind):
    """They piled up without a word: 300 steps of a head of 20,000 outputs took 552 MiB."""
    net = Net(active)
    if way == "left out":
        optimizer = torch.optim.AdamW(net.encoder.parameters())
    else:
        optimizer = slide.RowSparseAdam(net.parameters())
        net.load_state_dict({n: p.clone() for n, p in net.state_dict().items()}, assign=True)
    with backend(kind), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(40):
            optimizer.zero_grad()
            net.loss().backward()
            optimizer.step()
    for p in (net.head.weight, net.head.bias):
        assert len(p.row_gradients) < row_gradients.MANY_PENDING
        assert entries(p) <= 2 * p.numel()
    # As plain Python, random bits overflow with a warning of NumPy.
    said = sorted(str(each.message) for each in caught if "overflow" not in str(each.message))
    assert len(said) == 2
    parts = ("bias", "weight"), ((OUTPUTS,), (OUTPUTS, D)), said
    for name, shape, message in zip(*parts, strict=True):
        begin = f"16 backward passes left gradients on head.{name} of Net {shape}, and no RowSpa"
        assert message.startswith(begin)


@pytest.mark.parametrize("active", [12, OUTPUTS])
def test_many_gradients_are_added_up_as_at_once(active, monkeypatch):
    """Bit by bit."""
    found = []
    for most in (row_gradients.MANY_PENDING, 10**9):
        monkeypatch.setattr(row_gradients, "MANY_PENDING", most)
        monkeypatch.setattr(row_gradients, "_entries", lambda _: 0) if most == 10**9 else None
        torch.manual_seed(0)
        net = Net(active)
        optimizer = slide.RowSparseAdam(net.parameters(), lr=0.1)
        for _ in range(2):
            for _ in range(40):
                net.loss().backward()
            assert (len(net.head.weight.row_gradients) == 40) == (most == 10**9)
            optimizer.step()
            optimizer.zero_grad()
        found.append([p.detach().clone() for p in net.parameters()])
    assert all(map(torch.equal, *found))


def test_an_optimizer_that_makes_no_step_is_said(monkeypatch):
    monkeypatch.setattr(row_gradients, "_MANY_PASSES", 30)
    net = Net()
    optimizer = slide.RowSparseAdam(net.parameters())

    def backward(times):
        for _ in range(times):
            net.loss().backward()

    with pytest.warns(UserWarning, match="30 backward passes left .* RowSparseAdam made no step"):
        backward(30)
    optimizer.step()


class TestInEval:
    def waiting(self, net):
        return bool(getattr(net.head.weight, "row_gradients", ()))

    def saliency(self, net, **more):
        x = torch.randn(B, D, requires_grad=True)
        net.eval().head(net.encoder(x)).square().sum().backward(**more)
        net.loss(x).backward(**more)
        net.train()
        return x

    def test_saliency_keeps_no_gradients(self):
        net = Net()
        assert self.saliency(net).grad.any()
        assert not self.waiting(net)
        assert net.encoder.weight.grad.any()

    def test_what_an_optimizer_or_the_call_asks_for_is_kept(self):
        net = Net()
        self.saliency(net, inputs=[net.head.weight])
        assert self.waiting(net)
        net = Net()
        optimizer = slide.RowSparseAdam(net.parameters())
        before = net.head.weight.detach().clone()
        self.saliency(net)
        optimizer.step()
        assert not torch.equal(net.head.weight, before)

    def test_a_head_alone_learns(self):
        net = Net().eval()
        x = torch.randn(B, D)
        net.head.loss(x, torch.arange(B), "softmax")[0].backward()
        assert dense_gradient(net.head.weight).any()

    def test_the_mode_is_that_of_the_forward_pass(self):
        net = Net()
        loss = net.loss()
        net.eval().head(torch.randn(B, D))
        loss.backward()
        assert self.waiting(net)

    def test_gradients_that_are_returned(self):
        net = Net().eval()
        (found,) = torch.autograd.grad(net.loss(), net.head.weight)
        assert found.to_dense().any()

    def test_an_optimizer_that_does_not_take_them_is_warned_of(self):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.saliency(net)
        with pytest.warns(UserWarning, match="SGD does not update a weight"):
            optimizer.step()
