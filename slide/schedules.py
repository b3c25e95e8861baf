"""Pure functions from how far training is to what should hold there."""

import math

from slide import checks


def never(samples: int) -> int:
    """No rebuild is ever due."""
    return 0


def fixed(samples: int, every: int = 6_400) -> int:
    """How many rebuilds are due after ``samples`` samples: one every ``every`` samples.

    Raises:
        ValueError: if ``every`` is not a whole number of at least 0; 0 means never.
    """
    checks.whole("every", every, 0)
    return samples // every if every else 0


def backoff(samples: int, first: int = 6_400, growth: float = 0.7) -> int:
    """How many rebuilds are due after ``samples`` samples, at ever longer intervals.

    Rebuild t comes ``first * exp(growth * t)`` samples after the one before it (Chen et al. 2020,
    section 4.2), so rebuild n is due at ``first * (exp(growth * n) - 1) / (exp(growth) - 1)``.

    Raises:
        ValueError: if ``first`` is not positive or ``growth`` is not in [0, 100].
    """
    checks.whole("first", first, 1)
    checks.within("growth", growth, 0, 100)
    if growth == 0:
        return samples // first
    due = math.floor(math.log1p(samples / first * math.expm1(growth)) / growth)

    def start(n: int) -> float:
        return first * math.expm1(growth * n) / math.expm1(growth)

    # The closed form may be off by one in the last bit of the logarithm.
    while start(due + 1) <= samples:
        due += 1
    while due > 0 and start(due) > samples:
        due -= 1
    return due


def constant(progress: float, warmup: float = 0.0) -> float:
    """Factor on the learning rate: a linear rise over the share ``warmup`` of training, then 1."""
    return _rise(progress, warmup)


def linear(progress: float, warmup: float = 0.0, floor: float = 0.0) -> float:
    """Factor on the learning rate: a linear rise, then a linear fall to ``floor`` at the end."""
    checks.share("floor", floor, with_one=True)
    rise = _rise(progress, warmup)
    if rise < 1:
        return rise
    return floor + (1 - floor) * max(0.0, 1 - (progress - warmup) / max(1 - warmup, 1e-12))


def _rise(progress: float, warmup: float) -> float:
    checks.share("warmup", warmup)
    return 1.0 if warmup == 0 else min(1.0, progress / warmup)
