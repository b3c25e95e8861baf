"""ReLU and dropout in one pass, against the looped twins."""

import numpy as np
import pytest
from helpers import naive

from slide.kernels import relu_dropout as kernels


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 500])
def test_kernels_equal_naive_ones(dtype, size):
    rng = np.random.default_rng(0)
    x, grad = rng.standard_normal((2, size)).astype(dtype)
    out, grad_x = np.empty((2, size), dtype)
    key, least, scale = np.uint64(2**63 + 12345), np.uint64(0.3 * 2**32), 1 / 0.7
    kernels.relu_dropout(x, key, least, scale, out)
    kernels.relu_dropout_backward(out, grad, scale, grad_x)
    for i in range(size):
        kept = x[i] > 0 and naive.random_bits(int(key), i) >> 32 >= int(least)
        assert out[i] == pytest.approx(x[i] * scale if kept else 0, rel=1e-6)
        assert grad_x[i] == pytest.approx(grad[i] * scale if kept else 0, rel=1e-6)
