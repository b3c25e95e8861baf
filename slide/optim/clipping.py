"""Gradient clipping for dense, sparse and row gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor

from slide import checks
from slide.row_gradients import FactoredRowGradient, RowGradient, take_row_gradients


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scale all gradients in place, so that their total norm is at most ``max_norm``.

    This is ``torch.nn.utils.clip_grad_norm_`` for all kinds of gradients. PyTorch's function raises
    for sparse gradients and ignores the row gradients that layers of slide leave on their weights.
    The gradients of several backward passes on one weight are added up first.

    Args:
        parameters: one tensor or several; their gradients are scaled.
        max_norm: largest total norm, above 0.
        norm_type: the p of the p-norm, above 0; ``inf`` means the largest magnitude.

    Returns:
        The total norm before the scaling, a scalar.

    Raises:
        ValueError: for a number that is not above 0.

    Example:
        >>> import slide, torch
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> slide.clip_grad_norm_(weight, max_norm=1.0)
        tensor(5.)
        >>> weight.grad
        tensor([0.6000, 0.8000])
    """
    checks.positive("max_norm", max_norm)
    if norm_type != float("inf"):
        checks.positive("norm_type", norm_type)
    several = [parameters] if isinstance(parameters, Tensor) else parameters
    found = [pair for p in several if (pair := _values(p)) is not None]
    if not found:
        return torch.tensor(0.0)
    norms = [torch.linalg.vector_norm(values, norm_type).float() for values, _ in found]
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for _, rows in found:
        rows.mul_(scale.to(rows.dtype))
    return total


def _values(parameter: Tensor) -> tuple[Tensor, Tensor] | None:
    """The values of a parameter's gradient, each once, and the memory that holds the gradient.

    To scale the second tensor in place is to scale the gradient. None without a gradient.
    """
    if getattr(parameter, "row_gradients", ()):
        gradient = take_row_gradients(parameter)
        assert gradient is not None
        if isinstance(gradient, FactoredRowGradient):
            gradient = RowGradient(gradient.ids, gradient.values())
        # A copy: the backward pass keeps the original, and may run again.
        gradient = gradient.scaled(1, copy=True)
        parameter.row_gradients = [gradient]  # type: ignore[attr-defined]
        parameter.grad = None
        return gradient.values(), gradient.rows
    grad = parameter.grad
    if grad is not None and grad.layout == torch.sparse_coo:
        parameter.grad = grad = grad.coalesce()
        return grad._values(), grad._values()
    return None if grad is None else (grad.detach(), grad.detach())
