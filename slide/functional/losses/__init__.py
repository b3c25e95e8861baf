"""The losses, one file each: a file of this folder that defines ``LOSS`` adds a loss."""

from importlib import import_module
from pkgutil import iter_modules

from slide import checks
from slide.functional.losses.loss import Loss as Loss

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
LOSSES: dict[str, Loss] = {m.LOSS.name: m.LOSS for m in _MODULES if hasattr(m, "LOSS")}


def find_loss(name: str) -> Loss:
    """The loss of that name.

    Raises:
        ValueError: there is none.

    Example:
        >>> from slide.functional.losses import find_loss
        >>> find_loss("squared_hinge").score_range
        (-1.0, 1.0)
    """
    checks.one_of("loss", name, LOSSES)
    return LOSSES[name]
