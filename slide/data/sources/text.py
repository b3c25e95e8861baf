"""Plain text as skip-grams: from a word to the words around it.

White space separates words. Rare words are left out. An occurrence of another word, of frequency f,
is left out with probability ``1 - sqrt(subsample / f)``; the seed and the number of the word in the
text decide. Then windows are formed. A row is an occurrence that stays: its only feature, of value
1, is the id of the word, and its labels are the distinct ids, ascending, of the words in the window
around it.

Ids number the words by descending count, and words of the same count in alphabetical order.
``vocab.txt`` in the folder of the arrays has a line ``word count`` for each id. The last part of
the text is the test set, and windows end at the border.

References:
    T. Mikolov et al., "Distributed representations of words and phrases and their
    compositionality", NIPS 2013: skip-grams in section 2, subsampling in section 2.3.
"""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from slide.data.cache import cached
from slide.data.dataset import PROPENSITY, Block, SparseDataset
from slide.data.errors import DataError
from slide.data.fetching.fetch import Fetch, check_folders, ensure_files
from slide.data.sources import words
from slide.data.sources.skip_grams import first_rows, skip_grams
from slide.utils import checks
from slide.utils.files import file_state
from slide.utils.random_keys import random_key

__all__ = ["VOCABULARY", "text"]

# Part of the cache's key. Increase it when the same arguments give other rows.
TEXT_VERSION = 1
# A file beside the arrays: the lines ``word count`` of ids 0, 1, ...
VOCABULARY = "vocab.txt"
TEXT8 = "text8"  # http://mattmahoney.net/dc/textdata.html
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
    """Opens the skip-grams of a text. The first time it reads the text twice, to count and to read.

    `slide.data.sources.text` describes the rows. Memory is bounded by the distinct words and by a
    chunk of the text.

    Args:
        name: the data set's name.
        root, file: folder and name of the text, in UTF-8.
        cache: folder for the arrays.
        window: words on either side, at least 1.
        subsample: words of a higher frequency (t in the paper) are subsampled; 0: no words are.
        min_count: a word with fewer occurrences is rare.
        max_vocabulary: a word after the first so many is rare, too; None: no limit.
        lower: read words in lower case.
        test_share: share of the bytes that is the test set, in (0, 1).
        train_samples, test_samples: the most rows of a part, from its beginning; None: all rows.
        seed: of the subsampling.
        propensity: constants a and b of propensity-scored metrics.
        fetch: puts text8 into ``root`` if that is the file and it is missing.
        hint: what the user can do when the file is missing.

    Returns:
        The data set, over memory-mapped arrays; features and labels are the same ids.

    Raises:
        FileNotFoundError: there is no such file; the message says what to do.
        DataError: the file is not text in UTF-8, or too small for these arguments.
        ValueError: an argument is out of range.

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
    options = _TextOptions(
        window, subsample, min_count, max_vocabulary, lower, test_share, train_samples,
        test_samples, seed,
    )  # fmt: skip
    options.check()
    provider = fetch if file == TEXT8 else None
    path = Path(root) / file
    ensure_files(Path(root), [file], provider, lambda folder: _check_not_empty(folder / file), hint)
    return _open_text(path, options, cache, name, propensity)


class _TextOptions(NamedTuple):
    """The arguments of `text` that determine the rows."""

    window: int
    subsample: float
    min_count: int
    max_vocabulary: int | None
    lower: bool
    test_share: float
    train_samples: int | None
    test_samples: int | None
    seed: int

    def check(self) -> None:
        """Raises ValueError for an option that is out of range."""
        checks.whole("window", self.window, 1)
        checks.not_negative("subsample", self.subsample)
        checks.whole("min_count", self.min_count, 1)
        checks.flag("lower", self.lower)
        checks.whole("seed", self.seed, 0)
        checks.positive("test_share", self.test_share)
        checks.share("test_share", self.test_share)
        for option in ("max_vocabulary", "train_samples", "test_samples"):
            if getattr(self, option) is not None:
                checks.whole(option, getattr(self, option), 1)

    def rows_of(self, path: Path, part: str, vocabulary: words.Vocabulary) -> Iterator[Block]:
        """Yields the rows of the training or the test part of a text."""
        size, border = path.stat().st_size, words.find_border(path, self.test_share)
        begin, end = (0, border) if part == "train" else (border, size)
        key = random_key(self.seed, TEXT_PARTS.index(part))
        chunks = words.read_words(path, begin, end, self.lower)
        ids = words.subsampled_ids(chunks, vocabulary, float(self.subsample), key)
        limit = self.train_samples if part == "train" else self.test_samples
        return first_rows(skip_grams(ids, self.window), limit, f"{path}: the {part} part")


def _open_text(
    path: Path, options: _TextOptions, cache: str | Path, name: str, propensity: Sequence[float]
) -> SparseDataset:
    """Opens the cache of a text."""
    numbers = {"subsample": float(options.subsample), "test_share": float(options.test_share)}

    @functools.cache
    def vocabulary() -> words.Vocabulary:
        return words.count_vocabulary(
            path, options.min_count, options.max_vocabulary, options.lower
        )

    return cached(
        cache,
        name=name,
        key={
            "reader": "text",
            "version": TEXT_VERSION,
            "file": str(path.resolve()),
            **options._asdict(),
            **numbers,
        },
        state={"file": file_state(path)},
        num_features=lambda: len(vocabulary().words),
        num_labels=lambda: len(vocabulary().words),
        train=lambda: options.rows_of(path, "train", vocabulary()),
        test=lambda: options.rows_of(path, "test", vocabulary()),
        extra=lambda: {VOCABULARY: _lines(vocabulary())},
        propensity=propensity,
    )


def _lines(vocabulary: words.Vocabulary) -> str:
    return "".join(f"{word} {count}\n" for word, count in zip(*vocabulary, strict=True))


def _check_not_empty(path: Path) -> None:
    if not path.stat().st_size:
        raise DataError(f"{path}: the file is empty")
