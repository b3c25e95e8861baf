"""Subsampling the words of a text."""

import numpy as np

from slide.ops.kernels.compile import serial
from slide.ops.kernels.random import random_bits

__all__ = ["subsample_words"]

_S11 = np.uint64(11)


@serial
def subsample_words(words, first, key, keep, out):
    """Copies the words that stay, in their order.

    Word i stays if a uniform number in [0, 1), of the counter ``first + i``, is below its ``keep``.

    Args:
        words: ``(n,)`` int32 in ``[0, V)``; -1: this word never stays.
        first: number of words before these.
        key: uint64 of the random numbers.
        keep: ``(V,)`` float64 probability of each word to stay.
        out: ``(n,)`` int32 output.

    Returns:
        How many words stay.
    """
    kept = 0
    for i in range(len(words)):
        word = words[i]
        if word >= 0:
            uniform = np.float64(random_bits(key, first + i) >> _S11) * 2.0**-53
            if uniform < keep[word]:
                out[kept] = word
                kept += 1
    return kept
