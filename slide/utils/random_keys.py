"""Random keys of 64 bits."""

import numpy as np

_MASK = (1 << 64) - 1


def random_key(*parts: int) -> np.uint64:
    """A 64-bit key of ``parts``, two rounds of SplitMix64 (Steele, Lea, Flood 2014) for each."""
    key = 0
    for part in parts:
        key = ((key ^ (int(part) & _MASK)) + 0x9E3779B97F4A7C15) & _MASK
        for _ in range(2):
            key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
            key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
            key ^= key >> 31
    return np.uint64(key)
