"""Gradient clipping for dense, sparse and row gradients."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from slide.row_gradients import (
    FactoredRowGradient,
    RowGradient,
    before_first_rows,
    sharing_group,
    take_row_gradients,
)
from slide.utils import checks

_Tensors = Tensor | Iterable[Tensor]


def clip_grad_norm_(
    parameters: _Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients in place, so that their total norm is at most ``max_norm``.

    This is ``torch.nn.utils.clip_grad_norm_`` for all kinds of gradients, which calls this function
    for row gradients of slide's layers.

    Layers of `slide.distributed` mark the parameters of which each process has other rows
    (`slide.row_gradients.mark_shared`). All processes must call this then; gradients of other
    parameters must be equal on all of them.

    Args:
        parameters, max_norm, norm_type, error_if_nonfinite: as in PyTorch, the numbers above 0;
            with inf as ``max_norm`` nothing is scaled.
        foreach: changes nothing; PyTorch has it.

    Returns:
        The total norm before the scaling, a scalar.

    Raises:
        ValueError: for a number that is not above 0.
        RuntimeError: for a norm that is not finite, with ``error_if_nonfinite``.

    Example:
        >>> import slide, torch
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> slide.clip_grad_norm_(weight, max_norm=1.0)
        tensor(5.)
        >>> weight.grad
        tensor([0.6000, 0.8000])
    """
    norm_type = torch.inf if norm_type == "inf" else norm_type
    for name, value in (("max_norm", max_norm), ("norm_type", norm_type)):
        if value != torch.inf:
            checks.positive(name, value)
    found, norms = [], []
    by_group: dict[Any, list[Tensor]] = {}  # None: each process has all rows.
    for parameter in _listed(parameters):
        by_group.setdefault(sharing_group(parameter), []).append(parameter)
    for sharers, own in by_group.items():
        gradients = [pair for parameter in own if (pair := _values(parameter)) is not None]
        found += gradients
        norm = _norm([values for values, _ in gradients], norm_type)
        every = [norm[None]]
        if sharers is not None:  # A process may have no gradient, but others wait for its norm.
            norm = norm.to(own[0].device)
            every = sharers.all_gather(norm[None], [1] * sharers.size)
        norms += [each.squeeze(0) for each in every]
    if len(norms) > 1:
        norms = [_norm([norm.to(norms[0].device) for norm in norms], norm_type)]
    total = norms[0] if norms else torch.tensor(0.0, dtype=torch.float32)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(f"the total norm of the gradients is {total}, so they are not scaled")
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for _, rows in found:
        rows.mul_(scale.to(rows.dtype))
    return total


def _see_rows() -> None:
    """Make the clipping of PyTorch see row gradients: it would pass over them silently."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "this function does not see the row gradients that layers of slide leave on their "
            "weights: call slide.clip_grad_norm_, or make the layers with sparse_grad=True"
        )

    def instead(whole: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
        def call(parameters: _Tensors, *arguments: Any, **keywords: Any) -> Any:
            parameters = _listed(parameters)
            seen = any(getattr(p, "row_gradients", ()) for p in parameters)
            return (ours if seen else whole)(parameters, *arguments, **keywords)

        return call

    for name, ours in (
        ("clip_grad_norm_", clip_grad_norm_),
        ("clip_grad_value_", refuse),
        ("_clip_grads_with_norm_", refuse),  # Since PyTorch 2.6.
    ):
        # Programs may have imported the function already, so what it decorates is replaced.
        decorated = getattr(clip_grad, name, None)
        if decorated is not None:
            names, cells = decorated.__code__.co_freevars, decorated.__closure__ or ()
            cell = dict(zip(names, cells, strict=True)).get("func")
            if cell is not None:
                cell.cell_contents = instead(cell.cell_contents, ours)
            else:
                for module in (clip_grad, torch.nn.utils):
                    setattr(module, name, instead(decorated, ours))


def _listed(parameters: _Tensors) -> list[Tensor]:
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


before_first_rows.append(_see_rows)


def _norm(tensors: list[Tensor], norm_type: float) -> Tensor:
    """The norm of all values of the tensors, a scalar; 0 without any."""
    tensors = [values for values in tensors if values.numel()]  # The largest of none is an error.
    if not tensors:
        return torch.tensor(0.0, dtype=torch.float32)  # Whatever the default type is.
    norms = [torch.linalg.vector_norm(values, norm_type).float() for values in tensors]
    return torch.linalg.vector_norm(torch.stack(norms), norm_type)


def _values(parameter: Tensor) -> tuple[Tensor, Tensor] | None:
    """The distinct values of a gradient, and the memory to scale; None without a gradient."""
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
