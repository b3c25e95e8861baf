"""When tables are rebuilt: pure functions of the number of samples seen."""

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
