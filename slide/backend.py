"""Which backend computes, kernels or, with ``SLIDE_BACKEND=torch``, references; devices.

Kernels read the memory of the CPU; on other devices the references of `slide.ops` compute.
"""

import functools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.utils import checks

CPU = torch.device("cpu")
# Types of numbers that kernels read; bfloat16 is read by the products of torch alone.
KERNEL_DTYPES = (torch.float32, torch.float64)
BACKENDS = ("kernels", "torch")
PRODUCTS = ("auto", "bfloat16", "float32")
# How often a product of each type is timed.
_TIMED_ROUNDS = 5
_VARIABLE = "SLIDE_BACKEND"
_chosen = {"backend": os.environ.get(_VARIABLE) or "kernels", "products": "auto"}
checks.one_of(_VARIABLE, _chosen["backend"], BACKENDS)


def uses_reference(*operands: Any) -> bool:
    """Whether the reference computes; what is no tensor and no device is on the CPU."""
    if _chosen["backend"] == "torch":
        return True
    for operand in operands:  # A loop, because a step asks this a dozen times.
        if isinstance(operand, Tensor):
            if not operand.is_cpu:
                return True
        elif isinstance(operand, torch.device) and operand.type != "cpu":
            return True
    return False


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Let ``"kernels"`` or ``"torch"``, the reference, compute on the CPU in a ``with`` block."""
    checks.one_of("backend", name, BACKENDS)
    before, _chosen["backend"] = _chosen["backend"], name
    try:
        yield
    finally:
        _chosen["backend"] = before


def find_device(name: str) -> torch.device:
    """The device of that name; ValueError for another name, or one that PyTorch does not find."""
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


def device_of(operand: Any) -> torch.device:
    """The device of a tensor; a device itself; the CPU for anything else."""
    if isinstance(operand, Tensor):
        return operand.device
    return operand if isinstance(operand, torch.device) else CPU


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


def native(values: Tensor) -> Any:
    """A tensor on the CPU as an array, without a copy; a tensor elsewhere as it is."""
    return values.numpy() if values.device.type == "cpu" else values


def array_view(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor as an array; autograd does not count writes to it."""
    if not tensor.is_cpu:
        check_on_cpu("with kernels", tensor)
    if not tensor.is_contiguous():
        raise ValueError(f"a contiguous tensor is needed; got strides {tensor.stride()}")
    return (tensor.detach() if tensor.requires_grad else tensor).numpy()


def check_memory(weight: Tensor) -> None:
    """Raise RuntimeError for a weight whose memory is gone, as a wrapper of PyTorch may free it."""
    end = weight.storage_offset() + weight.numel() if weight.is_contiguous() else 0
    if weight.untyped_storage().nbytes() < end * weight.element_size():
        raise RuntimeError(
            f"the memory of a weight {tuple(weight.shape)} was freed, as FullyShardedDataParallel "
            "does: leave the layer out of the wrapper"
        )


def check_on_cpu(what: str, *tensors: torch.Tensor) -> None:
    """Raise ValueError for a tensor on another device; ``what`` only the CPU computes."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise ValueError(
                f"slide computes {what} on the CPU only; got a tensor on {tensor.device}"
            )


def check_together(x: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor | None) -> None:
    """Raise ValueError unless all tensors are on the device of the weight."""
    for tensor in (x, *others):
        if tensor is not None and tensor.device != weight.device:
            raise ValueError(
                f"the input or bias is on {tensor.device} but the weight is on {weight.device}; "
                "move one of them"
            )


class ProductTimes(NamedTuple):
    """Milliseconds of one matrix product on the CPU, with factors of each type."""

    bfloat16: float
    float32: float


def choose_products(kind: str = "auto") -> str:
    """Set the type that `has_bfloat16` stands for on the CPU, for this process; returns it.

    ``"auto"`` times one product of each type, once in a process. In deterministic mode, and where
    the processor has no instructions for bfloat16, it depends on the processor alone.
    """
    checks.one_of("products", kind, PRODUCTS)
    _chosen["products"] = kind
    return products()


def described_products() -> str:
    """The type of products on the CPU, with the times that chose it where they were measured."""
    kind = products()
    if not product_times.cache_info().currsize or torch.are_deterministic_algorithms_enabled():
        return kind
    times = product_times()
    return f"{kind} (bfloat16 {times.bfloat16:.1f} ms, float32 {times.float32:.1f} ms)"


def products() -> str:
    """The type of products on the CPU that may be rounded: ``"bfloat16"`` or ``"float32"``."""
    return "bfloat16" if has_bfloat16() else "float32"


def has_bfloat16(device: torch.device | None = None) -> bool:
    """Whether a device, or the CPU, multiplies bfloat16 matrices faster than float32 ones."""
    if device is not None and device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device is not None and device.type != "cpu":
        return False
    if _chosen["products"] != "auto":
        return _chosen["products"] == "bfloat16"
    if not _has_bfloat16_instructions() or torch.are_deterministic_algorithms_enabled():
        return _has_bfloat16_instructions()
    times = product_times()
    return times.bfloat16 < times.float32


@functools.cache
def _has_bfloat16_instructions() -> bool:
    return not instruction_sets().isdisjoint(("avx512_bf16", "amx_bf16"))


@functools.cache
def product_times() -> ProductTimes:
    """The shortest of several times of a product of a batch and the rows of an active set."""

    # Not every processor with the instructions gains by them: some Xeons take twice the time.
    def milliseconds(dtype: torch.dtype) -> float:
        start = time.perf_counter()
        torch.mm(samples[dtype], rows[dtype])
        return 1000 * (time.perf_counter() - start)

    kinds = (torch.bfloat16, torch.float32)
    samples = {kind: torch.ones(512, 256, dtype=kind) for kind in kinds}
    rows = {kind: torch.ones(1024, 256, dtype=kind).T for kind in kinds}
    # In turn: both meet the same moments of a busy machine.
    rounds = [[milliseconds(kind) for kind in kinds] for _ in range(_TIMED_ROUNDS)]
    bfloat16, float32 = map(min, zip(*rounds, strict=True))
    return ProductTimes(bfloat16=bfloat16, float32=float32)


@functools.cache
def has_int8() -> bool:
    """Whether the CPU multiplies matrices of 8-bit integers exactly and faster than floats."""
    # Without these instructions sums of pairs are cut off at 16 bits.
    fast = not instruction_sets().isdisjoint(("avx512_vnni", "avx_vnni", "amx_int8"))
    return fast and hasattr(torch, "_int_mm")


def instruction_sets() -> set[str]:
    """Names of the CPU's instruction sets; not every version of torch knows them."""
    known = getattr(torch.cpu, "get_capabilities", dict)()
    return {name for name, there in known.items() if there is True}
