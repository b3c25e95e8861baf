"""A data set from the package index of a Debian or Ubuntu machine: what a package needs.

A row is a package that needs others. Its features are its tags and the words, in lower case, of its
name, description, section and maintainer's name; the same word in two of these fields is two
features. Values are tf-idf weights of counts, from the training rows, and rows have L2 norm 1. Its
labels are the packages that it depends on, pre-depends on or recommends, with all alternatives.
The first entry of a package counts if there are more. Features and labels are numbered in
alphabetical order.

References:
    Debian Policy Manual, sections 5.1 (syntax of control files) and 7.1 (relations),
    https://www.debian.org/doc/debian-policy/
"""

import bz2
import gzip
import lzma
import os
import re
import shutil
import subprocess
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from slide import checks
from slide.bars import Bar
from slide.data.dataset import Split, holdout
from slide.data.errors import DataError
from slide.data.fetching.fetch import Check, FetchError
from slide.data.formats.text_writer import write_xmc
from slide.data.transform_steps import (
    normalize_rows,
    row_counts,
    tf_idf_values,
    tf_idf_weights,
)
from slide.sparse import CSR, Pattern

__all__ = ["build_debian", "read_packages"]

BUILT_FILES = ("train.txt", "test.txt")
BUILD_FOLDER = ".build"
COMMAND = ("apt-cache", "dumpavail")
OPENERS = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
RELATIONS = ("Depends", "Pre-Depends", "Recommends")
# The name in each alternative of a relation; a version, architecture or profile may follow it.
NEEDED = re.compile(r"(?:^|[,|])\s*([^\s,|:(\[<]+)")
ADDRESS = re.compile(r"<[^>]*>$")
WORD = re.compile(r"[^\W_]+")
TAG = re.compile(r"[^\s,]+")
DESCRIBING = {
    **dict.fromkeys(("Package", "Description", "Section", "Maintainer"), WORD),
    "Tag": TAG,
}
ARCHIVED = "Filename"  # The place of a package in an archive.
FIELDS = {*RELATIONS, *DESCRIBING, ARCHIVED}
SHOWN_LINE = 40


def build_debian(
    root: Path,
    check: Check,
    *,
    index: str | Path | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    min_rows: int = 2,
) -> None:
    r"""Builds ``train.txt`` and ``test.txt``, in XMC text format, from an index of packages.

    `slide.data.sources.debian` describes the rows. Readers such as `slide.data.xmc` call this as
    their ``fetch``.

    Args:
        root: folder for the files; neither may be there.
        check: called with a folder of the files before they get their place.
        index: a file of entries (``Packages``), plain or packed by gzip, bzip2 or xz; None: the
            index of this machine, as ``apt-cache dumpavail`` prints it.
        test_share: share of the rows that is the test set, drawn at random, in (0, 1).
        seed: of the draw.
        min_rows: a feature of fewer training rows is left out.

    Raises:
        FetchError: there is no index, or one of the files is there already; or ``check`` refuses
            the files.
        DataError: ``index`` is no such file, or holds too few packages.
        ValueError: an argument is out of range.

    Example:
        >>> import functools, pathlib, tempfile
        >>> from slide.data import build_debian, xmc
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     index = pathlib.Path(folder, "Packages")
        ...     _ = index.write_text("\n".join(f"Package: a{i}\nDepends: b\n" for i in range(9)))
        ...     fetch = functools.partial(build_debian, index=index)
        ...     data = xmc(name="mine", root=folder, cache=folder, fetch=fetch)
        >>> len(data.train), len(data.test), data.num_labels
        (7, 2, 1)
    """
    checks.whole("seed", seed, 0)
    checks.whole("min_rows", min_rows, 1)
    checks.positive("test_share", test_share)
    checks.share("test_share", test_share)
    for name in BUILT_FILES:
        if (root / name).exists():
            raise FetchError(f"  {root / name} is there; both files are built, or none")
    train, test = weigh_counts(*holdout(_read_rows(index), test_share, seed), min_rows)
    work = root / BUILD_FOLDER
    shutil.rmtree(work, ignore_errors=True)  # Of a process that was killed.
    work.mkdir()
    try:
        for name, part in zip(BUILT_FILES, (train, test), strict=True):
            write_xmc(work / name, part)
        _check_built(work, check)
        for name in BUILT_FILES:
            (work / name).rename(root / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _read_rows(index: str | Path | None) -> Split:
    """Reads an index; raises an error if it has too few packages."""
    with _opened_index(index) as lines:
        entries = read_packages(lines, str(index or " ".join(COMMAND)))
        # apt also names packages that are installed but in none of its archives.
        known = (entry for entry in entries if index is not None or ARCHIVED in entry)
        rows = count_packages(Bar(known, unit=" packages"))
    if len(rows) < 2:
        raise _too_few(index, len(rows))
    return rows


def read_packages(lines: Iterable[bytes], source: str) -> Iterator[dict[str, str]]:
    """Yields the entries of an index, as dictionaries of the fields of `FIELDS`.

    Args:
        lines: lines of the index.
        source: name of the index, for messages.

    Raises:
        DataError: a line is neither ``Field: value`` nor the continuation of one.
    """
    entry: dict[str, str] = {}
    field = ""
    for number, line in enumerate(lines, 1):
        text = line.decode("utf-8", "replace").rstrip()
        if not text:
            if entry:
                yield entry
            entry, field = {}, ""
        elif text[0] in " \t" and field:
            if field in entry:
                entry[field] += text
        else:
            field, colon, value = text.partition(":")
            if not colon or not field or field[0] in " \t":
                raise DataError(f"{source}:{number}: '{text[:SHOWN_LINE]}' is not 'Field: value'")
            if field in FIELDS:
                entry[field] = value.strip()
    if entry:
        yield entry


def needed_packages(entry: dict[str, str]) -> set[str]:
    """Returns the packages that an entry depends on or recommends, with all alternatives."""
    return {name for field in RELATIONS for name in NEEDED.findall(entry.get(field, ""))}


def package_words(entry: dict[str, str]) -> Counter[tuple[str, str]]:
    """Counts the words of each field, as ``{(field, word): count}``."""
    counts: Counter[tuple[str, str]] = Counter()
    for field, pattern in DESCRIBING.items():
        text = entry.get(field, "")
        if field == "Maintainer":
            text = ADDRESS.sub("", text)
        counts.update((field, word) for word in pattern.findall(text.lower()))
    return counts


def count_packages(entries: Iterable[dict[str, str]]) -> Split:
    """Makes a row of each package that needs others: counts of words, and labels."""
    seen: set[str] = set()
    features, labels = _Rows(), _Rows()
    for entry in entries:
        name, needed = entry.get("Package"), needed_packages(entry)
        if name and needed and name not in seen:
            seen.add(name)
            features.append(package_words(entry))
            labels.append(dict.fromkeys(needed, 1))
    counts, (indptr, indices, _) = features.matrix(), labels.matrix()
    return Split(counts, Pattern(indptr, indices), len(features.numbers), len(labels.numbers))


def weigh_counts(train: Split, test: Split, min_rows: int) -> tuple[Split, Split]:
    """Turns counts into tf-idf weights, from the training rows, of rows of length 1.

    Args:
        train, test: rows of counts.
        min_rows: features of fewer training rows are left out; the others get new numbers.
    """
    counts = row_counts(train.features, train.num_features)
    kept = counts >= min_rows
    numbers = (np.cumsum(kept) - 1).astype(np.int32)
    weights = tf_idf_weights(counts[kept], len(train))

    def weighed(part: Split) -> Split:
        indptr, indices, values = part.features
        stays = kept[indices]
        # The number of entries before each one that stay, and so of those before each row.
        before = np.concatenate([[0], np.cumsum(stays)])
        features = CSR(before[indptr], numbers[indices[stays]], values[stays])
        features = normalize_rows(tf_idf_values(features, weights))
        return Split(features, part.labels, len(weights), part.num_labels)

    return weighed(train), weighed(test)


class _Rows:
    """Collects the rows of a sparse matrix whose columns have names."""

    def __init__(self) -> None:
        self.numbers: dict = {}  # The number of each name, in the order of appearance.
        self._lengths = array("q", [0])
        self._columns = array("i")
        self._values = array("f")

    def append(self, row: dict) -> None:
        """Appends a row, ``{name of a column: value}``."""
        self._lengths.append(len(row))
        self._columns.extend(self.numbers.setdefault(name, len(self.numbers)) for name in row)
        self._values.extend(row.values())

    def matrix(self) -> CSR:
        """Returns all rows. Columns are in the order of their names, and ascend in each row."""
        alphabet = np.empty(len(self.numbers), np.int32)
        for place, name in enumerate(sorted(self.numbers)):
            alphabet[self.numbers[name]] = place
        indptr = np.cumsum(self._lengths)
        columns = alphabet[np.array(self._columns, np.int32)]
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        order = np.lexsort((columns, rows))
        return CSR(indptr, columns[order], np.array(self._values, np.float32)[order])


@contextmanager
def _opened_index(index: str | Path | None) -> Iterator[Iterable[bytes]]:
    """Opens the lines of an index; None: the index of this machine."""
    if index is not None:
        path = Path(index)
        if not path.is_file():
            raise FetchError(f"  there is no index {path}")
        with path.open("rb") as file:
            opener = OPENERS.get(file.read(2))
        with opener(path) if opener else path.open("rb") as file:
            try:
                yield file
            except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
                raise DataError(f"{path}: it cannot be unpacked: {error}") from error
        return
    try:
        process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE)
    except OSError as error:
        raise FetchError(
            f"  {COMMAND[0]} cannot be run: {error.strerror}; on a machine without apt, an index "
            "of packages (Packages.xz of a Debian mirror) can be given by dataset.fetch.index"
        ) from error
    assert process.stdout is not None
    with process:
        yield process.stdout
    if process.returncode:
        raise FetchError(f"  {' '.join(COMMAND)} ended with code {process.returncode}, see above")


def _check_built(folder: Path, check: Check) -> None:
    try:
        check(folder)
    except ValueError as error:
        said = str(error).replace(f"{folder}{os.sep}", "")
        raise FetchError(f"  the package index gives something else: {said}") from error


def _too_few(index: str | Path | None, rows: int) -> Exception:
    what = f"{rows} packages that depend on others"
    if index is not None:
        return DataError(f"{index}: it has {what}, at least 2 are needed")
    return FetchError(f"  {' '.join(COMMAND)} names {what}; apt-get update fetches the index")
