"""Decorators that compile kernels; numba's flags are set only here.

In a parallel kernel, one iteration writes each output element, in a fixed order. So results do not
depend on the number of threads.
"""

import functools
import types

from numba import njit, prange

from slide.runtime import forked, start_threads

__all__ = ["parallel", "prange", "serial"]

# All of fast-math except "no NaN" and "no infinity", which divergence checks and -inf masks need.
FASTMATH = {"nsz", "arcp", "contract", "afn", "reassoc"}

_flags = {"cache": True, "nogil": True, "fastmath": FASTMATH, "error_model": "numpy"}
_serial, _threaded = njit(**_flags), njit(**_flags, parallel=True)


def serial(function):
    """Compile a kernel that runs on one thread; Python and other kernels may call it."""
    return _forgiving(_serial(function))


def parallel(function):
    """Compile a kernel whose ``prange`` loops run on all threads; only Python may call it.

    A process made by ``fork`` has no OpenMP threads: numba would end it, and other libraries would
    hang. There the same source runs as a serial kernel.
    """
    threaded = _forgiving(_threaded(function))

    @functools.cache
    def alone():
        twin = types.FunctionType(function.__code__, function.__globals__, function.__name__)
        # The cache on disk is keyed by this name and ignores the flags.
        twin.__qualname__ = f"{function.__qualname__}_alone"
        twin.__module__ = function.__module__
        return serial(twin)

    @functools.wraps(function)
    def call(*arguments):
        start_threads()
        return (alone() if forked() else threaded)(*arguments)

    return call


def _forgiving(kernel):
    """Let a kernel that cannot be read from disk count as not compiled yet.

    numba would raise an error where a file is damaged, or names a class that slide had before.
    """
    file = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    load_index, load_data = (getattr(file, n, None) for n in ("_load_index", "_load_data"))
    if file is not None and load_index is not None and load_data is not None:

        def index():
            try:
                return load_index()
            except Exception:
                return {}

        def data(name):
            try:
                return load_data(name)
            except Exception as error:
                raise OSError(f"{name} cannot be read") from error  # Which numba expects.

        file._load_index, file._load_data = index, data
    return kernel
