"""Checks that end a run whose loss or weights are not finite."""

import math
from collections.abc import Callable
from pathlib import Path

from torch import nn

from slide.utils.checks import DivergenceError

LastCheckpoint = Callable[[], Path | None]


def check_loss(value: float, step: int, last: LastCheckpoint) -> None:
    """Raise DivergenceError if the loss of ``step`` is NaN or infinite."""
    if not math.isfinite(value):
        what = f"the loss is {value} at step {step}"
        if step == 1:
            raise DivergenceError(
                f"{what}, before any update, so the first weights or the features are too large: "
                "lower network.init_scale or network.output_scale, or set transform.l2_norm=true"
            )
        raise _error(what, last)


def check_weights(network: nn.Module, step: int, last: LastCheckpoint) -> None:
    """Raise DivergenceError if a weight is NaN or infinite after ``step``."""
    for name, weight in network.named_parameters():
        if not weight.detach().sum().isfinite():
            raise _error(f"{name} is no longer finite after step {step}", last)


def _error(what: str, last: LastCheckpoint) -> DivergenceError:
    checkpoint = last()
    said = f"the last good checkpoint is {checkpoint}"
    if checkpoint is None:
        said = "there is no checkpoint yet (trainer.checkpoint_every)"
    return DivergenceError(f"{what}: lower optimizer.lr; {said}")
