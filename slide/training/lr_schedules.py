"""Learning rates over the course of training: PyTorch's schedulers, built when steps are known.

A schedule is called as ``schedule(optimizer, total_steps)``. It returns a scheduler of
`torch.optim.lr_scheduler`, which is stepped once after each step of training. Schedulers of PyTorch
whose second argument is the number of steps, such as ``PolynomialLR``, can be used as schedules.
"""

import warnings
from collections.abc import Callable, Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from slide.utils import checks

LRSchedule = Callable[[Optimizer, int], LRScheduler]


def constant(optimizer: Optimizer, total_steps: int, warmup: float = 0.0) -> LambdaLR:
    """A linear rise from 0, then the constant learning rate of the optimizer.

    Args:
        optimizer: the optimizer; the learning rates of its groups are scaled.
        total_steps: number of steps of the whole run.
        warmup: share of the steps in which the rate rises, in [0, 1).

    Raises:
        ValueError: for a share out of range.

    Example:
        >>> import torch
        >>> from slide.training import constant
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        >>> schedule = constant(optimizer, total_steps=10, warmup=0.2)
        >>> schedule.get_last_lr()
        [0.0]
    """
    checks.share("warmup", warmup)
    return LambdaLR(optimizer, lambda step: _rise(step / total_steps, warmup))


def linear(
    optimizer: Optimizer, total_steps: int, warmup: float = 0.0, floor: float = 0.0
) -> LambdaLR:
    """A linear rise from 0, then a linear fall to a share of the learning rate.

    Args:
        optimizer: the optimizer; the learning rates of its groups are scaled.
        total_steps: number of steps of the whole run.
        warmup: share of the steps in which the rate rises, in [0, 1).
        floor: share of the rate that is left at the end, in [0, 1].

    Raises:
        ValueError: for a share out of range.

    Example:
        >>> import torch
        >>> from slide.training import linear
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = linear(optimizer, total_steps=4)
        >>> for _ in range(3):
        ...     optimizer.step()
        ...     schedule.step()
        >>> schedule.get_last_lr()
        [0.25]
    """
    checks.share("warmup", warmup)
    checks.share("floor", floor, with_one=True)

    def factor(step: int) -> float:
        progress = step / total_steps
        rise = _rise(progress, warmup)
        if rise < 1:
            return rise
        return floor + (1 - floor) * max(0.0, 1 - (progress - warmup) / max(1 - warmup, 1e-12))

    return LambdaLR(optimizer, factor)


def _rise(progress: float, warmup: float) -> float:
    return 1.0 if warmup == 0 else min(1.0, progress / warmup)


def scheduler_at(
    schedule: LRSchedule, optimizer: Optimizer, rates: Sequence[float], total_steps: int, step: int
) -> LRScheduler:
    """The scheduler of a run that has done ``step`` steps.

    The present learning rates of the optimizer have no effect.

    Args:
        schedule: makes the scheduler.
        optimizer: the optimizer whose learning rates the scheduler sets.
        rates: highest learning rate of each group.
        total_steps: number of steps of the whole run.
        step: number of steps that the run has done.
    """
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = group["initial_lr"] = rate
    scheduler = schedule(optimizer, total_steps)
    with warnings.catch_warnings():
        # The optimizer made its steps before the run was resumed.
        warnings.filterwarnings("ignore", ".*lr_scheduler.step", UserWarning)
        for _ in range(step):
            scheduler.step()
    return scheduler
