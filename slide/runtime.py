"""How this process computes: threads, kept memory, determinism, versions. It is imported first."""

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import metadata

# OpenMP reads these variables when it is loaded. Idle threads that spin for a long time take the
# cores from other pools, such as the pool of FAISS. But a step enters the pool that torch and numba
# share on Linux about thirty times. Waking threads takes longer than many tasks: they spin 0.4 ms.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
# torch reads this variable before its first large tensor. Random rows of a large weight lie on
# different pages, and the processor finds their addresses faster with huge pages. numpy uses huge
# pages by default.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

try:
    import numba
except ValueError as error:  # It says no name.
    raise ValueError(f"NUMBA_NUM_THREADS={os.environ.get('NUMBA_NUM_THREADS')}: {error}") from error
import torch
from numba.core import config

from slide.utils import checks
from slide.utils.resources import core_limit

VERSION = "1.0.0"

# glibc's options, as environment variables and in bytes: the size from which the system provides
# an array's memory directly, and the size of free memory from which glibc gives memory back.
_MALLOPT = {-3: ("MALLOC_MMAP_THRESHOLD_", 32 << 20), -1: ("MALLOC_TRIM_THRESHOLD_", 256 << 20)}
_PROCESS = os.getpid()
# The most processors that Linux has. With 100,000 threads the first kernel ends the process.
_MOST_THREADS = 8192


class _Thread(threading.local):
    """What a Python thread notes: the process in which `start_threads` started its threads."""

    process = 0


this_thread = _Thread()

if hasattr(os, "register_at_fork"):
    # A child has no OpenMP threads, and its first parallel product would wait for them forever.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def forked() -> bool:
    """Whether ``fork`` made this process from one that had imported slide."""
    return os.getpid() != _PROCESS


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next array, since each step makes the same arrays."""
    # Without this, the system provides each array of several megabytes, filled with zeros. With
    # another C library, or if the environment sets these options already, nothing changes.
    chosen = any(name in os.environ for name, _ in _MALLOPT.values())
    chosen |= "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and not chosen:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            for option, (_, size) in _MALLOPT.items():
                mallopt(option, size)


def release_freed_memory() -> None:
    """Let glibc give back what it keeps, for a phase that makes other arrays."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


_keep_freed_memory()
if (_asked := vars(config)["NUMBA_NUM_THREADS"]) > _MOST_THREADS:
    raise ValueError(f"NUMBA_NUM_THREADS must be at most {_MOST_THREADS}, not {_asked}")


def set_threads(threads: int) -> None:
    """Set the number of threads of numba and torch; 0: all cores that this process may use.

    A process that ``fork`` made may use one; torch takes one after ``set_deterministic(True,
    ...)``. ValueError for a number below 0, or above what numba was started with.
    """
    check_threads(threads)
    threads = threads or min(_most_threads(), core_limit() or sys.maxsize)
    if start_threads():
        numba.set_num_threads(threads)
    torch.set_num_threads(openmp_threads())


def check_threads(threads: int) -> None:
    """Raise ValueError for a number of threads that `set_threads` does not take."""
    limit = _most_threads()
    if not isinstance(threads, int) or isinstance(threads, bool) or not 0 <= threads <= limit:
        raise ValueError(f"threads must be between 0 (all) and {limit}, not {threads!r}")


def _most_threads() -> int:
    return 1 if forked() else config.NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue]


def openmp_threads() -> int:
    """The number of threads of torch and FAISS: 1 in deterministic mode, else that of the kernels.

    These libraries cut a product into one piece for each thread, on which the last bits depend.
    """
    return 1 if torch.are_deterministic_algorithms_enabled() else num_threads()


def set_deterministic(deterministic: bool, seed: int) -> None:
    """Seed torch by a number in [0, 2^64), and choose whether results may vary from run to run.

    If not, operations that vary raise an error (``torch.use_deterministic_algorithms``), and
    products of torch run on one thread, so that results do not depend on the number of threads;
    kernels of slide use all.
    """
    checks.flag("deterministic", deterministic)
    checks.whole("seed", seed, 0)
    if seed >= 1 << 64:
        raise ValueError(f"seed must be below 2^64, not {seed}")
    torch.manual_seed(seed)
    changed = deterministic != torch.are_deterministic_algorithms_enabled()
    if changed:  # Setting it takes a second.
        torch.use_deterministic_algorithms(deterministic)
    if changed or deterministic:  # The program may have set the flag itself.
        torch.set_num_threads(openmp_threads())


# What this thread draws on the CPU from; None: the generator of torch.
_generator: ContextVar[torch.Generator | None] = ContextVar("generator", default=None)


@contextmanager
def own_draws(seed: int) -> Iterator[None]:
    """First weights and dropout of this thread are drawn from a seed, and not as torch's draws.

    The numbers are those that follow ``torch.manual_seed(seed)``, whose generator stays as it is:
    it belongs to the program, and all of its threads.
    """
    token = _generator.set(torch.Generator().manual_seed(seed))
    try:
        yield
    finally:
        _generator.reset(token)


def generator(device: torch.device | str = "cpu") -> torch.Generator | None:
    """What draws on a device come from, for operations of torch; None: the generator of torch."""
    return _generator.get() if torch.device(device).type == "cpu" else None


def get_draws() -> torch.Tensor:
    """The state of the generator that this thread draws on the CPU from."""
    return (_generator.get() or torch.default_generator).get_state()


def set_draws(state: torch.Tensor) -> None:
    """Restore what `get_draws` returned."""
    (_generator.get() or torch.default_generator).set_state(state)


def start_threads() -> bool:
    """Start numba's threads, and set torch's number of threads again (numba issue 9387).

    Returns whether there are threads: a process that ``fork`` made has none.
    """
    if forked():
        return False
    if this_thread.process != _PROCESS:
        this_thread.process = _PROCESS
        threads = torch.get_num_threads()
        numba.set_num_threads(min(numba.get_num_threads(), core_limit() or sys.maxsize))
        torch.set_num_threads(threads)
    return True


def num_threads() -> int:
    """The number of threads that kernels run on."""
    return numba.get_num_threads() if start_threads() else 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Run kernels of this Python thread on one: waking others takes longer than a row."""
    threads = num_threads()
    if threads > 1:
        numba.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            numba.set_num_threads(threads)


# It parses a file, and each checkpoint and model names versions.
_version_of = cache(metadata.version)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    names = ("torch", "numpy", "numba", "faiss-cpu")
    found = {"python": platform.python_version(), "slide": VERSION}
    return found | {name: _version_of(name) for name in names}
