"""Plain text as skip-grams: from a word to the words around it.

References:
    T. Mikolov et al., "Distributed representations of words and phrases and their
    compositionality", NIPS 2013: skip-grams in section 2, subsampling in section 2.3.
"""

import functools
import itertools
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from slide import checks, runtime
from slide.data.cache import cached
from slide.data.dataset import PROPENSITY, Block, SparseDataset
from slide.data.errors import DataError
from slide.data.fetching.fetch import Fetch, check_folders, ensure_files
from slide.kernels.subsample_words import subsample_words
from slide.sparse import CSR, Pattern

__all__ = ["VOCABULARY", "text"]

# Part of the cache's key: raised when the same arguments give other rows.
TEXT_VERSION = 1
# In the folder of the arrays: the lines ``word count`` of ids 0, 1, ...
VOCABULARY = "vocab.txt"
READ_BYTES = 4 << 20
CHUNK_LABELS = 1 << 20
LONGEST = 1 << 16  # bytes of a word; what has longer ones is no text
TEXT8 = "text8"  # http://mattmahoney.net/dc/textdata.html
WHITE_SPACE = b" \t\n\r\v\f"
TEXT_PARTS = ("train", "test")


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
    """Opens the skip-grams of a text; the first time it is read twice, for counts and for rows.

    Words are what stands between white space. Rare ones are left out. Of the others, an occurrence
    of a word of frequency f is left out with probability ``1 - sqrt(subsample / f)``; it is the
    number of the word in the text that decides, and the seed. Then windows are formed. A row is an
    occurrence that is left: its one feature, of value 1, is the id of the word, and its labels are
    the distinct ids, ascending, in the window around it.

    Ids number the words by falling count, equal counts in alphabetical order; ``vocab.txt`` in the
    folder of the result has a line ``word count`` for each. The last part of the text is the test
    set, and windows end at the border. Memory is bounded by the distinct words and by a chunk.

    Args:
        name: the data set's name.
        root, file: folder and name of the text, in UTF-8.
        cache: folder for the arrays.
        window: words on either side, at least 1.
        subsample: the frequency (t in the paper) above which words are thinned out; 0: none are.
        min_count: words with fewer occurrences are rare.
        max_vocabulary: words that are not among the first so many are rare, too; None: no limit.
        lower: read words in lower case.
        test_share: share of the bytes, in (0, 1).
        train_samples, test_samples: most rows, of the beginning of the part; None: all.
        seed: of the subsampling.
        propensity: constants a and b of propensity-scored metrics.
        fetch: puts text8 into ``root``, if that is the file and it is missing.
        hint: what to do by hand when the file is missing.

    Returns:
        The data set, over memory-mapped arrays; features and labels are the same ids.

    Raises:
        FileNotFoundError: there is no such file; says what to do.
        DataError: the file is not text in UTF-8, or too small for these arguments.
        ValueError: an argument is out of range.
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
    limits = {"train_samples": train_samples, "test_samples": test_samples}
    for option, limit in {"max_vocabulary": max_vocabulary, **limits}.items():
        if limit is not None:
            checks.whole(option, limit, 1)
    provider = fetch if file == TEXT8 else None
    ensure_files(Path(root), [file], provider, lambda folder: _check_not_empty(folder / file), hint)
    path = Path(root) / file
    stat = path.stat()

    @functools.cache
    def vocabulary() -> Vocabulary:
        return count_vocabulary(path, min_count, max_vocabulary, lower)

    def blocks(part: str) -> Iterator[Block]:
        border = find_border(path, test_share)
        begin, end = (0, border) if part == "train" else (border, stat.st_size)
        key = runtime.random_key(seed, TEXT_PARTS.index(part))
        words = read_words(path, begin, end, lower)
        rows = skip_grams(thin_out(words, vocabulary(), float(subsample), key), window)
        return first_rows(rows, limits[f"{part}_samples"], f"{path}: the {part} part")

    data = cached(
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
            **limits,
            "seed": seed,
        },
        state={"file": [stat.st_size, stat.st_mtime_ns]},
        num_features=lambda: len(vocabulary().words),
        num_labels=lambda: len(vocabulary().words),
        train=lambda: blocks("train"),
        test=lambda: blocks("test"),
        propensity=propensity,
    )
    assert data.folder is not None
    if not (data.folder / VOCABULARY).exists():
        _write_vocabulary(data.folder / VOCABULARY, vocabulary())
    return data


class Vocabulary(NamedTuple):
    """The words that are not rare, by id.

    Attributes:
        words: V words.
        counts: ``(V,)`` int64 occurrences in the text, falling.
    """

    words: list[str]
    counts: np.ndarray


def count_vocabulary(
    path: Path, min_count: int = 1, max_vocabulary: int | None = None, lower: bool = False
) -> Vocabulary:
    """Counts the words of a text.

    Raises:
        DataError: there are none, or all are rare.
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
    """The offset of white space at which the last part of a text begins.

    Raises:
        DataError: the word there is too long for one.
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


def read_words(
    path: Path, begin: int, end: int, lower: bool, chunk_bytes: int = READ_BYTES
) -> Iterator[list[str]]:
    """Yields the words between two offsets of a text, in chunks.

    Raises:
        DataError: the file is not in UTF-8, or a word is too long for one.
    """
    rest = b""
    with (
        tqdm(total=end - begin, unit="B", unit_scale=True, desc=str(path), disable=None) as bar,
        path.open("rb") as file,
    ):
        file.seek(begin)
        while begin < end and (piece := file.read(min(chunk_bytes, end - begin))):
            begin += len(piece)
            bar.update(len(piece))
            piece = rest + piece
            # Whole words: what follows the last white space belongs to the next piece.
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
                decoded = decoded.removeprefix("\ufeff")  # the mark that some editors write
            yield (decoded.lower() if lower else decoded).split()


def thin_out(
    chunks: Iterable[list[str]], vocabulary: Vocabulary, subsample: float, key: np.uint64
) -> Iterator[np.ndarray]:
    """Yields the ids, int32, of the words that stay (Mikolov et al. 2013, section 2.3).

    Args:
        chunks: consecutive words.
        vocabulary: other words are left out.
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


def skip_grams(chunks: Iterable[np.ndarray], window: int) -> Iterator[Block]:
    """Yields a row for each word that has others in its window, and these as labels.

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
    """The rows of all words but ``window`` at either end; -1 is no word."""
    around = np.lib.stride_tricks.sliding_window_view(words, 2 * window + 1)
    context = np.sort(np.delete(around, window, axis=1), axis=1)
    distinct = context >= 0
    distinct[:, 1:] &= context[:, 1:] != context[:, :-1]
    counts = distinct.sum(axis=1)
    centres = around[counts > 0, window]
    indptr = np.concatenate([[0], np.cumsum(counts[counts > 0])])
    features = CSR(np.arange(len(centres) + 1), centres, np.ones(len(centres), np.float32))
    return Block(features, Pattern(indptr, context[distinct]))


def first_rows(blocks: Iterable[Block], limit: int | None, source: str) -> Iterator[Block]:
    """Yields blocks of rows with one feature each, up to ``limit`` rows.

    Raises:
        DataError: there are no rows.
    """
    rows = 0
    for (indptr, indices, values), labels, _ in blocks:
        count = len(indices) if limit is None else min(len(indices), limit - rows)
        kept = labels.indptr[: count + 1]
        yield Block(
            CSR(indptr[: count + 1], indices[:count], values[:count]),
            Pattern(kept, labels.indices[: kept[-1]]),
        )
        rows += count
        if rows == limit:
            return
    if not rows:
        raise DataError(f"{source} has no two words that are neither rare nor thinned out")


def _write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    # A name of its own, for another process may be doing the same.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    lines = (f"{word} {count}\n" for word, count in zip(*vocabulary, strict=True))
    try:
        temporary.write_bytes("".join(lines).encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _check_not_empty(path: Path) -> None:
    if not path.stat().st_size:
        raise DataError(f"{path}: the file is empty")


def _too_long(path: Path, offset: int) -> DataError:
    return DataError(f"{path}: no white space for {LONGEST} bytes from byte {offset} on, no text")
