"""Decorators that compile kernels; numba's flags are set only here.

In a parallel kernel, one iteration writes each output element, in a fixed order. So results do not
depend on the number of threads.
"""

import functools
import types

from numba import njit, prange

from slide.runtime import forked

__all__ = ["parallel", "prange", "serial"]

# All of fast-math except "no NaN" and "no infinity", which divergence checks and -inf masks need.
FASTMATH = {"nsz", "arcp", "contract", "afn", "reassoc"}

serial = njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
_threaded = njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy", parallel=True)


def parallel(function):
    """Compile a kernel whose ``prange`` loops run on all threads; only Python may call it.

    A process made by ``fork`` has no OpenMP threads: numba would end it, and other libraries would
    hang. There the same source runs as a serial kernel.
    """
    threaded = _threaded(function)

    @functools.cache
    def alone():
        twin = types.FunctionType(function.__code__, function.__globals__, function.__name__)
        # The cache on disk is keyed by this name and ignores the flags.
        twin.__qualname__ = f"{function.__qualname__}_alone"
        twin.__module__ = function.__module__
        return serial(twin)

    @functools.wraps(function)
    def call(*arguments):
        return (alone() if forked() else threaded)(*arguments)

    return call
