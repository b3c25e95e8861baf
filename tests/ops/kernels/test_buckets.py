"""Buckets of hash tables, and counter-based random numbers."""

import numpy as np
import pytest
from helpers import naive
from helpers.buckets import as_codes
from helpers.matrices import chi_square_p

from slide.hashing.tables import HashTables
from slide.ops.kernels import hashing as kernels
from slide.ops.kernels.random import random_below, random_bits
from slide.utils.random_keys import random_key


def test_a_full_pool_stops_a_table():
    buckets = HashTables(2, 2, 8).buckets._replace(pool=np.empty((2, 4), np.int32))
    ids, done = np.arange(6, dtype=np.int32), np.zeros(2, np.int64)
    codes = as_codes([[0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]])
    kernels.insert(buckets, ids, codes, 8, kernels.FIFO, np.uint64(0), done)
    assert done.tolist() == [4, 2]
    assert buckets.seen.tolist() == [[4, 0], [2, 0]]


class TestRandomNumbers:
    def test_equals_the_definition(self):
        for key in (0, 1, 2**63 + 5, 2**64 - 1):
            for counter in (0, 1, 2**32, 2**62):
                assert random_bits(np.uint64(key), counter) == naive.random_bits(key, counter)
                for bound in (1, 7, 2**31):
                    expected = naive.random_below(key, counter, bound)
                    assert random_below(np.uint64(key), counter, bound) == expected

    def test_equals_the_definition_anywhere(self):
        rng = np.random.default_rng(0)
        keys, counters = rng.integers(0, 2**64, 50, np.uint64), rng.integers(0, 2**63, 50)
        bounds = rng.integers(1, 2**32, 50)
        for key, counter, bound in zip(keys, counters, bounds, strict=True):
            assert random_bits(key, counter) == naive.random_bits(key, counter)
            expected = naive.random_below(key, counter, bound)
            assert random_below(key, counter, bound) == expected

    def test_first_value_of_the_published_generator(self):
        # SplitMix64 with seed 0 begins with this number.
        assert random_bits(np.uint64(0), 0) == 0xE220A8397B1DCDAF

    @pytest.mark.parametrize("stride", [1, 2**32])
    def test_is_uniform(self, stride):
        key = random_key(11)
        draws = [random_below(key, i * stride, 13) for i in range(5_000)]
        assert chi_square_p(np.bincount(draws, minlength=13), 5_000, 1) > 1e-4
