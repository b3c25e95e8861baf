"""ReLU and dropout in one: against PyTorch's, statistically, and its gradient."""

import numpy as np
import pytest
import torch

from slide.functional.dropout import relu_dropout


def test_without_dropout_it_is_relu():
    x = torch.randn(5, 7)
    assert torch.equal(relu_dropout(x, 0.0), torch.relu(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_values_are_dropped_or_grow(dtype, p):
    torch.manual_seed(0)
    x = torch.randn(40, 50, dtype=dtype)
    out = relu_dropout(x, p)
    assert out.dtype == dtype
    assert out.shape == x.shape
    kept = out != 0
    assert not (kept & (x <= 0)).any()
    rtol = 1e-2 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(out[kept], x[kept] / (1 - p), rtol=rtol, atol=0)
    positive = int((x > 0).sum())
    assert abs(int(kept.sum()) - (1 - p) * positive) < 5 * (p * (1 - p) * positive) ** 0.5


def test_places_are_independent_and_uniform():
    torch.manual_seed(1)
    kept = np.stack([relu_dropout(torch.ones(16, 16), 0.3).numpy() > 0 for _ in range(300)])
    # Each place over the calls, and pairs of neighbouring places.
    assert np.abs(kept.mean(0) - 0.7).max() < 5 * (0.21 / 300) ** 0.5
    flat = kept.reshape(300, -1)
    both = (flat[:, 1:] & flat[:, :-1]).mean()
    assert abs(both - 0.49) < 5 * (0.49 * 0.51 / (300 * 255)) ** 0.5


def test_draws_follow_from_the_seed_and_not_from_threads(threads):
    x, found = torch.randn(64, 64), []
    for count in (1, 0):
        threads(count)
        torch.manual_seed(3)
        found.append((relu_dropout(x, 0.4), relu_dropout(x, 0.4)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[0][1])


def test_gradient():
    x = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)

    def same_draws(x):
        torch.manual_seed(7)
        return relu_dropout(x, 0.4)

    assert torch.autograd.gradcheck(same_draws, x)
    # Neither inputs nor gradients need to lie in order in memory.
    assert torch.autograd.gradcheck(lambda x: same_draws(x.T).T, x)


def test_nan_stays_and_infinity_is_dropped_as_others_are():
    assert relu_dropout(torch.full((1000,), torch.nan), 0.5).isnan().all()
    out = relu_dropout(torch.full((1000,), torch.inf), 0.5)
    assert 400 < int((out == torch.inf).sum()) == 1000 - int((out == 0).sum()) < 600


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), ()])
def test_odd_shapes(shape):
    x = torch.ones(shape, requires_grad=True)
    relu_dropout(x, 0.5).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_of_a_generator(dtype):
    x, before = torch.ones(300, dtype=dtype), torch.get_rng_state()
    first, same, other = (
        relu_dropout(x, 0.5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert first.dtype == dtype


@pytest.mark.parametrize("p", [1.0, -0.1, float("nan"), "x"])
def test_bad_share(p):
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\), not"):
        relu_dropout(torch.ones(2), p)
