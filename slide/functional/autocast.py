"""``torch.autocast`` around slide's own products."""

from contextlib import AbstractContextManager, nullcontext

import torch


def outside_autocast(
    x: torch.Tensor, weight: torch.Tensor, precision: str = "float32"
) -> tuple[torch.Tensor, str, AbstractContextManager]:
    """Translate ``torch.autocast`` into a precision of slide's products.

    These products round their own factors. If autocast rounded some of their steps, the types would
    not fit the kernels and the gradients.

    Args:
        x: the input; an input that is not a tensor of floats is returned unchanged.
        weight: the layer's weight.
        precision: the precision without autocast.

    Returns:
        Three values. ``x``: under autocast it has the type of the weight. The precision: it is
        ``"bfloat16"`` under autocast to bfloat16. A context in which autocast is off.
    """
    device = weight.device.type
    if not _has_autocast(device):
        return x, precision, nullcontext()
    if torch.get_autocast_dtype(device) == torch.bfloat16:
        precision = "bfloat16"
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        x = x.to(weight.dtype)
    return x, precision, without_autocast(device)


def without_autocast(device: str) -> AbstractContextManager:
    """A context in which autocast to a type of device is off."""
    return torch.autocast(device, enabled=False) if _has_autocast(device) else nullcontext()


def _has_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
