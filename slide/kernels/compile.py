"""The one place where numba's flags are set.

Parallel kernels split their work so that each output element is written by one iteration, in one
fixed order: their results do not depend on the number of threads.
"""

import functools
import types

from numba import njit, prange

from slide.runtime import forked

__all__ = ["parallel", "prange", "serial"]

# Everything of fast-math except "no NaN" and "no infinity": divergence checks and -inf masks
# must keep working.
FASTMATH = {"nsz", "arcp", "contract", "afn", "reassoc"}

serial = njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
_threaded = njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy", parallel=True)


def parallel(function):
    """Compile a kernel whose ``prange`` loops run on all threads; called from Python alone.

    OpenMP's threads do not live on in a process made by ``fork``, where numba would end the process
    and others hang. There the same source runs as a serial kernel.
    """
    threaded = _threaded(function)

    @functools.cache
    def alone():
        twin = types.FunctionType(function.__code__, function.__globals__, function.__name__)
        # The cache on disk goes by this name and does not know the flags.
        twin.__qualname__ = f"{function.__qualname__}_alone"
        twin.__module__ = function.__module__
        return serial(twin)

    @functools.wraps(function)
    def call(*arguments):
        return (alone() if forked() else threaded)(*arguments)

    return call
