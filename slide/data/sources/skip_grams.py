"""Rows of skip-grams: from a word to the words around it.

References:
    T. Mikolov et al., "Distributed representations of words and phrases and their
    compositionality", NIPS 2013, section 2.
"""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from slide.data.dataset import Block
from slide.data.errors import DataError
from slide.sparse import CSR, Pattern, row_bounds

__all__ = ["first_rows", "skip_grams"]

CHUNK_LABELS = 1 << 20


def skip_grams(chunks: Iterable[np.ndarray], window: int) -> Iterator[Block]:
    """Yields a row for each word that has other words in its window; these are its labels.

    Args:
        chunks: consecutive ids, int32.
        window: words on either side.
    """
    edge = np.full(window, -1, np.int32)
    step = max(1, CHUNK_LABELS // (2 * window))
    words = edge
    for chunk in itertools.chain(chunks, [edge]):
        words = np.concatenate([words, chunk])
        for start in range(0, len(words) - 2 * window, step):
            yield _windows(words[start : start + step + 2 * window], window)
        words = words[-2 * window :]


def _windows(words: np.ndarray, window: int) -> Block:
    """Makes the rows of all words except ``window`` words at either end; -1 is no word."""
    around = np.lib.stride_tricks.sliding_window_view(words, 2 * window + 1)
    context = np.sort(np.delete(around, window, axis=1), axis=1)
    distinct = context >= 0
    distinct[:, 1:] &= context[:, 1:] != context[:, :-1]
    counts = distinct.sum(axis=1)
    centres = around[counts > 0, window]
    indptr = row_bounds(counts[counts > 0])
    features = CSR(np.arange(len(centres) + 1), centres, np.ones(len(centres), np.float32))
    return Block(features, Pattern(indptr, context[distinct]))


def first_rows(blocks: Iterable[Block], limit: int | None, source: str) -> Iterator[Block]:
    """Yields blocks of rows with one feature each, up to ``limit`` rows.

    Raises:
        DataError: there are no rows.
    """
    rows = 0
    for features, labels, _ in blocks:
        count = features.num_rows if limit is None else min(features.num_rows, limit - rows)
        yield Block(features.slice(0, count), labels.slice(0, count))
        rows += count
        if rows == limit:
            return
    if not rows:
        raise DataError(
            f"{source} has no two words that stay; all others are rare or left out by subsampling"
        )
