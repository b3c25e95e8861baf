"""Buckets of hash tables, and counter-based random numbers."""

import numpy as np
import pytest
from helpers.buckets import as_codes
from helpers.matrices import chi_square_p

from slide.hashing.hash_tables import HashTables
from slide.ops import buckets as kernels
from slide.ops.random import random_below, random_bits
from slide.utils.random_keys import random_key


def test_a_full_pool_stops_a_table():
    buckets = HashTables(2, 2, 8).buckets._replace(pool=np.empty((2, 4), np.int32))
    ids, done = np.arange(6, dtype=np.int32), np.zeros(2, np.int64)
    codes = as_codes([[0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]])
    kernels.insert(buckets, ids, codes, 8, kernels.FIFO, np.uint64(0), done)
    assert done.tolist() == [4, 2]
    assert buckets.seen.tolist() == [[4, 0], [2, 0]]


@pytest.mark.parametrize("key", [0, 1, 2**63 + 5, 2**64 - 1])
def test_random_numbers_are_those_of_splitmix(key):
    """In unbounded integers, cut to 64 bits."""
    mask = 2**64 - 1
    for counter in (0, 1, 2**32, 2**62, 123456789):
        z = (key + (counter + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
        assert random_bits(np.uint64(key), counter) == z
        for bound in (1, 7, 2**31):
            assert random_below(np.uint64(key), counter, bound) == (z >> 32) * bound >> 32
    # SplitMix64 with seed 0 begins with this number.
    assert random_bits(np.uint64(0), 0) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("stride", [1, 2**32])
def test_random_numbers_are_uniform(stride):
    key = random_key(11)
    draws = [random_below(key, i * stride, 13) for i in range(5_000)]
    assert chi_square_p(np.bincount(draws, minlength=13), 5_000, 1) > 1e-4
