"""The losses: each file of this folder that defines ``LOSS`` adds one."""

from importlib import import_module
from pkgutil import iter_modules

from slide.functional.losses.loss import Loss as Loss
from slide.utils import checks

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
LOSSES: dict[str, Loss] = {m.LOSS.name: m.LOSS for m in _MODULES if hasattr(m, "LOSS")}


def find_loss(loss: str | Loss) -> Loss:
    """The loss of that name; a record `Loss` is returned as it is.

    Raises:
        ValueError: if there is no loss of that name.

    Example:
        >>> from slide.functional.losses import find_loss
        >>> find_loss("squared_hinge").score_range
        (-1.0, 1.0)
    """
    if isinstance(loss, Loss):
        return loss
    checks.one_of("loss", loss, LOSSES)
    return LOSSES[loss]
