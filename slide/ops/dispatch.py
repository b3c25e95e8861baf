"""The table of operations: a kernel and a reference for each, and what picks one of them."""

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from slide.backend import uses_reference

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Operation(Generic[_P, _R]):
    """An operation that a kernel computes on the CPU, and its reference in torch on any device."""

    def __init__(self, kernel: Callable[_P, _R], reference: Callable[_P, _R]):
        self.kernel, self.reference = kernel, reference
        functools.update_wrapper(self, kernel)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return (self.reference if uses_reference(*args) else self.kernel)(*args, **kwargs)


# All operations by name; `tests/ops/test_reference.py` compares both of each.
OPERATIONS: dict[str, Operation[..., Any]] = {}


def operation(reference: Callable[_P, _R]) -> Callable[[Callable[_P, _R]], Operation[_P, _R]]:
    """Make a function that calls kernels an `Operation`, and enter it in `OPERATIONS`."""

    def enter(kernel: Callable[_P, _R]) -> Operation[_P, _R]:
        OPERATIONS[kernel.__name__] = found = Operation(kernel, reference)
        return found

    return enter
