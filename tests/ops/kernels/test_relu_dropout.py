"""ReLU and dropout in one pass, against the looped twins."""

import numpy as np
import pytest
from helpers import naive_arrays

from slide.ops.kernels import layers as kernels


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 500])
def test_kernels_equal_their_twins(dtype, size):
    rng = np.random.default_rng(0)
    x, grad = rng.standard_normal((2, size)).astype(dtype)
    x[:1] = np.nan
    out, grad_x = np.empty((2, size), dtype)
    key, least, scale = np.uint64(2**63 + 12345), np.uint64(0.3 * 2**32), 1 / 0.7
    kernels.relu_dropout_forward(x, key, least, scale, out)
    kernels.relu_dropout_backward(out, grad, scale, grad_x)
    expected = naive_arrays.relu_dropout_forward(x, key, least, scale)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert size < 500 or 0 < np.count_nonzero(out) < np.count_nonzero(x > 0)
    expected = naive_arrays.relu_dropout_backward(out, grad, scale)
    np.testing.assert_allclose(grad_x, expected, rtol=1e-6)
