"""Counter-based random numbers, pure functions of a key and a counter, so no state is stored.

The mixer is SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
"""

import numpy as np

from slide.ops.kernels.compile import serial

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@serial
def random_bits(key, counter):
    """64 random bits (uint64) for the uint64 ``key`` and the non-negative ``counter``."""
    z = np.uint64(key) + (np.uint64(counter) + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    return z ^ (z >> _S31)


@serial
def random_below(key, counter, bound):
    """A uniform integer (int64) in ``[0, bound)``, for a bound below 2^32."""
    return np.int64(((random_bits(key, counter) >> _S32) * np.uint64(bound)) >> _S32)
