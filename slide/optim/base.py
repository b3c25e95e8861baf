"""PyTorch's base class of optimizers, which does not import the compiler here."""

import inspect
from typing import Any

import torch

from slide.runtime import untraced


class Optimizer(torch.optim.Optimizer):
    """``torch.optim.Optimizer``, without an import of the compiler.

    PyTorch keeps ``torch.compile`` from tracing these methods, and imports the compiler for that.
    The import takes longer than all other preparations of a run, and most runs do not compile
    anything.
    """

    @untraced
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See ``torch.optim.Optimizer``."""
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    @untraced
    def zero_grad(self, set_to_none: bool = True) -> None:
        """See ``torch.optim.Optimizer``."""
        inspect.unwrap(torch.optim.Optimizer.zero_grad)(self, set_to_none)

    @untraced
    def state_dict(self) -> dict[str, Any]:
        """See ``torch.optim.Optimizer``."""
        return inspect.unwrap(torch.optim.Optimizer.state_dict)(self)

    @untraced
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See ``torch.optim.Optimizer``."""
        inspect.unwrap(torch.optim.Optimizer.load_state_dict)(self, state_dict)
