"""What operations with manual gradients share: no second derivatives, no autocast, no averaging."""

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from slide.backend import CPU, on_device
from slide.row_gradients import hand_over
from slide.utils.profiling import untraced_twin

# Whether operations are those of a layer in ``eval()``; see `slide.row_gradients.hand_over`.
_predicts = ContextVar("predicts", default=False)


@contextmanager
def in_eval(predicts: bool) -> Iterator[None]:
    """Operations in the block are those of a layer that is in ``eval()``, or is not."""
    token = _predicts.set(predicts)
    try:
        yield
    finally:
        _predicts.reset(token)


class FirstDerivatives(torch.autograd.Function):
    """An operation whose gradients cannot be differentiated; its ``backward`` needs no decorator.

    PyTorch's ``once_differentiable`` does not tell autograd what the gradients depend on: a
    gradient penalty would be left out, and a Hessian would be zero. Here the gradients of
    ``create_graph=True`` can be used, and differentiating them raises a RuntimeError; so does a
    backward pass after rows of a weight got other numbers.
    """

    def __init_subclass__(cls, **keywords: Any):
        super().__init_subclass__(**keywords)
        if "backward" in vars(cls):
            cls.backward = staticmethod(_guarded(cls.backward))

    @classmethod
    def apply(cls, *inputs: Any) -> Any:
        out = super().apply(*inputs)
        node = out.grad_fn  # type: ignore[union-attr]
        if node is not None:  # It is the context of the backward pass.
            node.predicts = _predicts.get()
            node.sources = [_edge(each) for each in inputs if _learns(each)]
            node.numbering = _numbering(node.sources)
        return out


def _learns(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _numbering(sources: list[Tensor]) -> list[tuple[int, torch.Size]]:
    """Marks of the present row numbers, which are other ones after they change."""
    return [(getattr(each, "times_renumbered", 0), each.shape) for each in sources]


def _edge(tensor: Tensor) -> Tensor:
    """A tensor that stands for another in the graph; it does not keep the other's memory."""
    if tensor.is_leaf:
        return tensor  # The graph holds it anyway.
    with torch.enable_grad():
        return (tensor[:0] if tensor.ndim else tensor).clone()


def _guarded(backward: Callable) -> Callable:
    """A backward pass whose gradients depend on all that they are computed from."""

    def checked(ctx: Any, *grads: Tensor) -> tuple:
        now = _numbering(ctx.sources)
        for source, old, new in zip(ctx.sources, ctx.numbering, now, strict=True):
            if old != new:
                raise RuntimeError(
                    f"rows of a weight {tuple(source.shape)} were added or removed after the "
                    "forward pass, and have other numbers now: call backward before rows are added "
                    "or removed"
                )
        # The backward pass rounds what the forward pass did, wherever it is called.
        with torch.no_grad(), without_autocast(grads[0].device.type):
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # Nobody wants a graph: the usual case.
            return found
        sources = [*ctx.sources, *filter(_learns, grads)]
        name = type(ctx).__name__.removesuffix("Backward").lstrip("_")
        return tuple(
            None if each is None else _Refused.apply(name, each, *sources) for each in found
        )

    @functools.wraps(backward)
    def call(ctx: Any, *grads: Tensor) -> tuple:
        return untraced_twin(checked)(ctx, *grads)

    return call


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


class EarlyGradients(FirstDerivatives):
    """A loss whose forward pass computes ``ctx.grad_x`` and ``ctx.rows`` of ``ctx.parameters``.

    Its arguments begin with x, weight and bias; ``ctx.sparse_grad`` see `hand_over`.
    """

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        _ = ctx.saved_tensors  # It raises in a second backward pass, as PyTorch's do.
        needed, upstream = ctx.needs_input_grad, grads[0]
        factor = upstream.item() if upstream.is_cpu else upstream  # Else the host would wait.
        # What autograd gets is in new memory, since it or a caller may change it in place.
        found = [ctx.grad_x * upstream if needed[0] else None]
        for parameter, rows, wanted in zip(ctx.parameters, ctx.rows, needed[1:3], strict=True):
            gradient = None
            if wanted and rows is not None:
                gradient = hand_over(ctx, parameter, rows, factor)
            found.append(gradient)
        return *found, *(None,) * (len(needed) - 3)


def outside_autocast(
    x: torch.Tensor, weight: torch.Tensor, precision: str = "float32"
) -> tuple[torch.Tensor, str, AbstractContextManager]:
    """Translate ``torch.autocast`` into a precision of products that round their factors."""
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


def drawn_ids(ctx: Any, ids: np.ndarray | Tensor) -> Tensor:
    """The ids as a tensor for ``save_for_backward``; ``ctx`` keeps the first ones."""
    ctx.drawn = ids if isinstance(ids, Tensor) else on_device(ids, CPU)
    return ctx.drawn


def check_drawn(ctx: Any, saved: Tensor | None) -> None:
    """Raise unless the saved ids, if any, are the ids of the first forward pass."""
    if saved is None or saved.data_ptr() == ctx.drawn.data_ptr():
        return
    if not torch.equal(saved, ctx.drawn):
        raise RuntimeError(
            f"the forward pass of this layer ran again and drew another active set of {len(saved)} "
            "ids, as in torch.utils.checkpoint, so its gradients would be wrong: call the layer "
            "outside of the checkpoint, or draw the set before it and call slide.active_linear"
        )


def _in_reentrant_checkpoint() -> bool:
    """Whether a backward pass runs a forward pass again, and then through its graph."""
    if torch._C._current_graph_task_id() == -1:
        return False
    # PyTorch 2.4 does not have this function, and the error may then come for such hooks, too.
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)  # pyright: ignore[reportAttributeAccessIssue]
    if top(True) is not None:  # With ``use_reentrant=False``, for saved tensors: see `check_drawn`.
        return False
    return isinstance(torch._C._current_autograd_node(), BackwardCFunction)


# The ids of the weights that each living wrapper averages; None: not known yet.
_WRAPPERS: WeakKeyDictionary[nn.Module, frozenset[int] | None] = WeakKeyDictionary()


def _remember(module: nn.Module, *_: Any) -> None:
    """Note a wrapper when it takes the module that it wraps."""
    if isinstance(module, DistributedDataParallel):
        _WRAPPERS[module] = None


# Wrappers are on no list of PyTorch. Weights of slide are wrapped after slide was imported.
register_module_module_registration_hook(_remember)


def check_takes_rows(*parameters: Tensor | None, draws: bool = False) -> None:
    """Raise unless row gradients of parameters reach an optimizer; under a microsecond.

    ``draws``: a set will be drawn, which must not happen again in a backward pass.

    Wrappers of PyTorch, which average dense gradients, must not have a parameter.
    """
    if draws and _in_reentrant_checkpoint():
        raise RuntimeError(
            "a backward pass runs this layer again, as torch.utils.checkpoint does with "
            "use_reentrant=True, and it would draw another active set than that of the loss: "
            "call the layer outside of the checkpoint, or draw the set before it and call "
            "slide.active_linear"
        )
    running = getattr(DistributedDataParallel, "_active_ddp_module", None)
    if running is not None:  # It may have come from a pickle, and not from its constructor.
        _WRAPPERS.setdefault(running, None)
    if not _WRAPPERS or not torch.is_grad_enabled():
        return
    own = {id(each) for each in parameters if each is not None and each.requires_grad}
    if own.isdisjoint(_averaged()):
        return
    gc.collect()  # A wrapper that no program can reach any more averages nothing.
    if own.isdisjoint(_averaged()):
        return
    shapes = [tuple(each.shape) for each in parameters if each is not None]
    raise RuntimeError(
        f"DistributedDataParallel does not average the row gradients of a weight {shapes[0]}, so "
        "the processes would train different weights. Wrap the layers before it alone, and take "
        "slide.distributed.ShardedSampledLinear as output layer, whose rows the processes share "
        "out; or take the layer out of the wrapper, make it with sparse_grad=True, and call "
        "torch.distributed.all_reduce on the grad of its parameters before each step. To predict "
        "only, call it under torch.no_grad()"
    )


def _averaged() -> Iterator[int]:
    """The ids of all weights that living wrappers average; a wrapper keeps its weights alive."""
    for wrapper, known in list(_WRAPPERS.items()):
        if known is None:
            known = frozenset(id(each) for each in getattr(wrapper, "_module_parameters", ()))
            _WRAPPERS[wrapper] = known
        yield from known
