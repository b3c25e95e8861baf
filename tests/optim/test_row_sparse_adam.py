"""RowSparseAdam against torch's Adam and AdamW."""

import math

import numpy as np
import pytest
import torch

from slide.active_set import transpose
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import FactoredRowGradient, RowGradient, add_row_gradient
from slide.sparse import Pattern

OPTIONS = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6}


def test_one_second_moment_a_row():
    """Equal squares in a row: then it is Adam."""
    generator = torch.Generator().manual_seed(0)
    both = [torch.nn.Parameter(torch.ones(6, 4, dtype=torch.float64)) for _ in range(2)]
    optimizers = [RowSparseAdam([p], rowwise=bool(r), **OPTIONS) for r, p in enumerate(both)]
    signs = torch.randn(6, 4, dtype=torch.float64, generator=generator).sign()
    for _ in range(4):
        sizes = torch.rand(6, 1, dtype=torch.float64, generator=generator)
        for p, optimizer in zip(both, optimizers, strict=True):
            p.grad = sizes * signs
            optimizer.step()
    torch.testing.assert_close(*both)
    assert optimizers[1].state[both[1]]["exp_avg_sq"].shape == (6, 1)
    copy = RowSparseAdam([both[1]], rowwise=True, **OPTIONS)
    copy.load_state_dict(optimizers[1].state_dict())
    assert copy.state[both[1]]["exp_avg_sq"].shape == (6, 1)


@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (4, 3, 2), (4, 3, 3, 3)])
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


def leave_gradient(parameter, gradient, how, generator):
    """Put a dense gradient on a parameter in one of three forms."""
    num_rows = len(gradient)
    order = torch.randperm(num_rows, generator=generator)
    if how == "dense":
        parameter.grad = gradient.clone()
    elif how == "rows":
        rows = gradient.reshape(num_rows, -1)[order]
        add_row_gradient(parameter, RowGradient(order.numpy().astype(np.int32), rows))
    else:
        # The product of a permutation matrix and the gradient's rows in that order.
        indptr, ids = np.arange(num_rows + 1), order.numpy().astype(np.int32)
        vectors = gradient.reshape(num_rows, -1)[order].numpy()
        transposed = transpose(Pattern(indptr, ids), num_rows)
        add_row_gradient(parameter, FactoredRowGradient(transposed, np.ones(num_rows), vectors))


@pytest.mark.parametrize("beta1", [0.0, 0.8])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("how", ["dense", "rows", "factored"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(6, 4), (5,)])
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
        add_row_gradient(parameter, RowGradient(np.array(ids, np.int32), rows))
        optimizer.step()
        places = torch.tensor(ids, dtype=torch.int64)
        gradients.append(torch.zeros_like(parameter).index_add_(0, places, rows))
    return gradients


@pytest.mark.parametrize("corrected", [False, True])
def test_untouched_rows_do_not_change(corrected):
    weight = torch.nn.Parameter(torch.randn(6, 3))
    optimizer = RowSparseAdam([weight], weight_decay=0.2, correct_skipped=corrected, **OPTIONS)
    steps_on_some_rows(optimizer, weight, [[0, 1, 2, 3, 4, 5], [5, 2]])
    names = ("exp_avg", "exp_avg_sq", *(["last_step"] if corrected else []))
    before = [weight.detach().clone(), *(optimizer.state[weight][n].clone() for n in names)]
    steps_on_some_rows(optimizer, weight, [[1, 4], [4]])
    after = [weight.detach(), *(optimizer.state[weight][n] for n in names)]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[[0, 2, 3, 5]], new[[0, 2, 3, 5]])
        assert not torch.equal(old[1], new[1])
        assert not torch.equal(old[4], new[4])


def test_corrected_moments_are_those_of_dense_adam():
    touched = [[0, 1], [2], [1], [], [0, 2], [1], [0, 1, 2]]
    weight = torch.nn.Parameter(torch.randn(3, 2, dtype=torch.float64))
    dense = torch.nn.Parameter(weight.detach().clone())
    optimizer = RowSparseAdam([weight], correct_skipped=True, **OPTIONS)
    reference = torch.optim.Adam([dense], **OPTIONS)
    for gradient in steps_on_some_rows(optimizer, weight, touched):
        dense.grad = gradient
        reference.step()
    # All rows are touched in the last step, so none of them lags behind.
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(
            optimizer.state[weight][name], reference.state[dense][name], atol=1e-12, rtol=1e-12
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", ["rows", "factored"])
@pytest.mark.parametrize("shape", [(5, 3), (5,)])
def test_every_row_moves_as_with_dense_adam(shape, how, dtype):
    generator = torch.Generator().manual_seed(4)
    weight = torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
    dense = torch.nn.Parameter(weight.detach().double())
    optimizer = RowSparseAdam([weight], weight_decay=0.1, every_row=True, **OPTIONS)
    reference = torch.optim.AdamW([dense], weight_decay=0.1, **OPTIONS)
    for ids in ([0, 1], [2], [1], [0, 2], [1], [4]):
        rows = torch.randn(len(ids), *shape[1:], dtype=torch.float64, generator=generator)
        indptr, at = np.arange(len(ids) + 1), np.array(ids, np.int32)
        gradient = RowGradient(at, rows.reshape(len(ids), -1))
        if how == "factored":
            vectors = gradient.rows.numpy()
            if dtype != torch.float64:
                vectors = vectors.astype(np.float32)
            groups = transpose(Pattern(indptr, at), 5)
            ones = np.ones(len(ids), vectors.dtype)
            gradient = FactoredRowGradient(groups, ones, vectors)
        optimizer.zero_grad()
        add_row_gradient(weight, gradient)
        dense.grad = torch.zeros_like(dense).index_add_(0, torch.tensor(ids), rows)
        optimizer.step()
        reference.step()
    tolerance = 1e-12 if dtype == torch.float64 else 0.05
    torch.testing.assert_close(weight.double(), dense, atol=tolerance, rtol=tolerance)


def test_uncorrected_moments_stand_still():
    weight = torch.nn.Parameter(torch.zeros(2, 1, dtype=torch.float64))
    optimizer = RowSparseAdam([weight], **OPTIONS)
    gradients = steps_on_some_rows(optimizer, weight, [[0, 1], [1], [1], [0]])
    g0, g3 = gradients[0][0], gradients[3][0]
    expected = 0.8 * (0.2 * g0) + 0.2 * g3
    torch.testing.assert_close(optimizer.state[weight]["exp_avg"][0], expected)


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


def test_zero_grad_forgets_row_gradients():
    weight = torch.nn.Parameter(torch.randn(3, 2))
    before = weight.detach().clone()
    optimizer = RowSparseAdam([weight])
    leave_gradient(weight, torch.ones(3, 2), "rows", None)
    weight.grad = torch.ones(3, 2)
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(weight, before)


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


@pytest.mark.parametrize("corrected", [False, True])
def test_state_round_trip(tmp_path, corrected):
    weight = torch.nn.Parameter(torch.randn(4, 2))
    optimizer = RowSparseAdam([weight], correct_skipped=corrected, **OPTIONS)
    steps_on_some_rows(optimizer, weight, [[0, 1, 2], [3], [0]])
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    other = torch.nn.Parameter(weight.detach().clone())
    resumed = RowSparseAdam([other], lr=1.0, correct_skipped=corrected)
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
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.9)),
        ("betas", (0.9,)),
        ("eps", 0.0),
        ("eps", 1e-300),
        ("weight_decay", -0.1),
        ("weight_decay", float("nan")),
        ("correct_skipped", "yes"),
    ],
)
def test_options_out_of_range(option, value):
    with pytest.raises(ValueError, match=f"{option} must be "):
        RowSparseAdam([torch.nn.Parameter(torch.zeros(1, 1))], **{option: value})


def test_the_least_eps():
    weight = torch.nn.Parameter(torch.zeros(1, 1))
    below = math.nextafter(1e-37, 0)
    assert np.float32(below) > 0  # So the message must not call it 0.
    with pytest.raises(ValueError, match=rf"^eps must be at least 1e-37, not {below}$"):
        RowSparseAdam([weight], eps=below)
    for eps in (1e-37, math.nextafter(1e-37, 1)):
        RowSparseAdam([weight], eps=eps)
