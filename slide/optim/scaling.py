"""``torch.amp.GradScaler`` around an optimizer of row gradients.

A scaler looks for infinities in the ``grad`` of parameters, and finds no row gradients there. So
they become sparse tensors in ``grad`` when it asks how an optimizer takes scaled gradients, which
its ``step`` does first. Where processes share out the rows of a parameter, each of them has other
infinities; then all scalers are to leave the step out and lower their factor, or none.
"""

from typing import Any

import torch

from slide.row_gradients import sharing_group, take_row_gradients, to_sparse


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
    return shown + share_infinities(optimizer)


def share_infinities(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Make an infinite ``grad`` where another process has one for its rows; returns the parameters.

    A collective operation, if processes share out the rows of a parameter.
    """
    of_group: dict[Any, list[torch.Tensor]] = {}
    for options in optimizer.param_groups:
        for p in options["params"]:
            group = sharing_group(p)
            if group is not None and group.size > 1:
                of_group.setdefault(group, []).append(p)
    made = []
    for group, parameters in of_group.items():
        own = any(p.grad is not None and _has_infinities(p.grad) for p in parameters)
        anywhere = group.all_reduce(torch.tensor([float(own)]), "max").item() > 0
        if anywhere and not own:  # The step is left out, so nothing but the scaler reads it.
            p = parameters[0]
            row = p.new_full((1, *p.shape[1:]), torch.inf)
            p.grad = torch.sparse_coo_tensor(torch.zeros(1, 1).long(), row, p.shape)
            made.append(p)
    return made


def _has_infinities(gradient: torch.Tensor) -> bool:
    values = gradient._values() if gradient.is_sparse else gradient
    return not bool(values.isfinite().all())


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
