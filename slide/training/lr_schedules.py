"""Learning rates over the course of training."""

from slide import checks


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
