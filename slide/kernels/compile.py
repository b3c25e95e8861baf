"""The one place where numba's flags are set.

Parallel kernels split their work so that each output element is written by one iteration, in one
fixed order: their results do not depend on the number of threads.
"""

from numba import njit, prange

__all__ = ["parallel", "prange", "serial"]

# Everything of fast-math except "no NaN" and "no infinity": divergence checks and -inf masks
# must keep working.
FASTMATH = {"nsz", "arcp", "contract", "afn", "reassoc"}

serial = njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
parallel = njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy", parallel=True)
