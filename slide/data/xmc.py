"""Data sets in the text format of the extreme classification repository.

The first line of a file is ``rows features labels``; each further line is a row
``label,label feature:value feature:value ...`` with numbers from 0. A row without labels begins
with a space.

References:
    K. Bhatia et al., "The extreme classification repository: multi-label datasets and code", 2016,
    http://manikvarma.org/downloads/XC/XMLRepository.html
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from tqdm import tqdm

from slide import checks
from slide.data.cache import cached
from slide.data.dataset import Block, SparseDataset
from slide.kernels import parse
from slide.sparse import CSR, Pattern

__all__ = ["DataError", "Header", "read_blocks", "read_header", "xmc"]

CHUNK_BYTES = 16 << 20
# Indices are int32, and so are the line numbers by which duplicates are found.
HEADER_LIMIT = 2**31 - 1
SHOWN = 40


class DataError(ValueError):
    """A data file that is not as it should be; the message begins with ``path:line: ``."""


class Header(NamedTuple):
    """The first line of a file.

    Attributes:
        rows: lines that follow.
        features: feature indices are in ``[0, features)``.
        labels: label indices are in ``[0, labels)``.
    """

    rows: int
    features: int
    labels: int


def xmc(
    *,
    name: str,
    root: str | Path,
    cache: str | Path,
    train_file: str = "train.txt",
    test_file: str = "test.txt",
    num_features: int | None = None,
    num_labels: int | None = None,
    train_samples: int | None = None,
    test_samples: int | None = None,
    hint: str = "",
    lenient: bool = False,
) -> SparseDataset:
    """Opens a data set given as two text files, parsing them the first time.

    Args:
        name: the data set's name.
        root: folder of the files; nothing is written into it.
        cache: folder for the parsed arrays.
        train_file, test_file: names of the files below ``root``.
        num_features, num_labels: expected counts of both files, if known.
        train_samples, test_samples: expected rows of the two files, if known.
        hint: what to fetch when a file is missing.
        lenient: leave malformed lines out instead of raising; their number is logged.

    Returns:
        The data set, over memory-mapped arrays.

    Raises:
        FileNotFoundError: ``root`` lacks a file; says what to fetch and where to put it.
        DataError: a file is malformed, or its counts are not the expected ones.
        ValueError: an argument is of another type.
    """
    for option, value in (("root", root), ("cache", cache)):
        if not isinstance(value, str | Path):
            raise ValueError(f"{option} must be the path of a folder, not {value!r}")
    checks.flag("lenient", lenient)
    paths = {"train": Path(root) / train_file, "test": Path(root) / test_file}
    for path in paths.values():
        if not path.is_file():
            place = f"Put {train_file} and {test_file} into the folder {Path(root)}."
            raise FileNotFoundError(" ".join(filter(None, [f"{path} is missing.", hint, place])))
    headers = {split: read_header(path) for split, path in paths.items()}
    for split, rows in (("train", train_samples), ("test", test_samples)):
        expected = Header(*_known(headers[split], rows, num_features, num_labels))
        _check_counts(paths[split], headers[split], expected, "were expected")
    same = headers["train"]._replace(rows=headers["test"].rows)
    _check_counts(paths["test"], headers["test"], same, f"are in {paths['train']}")

    def blocks(split: str) -> Iterator[Block]:
        return read_blocks(paths[split], lenient=lenient)

    stats = {split: path.stat() for split, path in paths.items()}
    return cached(
        cache,
        name=name,
        key={
            "reader": "xmc",
            "lenient": lenient,
            **{split: str(path.resolve()) for split, path in paths.items()},
        },
        state={split: [stat.st_size, stat.st_mtime_ns] for split, stat in stats.items()},
        num_features=headers["train"].features,
        num_labels=headers["train"].labels,
        train=lambda: blocks("train"),
        test=lambda: blocks("test"),
    )


def read_header(path: str | Path) -> Header:
    """Reads the first line of a file.

    Raises:
        DataError: the file is empty, or its first line is not three numbers in range.
    """
    with Path(path).open("rb") as file:
        line = file.readline()
    if not line.strip():
        what = "no header" if line else "the file is empty"
        raise DataError(f"{path}:1: {what}, 'rows features labels' was expected")
    fields = line.split()
    if len(fields) != 3 or not all(field.isdigit() for field in fields):
        raise DataError(f"{path}:1: header '{_shown(line)}' is not 'rows features labels'")
    header = Header(*map(int, fields))
    for field, value in zip(Header._fields, header, strict=True):
        if value > HEADER_LIMIT:
            raise DataError(f"{path}:1: header has {value} {field}, more than {HEADER_LIMIT}")
    return header


def read_blocks(
    path: str | Path, *, lenient: bool = False, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Block]:
    """Parses a file in chunks of whole lines.

    Memory is bounded by a few times the chunk and by the longest line.

    Args:
        path: the file.
        lenient: leave malformed lines out and count them.
        chunk_bytes: bytes to read at once.

    Yields:
        The rows of each chunk.

    Raises:
        DataError: a malformed line, or another number of rows than the header says.
    """
    path = Path(path)
    header = read_header(path)
    feature_stamps = np.zeros(header.features, np.int32)
    label_stamps = np.zeros(header.labels, np.int32)
    line = 0  # lines after the header that have been parsed
    blank = 0  # blank lines after those
    for chunk in _chunks(path, chunk_bytes):
        end = 0
        if line < header.rows:
            limit = header.rows - line
            block, end, status = _parse(chunk, limit, line, lenient, feature_stamps, label_stamps)
            line += block.features.num_rows + block.skipped
            if status != parse.OK:
                _raise_bad_line(f"{path}:{line + 2}", chunk, end, status, header)
            yield block
        if line == header.rows:
            rest = chunk[end:].lstrip(b"\r\n")
            blank += chunk.count(b"\n", end, len(chunk) - len(rest))
            if rest:
                raise DataError(
                    f"{path}:{line + blank + 2}: row {line + 1}, but the header has {header.rows}"
                )
    if line < header.rows:
        raise DataError(f"{path}:1: header has {header.rows} rows, but the file has {line}")


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    """Yields the lines after the first one in pieces that end with a line feed."""
    bar = tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=str(path), disable=None)
    with path.open("rb") as file, bar:
        bar.update(len(file.readline()))
        pieces = []  # of a line that is longer than all that has been read of it
        while piece := file.read(size):
            cut = piece.rfind(b"\n") + 1
            if cut:
                yield b"".join([*pieces, piece[:cut]])
                pieces = []
            pieces.append(piece[cut:])
            bar.update(len(piece))
        if any(pieces):
            yield b"".join([*pieces, b"\n"])


def _parse(
    chunk: bytes,
    max_lines: int,
    first_line: int,
    lenient: bool,
    feature_stamps: np.ndarray,
    label_stamps: np.ndarray,
) -> tuple[Block, int, int]:
    """Returns the rows of a chunk, the offset at which they end, and the status there."""
    lines = min(chunk.count(b"\n"), max_lines)
    room = chunk.count(b":")
    features = CSR(np.empty(lines + 1, np.int64), np.empty(room, np.int32), np.empty(room, "f4"))
    label_room = chunk.count(b",") + lines
    labels = Pattern(np.empty(lines + 1, np.int64), np.empty(label_room, np.int32))
    rows, skipped, end, status = parse.parse_rows(
        np.frombuffer(chunk, np.uint8),
        max_lines,
        first_line + 1,
        lenient,
        feature_stamps,
        label_stamps,
        *features,
        *labels,
    )
    features = CSR(
        features.indptr[: rows + 1],
        features.indices[: features.indptr[rows]],
        features.values[: features.indptr[rows]],
    )
    labels = Pattern(labels.indptr[: rows + 1], labels.indices[: labels.indptr[rows]])
    return Block(features, labels, skipped), end, status


def _raise_bad_line(place: str, chunk: bytes, at: int, status: int, header: Header) -> NoReturn:
    """Says what is wrong with the token at an offset."""
    begin = max(chunk.rfind(space, 0, at) for space in (b" ", b"\t", b"\n")) + 1
    word, number = (_shown(_first_word(chunk[i : chunk.index(b"\n", at)])) for i in (begin, at))
    feature, _, value = number.partition(":")
    label = number.partition(",")[0]
    if status == parse.MALFORMED_FEATURE and _is_not_finite(value):
        status = parse.NOT_FINITE
    problems = {
        parse.MALFORMED_LABEL: f"malformed labels '{word}', 'label,label' was expected"
        " (a row without labels begins with a space)",
        parse.MALFORMED_FEATURE: f"malformed feature '{word}', 'feature:value' was expected",
        parse.LABEL_RANGE: f"label {label} is not in [0, {header.labels})",
        parse.FEATURE_RANGE: f"feature {feature} is not in [0, {header.features})",
        parse.NOT_FINITE: f"value {value} of feature {feature} is not a finite float32"
        f" (at most {np.finfo(np.float32).max:.7e})",
        parse.DUPLICATE_LABEL: f"label {label} occurs more than once in the row",
        parse.DUPLICATE_FEATURE: f"feature {feature} occurs more than once in the row",
    }
    raise DataError(f"{place}: {problems[status]}")


def _first_word(text: bytes) -> bytes:
    return text.split(None, 1)[0] if text.strip() else b""


def _is_not_finite(value: str) -> bool:
    try:
        return not math.isfinite(float(value))
    except ValueError:
        return False


def _known(header: Header, *expected: int | None) -> list[int]:
    return [a if e is None else e for a, e in zip(header, expected, strict=True)]


def _check_counts(path: Path, header: Header, expected: Header, why: str) -> None:
    for field, found, wanted in zip(Header._fields, header, expected, strict=True):
        if found != wanted:
            raise DataError(f"{path}:1: header has {found} {field}, but {wanted} {why}")


def _shown(text: bytes) -> str:
    shown = text.decode("utf-8", "replace").strip()
    return shown if len(shown) <= SHOWN else shown[:SHOWN] + "..."
