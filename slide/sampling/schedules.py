"""Rebuild schedules: functions from the number of samples to the number of rebuilds due."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from slide import checks
from slide.sampling.protocol import Proposer


def never(samples: int) -> int:
    """A rebuild schedule in which no rebuild is due.

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


class Drift(NamedTuple):
    """A rebuild schedule that looks at the index, and rebuilds it if too much of it has changed.

    A call returns how many looks are due, at the distances of `backoff`. At a look, an
    `ActiveSampler` asks its proposer for its `drift`: with `slide.LSHProposer` this is the share of
    hash codes that differ from those that rows were inserted with, in a sample of rows. Chen et al.
    2021, "MONGOOSE: a learnable LSH framework for efficient neural network training", section 3.1,
    also rebuild when weights have moved enough. Most rows of a large layer hardly move, so a small
    share of changed codes in all rows may be a large one in those that matter.

    Args:
        limit: rebuild if the drift is above this share, in [0, 1].
        first: samples before the first look.
        growth: logarithm of the ratio of an interval to the previous interval; 0: equal intervals.

    Example:
        >>> import slide
        >>> schedule = slide.sampling.Drift(limit=0.1, first=1_000)
        >>> [schedule(samples) for samples in (0, 999, 1_000, 2_500)]
        [0, 0, 1, 2]
        >>> sampler = slide.ActiveSampler(8, 1_000, slide.LSHProposer, active=64, rebuild=schedule)
    """

    limit: float = 0.05
    first: int = 6_400
    growth: float = 0.0

    def __call__(self, samples: int) -> int:
        """The number of looks due.

        Raises:
            ValueError: if a number is out of range.
        """
        checks.share("limit", self.limit, with_one=True)
        return backoff(samples, self.first, self.growth)


Schedule = Callable[[int], int]


def check_schedule(name: str, schedule: Any, proposer: Proposer | None = None) -> None:
    """Raise for a schedule that is impossible, or that the proposer cannot follow.

    Args:
        name: of the argument, for the message.
        schedule: what should be a `Schedule`.
        proposer: that of the sampler, or None.

    Raises:
        TypeError: if it is no function that gives whole numbers.
        ValueError: for a number out of range, or for `Drift` if the proposer has no ``drift``.
    """
    if not callable(schedule):
        raise TypeError(
            f"{name} must be a function from a number of samples to the number of times that are "
            f"due, such as slide.sampling.fixed, not {schedule!r}"
        )
    due = schedule(0)  # Schedules check their numbers when they are called.
    if not isinstance(due, int | np.integer):
        raise TypeError(f"{name} must give the number of times that are due, not {due!r}")
    if isinstance(schedule, Drift) and proposer and type(proposer).drift is Proposer.drift:
        raise ValueError(
            f"schedule=drift needs an index that knows how much of it has changed, and "
            f"{type(proposer).__name__} has no drift(): use LSHProposer, or backoff or fixed"
        )


def needs_rebuild(
    schedule: Schedule, proposer: Proposer, weight: Tensor, bias: Tensor | None
) -> bool:
    """Whether the index is to be rebuilt, now that something is due by the schedule."""
    if not isinstance(schedule, Drift):
        return True
    drift = proposer.drift(weight, bias)
    return drift is None or drift > schedule.limit
