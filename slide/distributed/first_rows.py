"""First weights that are functions of a key and a row's number.

So they do not depend on how many processes share out the rows, and each process draws only its own.
The generator is that of `slide.ops.reference.random`.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from slide.ops.reference.random import random_bits, shifted

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
    out = torch.empty(len(ids), width)
    for part, bits in _blocks(key, ids, width):
        out[part] = shifted(bits, 40).float()  # 24 bits, exactly.
    return out.mul_(2 * bound / 2**24).sub_(bound)


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
    out = torch.empty(len(ids), width)
    half = -(-width // 2)
    for part, bits in _blocks(key, ids, half):
        # In (0, 1], so that the logarithm is finite.
        share = (shifted(bits, 40).float() + 1) * 2**-24
        angle = torch.bitwise_and(bits, 0xFFFFFF).float() * (2 * math.pi / 2**24)
        length = (-2 * share.log()).sqrt() * deviation
        out[part, :half] = length * angle.cos()
        out[part, half:] = (length * angle.sin())[:, : width - half]
    return out


def _blocks(key: int, ids: np.ndarray, width: int) -> Iterator[tuple[slice, Tensor]]:
    """Slices of rows, and their random bits ``(rows, width)``: one counter for each number."""
    columns, step = torch.arange(width), max(1, _BLOCK // max(width, 1))
    for begin in range(0, len(ids), step):
        part = slice(begin, begin + step)
        numbers = torch.from_numpy(ids[part].astype(np.int64))
        yield part, random_bits(key, numbers[:, None] * width + columns)
