"""What both hash families share: redrawing, shapes of codes, and errors."""

import numpy as np
import pytest
import torch

from slide.hashing.dwta import DWTA
from slide.hashing.simhash import SimHash
from slide.hashing.tables import HashTables

FAMILIES = {
    "simhash": lambda width, seed=0: SimHash(width, 3, 5, seed=seed),
    "dwta": lambda width, seed=0: DWTA(width, 2, 5, bin_size=4, seed=seed),
}


@pytest.mark.parametrize("family", FAMILIES)
class TestRedraw:
    def test_is_reproducible(self, family):
        x = torch.randn(40, 32)
        hash_family = FAMILIES[family](32, seed=1)
        first = hash_family.codes(x)
        hash_family.redraw(2)
        second = hash_family.codes(x)
        hash_family.redraw(1)
        np.testing.assert_array_equal(hash_family.codes(x), first)
        np.testing.assert_array_equal(FAMILIES[family](32, seed=2).codes(x), second)
        assert (first != second).mean() > 0.5

    def test_codes_fit_the_tables(self, family):
        hash_family = FAMILIES[family](32)
        codes = hash_family.codes(torch.randn(50, 32))
        assert codes.dtype == np.int32
        assert codes.shape == (hash_family.num_tables, 50)
        assert codes.min() >= 0
        assert codes.max() < hash_family.num_buckets

    def test_takes_any_float_and_no_vectors(self, family):
        hash_family = FAMILIES[family](32)
        x = torch.randn(4, 32)
        np.testing.assert_array_equal(hash_family.codes(x), hash_family.codes(x.double()))
        assert hash_family.codes(x[:0]).shape == (hash_family.num_tables, 0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SimHash(0, 3, 4), "in_features must be .* at least 1, not 0"),
        (lambda: SimHash(5, 0, 4), "hashes_per_table must be .* at least 1, not 0"),
        (lambda: SimHash(5, 3, 0), "num_tables must be .* at least 1, not 0"),
        (
            lambda: SimHash(5, 32, 1),
            "codes of 32 bits.* be at most 31",
        ),
        (lambda: DWTA(64, 11, 1), "codes of 33 bits.* at most 10"),
        (lambda: DWTA(64, 2, 1, packing="dense"), "packing must be one of"),
        (lambda: DWTA(64, 2, 1, bin_size=6), "bin_size must be a power of two"),
        (lambda: DWTA(64, 2, 1, bin_size=1), "bin_size must be .* at least 2, not 1"),
        (lambda: DWTA(7, 2, 1), "in_features >= bin_size = 8, not 7"),
    ],
)
def test_numbers_out_of_range(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_sizes_that_nobody_gives():
    assert DWTA(64, 2, 1).bin_size == 8
    assert HashTables(1, 2).bucket_capacity == 128
