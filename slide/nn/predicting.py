"""Predictions of a network that is in training mode.

``eval()`` and ``train()`` would change modules that other threads may use at the same time, and
would forget that some of them were in ``eval()`` before. So the thread that predicts says it here.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from slide.utils.checks import ScoresNotFinite

_thread = threading.local()


@contextmanager
def predicting() -> Iterator[None]:
    """Networks and layers of slide compute as in ``eval()`` in this thread.

    Example:
        >>> import slide
        >>> from slide.nn.predicting import learns, predicting
        >>> layer = slide.SampledLinear(4, 9)
        >>> with predicting():
        ...     learns(layer), layer.training
        (False, True)
    """
    before, _thread.predicts = getattr(_thread, "predicts", False), True
    try:
        yield
    finally:
        _thread.predicts = before


def learns(module: nn.Module) -> bool:
    """Whether a module computes as in training mode."""
    return module.training and not getattr(_thread, "predicts", False)


def check_finite(scores: Tensor) -> None:
    """Raise `slide.utils.checks.ScoresNotFinite` for a row that is not finite.

    Args:
        scores: ``(B, n)``: scores, or the hidden layer that they follow from. A search finds no
            output whose score is NaN, so the scores that it found do not show it.
    """
    fine = scores.isfinite().all(1)
    if not fine.all():
        raise ScoresNotFinite(int(fine.logical_not().nonzero()[0]))
