"""Random numbers as functions of a key and a counter, by the mixer of SplitMix64.

See Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators". In torch int64 wraps
as uint64 does in kernels, so the bits are the same.
"""

import numpy as np
import torch
from torch import Tensor

from slide.ops.compile import serial

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_TORCH_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_TORCH_MIX1 = 0xBF58476D1CE4E5B9 - 2**64
_TORCH_MIX2 = 0x94D049BB133111EB - 2**64


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


def shifted(bits: Tensor, positions: int) -> Tensor:
    """A shift to the right that fills with zeros."""
    return (bits >> positions) & ((1 << (64 - positions)) - 1)


def torch_random_bits(key: int, counters: Tensor) -> Tensor:
    """64 random bits, as int64, for a key in [0, 2^64) and each counter (int64)."""
    start = int(key) - 2**64 if int(key) >= 2**63 else int(key)
    z = (counters + 1) * _TORCH_GOLDEN + start
    z = (z ^ shifted(z, 30)) * _TORCH_MIX1
    z = (z ^ shifted(z, 27)) * _TORCH_MIX2
    return z ^ shifted(z, 31)


def torch_random_below(key: int, counters: Tensor, bounds: int | Tensor) -> Tensor:
    """Uniform integers (int64) in ``[0, bound)``, for bounds of at most 2^31."""
    return shifted(shifted(torch_random_bits(key, counters), 32) * bounds, 32)


def torch_random_keys(key: int, counters: Tensor) -> Tensor:
    """Random int64 keys to sort by, at least 0."""
    return torch.bitwise_and(torch_random_bits(key, counters), (1 << 62) - 1)
