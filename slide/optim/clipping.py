"""Gradient clipping for dense, sparse and row gradients."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from slide import checks
from slide.row_gradients import FactoredRowGradient, RowGradient, take_row_gradients

_Tensors = Tensor | Iterable[Tensor]


def clip_grad_norm_(
    parameters: _Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    *,
    sharded: _Tensors = (),
    group: Any = None,
) -> Tensor:
    """Scale all gradients in place, so that their total norm is at most ``max_norm``.

    This is ``torch.nn.utils.clip_grad_norm_`` for all kinds of gradients. PyTorch's function raises
    for sparse gradients and ignores the row gradients that layers of slide leave on their weights.
    The gradients of several backward passes on one weight are added up first.

    Args:
        parameters: one tensor or several; their gradients are scaled.
        max_norm: largest total norm, above 0.
        norm_type: the p of the p-norm, above 0; ``inf`` means the largest magnitude.
        sharded: parameters that differ between processes, such as those of
            `slide.distributed.ShardedSampledLinear`. The others are equal on all of them.
        group: the `slide.distributed.Group` of the processes, all of which must call this; None:
            there is only one.

    Returns:
        The total norm before the scaling, a scalar.

    Raises:
        ValueError: for a number that is not above 0, or sharded parameters without a group.

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
    found, own = _gradients(parameters), _gradients(sharded)
    total = _norm([values for values, _ in found], norm_type)
    if group is not None:
        norms = group.all_gather(_norm([values for values, _ in own], norm_type).cpu()[None])
        total = _norm([total, *(norm.to(total.device) for norm in norms)], norm_type)
    elif own:
        raise ValueError("sharded parameters need the group of the processes that share them out")
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for _, rows in [*found, *own]:
        rows.mul_(scale.to(rows.dtype))
    return total


def _norm(tensors: list[Tensor], norm_type: float) -> Tensor:
    """The norm of all values of the tensors, a scalar; 0 without any."""
    if not tensors:
        return torch.tensor(0.0)
    norms = [torch.linalg.vector_norm(values, norm_type).float() for values in tensors]
    return torch.linalg.vector_norm(torch.stack(norms), norm_type)


def _gradients(parameters: _Tensors) -> list[tuple[Tensor, Tensor]]:
    """`_values` of the parameters that have a gradient."""
    several = [parameters] if isinstance(parameters, Tensor) else parameters
    return [pair for p in several if (pair := _values(p)) is not None]


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
