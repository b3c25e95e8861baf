"""Entries of dense matrices that are not zero, against the looped twins."""

import numpy as np
import pytest
from helpers import naive_arrays

from slide.ops.kernels import ragged as kernels


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(6, 9), (1, 1), (0, 3), (4, 0)])
def test_nonzeros(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal(shape).astype(dtype) * (rng.random(shape) < 0.4)
    if matrix.size:
        matrix[0, 0] = np.nan
    indptr = np.zeros(len(matrix) + 1, np.int64)
    kernels.count_nonzeros(matrix, indptr[1:])
    assert indptr[1:].tolist() == naive_arrays.count_nonzeros(matrix)
    np.cumsum(indptr, out=indptr)
    columns, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], dtype)
    kernels.take_nonzeros(matrix, indptr, columns, values)
    expected = naive_arrays.take_nonzeros(matrix)
    assert columns.tolist() == expected[0]
    np.testing.assert_array_equal(values, expected[1])
