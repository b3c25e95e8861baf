"""Asking for memory ahead of time changes no result, the twin being one that does nothing."""

import numpy as np
import pytest
from helpers import naive_arrays

from slide.ops.kernels.compile import prefetch_entries, prefetch_row


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (3, 3), (0, 1), (5, 70), (69, 70)])
def test_prefetch_entries(begin, end):
    array = np.random.default_rng(0).random(70)
    before = array.copy()
    assert prefetch_entries(array, begin, end) is naive_arrays.prefetch_entries(before, begin, end)
    np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 7, 64, 300])
def test_prefetch_row(width, dtype):
    rows = np.random.default_rng(0).integers(0, 99, (5, width)).astype(dtype)
    before = rows.copy()
    for r in range(5):
        assert prefetch_row(rows, r) is naive_arrays.prefetch_row(before, r)
    np.testing.assert_array_equal(rows, before)
