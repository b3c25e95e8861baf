"""RowSparseAdam against torch's Adam and AdamW; its states, resized parameters, GradScaler."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from helpers.grids import pairs
from helpers.sparse_layers import B, D, N, draw_labels, every_mode, make_layer
from torch import nn

from slide.active_set import transpose
from slide.backend import backend
from slide.nn import SampledLinear
from slide.optim.row_sparse_adam import RowSparseAdam, resize_rows
from slide.row_gradients import (
    FactoredRowGradient,
    RowGradient,
    add_row_gradient,
    as_rows,
    take_row_gradients,
    takers,
)
from slide.sparse import Pattern

OPTIONS = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6}


@pytest.fixture(params=["kernels", "torch"])
def either_way(request):
    with backend(request.param):
        yield


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("beta1", [0.0, 0.8])
def test_one_second_moment_a_row(beta1):
    """Equal squares in a row: then it is Adam."""
    options = OPTIONS | {"betas": (beta1, 0.95)}
    generator = torch.Generator().manual_seed(0)
    both = [torch.nn.Parameter(torch.ones(6, 4, dtype=torch.float64)) for _ in range(2)]
    optimizers = [RowSparseAdam([p], rowwise=bool(r), **options) for r, p in enumerate(both)]
    signs = torch.randn(6, 4, dtype=torch.float64, generator=generator).sign()
    for _ in range(4):
        sizes = torch.rand(6, 1, dtype=torch.float64, generator=generator)
        for p, optimizer in zip(both, optimizers, strict=True):
            p.grad = sizes * signs
            optimizer.step()
    torch.testing.assert_close(*both)
    assert optimizers[1].state[both[1]]["exp_avg_sq"].shape == (6, 1)
    copy = RowSparseAdam([both[1]], rowwise=True, **options)
    copy.load_state_dict(optimizers[1].state_dict())
    assert copy.state[both[1]]["exp_avg_sq"].shape == (6, 1)


@pairs(rowwise=[False, True], shape=[(), (5,), (4, 3, 3, 3)])
def test_bfloat16_parameters_of_any_shape(shape, rowwise):
    generator, steps = torch.Generator().manual_seed(0), 5
    exact = torch.nn.Parameter(torch.randn(shape, generator=generator).bfloat16().float())
    rounded = torch.nn.Parameter(exact.detach().bfloat16())
    more = {"rowwise": rowwise, "correct_skipped": True}
    optimizers = [RowSparseAdam([p], **OPTIONS, **more) for p in (exact, rounded)]
    for _ in range(steps):
        gradient = torch.randn(shape, generator=generator).bfloat16()
        exact.grad, rounded.grad = gradient.float(), gradient
        for optimizer in optimizers:
            optimizer.step()
    # Each step rounds to 8 bits.
    error = (rounded - exact).abs()
    assert (error <= steps * 2**-8 * exact.abs().clamp(min=2 * OPTIONS["lr"] * steps)).all()
    one, other = (o.state[p] for o, p in zip(optimizers, (exact, rounded), strict=True))
    for name in ("exp_avg", "exp_avg_sq", "last_step"):
        torch.testing.assert_close(one[name], other[name])


def leave_rows(parameter, ids, rows, how="rows"):
    """Put a gradient of some rows on a parameter, as it is, or as the product of two matrices."""
    ids, rows = np.array(ids, np.int32), rows.flatten(1) if rows.ndim > 1 else rows[:, None]
    gradient = RowGradient(ids, rows)
    if how == "factored":
        vectors = (rows.float() if parameter.dtype == torch.bfloat16 else rows).numpy()
        groups = transpose(Pattern(np.arange(len(ids) + 1), ids), len(parameter))
        gradient = FactoredRowGradient(groups, np.ones(len(ids), vectors.dtype), vectors)
    add_row_gradient(parameter, gradient)


def leave_gradient(parameter, gradient, how, generator):
    """Put a dense gradient on a parameter in one of three forms."""
    order = torch.randperm(len(gradient), generator=generator)
    if how == "dense":
        parameter.grad = gradient.clone()
    else:
        leave_rows(parameter, order.tolist(), gradient[order], how)


@pytest.mark.usefixtures("either_way")
@pairs(
    beta1=[0.0, 0.8],
    corrected=[False, True],
    how=["dense", "rows", "factored"],
    weight_decay=[0.0, 0.3],
    shape=[(6, 4), (5,)],
)
def test_equals_torch_when_all_rows_are_touched(shape, weight_decay, how, corrected, beta1):
    generator = torch.Generator().manual_seed(1)
    ours = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator))
    theirs = torch.nn.Parameter(ours.detach().clone())
    options = OPTIONS | {"betas": (beta1, 0.95)}
    optimizer = RowSparseAdam(
        [ours], weight_decay=weight_decay, correct_skipped=corrected, **options
    )
    if weight_decay:
        reference = torch.optim.AdamW([theirs], weight_decay=weight_decay, **options)
    else:
        reference = torch.optim.Adam([theirs], **options)
    for _ in range(5):
        gradient = torch.randn(shape, dtype=torch.float64, generator=generator)
        optimizer.zero_grad()
        leave_gradient(ours, gradient, how, generator)
        theirs.grad = gradient
        optimizer.step()
        reference.step()
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    assert set(optimizer.state[ours]) == {
        *("step", "exp_avg_sq"),
        *(["exp_avg"] if beta1 else []),
        *(["last_step"] if corrected else []),
    }
    for name in ("exp_avg", "exp_avg_sq") if beta1 else ("exp_avg_sq",):
        torch.testing.assert_close(
            optimizer.state[ours][name], reference.state[theirs][name], atol=1e-12, rtol=1e-12
        )


def steps_on_some_rows(optimizer, parameter, touched, seed=2):
    """One step for each list of rows in ``touched``; returns the dense gradients."""
    generator = torch.Generator().manual_seed(seed)
    gradients = []
    for ids in touched:
        rows = torch.randn(
            len(ids), *parameter.shape[1:], dtype=parameter.dtype, generator=generator
        )
        optimizer.zero_grad()
        leave_rows(parameter, ids, rows)
        optimizer.step()
        positions = torch.tensor(ids, dtype=torch.int64)
        gradients.append(torch.zeros_like(parameter).index_add_(0, positions, rows))
    return gradients


def test_untouched_rows_do_not_change():
    weight = torch.nn.Parameter(torch.randn(6, 3))
    optimizer = RowSparseAdam([weight], weight_decay=0.2, correct_skipped=True, **OPTIONS)
    steps_on_some_rows(optimizer, weight, [[0, 1, 2, 3, 4, 5], [5, 2]])
    names = "exp_avg", "exp_avg_sq", "last_step"
    before = [weight.detach().clone(), *(optimizer.state[weight][n].clone() for n in names)]
    steps_on_some_rows(optimizer, weight, [[1, 4], [4]])
    after = [weight.detach(), *(optimizer.state[weight][n] for n in names)]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[[0, 2, 3, 5]], new[[0, 2, 3, 5]])
        assert not torch.equal(old[1], new[1])
        assert not torch.equal(old[4], new[4])


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("before", [[], [[0, 1, 2], [0]]])
def test_corrected_moments_are_those_of_dense_adam(before):
    """Also if it is switched on later: steps before that are not corrected, steps after it are."""
    weight = torch.nn.Parameter(torch.randn(3, 2, dtype=torch.float64))
    optimizer = RowSparseAdam([weight], **OPTIONS)
    steps_on_some_rows(optimizer, weight, before)
    optimizer.param_groups[0]["correct_skipped"] = True
    dense, names = torch.nn.Parameter(weight.detach().clone()), ("exp_avg", "exp_avg_sq")
    reference = torch.optim.Adam([dense], **OPTIONS)
    if before:
        moments = {name: optimizer.state[weight][name].clone() for name in names}
        reference.state[dense] = {"step": torch.tensor(float(len(before))), **moments}
    touched = [[0, 1], [2], [1], [], [0, 2], [1], [0, 1, 2]]
    for gradient in steps_on_some_rows(optimizer, weight, touched):
        dense.grad = gradient
        reference.step()
    # All rows are touched in the last step, so none of them lags behind.
    for name in names:
        torch.testing.assert_close(
            optimizer.state[weight][name], reference.state[dense][name], atol=1e-12, rtol=1e-12
        )


@pairs(dtype=[torch.float64, torch.bfloat16], how=["rows", "factored"], shape=[(5, 3), (5,)])
def test_every_row_moves_as_with_dense_adam(shape, how, dtype):
    generator = torch.Generator().manual_seed(4)
    weight = torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
    dense = torch.nn.Parameter(weight.detach().double().clone())
    optimizer = RowSparseAdam([weight], weight_decay=0.1, every_row=True, **OPTIONS)
    reference = torch.optim.AdamW([dense], weight_decay=0.1, **OPTIONS)
    for ids in ([0, 1], [2], [1], [0, 2], [1], [4]):
        rows = torch.randn(len(ids), *shape[1:], dtype=torch.float64, generator=generator)
        optimizer.zero_grad()
        leave_rows(weight, ids, rows, how)
        dense.grad = torch.zeros_like(dense).index_add_(0, torch.tensor(ids), rows)
        optimizer.step()
        reference.step()
    tolerance = 1e-12 if dtype == torch.float64 else 0.05
    torch.testing.assert_close(weight.double(), dense, atol=tolerance, rtol=tolerance)


def test_gradients_of_several_passes_add_up():
    weight = torch.nn.Parameter(torch.randn(5, 2, dtype=torch.float64))
    dense = torch.nn.Parameter(weight.detach().clone())
    optimizer, reference = RowSparseAdam([weight], **OPTIONS), torch.optim.Adam([dense], **OPTIONS)
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        optimizer.zero_grad()
        dense.grad = torch.zeros_like(dense)
        for how in ("rows", "factored", "dense"):
            gradient = torch.randn(5, 2, dtype=torch.float64, generator=generator)
            leave_gradient(weight, gradient, how, generator)
            dense.grad += gradient
        optimizer.step()
        reference.step()
    torch.testing.assert_close(weight, dense, atol=1e-12, rtol=1e-12)


def test_zero_grad_forgets_all_gradients():
    weight = torch.nn.Parameter(torch.randn(3, 2))
    before = weight.detach().clone()
    optimizer = RowSparseAdam([weight])
    leave_gradient(weight, torch.ones(3, 2), "rows", None)
    weight.grad = torch.ones(3, 2)
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(weight, before)
    assert weight._version == 0, "a step without gradients changes nothing"


def test_closure_and_groups():
    a, b = (torch.nn.Parameter(torch.ones(2, 1)) for _ in range(2))
    optimizer = RowSparseAdam([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (a + b).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 4
    torch.testing.assert_close(a, torch.full((2, 1), 0.9))
    torch.testing.assert_close(b, torch.full((2, 1), 0.5))


def test_state_round_trip(tmp_path):
    weight = torch.nn.Parameter(torch.randn(4, 2))
    optimizer = RowSparseAdam([weight], correct_skipped=True, **OPTIONS)
    steps_on_some_rows(optimizer, weight, [[0, 1, 2], [3], [0]])
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    other = torch.nn.Parameter(weight.detach().clone())
    resumed = RowSparseAdam([other], lr=1.0, correct_skipped=True)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for o, w in ((optimizer, weight), (resumed, other)):
        steps_on_some_rows(o, w, [[1, 3], [2]], seed=9)
    assert torch.equal(weight, other)
    for name, value in optimizer.state[weight].items():
        restored = resumed.state[other][name]
        assert np.array_equal(value, restored)
        assert getattr(value, "dtype", None) == getattr(restored, "dtype", None)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lr", 0.0),
        ("lr", float("nan")),
        ("lr", 1e300),
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.9)),
        ("betas", (0.9,)),
        ("eps", float("nan")),
        ("weight_decay", -0.1),
        ("weight_decay", torch.tensor(1e300, dtype=torch.float64)),
        ("correct_skipped", "yes"),
    ],
)
def test_options_out_of_range(option, value):
    """Given to the optimizer, or put into a group later; there a rate of 0 ends a schedule."""
    with pytest.raises(ValueError, match=f"{option} must be "):
        RowSparseAdam([torch.nn.Parameter(torch.zeros(1, 1))], **{option: value})
    if value in (0.0, "yes") and option != "eps":
        return
    optimizer, weight = trained()
    optimizer.param_groups[0][option] = value
    before = weight.detach().clone()
    with pytest.raises(ValueError, match=f"{option} must be "):
        step(optimizer, weight, [0])
    assert torch.equal(weight, before)


FOREIGN = {"amsgrad": True, "maximize": True, "foreach": True, "fused": True, "momentum": 0.9}
FOREIGN |= {"decoupled_weight_decay": False, "capturable": True}


@pytest.mark.parametrize(("option", "value"), FOREIGN.items())
def test_options_of_other_optimizers_in_a_group(option, value):
    """They were taken, and had no effect."""
    said = f"{option}={value} is no option of RowSparseAdam: leave it out of the parameter group"
    weight = torch.nn.Parameter(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=said):
        RowSparseAdam([{"params": [weight], option: value}])
    optimizer, trained_weight = trained()
    with pytest.raises(ValueError, match=said):
        optimizer.add_param_group({"params": [weight], option: value})
    optimizer.load_state_dict(optimizer.state_dict())
    before, state = trained_weight.detach().clone(), optimizer.state_dict()
    state["param_groups"][0][option] = value
    with pytest.raises(ValueError, match=said):
        optimizer.load_state_dict(state)
    optimizer.param_groups[0][option] = value
    with pytest.raises(ValueError, match=said):
        step(optimizer, trained_weight, [0])
    assert torch.equal(trained_weight, before)


def test_what_else_a_group_may_hold():
    """Options that are off, as in groups of AdamW, and notes of schedules and users."""
    weight = torch.nn.Parameter(torch.zeros(3, 2))
    groups = torch.optim.AdamW([weight]).param_groups
    optimizer = RowSparseAdam([{**groups[0], "name": "head", "initial_lr": 0.1, "lr_scale": 2}])
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)
    copy.deepcopy(optimizer).add_param_group({"params": [nn.Parameter(torch.zeros(2, 2))]})
    for option, near in (("weight_decai", "weight_decay"), ("beta", "betas")):
        with pytest.raises(ValueError, match=f"{option} is no option of .*; did you mean {near}"):
            RowSparseAdam([{"params": [weight], option: 0.1}])
    with pytest.raises(ValueError, match="rowwise must be true or false, not 'no'"):
        RowSparseAdam([{"params": [weight], "rowwise": "no"}])


def test_the_largest_rate_of_a_group_and_the_least_eps():
    weight = torch.nn.Parameter(torch.zeros(1, 1))
    # As of a first layer, whose rate is a multiple of that of the others.
    with pytest.raises(ValueError, match=r"^lr must be at most 1e\+38, not 2e\+297$"):
        RowSparseAdam([{"params": [weight], "lr": 2e297}], lr=1e-3)
    below = math.nextafter(1e-37, 0)
    assert np.float32(below) > 0  # So the message must not call it 0.
    with pytest.raises(ValueError, match=rf"^eps must be at least 1e-37, not {below}$"):
        RowSparseAdam([weight], eps=below)
    RowSparseAdam([weight], eps=1e-37)


def trained(shape=(4, 2), steps=((0, 1), (2,)), **options):
    weight = nn.Parameter(torch.ones(shape, dtype=torch.float64))
    optimizer = RowSparseAdam([weight], lr=0.1, **options)
    for ids in steps:
        step(optimizer, weight, ids)
    return optimizer, weight


def step(optimizer, weight, ids, seed=None):
    """A step with gradients of 1, or of numbers that depend on the row and a seed."""
    optimizer.zero_grad()
    rows = torch.ones(len(ids), weight.shape[1], dtype=weight.dtype)
    if seed is not None:
        places = torch.arange(weight.shape[1]) + torch.tensor(ids)[:, None]
        rows = torch.sin(places.to(weight.dtype) + 7 * seed)
    leave_rows(weight, ids, rows)
    optimizer.step()


def test_the_state_of_another_optimizer_is_refused():
    optimizer, weight = trained()
    state = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"no state of a RowSparseAdam: its groups lack .*rowwise"):
        optimizer.load_state_dict(torch.optim.Adam([weight]).state_dict())
    assert str(optimizer.state_dict()) == str(state)
    del state["state"][0]["exp_avg_sq"]
    with pytest.raises(ValueError, match="lacks exp_avg_sq"):
        optimizer.load_state_dict(state)
    step(optimizer, weight, [3])


@pytest.mark.parametrize("shape", [(3, 2), (4, 3)])
def test_moments_of_another_shape_are_refused(shape):
    """Kernels would read and write outside of them."""
    optimizer, other = trained()[0], trained(shape)[0]
    with pytest.raises(ValueError, match=rf"exp_avg \({shape[0]}, {shape[1]}\) does not fit a par"):
        optimizer.load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", -5),
        ("last_step", 1000),
        ("exp_avg_sq", -1.0),
        ("exp_avg", math.nan),
    ],
)
def test_numbers_that_no_step_leaves_are_refused(name, value):
    """A step would make weights NaN."""
    optimizer, weight = trained(correct_skipped=True)
    state = copy.deepcopy(optimizer.state_dict())
    if name == "step":
        state["state"][0]["step"] = value
    else:
        state["state"][0][name].view(-1)[1] = value
    with pytest.raises(ValueError, match=rf"the state of .*{name} must"):
        optimizer.load_state_dict(state)
    step(optimizer, weight, [0])
    assert torch.isfinite(weight).all()


@pytest.mark.usefixtures("either_way")
def test_a_parameter_without_rows():
    weight = torch.nn.Parameter(torch.empty(0, 3))
    optimizer = RowSparseAdam([weight])
    weight.grad = torch.empty(0, 3)
    optimizer.step()
    assert optimizer.state[weight]["step"] == 1


def test_a_parameter_that_never_had_a_gradient_has_no_state():
    optimizer, weight = trained(steps=())
    optimizer.load_state_dict(trained(steps=())[0].state_dict())
    state = trained()[0].state_dict()
    state["state"][0] = {}
    optimizer.load_state_dict(state)
    step(optimizer, weight, [0])
    assert optimizer.state[weight]["step"] == 1


def test_weights_that_are_not_contiguous_are_refused():
    optimizer, weight = trained(shape=(4, 2), steps=())
    weight.data = weight.data.T.contiguous().T
    with pytest.raises(ValueError, match=r"has strides \(1, 4\), but its rows must lie in order"):
        step(optimizer, weight, [0])


@pytest.mark.kernels_only
def test_moments_that_are_not_contiguous_are_refused():
    optimizer, weight = trained(shape=(4, 2))
    optimizer.state[weight]["exp_avg"] = torch.zeros(2, 4).T
    with pytest.raises(ValueError, match=r"a contiguous tensor is needed; got strides \(1, 4\)"):
        step(optimizer, weight, [0])


def test_the_first_moment_may_come_and_go():
    optimizer, weight = trained(steps=[(0, 1)], betas=(0.0, 0.9))
    state, (group,) = optimizer.state[weight], optimizer.param_groups
    assert "exp_avg" not in state
    group["betas"] = (0.5, 0.9)
    step(optimizer, weight, [0])
    torch.testing.assert_close(state["exp_avg"], weight.new_tensor([[0.5] * 2, *[[0.0] * 2] * 3]))
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["state"][0]["exp_avg"]
    with pytest.raises(ValueError, match="lacks exp_avg"):
        optimizer.load_state_dict(saved)
    assert "exp_avg" in state
    group["betas"] = (0.0, 0.9)
    step(optimizer, weight, [0])
    assert "exp_avg" not in state
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.state[weight].keys() == {"step", "exp_avg_sq"}


MOMENTS = [{}, {"rowwise": True}, {"correct_skipped": True}]


@pytest.mark.parametrize("options", MOMENTS)
def test_appended_rows_are_as_if_they_had_been_there(options):
    both = [trained((n, 3), (), **options) for n in (4, 6)]
    (one, small), (_, large) = both
    for seed, ids in enumerate([(0, 2), (1,), (0, 3)]):
        for optimizer, p in both:
            step(optimizer, p, ids, seed)
    resize_rows(small, None, torch.ones(2, 3), one)
    for seed, ids in enumerate([(5, 0), (4, 1, 5)], start=3):
        for optimizer, p in both:
            step(optimizer, p, ids, seed)
    assert torch.equal(small, large)
    # Which checks the shapes of all state.
    trained((6, 3), (), **options)[0].load_state_dict(one.state_dict())


@pytest.mark.parametrize("kept", [None, torch.tensor([2])])
def test_a_step_with_moments_of_other_rows_is_refused(kept):
    """Kernels would write outside of them."""
    optimizer, p = trained((3, 3), [(0, 1, 2)])
    resize_rows(p, kept, torch.zeros(1, 3))
    before = p.detach().clone()
    with pytest.raises(ValueError, match=r"does not fit a parameter .*: give the optimizer to"):
        step(optimizer, p, (0,))
    assert torch.equal(p, before)


@pairs(options=[{}, {"rowwise": True, "correct_skipped": True}], kernels=[1, 2])
def test_state_of_each_kernel_follows_its_output(options, kernels):
    p = nn.Parameter(torch.randn(3, kernels, 2, 2))
    optimizer = RowSparseAdam([p], lr=0.1, **options)
    p.square().sum().backward()
    optimizer.step()
    state = optimizer.state[p]
    before = {name: value for name, value in state.items() if name != "step"}
    resize_rows(p, torch.tensor([2, 0]), torch.ones(1, kernels, 2, 2), optimizer)
    for name, value in before.items():
        by_output = value.unflatten(0, (3, -1)) if len(value) == 3 * kernels else value
        found = state[name].view(3, *by_output.shape[1:])
        assert torch.equal(found[:2], by_output[[2, 0]])
        assert (found[2] == (1 if name == "last_step" else 0)).all()
    p.square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    "kind", [torch.optim.Adam, torch.optim.Adagrad, lambda p: torch.optim.SGD(p, momentum=0.9)]
)
def test_optimizers_of_pytorch_follow(kind):
    p = nn.Parameter(torch.ones(4, 3))
    optimizer = kind([p])
    p.sum().backward()
    if "momentum" in optimizer.defaults:
        p.grad = p.grad.to_sparse(1)
    optimizer.step()
    resize_rows(p, torch.tensor([1, 3]), torch.zeros(3, 3), optimizer)
    assert p.grad is None
    (2 * p).sum().backward()
    optimizer.step()
    assert p.shape == (5, 3)
    assert not torch.equal(p[0], p[4])


def test_what_does_not_fit_is_refused():
    optimizer, p = trained((3, 3), ())
    with pytest.raises(ValueError, match=r"new rows \(1, 2\) do not fit a weight \(3, 3\)"):
        resize_rows(p, None, torch.zeros(1, 2), optimizer)
    with pytest.raises(ValueError, match=r"rows to keep must lie in \[0, 3\)"):
        resize_rows(p, torch.tensor([0, 3]), torch.zeros(0, 3), optimizer)
    with pytest.raises(ValueError, match=r"optimizer does not have this parameter, \(2,\)"):
        resize_rows(nn.Parameter(torch.zeros(2)), None, torch.zeros(1), optimizer)
    assert p.shape == (3, 3)


class Job:
    """An encoder and a sampled output layer, with one optimizer for both."""

    def __init__(self, sparse):
        torch.manual_seed(0)
        self.encoder, self.output = nn.Linear(3, D), make_layer(sparse_grad=sparse)
        # A large eps: without it, Adam's steps hardly depend on the scale of gradients.
        parameters = [*self.encoder.parameters(), *self.output.parameters()]
        self.optimizer = RowSparseAdam(parameters, lr=0.1, eps=1.0)
        self.x = torch.randn(B, 3)

    def loss(self, factor=1.0):
        return factor * self.output(self.encoder(self.x), draw_labels()).values.square().mean()

    def weights(self):
        return [p.detach().clone() for p in (*self.encoder.parameters(), *self.output.parameters())]


def test_rows_that_unscale_has_not_seen_are_refused():
    job, scaler = Job(sparse=False), torch.amp.GradScaler("cpu", init_scale=1024.0)
    before, state = job.weights(), copy.deepcopy(job.optimizer.state_dict())
    scaler.scale(job.loss()).backward()
    scaler.unscale_(job.optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_ does not see row gradients: leave it out"):
        scaler.step(job.optimizer)
    assert all(map(torch.equal, job.weights(), before))
    assert job.optimizer.state_dict() == state


@pytest.mark.parametrize(
    ("sparse", "unscaled_first"), [(False, False), (True, False), (True, True)]
)
def test_gradients_are_unscaled(sparse, unscaled_first):
    job, plain = Job(sparse), Job(sparse)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3):
        scaler.scale(job.loss()).backward()
        if unscaled_first:
            scaler.unscale_(job.optimizer)
        scaler.step(job.optimizer)
        scaler.update()
        plain.loss().backward()
        plain.optimizer.step()
        for one in (job, plain):
            # Without rows on it, or a gradient of them: the step has taken both.
            assert sparse or not one.output.weight.row_gradients
            assert sparse or one.output.weight.grad is None
            one.optimizer.zero_grad()
    for found, wanted in zip(job.weights(), plain.weights(), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_step_with_infinities_is_left_out(sparse):
    job, scaler = Job(sparse), torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = job.weights()
    scaler.scale(job.loss(float("inf"))).backward()
    scaler.step(job.optimizer)
    scaler.update()
    assert all(map(torch.equal, job.weights(), before))
    assert scaler.get_scale() == 512
    if sparse:
        job.optimizer.zero_grad()
    else:
        assert job.output.weight.grad is None, "row gradients are gone after a step, as always"
        job.encoder.zero_grad()
    scaler.scale(job.loss()).backward()
    scaler.step(job.optimizer)
    assert not torch.equal(job.weights()[-1], before[-1])


REFUSED = r"modified by an inplace operation"


@every_mode
def test_the_gradient_of_the_input_after_a_step(mode):
    """A shared set copies its rows, so its gradient is right; other sets refuse."""
    layer, x = make_layer(mode), torch.randn(B, D, requires_grad=True)
    optimizer = RowSparseAdam(layer.parameters(), lr=10.0)
    loss = layer(x, draw_labels()).values.square().sum()
    (wanted,) = torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward(retain_graph=True)
    optimizer.step()
    if mode == "per_sample":
        with pytest.raises(RuntimeError, match=REFUSED):
            torch.autograd.grad(loss, x)
    else:
        torch.testing.assert_close(torch.autograd.grad(loss, x)[0], wanted)


class RowSGD(torch.optim.Optimizer):
    """The shortest optimizer of row gradients, as users may write one."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        takers.add(self)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if (gradient := take_row_gradients(p)) is not None:
                    rows, steps = as_rows(p), -group["lr"] * gradient.values()
                    if gradient.ids is None:
                        rows += steps
                    else:  # On other devices than the CPU a row may occur several times.
                        rows.index_add_(0, torch.as_tensor(gradient.ids).long(), steps)


@every_mode
def test_an_optimizer_of_a_user(mode):
    """It gets the rows of a layer, and nobody warns that they are left."""
    layer, twin = (make_layer(mode, sparse_grad=sparse) for sparse in (False, True))
    optimizers = RowSGD(layer.parameters(), 0.1), torch.optim.SGD(twin.parameters(), 0.1)
    x = torch.randn(B, D)
    for _ in range(3):
        for each, optimizer in zip((layer, twin), optimizers, strict=True):
            optimizer.zero_grad()
            each(x, draw_labels()).values.square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(layer.weight, twin.weight)
    torch.testing.assert_close(layer.bias, twin.bias)


@pytest.mark.parametrize(
    ("sparse", "change"), [(False, lambda data: data[:4]), (True, lambda data: data[:, :2].clone())]
)
def test_rows_that_are_gone_after_the_backward_pass(change, sparse):
    """Kernels would write outside of the weight."""
    layer = make_layer(sparse_grad=sparse)
    optimizer = RowSparseAdam(layer.parameters())
    layer(torch.randn(B, D), draw_labels()).values.sum().backward()
    layer.weight.data = change(layer.weight.data)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match=r"a gradient of a parameter \(.*\) does not fit one of"):
        optimizer.step()
    assert torch.equal(layer.weight, before)


class TestOneOwner:
    """An embedding that is tied to the output layer, with an optimizer for each."""

    def tied(self, kind=torch.optim.Adam):
        embedding, layer = nn.Embedding(N, D), SampledLinear(D, N, bias=False)
        layer.weight = embedding.weight
        return embedding, layer, kind(embedding.parameters()), RowSparseAdam(layer.parameters())

    def backward(self, embedding, layer):
        layer(embedding(torch.arange(B))).values.square().sum().backward()

    @pytest.mark.parametrize(
        ("turned", "kind"),
        [(True, torch.optim.Adam), (True, RowSparseAdam), (False, RowSparseAdam)],
    )
    def test_the_second_step_is_refused(self, turned, kind):
        embedding, layer, *optimizers = self.tied(kind)
        self.backward(embedding, layer)
        first, second = reversed(optimizers) if turned else optimizers
        first.step()
        before = layer.weight.detach().clone()
        with pytest.raises(RuntimeError, match="one optimizer must own a weight"):
            second.step()
        assert torch.equal(layer.weight, before)

    def test_a_step_that_leaves_rows_is_refused(self):
        """In a loop over optimizers, zero_grad follows each step and hides it from the next."""
        embedding, layer, other, _optimizer = self.tied()
        self.backward(embedding, layer)
        with pytest.raises(RuntimeError, match="one optimizer must own a weight"):
            other.step()

    def test_one_that_owns_it_goes_on(self):
        embedding, layer, other, optimizer = self.tied()
        for _ in range(2):
            self.backward(embedding, layer)
            optimizer.step()
            optimizer.zero_grad()
            other.step()  # There is no gradient.
        embedding(torch.arange(B)).sum().backward()
        other.step()  # It is another gradient.


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("state", 0, "exp_avg_sq"), None, "exp_avg_sq that is no tensor does not fit"),
        (("param_groups", 0, "params"), [{}], "params must be numbers of parameters"),
        (("param_groups", 0, "lr"), 10**400, "lr must be a number of at least 0"),
        (("param_groups",), None, "it needs param_groups and state"),
        (("state",), 1.5, "it needs param_groups and state"),
        (("state", 0), [], "must be dicts, not list"),
        (("state", 0, "exp_avg"), torch.ones(3, 2).to_sparse(), "exp_avg must be a plain tensor"),
        (("state", 0, "exp_avg"), torch.ones(3, 2, device="meta"), "exp_avg must be a plain"),
        (("state", 0, "exp_avg"), torch.ones(1).expand(3, 2), "exp_avg must be a plain tensor"),
        (("state", 0, "step"), torch.ones(3), "step must be a number of at least 0"),
        (("param_groups", 0, "lr"), torch.ones(3), "lr must be a number of at least 0"),
    ],
    ids=[
        *("none", "an object", "a huge number", "groups", "state", "a list"),
        *("sparse", "without memory", "of few bytes", "three steps", "three rates"),
    ],
)
def test_states_of_other_kinds_are_refused_in_a_sentence(path, value, said):
    (optimizer, weight), (other, _) = (trained((3, 2)) for _ in range(2))
    edited = copy.deepcopy(other.state_dict())
    owner = edited
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value

    def goes_on():
        optimizer.load_state_dict(edited)
        step(optimizer, weight, [0])

    with pytest.raises(ValueError, match=said):
        goes_on()


def test_one_thread_at_a_time_makes_a_step():
    """PyTorch frees the gradient that another thread reads."""
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = RowSparseAdam([weight], lr=0.1)

    def within():
        optimizer.zero_grad()  # As a closure does in its own thread.
        with ThreadPoolExecutor(1) as other:
            for call in (optimizer.step, optimizer.zero_grad):
                with pytest.raises(RuntimeError, match="another thread makes a step of this optim"):
                    other.submit(call).result()
            copied = copy.deepcopy(optimizer)
            other.submit(copied.step).result()
            weight.square().sum().backward()

    optimizer.step(within)
    assert (weight < 1).all()


@pytest.mark.parametrize(("shape", "places"), [((4, 2), [[7]]), ((2, 3, 2, 2), [[0], [-1]])])
def test_a_sparse_gradient_outside_of_a_weight(shape, places):
    weight = nn.Parameter(torch.ones(shape))
    values = torch.ones(1, *shape[len(places) :])
    weight.grad = torch.sparse_coo_tensor(places, values, shape, check_invariants=False)
    with pytest.raises(ValueError, match="a sparse gradient has rows outside of"):
        RowSparseAdam([weight]).step()
    assert (weight == 1).all()
