"""What a program changes between two calls: an error, and never memory outside of an array."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.sparse_layers import B, D, N, draw_labels, every_mode, make_layer

from slide import (
    CSR,
    ActiveLoss,
    ActiveSampler,
    ActiveSet,
    FaissProposer,
    LSHProposer,
    Model,
    Pattern,
    RecentProposer,
    RowSparseAdam,
    SampledLinear,
    SketchProposer,
    SlideNetwork,
    SparseInputLinear,
)
from slide.functional import active_linear_loss
from slide.row_gradients import dense_gradient


def forward(layer):
    x = torch.randn(B, D, generator=torch.Generator().manual_seed(0))
    out = layer(x, draw_labels(0))
    return out.active, ActiveLoss("bce")(out.values, out.active)


def test_ids_that_change_before_the_backward_pass():
    active, loss = forward(make_layer("per_sample", sparse_grad=False))
    active.ids[0] = N
    with pytest.raises(ValueError, match=rf"active ids must lie in \[0, {N}\)"):
        loss.backward()


# A squared hinge gives few entries where scores are right by a margin: factors of a gradient.
@pytest.mark.parametrize("loss", ["bce", "squared_hinge"])
@pytest.mark.parametrize(("wrong", "kind"), [(-1, np.asarray), (100, torch.from_numpy)])
def test_ids_that_change_before_the_step(wrong, kind, loss):
    weight, bias = torch.nn.Parameter(torch.zeros(100, D)), torch.full((100,), -2.0)
    ids, targets = np.arange(50, dtype=np.int32), Pattern.from_lists([[b] for b in range(B)])
    active = ActiveSet(100, kind(ids), targets=targets)
    active_linear_loss(torch.ones(B, D), weight, bias, active, loss).backward()
    ids[-1] = wrong
    with pytest.raises(ValueError, match=r"row numbers of a gradient lie outside of \[0, 100\)"):
        RowSparseAdam([weight]).step()


def test_bounds_that_change_before_the_backward_pass():
    active, loss = forward(make_layer("per_sample", sparse_grad=False))
    active.indptr[1:-1] = len(active.ids) + 1
    with pytest.raises(ValueError, match="indptr of active sets must rise"):
        loss.backward()


def sparse_input():
    layer = SparseInputLinear(5, 2)
    rows = CSR(np.array([0, 1, 2]), np.array([3, 4], np.int32), np.ones(2, np.float32))
    return layer, rows, layer(rows).to_dense().sum()


def test_columns_that_change_before_the_backward_pass():
    _, rows, total = sparse_input()
    rows.indices[0] = 5
    with pytest.raises(ValueError, match=r"features must lie in \[0, 5\), and row 0 has 5"):
        total.backward()


def test_bounds_of_rows_that_change_before_the_backward_pass():
    layer, rows, total = sparse_input()
    rows.indptr[1] = 7
    total.backward()
    assert dense_gradient(layer.weight).tolist() == [[0.0] * 2] * 3 + [[1.0] * 2] * 2


@every_mode
def test_columns_of_a_weight_that_are_gone(mode):
    layer = make_layer(mode, sparse_grad=False)
    _, loss = forward(layer)
    layer.weight.data = layer.weight.data[:, :2].clone()
    with pytest.raises(RuntimeError, match="after the forward pass"):
        loss.backward()


def test_memory_that_a_wrapper_has_freed():
    layer, weight = make_layer("shared", sparse_grad=False), torch.nn.Parameter(torch.ones(4, 2))
    weight.grad = torch.ones(4, 2)
    for each in (layer.weight, weight):
        each.untyped_storage().resize_(8)
    with pytest.raises(RuntimeError, match=rf"memory of a weight \({N}, {D}\) was freed"):
        forward(layer)
    with pytest.raises(RuntimeError, match=r"memory of a weight \(4, 2\) was freed"):
        RowSparseAdam([weight]).step()


def test_a_weight_of_another_type_since_the_last_step():
    layer = make_layer("shared", sparse_grad=False)
    optimizer = RowSparseAdam(layer.parameters())
    for kind in (torch.float32, torch.float64):
        layer.to(kind)
        x = torch.randn(B, D, dtype=kind)
        layer.loss(x, draw_labels(0), "bce")[0].backward()
        optimizer.step()
    state = optimizer.state[layer.weight]
    assert (state["exp_avg"].dtype, state["exp_avg_sq"].dtype) == (torch.float64,) * 2
    forward(layer.float())[1].backward()
    layer.half()
    with pytest.raises(TypeError, match=r"bfloat16 or float64, not torch\.float16"):
        optimizer.step()


@pytest.fixture
def default_type():
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("proposer", "mode"),
    [
        (None, "shared"),
        (LSHProposer, "shared"),
        (LSHProposer, "grouped"),
        (SketchProposer, "per_sample"),
        (partial(FaissProposer, factory="Flat"), "grouped"),
        (RecentProposer, "per_sample"),
    ],
)
def test_float64_as_the_default_type_of_pytorch(default_type, proposer, mode):
    default_type(torch.float64)

    def sampler(inputs, outputs):
        return ActiveSampler(inputs, outputs, proposer, active=8, mode=mode)

    model, rows = Model(SlideNetwork(12, [8], 40, sampler)), np.eye(12)
    model.partial_fit(rows, [[number] for number in range(12)])
    assert model.network.output.weight.dtype == torch.float32
    assert np.isfinite(model.predict(rows, k=3).scores).all()


def test_a_default_type_that_layers_do_not_have(default_type):
    default_type(torch.float16)
    with pytest.raises(TypeError, match=r"not torch\.float16"):
        SampledLinear(4, 4)


UNUSUAL = {
    "sparse": lambda found: found.to_sparse(),
    "without memory": lambda found: found.to("meta"),
    "float8": lambda found: found.to(torch.float8_e4m3fn),
    "negated": torch._neg_view,
    "of few bytes": lambda found: found[:1].expand(2**40, *found.shape[1:]),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_tensors_in_the_state_of_a_sampler(kind):
    layer = SampledLinear(D, N, ActiveSampler(D, N, LSHProposer, active=8))
    layer(torch.randn(B, D))
    state = layer.sampler_state()
    state["proposer"]["recent"] = UNUSUAL[kind](state["proposer"]["recent"])
    with pytest.raises(ValueError, match="a state of a sampler has a tensor"):
        layer.set_extra_state(state)


def test_a_sampler_of_another_number_of_rows():
    sampler, weight = ActiveSampler(D, N, LSHProposer, active=8), torch.randn(N - 1, D)
    with pytest.raises(ValueError, match=f"of {N} outputs does not fit {N - 1} rows"):
        sampler.update(weight, None, torch.randn(B, D))
