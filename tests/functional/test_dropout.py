"""Dropout of hidden values, in one with ReLU, and of sparse inputs: statistics and gradients."""

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, to_dense

from slide import FullSampler, SlideNetwork
from slide.backend import backend
from slide.functional import drop_features, relu_dropout


def rows(count=200):
    rng = np.random.default_rng(0)
    x = make_csr(rng, [0, 0, *rng.integers(0, 40, count - 2)], 40)
    return x._replace(values=1 + rng.random(len(x.values), np.float32))


def dense(x):
    return to_dense(x, 40).numpy()


# Each function on inputs of its own; the result as a tensor.
DROPOUTS = {
    "hidden": lambda p, generator=None: relu_dropout(torch.ones(64, 64), p, generator),
    "hidden, bfloat16": lambda p, g=None: relu_dropout(torch.ones(300).bfloat16(), p, g),
    "features": lambda p, generator=None: to_dense(drop_features(rows(), p, generator), 40),
}
# What is left of a share of p, but for five deviations of the binomial distribution.
every_share = pytest.mark.parametrize("p", [0.1, 0.5, 0.9])


def assert_share(kept, count, p):
    assert abs(int(kept) - (1 - p) * count) < 5 * (p * (1 - p) * count) ** 0.5


@pytest.mark.parametrize("name", DROPOUTS)
def test_draws_follow_from_the_seed_or_a_generator(threads, name):
    """Not from the number of threads; nothing is drawn for a share of 0."""
    drop, found = DROPOUTS[name], []
    for count in (1, 0):
        threads(count)
        torch.manual_seed(3)
        found.append([drop(0.4) for _ in range(2)])
    assert all(map(torch.equal, *found))
    assert not torch.equal(*found[0])
    before = torch.get_rng_state()
    first, same, other = (drop(0.5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(drop(0.0), drop(0.0))
    assert torch.equal(before, torch.get_rng_state())
    for p in (1.0, -0.1, float("nan"), "x"):
        with pytest.raises(ValueError, match=r"p must be in \[0, 1\), not"):
            drop(p)


class TestOfHiddenValues:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    @every_share
    def test_values_are_dropped_or_grow(self, dtype, p):
        torch.manual_seed(0)
        x = torch.randn(40, 50, dtype=dtype)
        out = relu_dropout(x, p)
        assert out.dtype == dtype
        assert out.shape == x.shape
        kept = out != 0
        assert not (kept & (x <= 0)).any()
        rtol = 1e-2 if dtype == torch.bfloat16 else 1e-6
        torch.testing.assert_close(out[kept], x[kept] / (1 - p), rtol=rtol, atol=0)
        assert_share(kept.sum(), int((x > 0).sum()), p)

    def test_positions_are_independent_and_uniform(self):
        torch.manual_seed(1)
        kept = np.stack([relu_dropout(torch.ones(16, 16), 0.3).numpy() > 0 for _ in range(300)])
        # Each position over the calls, and pairs of neighbours.
        assert np.abs(kept.mean(0) - 0.7).max() < 5 * (0.21 / 300) ** 0.5
        flat = kept.reshape(300, -1)
        both = (flat[:, 1:] & flat[:, :-1]).mean()
        assert abs(both - 0.49) < 5 * (0.49 * 0.51 / (300 * 255)) ** 0.5

    @pytest.mark.usefixtures("one_thread")
    def test_gradient(self):
        x = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)

        def same_draws(x):
            torch.manual_seed(7)
            return relu_dropout(x, 0.4)

        assert torch.autograd.gradcheck(same_draws, x)
        # Neither inputs nor gradients need to lie in order in memory.
        assert torch.autograd.gradcheck(lambda x: same_draws(x.T).T, x)

    @pytest.mark.parametrize("way", ["kernels", "torch"])
    def test_nan_stays_and_infinity_is_dropped_as_others_are(self, way):
        with backend(way):
            assert relu_dropout(torch.full((1000,), torch.nan), 0.5).isnan().all()
            out = relu_dropout(torch.full((1000,), torch.inf), 0.5)
        assert 400 < int((out == torch.inf).sum()) == 1000 - int((out == 0).sum()) < 600

    @pytest.mark.parametrize("shape", [(0, 4), (4, 0), ()])
    def test_odd_shapes(self, shape):
        x = torch.ones(shape, requires_grad=True)
        relu_dropout(x, 0.5).sum().backward()
        assert x.grad is not None
        assert x.grad.shape == shape


class TestOfFeatures:
    @every_share
    def test_entries_are_dropped_or_grow(self, p):
        torch.manual_seed(0)
        x = rows()
        out = drop_features(x, p)
        assert [part.dtype for part in out] == [np.int64, np.int32, np.float32]
        before, after = dense(x), dense(out)
        kept = after != 0
        assert np.count_nonzero(kept) == len(out.indices) == out.indptr[-1], "one occurs twice"
        np.testing.assert_allclose(after[kept], before[kept] / (1 - p), rtol=1e-6)
        assert_share(len(out.indices), len(x.indices), p)

    def test_a_network_drops_in_training_only(self):
        network, x = SlideNetwork(40, [8], 10, FullSampler, input_dropout=0.5), rows()
        torch.manual_seed(5)
        dropped = network.encode(x)
        network.eval()
        plain = network.encode(x)
        assert torch.equal(network.encode(x), plain)
        assert not torch.equal(dropped, plain)
        torch.manual_seed(5)
        assert torch.equal(network.encode(drop_features(x, 0.5)), dropped)
        with pytest.raises(ValueError, match=r"input_dropout must be in \[0, 1\), not"):
            SlideNetwork(40, [8], 10, FullSampler, input_dropout=1.0)

    def test_the_mean_of_many_draws_is_the_input(self):
        torch.manual_seed(1)
        x = rows(20)
        mean = np.mean([dense(drop_features(x, 0.4)) for _ in range(2000)], axis=0)
        # The deviation of a value v is v * sqrt(p / (1 - p)).
        assert np.abs(mean - dense(x)).max() < 5 * 2 * (0.4 / 0.6 / 2000) ** 0.5
