"""Running text as skip-grams: from a word to the words around it.

White space separates words. Rare words are left out. An occurrence of another word, of frequency f,
is left out with probability ``1 - sqrt(subsample / f)``; the seed and the number of the word in the
text decide. Then windows are formed. A row is an occurrence that stays: its only feature, of value
1, is the id of the word, and its labels are the distinct ids, ascending, of the words in the window
around it (Mikolov et al., "Distributed representations of words and phrases and their
compositionality", NIPS 2013, sections 2 and 2.3). Ids number the words by descending count, and
words of the same count in alphabetical order: ``vocab.txt`` in the folder of the arrays has a line
``word count`` for each. The last part of the text is the test set, and windows end at the border.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slide.data.cache import cached
from slide.data.dataset import PROPENSITY, Block, SparseDataset
from slide.data.errors import DataError
from slide.data.fetching import Fetch, check_folders, ensure_files
from slide.ops.sources import subsample_words
from slide.sparse import CSR, Pattern, row_bounds
from slide.utils import checks
from slide.utils.files import file_state, open_bytes
from slide.utils.progress_bar import ProgressBar
from slide.utils.random_keys import random_key

READ_BYTES = 4 << 20
# 64 KiB without white space are no word, and the file is no text.
LONGEST = 1 << 16
_TOO_LONG = f"{{}}: no white space for {LONGEST} bytes from byte {{}} on, no text"
WHITE_SPACE = b" \t\n\r\v\f"
# About a million labels are made at a time.
CHUNK_LABELS = 1 << 20
# Part of the cache's key. Increase it when the same arguments give other rows.
TEXT_VERSION = 1
TEXT8 = "text8"  # http://mattmahoney.net/dc/textdata.html


class Vocabulary(NamedTuple):
    """The words that are not rare, by id, and their counts ``(V,)`` int64."""

    words: list[str]
    counts: np.ndarray


def count_vocabulary(
    path: Path, min_count: int = 1, max_vocabulary: int | None = None, lower: bool = False
) -> Vocabulary:
    """Counts the words of a text."""
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
            f"'{found[0][0]}', has {checks.counted(found[0][1], 'occurrence')}"
        )
    return Vocabulary([word for word, _ in kept], np.array([count for _, count in kept]))


def find_border(path: Path, test_share: float) -> int:
    """Returns the offset of white space at which the last part of a text begins."""
    size = path.stat().st_size
    offset = round(size * (1 - test_share))
    with open_bytes(path) as file:
        file.seek(offset)
        piece = file.read(LONGEST)
    space = re.search(rb"\s", piece)
    if space is None and len(piece) == LONGEST:
        raise DataError(_TOO_LONG.format(path, offset))
    return offset + (space.start() if space else len(piece))


def read_words(path: Path, begin: int, end: int, lower: bool) -> Iterator[list[str]]:
    """Yields the words between two offsets of a text, in chunks."""
    rest = b""
    with (
        ProgressBar(total=end - begin, unit="B", unit_scale=True, desc=str(path)) as bar,
        open_bytes(path) as file,
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
                raise DataError(_TOO_LONG.format(path, offset + cut))
            rest = piece[cut:]
            decoded, bad = "", piece.find(b"\0", 0, cut)
            try:
                decoded = piece[:cut].decode()
            except UnicodeDecodeError as error:
                bad = error.start
            if bad >= 0:
                raise DataError(f"{path}: byte {offset + bad} does not belong to text in UTF-8")
            if offset == 0:
                decoded = decoded.removeprefix("\ufeff")  # The mark that some editors write.
            yield (decoded.lower() if lower else decoded).split()


def subsampled_ids(
    chunks: Iterable[list[str]], vocabulary: Vocabulary, subsample: float, key: np.uint64
) -> Iterator[np.ndarray]:
    """Yields the ids, int32, of the words that stay."""
    frequencies = vocabulary.counts / vocabulary.counts.sum()
    keep = np.sqrt(subsample / frequencies) if subsample else np.ones(len(frequencies))
    ids = {word: number for number, word in enumerate(vocabulary.words)}
    first = 0
    for words in chunks:
        numbers = np.fromiter(map(ids.get, words, itertools.repeat(-1)), np.int32, len(words))
        kept = np.empty_like(numbers)
        yield kept[: subsample_words(numbers, first, key, keep, kept)]
        first += len(words)


def skip_grams(chunks: Iterable[np.ndarray], window: int) -> Iterator[Block]:
    """Yields a row for each word that has other words in its window, which are its labels."""
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
    """Yields blocks of rows with one feature each, up to ``limit`` rows."""
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


def text(
    *,
    name: str,
    root: str | Path,
    file: str = TEXT8,
    cache: str | Path,
    window: int = 2,
    subsample: float = 1e-4,
    min_count: int = 5,
    max_vocabulary: int | None = None,
    lower: bool = False,
    test_share: float = 0.05,
    train_samples: int | None = None,
    test_samples: int | None = None,
    seed: int = 0,
    propensity: Sequence[float] = PROPENSITY,
    fetch: Fetch | None = None,
    hint: str = "",
) -> SparseDataset:
    """Opens the skip-grams of a text. The first time it reads the text twice, to count and to read.

    `slide.data.sources.text` describes the rows.

    Args:
        root, file: folder and name of the text, in UTF-8.
        window: words on either side, at least 1.
        subsample: words of a higher frequency (t in the paper) are subsampled; 0: no words are.
        min_count: a word with fewer occurrences is rare.
        max_vocabulary: of more words the others are rare, too; None: no limit.
        lower: read words in lower case.
        test_share: share of the bytes that is the test set, in (0, 1).
        train_samples, test_samples: the most rows of a part, from its beginning; None: all rows.
        seed: of the subsampling.
        propensity, fetch, hint: see `slide.data.xmc`; text8 alone is fetched.

    Raises:
        DataError: the file is not text in UTF-8, or too small for these arguments.

    Example:
        >>> import pathlib, tempfile
        >>> from slide.data import text
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "rose.txt").write_text("a rose is a rose is a rose " * 9)
        ...     data = text(name="rose", root=folder, file="rose.txt", cache=folder, subsample=0)
        >>> data.num_labels, data.train.features.indices[:4].tolist()
        (3, [0, 1, 2, 0])
    """
    check_folders(root=root, cache=cache)
    if not isinstance(file, str) or not file:
        raise ValueError(f"file must be the name of a file, not {file!r}")
    checks.whole("window", window, 1)
    checks.not_negative("subsample", subsample)
    checks.whole("min_count", min_count, 1)
    checks.flag("lower", lower)
    checks.whole("seed", seed, 0)
    checks.positive("test_share", test_share)
    checks.share("test_share", test_share)
    samples = {"train_samples": train_samples, "test_samples": test_samples}
    for option, value in {"max_vocabulary": max_vocabulary, **samples}.items():
        if value is not None:
            checks.whole(option, value, 1)
    path = Path(root) / file

    def check(folder: Path) -> None:
        if not (folder / file).stat().st_size:
            raise DataError(f"{folder / file}: the file is empty")

    ensure_files(Path(root), [file], hint, fetch if file == TEXT8 else None, check)
    vocabulary = functools.cache(lambda: count_vocabulary(path, min_count, max_vocabulary, lower))

    def rows(part: str) -> Iterator[Block]:
        size, border = path.stat().st_size, find_border(path, test_share)
        chunks = read_words(path, *((0, border) if part == "train" else (border, size)), lower)
        key = random_key(seed, ("train", "test").index(part))
        ids = subsampled_ids(chunks, vocabulary(), float(subsample), key)
        limit = samples[f"{part}_samples"]
        return first_rows(skip_grams(ids, window), limit, f"{path}: the {part} part")

    return cached(
        cache,
        name=name,
        key={
            "reader": "text",
            "version": TEXT_VERSION,
            "file": str(path.resolve()),
            "window": window,
            "subsample": float(subsample),
            "min_count": min_count,
            "max_vocabulary": max_vocabulary,
            "lower": lower,
            "test_share": float(test_share),
            **samples,
            "seed": seed,
        },
        state={"file": file_state(path)},
        blocks=rows,
        num_columns=lambda: (len(vocabulary().words),) * 2,
        extra=lambda: {
            "vocab.txt": "".join(f"{w} {n}\n" for w, n in zip(*vocabulary(), strict=True))
        },
        propensity=propensity,
    )
