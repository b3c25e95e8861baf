"""Counting the updates of rows since they were hashed, against the looped twin."""

import numpy as np
import pytest
from helpers import naive_arrays

from slide.kernels.assemble_sets import count_updates


@pytest.mark.parametrize("limit", [1, 3, 255])
@pytest.mark.parametrize("seed", [0, 1])
def test_count_updates(seed, limit):
    rng = np.random.default_rng(seed)
    updates = np.zeros(12, np.uint8)
    for _ in range(300 if limit == 255 else 8):
        ids = rng.integers(0, 12, rng.integers(0, 20)).astype(np.int32)
        out = np.full(len(ids), -1, np.int32)
        listed, counts = naive_arrays.count_updates(ids, updates.tolist(), limit)
        assert out[: count_updates(ids, updates, limit, out)].tolist() == listed
        assert updates.tolist() == counts
    assert updates.max() == limit
