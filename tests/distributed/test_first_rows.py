"""First weights by keys: their distribution, and that they belong to their rows."""

import numpy as np
import pytest
import torch
from helpers.naive import random_bits

from slide.distributed.shares import normal_rows, uniform_rows

KEY = 2**64 - 5


@pytest.mark.parametrize("draw", [uniform_rows, normal_rows])
@pytest.mark.parametrize("width", [1, 7, 64])
def test_a_row_depends_on_its_number_alone(draw, width):
    ids = np.random.default_rng(0).permutation(4000)[:1500]
    whole = draw(KEY, np.arange(4000), width, 0.5)
    assert whole.dtype == torch.float32
    assert torch.equal(draw(KEY, ids, width, 0.5), whole[torch.from_numpy(ids)])
    assert not torch.equal(draw(KEY + 1, ids, width, 0.5), whole[torch.from_numpy(ids)])
    assert len(whole.unique()) > 0.98 * min(whole.numel(), 30_000)


def test_uniform_numbers():
    found = uniform_rows(1, np.arange(2000), 50, bound=0.25).flatten()
    assert -0.25 <= found.min() < -0.249
    assert 0.249 < found.max() < 0.25
    share = torch.histc(found, 10, -0.25, 0.25) / len(found)
    assert (share - 0.1).abs().max() < 5 * (0.09 / len(found)) ** 0.5


def test_normal_numbers():
    found = normal_rows(1, np.arange(2001), 51, deviation=2.0)
    assert found.isfinite().all()
    count = found.numel()
    assert abs(found.mean()) < 5 * 2 / count**0.5
    assert abs(found.std() - 2) < 5 * 2 / (2 * count) ** 0.5
    assert 0.67 < (found.abs() < 2).float().mean() < 0.695
    both = found[:, 0] * found[:, 26]  # Of one radius: the sine and the cosine.
    assert abs(both.mean()) < 5 * 4 / 2001**0.5


def test_the_generator_is_that_of_the_kernels():
    found = uniform_rows(KEY, np.array([3]), 2, bound=1.0)[0]
    bits = [random_bits(KEY, 3 * 2 + j) for j in range(2)]
    assert found.tolist() == [(b >> 40) / 2**23 - 1 for b in bits]
