"""First weights that are functions of a key and a row's number.

So they do not depend on how many processes share out the rows, and each process draws only its own.
The generator is that of `slide.kernels.random`.
"""

import numpy as np
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
_BLOCK = 1 << 15  # Numbers that are drawn at a time: they stay in the cache.


def uniform_rows(key: int, ids: np.ndarray, width: int, bound: float) -> Tensor:
    """Rows of numbers that are uniform in [-bound, bound).

    Args:
        key: key of the draws, in [0, 2^64).
        ids: ``(n,)`` numbers of the rows.
        width: numbers in a row.
        bound: largest magnitude.

    Returns:
        ``(n, width)`` float32.

    Example:
        >>> import numpy as np, torch
        >>> from slide.distributed.first_rows import uniform_rows
        >>> rows = uniform_rows(7, np.arange(5), 3, bound=1.0)
        >>> torch.equal(rows[3:], uniform_rows(7, np.array([3, 4]), 3, bound=1.0))
        True
    """
    out = np.empty((len(ids), width), np.float32)
    for part, bits in _blocks(key, ids, width):
        out[part] = (bits >> np.uint64(40)).astype(np.float32)  # 24 bits, exactly.
    out *= np.float32(2 * bound / 2**24)
    out -= np.float32(bound)
    return torch.from_numpy(out)


def normal_rows(key: int, ids: np.ndarray, width: int, deviation: float) -> Tensor:
    """Rows of normal numbers with mean 0.

    They are made in pairs (Box and Muller 1958, "A note on the generation of random normal
    deviates").

    Args:
        key: key of the draws, in [0, 2^64).
        ids: ``(n,)`` numbers of the rows.
        width: numbers in a row.
        deviation: standard deviation.

    Returns:
        ``(n, width)`` float32.
    """
    out = np.empty((len(ids), width), np.float32)
    half = -(-width // 2)
    for part, bits in _blocks(key, ids, half):
        # In (0, 1], so that the logarithm is finite.
        share = ((bits >> np.uint64(40)).astype(np.float32) + 1) * np.float32(2**-24)
        angle = (bits & np.uint64(0xFFFFFF)).astype(np.float32) * np.float32(2 * np.pi / 2**24)
        length = np.sqrt(-2 * np.log(share)) * np.float32(deviation)
        out[part, :half] = length * np.cos(angle)
        out[part, half:] = (length * np.sin(angle))[:, : width - half]
    return torch.from_numpy(out)


def _blocks(key: int, ids: np.ndarray, width: int):
    """Slices of rows, and their random bits ``(rows, width)``: one counter for each number."""
    columns, start = np.arange(1, width + 1, dtype=np.uint64), np.array([key], np.uint64)
    step = max(1, _BLOCK // max(width, 1))
    for begin in range(0, len(ids), step):
        part = slice(begin, begin + step)
        counters = ids[part].astype(np.uint64)[:, None] * np.uint64(width) + columns
        z = start + counters * _GOLDEN
        z = (z ^ (z >> _S30)) * _MIX1
        z = (z ^ (z >> _S27)) * _MIX2
        yield part, z ^ (z >> _S31)
