"""`slide.ops.kernels.random` in torch: int64 wraps as uint64 does, so the bits are the same."""

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX2 = 0x94D049BB133111EB - 2**64


def shifted(bits: Tensor, positions: int) -> Tensor:
    """A shift to the right that fills with zeros."""
    return (bits >> positions) & ((1 << (64 - positions)) - 1)


def random_bits(key: int, counters: Tensor) -> Tensor:
    """64 random bits, as int64, for a key in [0, 2^64) and each counter (int64)."""
    start = int(key) - 2**64 if int(key) >= 2**63 else int(key)
    z = (counters + 1) * _GOLDEN + start
    z = (z ^ shifted(z, 30)) * _MIX1
    z = (z ^ shifted(z, 27)) * _MIX2
    return z ^ shifted(z, 31)


def random_below(key: int, counters: Tensor, bounds: int | Tensor) -> Tensor:
    """Uniform integers (int64) in ``[0, bound)``, for bounds of at most 2^31."""
    return shifted(shifted(random_bits(key, counters), 32) * bounds, 32)


def random_keys(key: int, counters: Tensor) -> Tensor:
    """Random int64 keys to sort by, at least 0."""
    return torch.bitwise_and(random_bits(key, counters), (1 << 62) - 1)
