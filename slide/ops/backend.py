"""Which backend computes: numba kernels, or the reference in torch.

Kernels read the memory of the CPU. Where a tensor lies on another device, the functions of
`slide.ops.reference` compute the same there. ``SLIDE_BACKEND=torch`` chooses them on the CPU, too:
tests compare the two, and it helps where numba does not run well. Nothing else decides this, and
nothing depends on an import of CUDA.
"""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from slide import checks

CPU = torch.device("cpu")
# Types of numbers that kernels read; bfloat16 is read by the products of torch alone.
KERNEL_DTYPES = (torch.float32, torch.float64)
BACKENDS = ("kernels", "torch")
_VARIABLE = "SLIDE_BACKEND"
_P = ParamSpec("_P")
_R = TypeVar("_R")
_chosen = {"backend": os.environ.get(_VARIABLE) or "kernels"}
checks.one_of(_VARIABLE, _chosen["backend"], BACKENDS)


def plain(*places: Any) -> bool:
    """Whether an operation on these tensors runs in plain torch.

    Args:
        places: tensors or devices. Anything else, such as an array or None, is on the CPU.

    Example:
        >>> import torch
        >>> from slide.ops.backend import backend, plain
        >>> plain(torch.ones(2, device="meta"))
        True
        >>> with backend("torch"):
        ...     plain(torch.ones(2))
        True
        >>> with backend("kernels"):
        ...     plain(torch.ones(2))
        False
    """
    if _chosen["backend"] == "torch":
        return True
    for place in places:  # A loop, because a step asks this a dozen times.
        if isinstance(place, Tensor):
            if not place.is_cpu:
                return True
        elif isinstance(place, torch.device) and place.type != "cpu":
            return True
    return False


class Operation(Generic[_P, _R]):
    """An operation that a kernel computes on the CPU, and its reference on any device.

    Args:
        kernel: the function that calls numba kernels.
        reference: the same in torch; it defines the operation.

    Example:
        >>> import numpy as np, torch
        >>> from slide import ops
        >>> indptr, ids = np.array([0, 2]), np.array([2, 0], np.int32)
        >>> ops.weighted_sum(indptr, ids, torch.tensor([1.0, 3.0]), torch.eye(3))
        tensor([[3., 0., 1.]])
    """

    def __init__(self, kernel: Callable[_P, _R], reference: Callable[_P, _R]):
        self.kernel, self.reference = kernel, reference
        functools.update_wrapper(self, kernel)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return (self.reference if plain(*args) else self.kernel)(*args, **kwargs)


# All operations by name; `python -m slide.check` compares both columns of this table.
OPERATIONS: dict[str, Operation[..., Any]] = {}


def operation(
    reference: Callable[_P, _R],
) -> Callable[[Callable[_P, _R]], Operation[_P, _R]]:
    """Make a function that calls kernels an `Operation`, and enter it in `OPERATIONS`."""

    def enter(kernel: Callable[_P, _R]) -> Operation[_P, _R]:
        OPERATIONS[kernel.__name__] = found = Operation(kernel, reference)
        return found

    return enter


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Choose how the CPU computes, within a ``with`` block, for all threads.

    Args:
        name: ``"kernels"``, or ``"torch"`` for plain torch.

    Raises:
        ValueError: for another name.
    """
    checks.one_of("backend", name, BACKENDS)
    before, _chosen["backend"] = _chosen["backend"], name
    try:
        yield
    finally:
        _chosen["backend"] = before


def find_device(name: str) -> torch.device:
    """The device of that name.

    Args:
        name: ``"cpu"``, ``"cuda"``, or ``"cuda:1"`` and so on.

    Raises:
        ValueError: for another name, or a device that PyTorch does not find.

    Example:
        >>> from slide.ops.backend import find_device
        >>> find_device("cpu")
        device(type='cpu')
    """
    kind, _, number = str(name).partition(":")
    if name == "cpu":
        return CPU
    if kind != "cuda" or (":" in str(name) and not number.isdecimal()):
        raise ValueError(f"device must be cpu, cuda or cuda:<number>, not {name!r}")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= found:
        raise ValueError(
            f"device={name} needs a GPU that PyTorch finds with CUDA, and it finds {found}: "
            "use device=cpu, or install a build of PyTorch for CUDA"
        )
    return torch.device(name)


def device_of(place: Any) -> torch.device:
    """The device of a tensor; a device itself; the CPU for anything else."""
    if isinstance(place, Tensor):
        return place.device
    return place if isinstance(place, torch.device) else CPU


def on_device(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """An array or a tensor as a tensor on a device; the host does not wait for the copy."""
    if isinstance(values, Tensor):
        tensor = values
    else:  # torch warns of arrays that must not be written, such as maps of files.
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # Else the copy would wait for the work of the device.
    return tensor.to(device, non_blocking=True)


def on_host(values: np.ndarray | Tensor) -> np.ndarray:
    """An array or a tensor as an array. From another device this waits for the copy."""
    return values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()


def number_of(scalar: Tensor) -> float | Tensor:
    """A scalar as a number; on another device as it is, since the host would wait for it."""
    return scalar.item() if scalar.is_cpu else scalar


def native(values: Tensor) -> Any:
    """A tensor on the CPU as an array, without a copy; a tensor elsewhere as it is.

    Row numbers and codes have this form outside of `slide.ops.reference`.
    """
    return values.numpy() if values.device.type == "cpu" else values
