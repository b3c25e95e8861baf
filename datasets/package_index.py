"""What programs that read an index of apt share: index files, named columns, XMC files."""

import argparse
import lzma
import re
import subprocess
import sys
import tempfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from slide.data.archives import decompressed
from slide.data.dataset import Split
from slide.data.errors import DataError
from slide.data.fetching import FetchError
from slide.data.row_files import write_xmc
from slide.sparse import CSR, Pattern
from slide.utils import checks

BUILT_FILES = ("train.txt", "test.txt")
# Share of the rows that become test rows.
SHARES = {"debian": 0.2, "files": 0.04, "sources": 0.02}
WORD = re.compile(r"[^\W_]+")
# Characters of a bad line that a message shows.
SHOWN_LINE = 40


class NamedRows:
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
        columns = Pattern(indptr, alphabet[np.array(self._columns, np.int32)])
        order = np.lexsort((columns.indices, columns.entry_rows()))
        return CSR(indptr, columns.indices[order], np.array(self._values, np.float32)[order])


def keep_features(split: Split, kept: np.ndarray) -> Split:
    """The rows with some of their D features, ``kept`` ``(D,)`` bool, which get new numbers."""
    left = split.features.keep(kept[split.features.indices])
    numbers = (np.cumsum(kept) - 1).astype(np.int32)
    features = left._replace(indices=numbers[left.indices])
    return Split(features, split.labels, int(kept.sum()), split.num_labels)


def check_request(root: Path, test_share: float, **counts: tuple[int, int]) -> None:
    """Check the arguments of a command: ``counts`` are whole numbers, each with its least value.

    Raises ValueError for a number out of range, and FileExistsError if ``root`` has a file already.
    """
    for name, (value, least) in counts.items():
        checks.whole(name, value, least)
    checks.positive("test_share", test_share)
    checks.share("test_share", test_share)
    for name in BUILT_FILES:
        if (root / name).exists():
            raise FileExistsError(f"{root / name} is there; both files are written, or none")


def write_files(root: Path, train: Split, test: Split) -> None:
    """Write both files, which appear in ``root`` when they are complete."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as work:
        for name, part in zip(BUILT_FILES, (train, test), strict=True):
            write_xmc(Path(work) / name, part)
        for name in BUILT_FILES:
            (Path(work) / name).rename(root / name)


def run(prepare: Callable[..., None], about: str, root: Path, **counts: int) -> None:
    """The command line of a data set, which calls ``prepare`` with the options by name.

    ``root`` and ``counts``, whole numbers, are the defaults of options.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--root", type=Path, default=root, help="folder of the files")
    parser.add_argument("--index", type=Path, help="an index; without it, that of this machine")
    parser.add_argument("--test-share", type=float, default=SHARES[root.name], help="in (0, 1)")
    for name, value in counts.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    try:
        prepare(**vars(parser.parse_args()))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {str(error).strip()}")


@contextmanager
def opened_file(path: Path) -> Iterator[Iterable[bytes]]:
    """The lines of an index, plain or packed by gzip, bzip2 or xz."""
    if not path.is_file():
        raise FetchError(f"  there is no index {path}")
    with path.open("rb") as file, decompressed(file) as lines:
        try:
            yield lines
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            raise DataError(f"{path}: it cannot be unpacked: {error}") from error


@contextmanager
def command_output(command: Sequence[str], instead: str) -> Iterator[Iterable[bytes]]:
    """The lines that a program prints; FetchError, which says what to do ``instead``."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
    except OSError as error:
        raise FetchError(f"  {command[0]} cannot be run: {error.strerror}; {instead}") from error
    assert process.stdout is not None
    with process:
        yield process.stdout
    if process.returncode:
        raise FetchError(f"  {' '.join(command)} ended with code {process.returncode}, see above")
