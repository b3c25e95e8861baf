"""Schedules against their definitions."""

import math
from itertools import pairwise

import pytest

from slide.sampling import schedules


def test_never():
    assert schedules.never(10**9) == 0


def test_fixed():
    assert [schedules.fixed(s, 10) for s in (0, 9, 10, 19, 20, 105)] == [0, 0, 1, 1, 2, 10]
    assert schedules.fixed(10**9, 0) == 0
    assert [schedules.fixed(s, 10, first=4) for s in (0, 3, 4, 13, 14)] == [0, 0, 1, 1, 2]
    assert schedules.fixed(10**9, 0, first=4) == 0


def naive_backoff(samples, first, growth):
    """Rebuild t comes ``first * exp(growth * t)`` samples after the one before it."""
    due, at = 0, 0.0
    while True:
        at += first * math.exp(growth * due)
        if at > samples + 1e-6:
            return due
        due += 1


@pytest.mark.parametrize("growth", [0.0, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("first", [1, 3, 7, 6_400])
def test_backoff(first, growth):
    for samples in [0, first - 1, first, first + 1, *range(0, 40 * first, 1 + 3 * first // 7)]:
        assert schedules.backoff(samples, first, growth) == naive_backoff(samples, first, growth)


def test_backoff_grows_steadily():
    due = [schedules.backoff(s, 50, 0.3) for s in range(5_000)]
    steps = [b - a for a, b in pairwise(due)]
    assert set(steps) == {0, 1}
    places = [i for i, step in enumerate(steps) if step]
    gaps = [b - a for a, b in pairwise(places)]
    assert gaps == sorted(gaps)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: schedules.fixed(5, -1), "every"),
        (lambda: schedules.fixed(5, 0.5), "every"),
        (lambda: schedules.backoff(5, 0), "first"),
        (lambda: schedules.backoff(5, 5, -0.1), "growth"),
        (lambda: schedules.backoff(5, 5, math.nan), "growth"),
    ],
)
def test_numbers_out_of_range(call, name):
    with pytest.raises(ValueError, match=f"{name} must be "):
        call()
