"""``torch.amp.GradScaler`` around an optimizer of row gradients.

A scaler looks for infinities in the ``grad`` of parameters, and finds no row gradients there. So
they become sparse tensors in ``grad`` when it asks how an optimizer takes scaled gradients, which
its ``step`` does first.
"""

from typing import Any

import torch

from slide.row_gradients import take_row_gradients, to_sparse


def show_rows(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Make row gradients the ``grad`` of their parameters, as sparse tensors; returns these."""
    shown = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            if getattr(p, "row_gradients", ()):
                gradient = take_row_gradients(p)
                assert gradient is not None
                p.grad = to_sparse(p, gradient)
                shown.append(p)
    return shown


def scale_factor(optimizer: Any) -> float | None:
    """What a step multiplies gradients by; None: it is left out, because some are infinite.

    Raises:
        RuntimeError: if ``scaler.unscale_`` was called, which did not see the row gradients.
    """
    infinities, scale = getattr(optimizer, "found_inf", None), optimizer.__dict__.get("grad_scale")
    if infinities is None:
        return 1.0
    if scale is None:
        raise RuntimeError(
            "GradScaler.unscale_ does not see row gradients: leave it out, since scaler.step "
            "unscales them, and clip before it by slide.clip_grad_norm_(parameters, max_norm * "
            "scaler.get_scale()); or make the layer with sparse_grad=True"
        )
    return None if infinities.item() else 1 / scale.item()
