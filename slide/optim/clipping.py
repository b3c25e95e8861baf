"""Gradient clipping that knows row gradients and sparse ones; PyTorch's takes dense ones alone."""

from collections.abc import Iterable

import torch
from torch import Tensor

from slide import checks
from slide.row_gradients import RowGradient, take_row_gradients


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scale all gradients so that their norm, taken together, is at most ``max_norm``.

    As ``torch.nn.utils.clip_grad_norm_``, which raises for sparse gradients and does not see the
    row gradients that our layers leave on their weights. What several backward passes left on a
    weight is added up first.

    Args:
        parameters: whose gradients are scaled, in place.
        max_norm: above 0.
        norm_type: which p-norm, above 0; ``inf`` for the largest entry.

    Returns:
        The norm before, a scalar.

    Raises:
        ValueError: for a norm that is not above 0.
    """
    checks.positive("max_norm", max_norm)
    if norm_type != float("inf"):
        checks.positive("norm_type", norm_type)
    several = [parameters] if isinstance(parameters, Tensor) else parameters
    found = [values for p in several if (values := _values(p)) is not None]
    if not found:
        return torch.tensor(0.0)
    norms = torch.stack([torch.linalg.vector_norm(v, norm_type).float() for v in found])
    total = torch.linalg.vector_norm(norms, norm_type)
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for values in found:
        values.mul_(scale.to(values.dtype))
    return total


def _values(parameter: Tensor) -> Tensor | None:
    """The memory that the gradient of ``parameter`` lies in, each row once; None: it has none."""
    if getattr(parameter, "row_gradients", ()):
        gradient = take_row_gradients(parameter)
        assert gradient is not None
        # Not what the backward pass holds, which may run again.
        rows = gradient.values().clone()
        parameter.row_gradients = [RowGradient(gradient.ids, rows)]  # type: ignore[attr-defined]
        parameter.grad = None
        return rows
    if parameter.grad is not None and parameter.grad.layout == torch.sparse_coo:
        parameter.grad = parameter.grad.coalesce()
        return parameter.grad._values()
    return None if parameter.grad is None else parameter.grad.detach()
