"""Weights that DistributedDataParallel would average: it sees no row gradients, so it is refused.

It waits until autograd has visited a weight, finds no gradient there, and says nothing: the
processes would go on to train different weights.
"""

import gc
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

# The ids of the weights that each living wrapper averages; None: not looked at yet.
_WRAPPERS: WeakKeyDictionary[nn.Module, frozenset[int] | None] = WeakKeyDictionary()


def _remember(module: nn.Module, *_: Any) -> None:
    """Note a wrapper when it takes the module that it wraps."""
    if isinstance(module, DistributedDataParallel):
        _WRAPPERS[module] = None


# Wrappers are on no list of PyTorch. Weights of slide are wrapped after slide was imported.
register_module_module_registration_hook(_remember)


def check_not_averaged(*parameters: Tensor | None) -> None:
    """Raise if a wrapper would average weights that are about to get row gradients.

    Without a wrapper in the process this takes less than a microsecond.

    Args:
        parameters: the weights; those that require no gradient are not looked at.

    Raises:
        RuntimeError: if gradients are on, and a DistributedDataParallel holds one of the weights.
    """
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
    shape = next(tuple(each.shape) for each in parameters if each is not None)
    raise RuntimeError(
        f"DistributedDataParallel does not average the row gradients of a weight {shape}, so the "
        "processes would train different weights. Wrap the layers before it alone, and take "
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
