"""Threads, torch's modes, random keys, and zero-copy views between tensors and arrays."""

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from typing import Any, TypeVar

# OpenMP reads these when it is loaded. A pool that spins for long takes the cores from others, such
# as FAISS's. But torch and numba share one on Linux, a step goes in and out of it some thirty
# times, and to wake it takes longer than many of its tasks: let it spin for 0.4 ms there.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
# torch reads this before its first large tensor. Rows picked at random from a large weight lie on a
# page each; with huge pages the processor knows where they are. numpy asks for them by itself.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numba
import numpy as np
import torch
from numba.core import config

from slide import checks

try:
    import resource
except ImportError:  # Not on Windows.
    resource = None

VERSION = "0.1.0"

_MASK = (1 << 64) - 1
# glibc's names for the sizes, in bytes, from which memory is asked of the kernel for each array,
# and from which freed memory goes back to it.
_MALLOPT = {-3: ("MALLOC_MMAP_THRESHOLD_", 32 << 20), -1: ("MALLOC_TRIM_THRESHOLD_", 256 << 20)}
_F = TypeVar("_F", bound=Callable)
_PROCESS = os.getpid()

if hasattr(os, "register_at_fork"):
    # OpenMP's threads stay behind in the parent, and the first product in the child would wait for
    # them for ever. Where there was none before, nobody knows.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def forked() -> bool:
    """Whether this process was made by ``fork`` from one that had imported slide."""
    return os.getpid() != _PROCESS


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next array, as a step makes the same ones every time.

    Else the system hands out each array of some megabytes anew, and zeroes it first. Of free memory
    at the end of its pools glibc keeps up to 256 MiB. Nothing happens with another C library, or
    where the environment already says what to do.
    """
    chosen = any(name in os.environ for name, _ in _MALLOPT.values())
    chosen |= "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and not chosen:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            for option, (_, size) in _MALLOPT.items():
                mallopt(option, size)


_keep_freed_memory()


def set_threads(threads: int) -> None:
    """Let numba and torch use ``threads`` cores each; 0 means all that this process may use.

    A process made by ``fork`` may use one.

    Raises:
        ValueError: if ``threads`` is negative or above what numba was started with.
    """
    limit = 1 if forked() else config.NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(threads, int) or isinstance(threads, bool) or not 0 <= threads <= limit:
        raise ValueError(f"threads must be between 0 (all) and {limit}, not {threads!r}")
    # In this order: numba's first call resets torch's number of threads (numba issue 9387).
    if not forked():
        numba.set_num_threads(threads or limit)
    torch.set_num_threads(threads or limit)


def set_deterministic(deterministic: bool, seed: int) -> None:
    """Seed torch, and choose whether it must refuse operations whose results vary from run to run.

    Raises:
        ValueError: if the seed is not a whole number of at least 0.
    """
    checks.flag("deterministic", deterministic)
    checks.whole("seed", seed, 0)
    torch.manual_seed(seed)
    if deterministic != torch.are_deterministic_algorithms_enabled():  # Setting it takes a second.
        torch.use_deterministic_algorithms(deterministic)


def num_threads() -> int:
    """Number of threads that kernels run on."""
    return 1 if forked() else numba.get_num_threads()


def untraced(function: _F) -> _F:
    """A function that ``torch.compile`` calls as it is: it cannot look into our kernels."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        # Importing the compiler takes a second, and until somebody does nothing is traced.
        if "torch._dynamo" in sys.modules:
            return _disabled(function)(*arguments, **keywords)
        return function(*arguments, **keywords)

    return call  # type: ignore[return-value]


def profiled(name: str) -> Callable[[_F], _F]:
    """Lets PyTorch's profiler show the calls of a function as a range ``slide::name``.

    Without a running profiler this costs a tenth of a microsecond a call.

    Example:
        >>> import torch
        >>> from slide.runtime import profiled
        >>> @profiled("square")
        ... def square(x):
        ...     return x * x
        >>> with torch.profiler.profile() as profile:
        ...     _ = square(torch.ones(3))
        >>> [event.key for event in profile.key_averages() if "slide" in event.key]
        ['slide::square']
    """

    def wrap(function: _F) -> _F:
        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if not torch.autograd._profiler_enabled():
                return function(*arguments, **keywords)
            with torch.profiler.record_function(f"slide::{name}"):
                return function(*arguments, **keywords)

        return call  # type: ignore[return-value]

    return wrap


@functools.cache
def _disabled(function: Callable) -> Callable:
    return torch.compiler.disable(function)


def outside_autocast(
    x: torch.Tensor, weight: torch.Tensor, precision: str = "float32"
) -> tuple[torch.Tensor, str, AbstractContextManager]:
    """Under ``torch.autocast``: ``x`` in the weight's type, the precision asked for, and a way out.

    Our products round by themselves; what autocast would do to single steps of them fits neither
    kernels nor gradients. Results are of the weight's type, as losses need them. What is no tensor
    of floats stays as it is, for the checks to see.
    """
    if not torch.is_autocast_enabled("cpu"):
        return x, precision, nullcontext()
    if torch.get_autocast_dtype("cpu") == torch.bfloat16:
        precision = "bfloat16"
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        x = x.to(weight.dtype)
    return x, precision, torch.autocast("cpu", enabled=False)


def random_key(*parts: int) -> np.uint64:
    """A 64-bit key that depends on all of ``parts``, for `slide.kernels.random`.

    Two SplitMix64 rounds a part (Steele, Lea, Flood 2014).
    """
    key = 0
    for part in parts:
        key = ((key ^ (part & _MASK)) + 0x9E3779B97F4A7C15) & _MASK
        for _ in range(2):
            key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
            key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
            key ^= key >> 31
    return np.uint64(key)


def array_view(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor as an array, without a copy.

    A write through the view is not seen by autograd's version counter.

    Raises:
        ValueError: if the tensor is not contiguous, or not on the CPU.
    """
    if tensor.device.type != "cpu":
        raise ValueError(f"slide computes on the CPU; got a tensor on {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"a contiguous tensor is needed; got strides {tensor.stride()}")
    return tensor.detach().numpy()


@functools.cache
def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 matrices faster than float32 ones."""
    known = getattr(torch.cpu, "get_capabilities", dict)()  # Not in every version of torch.
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def peak_memory_mb() -> int:
    """Most memory that this process has held so far, in MiB; 0 where that cannot be told."""
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / 2**20 if sys.platform == "darwin" else peak / 2**10)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    names = ("torch", "numpy", "numba", "faiss-cpu")
    found = {"python": platform.python_version(), "slide": VERSION}
    return found | {name: metadata.version(name) for name in names}
