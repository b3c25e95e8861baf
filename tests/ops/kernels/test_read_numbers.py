"""Numbers in bytes against Python's own conversions."""

import math

import numpy as np
import pytest
from helpers import naive_numbers as naive

from slide.ops.kernels import text_rows as kernels

INDICES = ["0", "7", "0012", "-0", "-3", "2147483648", "9" * 12, "", "-", "x", "12x", "-5,6", "+1"]
NUMBERS = [
    *("0", "1", "-1", "+2.5", ".5", "5.", "0.1", "123456789.125", "1e3", "1E-3", "-2.5e+10"),
    *("0e5", "3e22", "1e-22", "00.250", "1.5x", "7:8", "", ".", "-", "e5", "1e", "1e+", "--1"),
]


def as_bytes(text):
    """With the line feed that ends each line of a file."""
    return np.frombuffer(f"{text}\n".encode(), np.uint8)


@pytest.mark.parametrize("text", INDICES)
def test_read_index(text):
    assert kernels.read_index(as_bytes(text), 0) == naive.read_index(text)


@pytest.mark.parametrize("text", NUMBERS)
def test_read_number(text):
    value, end, valid = kernels.read_number(as_bytes(text), 0)
    expected = naive.read_number(text)
    assert valid == (expected is not None)
    if expected is not None:
        assert (value, end) == expected


def test_random_numbers():
    rng = np.random.default_rng(0)
    for _ in range(300):
        text = f"{rng.standard_normal() * 10.0 ** rng.integers(-6, 7):.{rng.integers(0, 9)}f}"
        value, end, valid = kernels.read_number(as_bytes(text), 0)
        assert valid
        assert end == len(text)
        assert math.isclose(value, float(text), rel_tol=2**-52)
