"""What files/prepare.py and sources/prepare.py share: an index of contents becomes a data set.

A row is a directory of files of packages. Its features are the parts of its path, their words in
lower case, and the packages that have files in it; all values are 1. Its labels are the names of
these files; only names of files in at least two directories are labels, and directories without
such a file have no row. Features and labels are numbered in alphabetical order.

References:
    Debian repository format (wiki page DebianRepository/Format), "Contents" indices
"""

import re
import subprocess
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from package_index import (
    SHOWN_LINE,
    WORD,
    NamedRows,
    check_request,
    command_output,
    keep_features,
    opened_file,
    write_files,
)

from slide.data.dataset import Split, holdout
from slide.data.errors import DataError
from slide.data.fetching import FetchError
from slide.data.row_transform import row_counts
from slide.sparse import Pattern
from slide.utils.progress_bar import ProgressBar

# Prints where apt keeps the indexes of contents of this machine, which apt-file uses, too.
PLACES = ("apt-get", "indextargets", "--format", "$(FILENAME)")
# Prints a file that apt keeps, however it is packed.
READER = ("/usr/lib/apt/apt-helper", "cat-file")
INSTEAD = (
    "on a machine without apt, an index of contents (Contents-amd64.gz or Contents-source.gz of a "
    "Debian mirror) can be given by --index"
)
# Older indexes begin with a text that ends with this line.
HEADER = re.compile(rb"^FILE +LOCATION$")


def prepare(
    root: Path,
    index: Path | None = None,
    *,
    kind: str,
    test_share: float,
    seed: int = 0,
    min_rows: int = 2,
    most_labels: int = 30,
) -> None:
    """Write ``train.txt`` and ``test.txt``, in XMC text format, from an index of contents.

    Args:
        root: folder for the files; neither may be there.
        index: a file of lines ``path package,package`` (``Contents-amd64``), plain or packed by
            gzip, bzip2 or xz; None: the indexes that apt keeps on this machine.
        kind: apt's identifier of these indexes: Contents-deb (packages) or Contents-dsc (sources).
        test_share: share of the rows that is drawn as test rows, in (0, 1).
        seed: of all draws.
        min_rows: a feature of fewer training rows is left out.
        most_labels: of more labels of a row this number is drawn.
    """
    counts = {"seed": (seed, 0), "min_rows": (min_rows, 1), "most_labels": (most_labels, 1)}
    check_request(root, test_share, **counts)
    source = "the index of contents" if index is None else str(index)
    opened = opened_file(index) if index else command_output((*READER, *_places(kind)), INSTEAD)
    with opened as lines:
        directories, names = read_contents(ProgressBar(lines, unit=" lines"), source)
    rows = rows_of(directories, names, most_labels, seed)
    if len(rows) < 2:
        raise DataError(
            f"{source}: {len(rows)} directories have files that other directories have, too, at "
            "least 2 are needed"
        )
    train, test = holdout(rows, test_share, seed)
    kept = row_counts(train.features, train.num_features) >= min_rows
    write_files(root, keep_features(train, kept), keep_features(test, kept))


class Directory:
    """What an index says of a directory: the numbers of its files' names, and its packages."""

    __slots__ = ("files", "packages")

    def __init__(self) -> None:
        self.files, self.packages = array("i"), set[str]()


def read_contents(
    lines: Iterable[bytes], source: str
) -> tuple[dict[str, Directory], dict[str, int]]:
    """The directories of an index by their paths, and the number of each name of a file.

    A line is ``path package,package``; a package may have its section before it.
    """
    directories: dict[str, Directory] = {}
    names: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.decode("utf-8", "replace").rstrip()
        if not text:
            continue
        if HEADER.match(line.rstrip()):
            directories, names = {}, {}
            continue
        try:
            path, packages = text.rsplit(None, 1)
        except ValueError:
            said = f"{source}:{number}: '{text[:SHOWN_LINE]}' is not 'path package'"
            raise DataError(said) from None
        folder, _, name = path.rpartition("/")
        found = directories.get(folder)
        if found is None:
            found = directories[folder] = Directory()
        found.files.append(names.setdefault(name, len(names)))
        found.packages.update(each.rpartition("/")[2] for each in packages.split(","))
    return directories, names


def rows_of(
    directories: dict[str, Directory], names: dict[str, int], most_labels: int, seed: int
) -> Split:
    """A row of each directory with a file whose name another directory has, too."""
    # Several packages may have a file of one path.
    own = {path: np.unique(each.files) for path, each in directories.items()}
    counts = np.zeros(len(names), np.int64)
    for files in own.values():
        counts[files] += 1
    text, rng = list(names), np.random.default_rng(seed)
    features, labels = NamedRows(), NamedRows()
    for path, files in own.items():
        shared = files[counts[files] > 1]
        if len(shared) > most_labels:
            shared = rng.choice(shared, most_labels, replace=False)
        if len(shared):
            features.append(dict.fromkeys(described(path, directories[path].packages), 1))
            labels.append({text[number]: 1 for number in shared})
    values, (indptr, indices, _) = features.matrix(), labels.matrix()
    return Split(values, Pattern(indptr, indices), len(features.numbers), len(labels.numbers))


def described(path: str, packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The features of a directory: parts of its path, their words, and packages."""
    for part in path.strip("/").split("/"):
        yield "part", part
        for word in WORD.findall(part.lower()):
            yield "word", word
    for package in packages:
        yield "package", package


def _places(kind: str) -> list[str]:
    asked = (*PLACES, f"Identifier: {kind}")
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    except OSError as error:
        raise FetchError(f"  {PLACES[0]} cannot be run: {error.strerror}; {INSTEAD}") from error
    except subprocess.CalledProcessError as error:
        raise FetchError(f"  {PLACES[0]} {PLACES[1]} failed: {error.stderr.strip()}") from error
    places = [line for line in found.splitlines() if Path(line).is_file()]
    if not places:
        raise FetchError(
            f"  apt has no index {kind}: apt-get install apt-file, then apt-get update, fetches it "
            "(Contents-dsc if apt's sources list source packages, and its configuration enables it)"
        )
    return places
