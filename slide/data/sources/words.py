"""The words of a text: counted, read in chunks, and subsampled.

References:
    T. Mikolov et al., "Distributed representations of words and phrases and their
    compositionality", NIPS 2013: subsampling in section 2.3.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slide.data.errors import DataError
from slide.kernels.subsample_words import subsample_words
from slide.utils.progress_bar import ProgressBar

__all__ = ["Vocabulary", "count_vocabulary", "find_border", "read_words", "subsampled_ids"]

READ_BYTES = 4 << 20
LONGEST = 1 << 16  # The most bytes of a word; a file with a longer one is not a text.
WHITE_SPACE = b" \t\n\r\v\f"


class Vocabulary(NamedTuple):
    """The words that are not rare; the id of a word is its place.

    Attributes:
        words: V words.
        counts: ``(V,)`` int64 occurrences in the text, in descending order.
    """

    words: list[str]
    counts: np.ndarray


def count_vocabulary(
    path: Path, min_count: int = 1, max_vocabulary: int | None = None, lower: bool = False
) -> Vocabulary:
    """Counts the words of a text.

    Args:
        path: the text, in UTF-8.
        min_count: a word with fewer occurrences is rare.
        max_vocabulary: a word after the first so many is rare, too; None: no limit.
        lower: read words in lower case.

    Raises:
        DataError: there are no words, or all are rare.
    """
    counts: Counter[str] = Counter()
    for words in read_words(path, 0, path.stat().st_size, lower):
        counts.update(words)
    if not counts:
        raise DataError(f"{path}: there are no words in it")
    found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = [item for item in found[:max_vocabulary] if item[1] >= min_count]
    if not kept:
        raise DataError(
            f"{path}: no word occurs min_count={min_count} times; the most frequent one, "
            f"'{found[0][0]}', has {found[0][1]} occurrences"
        )
    return Vocabulary([word for word, _ in kept], np.array([count for _, count in kept]))


def find_border(path: Path, test_share: float) -> int:
    """Returns the offset of white space at which the last part of a text begins.

    Raises:
        DataError: a word there is longer than `LONGEST` bytes.
    """
    size = path.stat().st_size
    offset = round(size * (1 - test_share))
    with path.open("rb") as file:
        file.seek(offset)
        piece = file.read(LONGEST)
    space = re.search(rb"\s", piece)
    if space is None and len(piece) == LONGEST:
        raise _too_long(path, offset)
    return offset + (space.start() if space else len(piece))


def read_words(path: Path, begin: int, end: int, lower: bool) -> Iterator[list[str]]:
    """Yields the words between two offsets of a text, in chunks.

    Raises:
        DataError: the file is not in UTF-8, or a word is longer than `LONGEST` bytes.
    """
    rest = b""
    with (
        ProgressBar(total=end - begin, unit="B", unit_scale=True, desc=str(path)) as bar,
        path.open("rb") as file,
    ):
        file.seek(begin)
        while begin < end and (piece := file.read(min(READ_BYTES, end - begin))):
            begin += len(piece)
            bar.update(len(piece))
            piece = rest + piece
            # Only whole words: the bytes after the last white space belong to the next piece.
            cut = max(map(piece.rfind, WHITE_SPACE)) + 1 if begin < end else len(piece)
            offset = begin - len(piece)
            if len(piece) - cut > LONGEST:
                raise _too_long(path, offset + cut)
            rest = piece[cut:]
            try:
                decoded = piece[:cut].decode()
            except UnicodeDecodeError as error:
                at = offset + error.start
                raise DataError(f"{path}: byte {at} does not belong to text in UTF-8") from None
            if offset == 0:
                decoded = decoded.removeprefix("\ufeff")  # The mark that some editors write.
            yield (decoded.lower() if lower else decoded).split()


def subsampled_ids(
    chunks: Iterable[list[str]], vocabulary: Vocabulary, subsample: float, key: np.uint64
) -> Iterator[np.ndarray]:
    """Yields the ids, int32, of the words that stay (Mikolov et al. 2013, section 2.3).

    The number of a word in the text, with the key, decides whether the word stays.

    Args:
        chunks: consecutive words.
        vocabulary: words outside it are left out.
        subsample: a word of frequency f among those of the vocabulary stays with probability
            ``sqrt(subsample / f)``; 0: all stay.
        key: of the random numbers.
    """
    frequencies = vocabulary.counts / vocabulary.counts.sum()
    keep = np.sqrt(subsample / frequencies) if subsample else np.ones(len(frequencies))
    ids = {word: number for number, word in enumerate(vocabulary.words)}
    first = 0
    for words in chunks:
        numbers = np.fromiter(map(ids.get, words, itertools.repeat(-1)), np.int32, len(words))
        kept = np.empty_like(numbers)
        yield kept[: subsample_words(numbers, first, key, keep, kept)]
        first += len(words)


def _too_long(path: Path, offset: int) -> DataError:
    return DataError(f"{path}: no white space for {LONGEST} bytes from byte {offset} on, no text")
