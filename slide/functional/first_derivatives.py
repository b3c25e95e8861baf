"""Operations that have no second derivatives, and say so when one is asked for."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slide.functional.autocast import without_autocast
from slide.row_gradients import numbering


class FirstDerivatives(torch.autograd.Function):
    """An operation whose gradients cannot be differentiated; its ``backward`` needs no decorator.

    The backward pass runs without autograd. With ``create_graph=True`` its gradients can be used,
    and to differentiate them raises a RuntimeError. PyTorch's ``once_differentiable`` does this
    only where the gradient that comes in requires one itself, and does not tell autograd what the
    gradients depend on: a gradient penalty would be left out, and a Hessian would be zero.

    The backward pass raises a RuntimeError if rows of a weight were added or removed after the
    forward pass, since its row numbers are those of before.
    """

    def __init_subclass__(cls, **keywords: Any):
        super().__init_subclass__(**keywords)
        cls.backward = staticmethod(_guarded(cls.backward, cls.__name__.lstrip("_")))

    @classmethod
    def apply(cls, *inputs: Any) -> Any:
        out = super().apply(*inputs)
        node = out.grad_fn  # type: ignore[union-attr]
        if node is not None:  # It is the context of the backward pass.
            node.sources = [_edge(each) for each in inputs if _learns(each)]
            node.numberings = [numbering(each) for each in node.sources]
        return out


def _learns(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _edge(tensor: Tensor) -> Tensor:
    """A tensor in the place of another in the graph; it does not keep the other's memory."""
    if tensor.is_leaf:
        return tensor  # The graph holds it anyway.
    with torch.enable_grad():
        return (tensor[:0] if tensor.ndim else tensor).clone()


def _guarded(backward: Callable, name: str) -> Callable:
    """A backward pass whose gradients depend on all that they are computed from."""

    @functools.wraps(backward)
    def call(ctx: Any, *grads: Tensor) -> tuple:
        _check_numberings(ctx)
        # The backward pass rounds what the forward pass did, wherever it is called.
        with torch.no_grad(), without_autocast(grads[0].device.type):
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # Nobody wants a graph: the usual case.
            return found
        sources = [*ctx.sources, *filter(_learns, grads)]
        return tuple(
            None if each is None else _Refused.apply(name, each, *sources) for each in found
        )

    return call


def _check_numberings(ctx: Any) -> None:
    for source, before in zip(ctx.sources, ctx.numberings, strict=True):
        if numbering(source) != before:
            raise RuntimeError(
                f"rows of a weight {tuple(source.shape)} were added or removed after the forward "
                "pass, and have other numbers now: call backward before rows are added or removed"
            )


class _Refused(torch.autograd.Function):
    """It passes a gradient on unchanged; its own backward pass raises."""

    @staticmethod
    def forward(ctx: Any, name: str, gradient: Tensor, *sources: Tensor):
        # ``sources`` are here so that the gradient requires a gradient where they do.
        ctx.name = name
        return gradient.detach()

    @staticmethod
    def backward(ctx: Any, *_: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError(
            f"{ctx.name} has first derivatives only, so a gradient through it cannot be "
            "differentiated again; for a gradient penalty or a Hessian use a layer of PyTorch, "
            "such as layer.to_linear() returns"
        )
