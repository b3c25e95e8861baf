"""Rebuild schedules: functions from the progress of training to the number of rebuilds due."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from slide.utils import checks


def never(samples: int) -> int:
    """A rebuild schedule without rebuilds.

    Example:
        >>> from slide.sampling import never
        >>> never(1_000_000)
        0
    """
    return 0


def fixed(samples: int, every: int = 6_400, first: int | None = None) -> int:
    """The number of rebuilds due after ``samples`` samples: one after each ``every`` samples.

    Args:
        samples: number of training samples so far.
        every: samples between two rebuilds; 0: never.
        first: samples before the first one; None: ``every``.

    Raises:
        ValueError: if a number is not a whole number of at least 0.

    Example:
        >>> from slide.sampling import fixed
        >>> [fixed(samples, every=100) for samples in (0, 99, 100, 250)]
        [0, 0, 1, 2]
    """
    checks.whole("every", every, 0)
    if first is None:
        first = every
    checks.whole("first", first, 0)
    return (samples - first) // every + 1 if every and samples >= first else 0


def backoff(samples: int, first: int = 6_400, growth: float = 0.7) -> int:
    """The number of rebuilds due after ``samples`` samples, at growing intervals.

    Rebuild t comes ``first * exp(growth * t)`` samples after the previous one (Chen et al. 2020,
    "SLIDE: in defense of smart algorithms over hardware acceleration", section 4.2). So
    rebuild n is due at ``first * (exp(growth * n) - 1) / (exp(growth) - 1)``.

    Args:
        samples: number of training samples so far.
        first: samples before the first rebuild.
        growth: logarithm of the ratio of an interval to the previous interval.

    Raises:
        ValueError: if ``first`` is below 1 or ``growth`` is not in [0, 100].

    Example:
        >>> from slide.sampling import backoff
        >>> [backoff(samples, first=100, growth=0.7) for samples in (0, 100, 301, 302, 707)]
        [0, 1, 1, 2, 3]
    """
    checks.whole("first", first, 1)
    checks.within("growth", growth, 0, 100)
    if growth == 0:
        return samples // first
    due = math.floor(math.log1p(samples / first * math.expm1(growth)) / growth)

    def start(n: int) -> float:
        return first * (math.expm1(growth * n) / math.expm1(growth))  # First itself for n = 1.

    # The closed form may be off by one in the last bit of the logarithm.
    while start(due + 1) <= samples:
        due += 1
    while due > 0 and start(due) > samples:
        due -= 1
    return due


class Progress(int):
    """The number of training samples so far, with further counts for schedules.

    Attributes:
        scheduled: number of rebuilds that the schedule has made due.
        rebuilds: number of rebuilds so far, the first one included.
        steps: number of training steps since the last rebuild.
        computed: number of outputs that these steps have computed, each set counted once.
        out_features: N, number of outputs.
    """

    scheduled: int
    rebuilds: int
    steps: int
    computed: int
    out_features: int

    def __new__(cls, samples: int, **more: int):
        made = super().__new__(cls, samples)
        made.__dict__.update(more)
        return made


def by_updates(progress: int, per_output: float = 2.0, at_least: int = 16, early: int = 8) -> int:
    """The number of rebuilds due, by the number of computed outputs.

    A rebuild is due when the steps since the last one have computed ``per_output`` outputs for each
    output of the layer: then its rows have changed, and its inputs vary in other directions. One
    more is due after the first ``early`` steps, before which there were few inputs.

    Args:
        progress: a `Progress`; a plain number of samples has no rebuild due.
        per_output: outputs computed for each output of the layer.
        at_least: minimum number of steps between two rebuilds.
        early: steps between the first rebuild and the second one.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> from slide.sampling import by_updates
        >>> from slide.sampling.schedules import Progress
        >>> some = dict(scheduled=3, rebuilds=4, steps=20, out_features=100)
        >>> [by_updates(Progress(640, computed=n, **some)) for n in (199, 200)]
        [3, 4]
    """
    checks.positive("per_output", per_output)
    checks.whole("at_least", at_least, 1)
    checks.whole("early", early, 1)
    if not isinstance(progress, Progress):
        return 0
    moved = progress.computed >= per_output * progress.out_features
    second = progress.rebuilds == 1 and progress.steps >= early
    return progress.scheduled + (second or (moved and progress.steps >= at_least))


Schedule = Callable[[int], int]


def check_schedule(name: str, schedule: Any) -> None:
    """Raise for a schedule that is impossible."""
    if not callable(schedule):
        raise TypeError(
            f"{name} must be a function from a number of samples to the number of times that are "
            f"due, such as slide.sampling.fixed, not {schedule!r}"
        )
    due = schedule(0)  # Schedules check their numbers when they are called.
    if not isinstance(due, int | np.integer):
        raise TypeError(f"{name} must give the number of times that are due, not {due!r}")
