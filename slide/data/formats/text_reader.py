"""Reads text files that have a row in each line: ``label,label feature:value feature:value ...``.

There are two variants. Files of the extreme classification repository (XMC) begin with a line
``rows features labels``, and their columns begin at 0. Files of svmlight have comments instead, and
columns of features that mostly begin at 1. In both, a row without labels begins with a space.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

import numpy as np

from slide.data.dataset import Block
from slide.data.errors import DataError, check_not_compressed, out_of_range
from slide.kernels import parse_rows as parse
from slide.sparse import CSR, Pattern
from slide.utils import checks
from slide.utils.progress_bar import ProgressBar

__all__ = [
    "MAX_INDEX",
    "VARIANTS",
    "XMC",
    "Sizes",
    "Variant",
    "count_rows",
    "parse_header",
    "parse_text",
    "read_header",
    "read_text_blocks",
    "text_variant",
]

PARSED_BYTES = 16 << 20
MAX_INDEX = 2**31 - 1  # The most rows or columns: indices are int32.
SHOWN_CHARACTERS = 40
_EMPTY = b"\n", b"\r\n", b"\r"


class Sizes(NamedTuple):
    """The sizes of a file, found or expected. None: not known before the file has been read.

    Attributes:
        rows: rows of features and labels.
        features: feature columns.
        labels: label columns.
    """

    rows: int | None = None
    features: int | None = None
    labels: int | None = None


class Variant(NamedTuple):
    """What the lines of a file mean.

    Attributes:
        header: the first line is ``rows features labels``. In a file without it, the text after a
            ``#`` is a comment. A line that is empty, or a comment, is not a row; one of white space
            alone is an empty row.
        first_feature, first_label: the number of the first column.
    """

    header: bool
    first_feature: int = 0
    first_label: int = 0


XMC = Variant(header=True)
VARIANTS = {"xmc": XMC, "svmlight": Variant(header=False, first_feature=1)}


def text_variant(format: str, first_feature: int | None, first_label: int | None) -> Variant:
    """Returns the variant of a name. Numbers that are not None replace those of the variant.

    Raises:
        ValueError: there is no such variant, or a number is out of range.
    """
    checks.one_of("format", format, VARIANTS)
    variant = VARIANTS[format]
    for field, number in (("first_feature", first_feature), ("first_label", first_label)):
        if number is not None:
            checks.whole(field, number, 0)
            checks.within(field, number, 0, MAX_INDEX)
            variant = variant._replace(**{field: number})
    return variant


def read_header(path: str | Path) -> Sizes:
    """Reads the first line of a file that has a header.

    Raises:
        DataError: the file is empty, or its first line is not three numbers in range.
    """
    with Path(path).open("rb") as file:
        return parse_header(file.readline(), str(path))


def parse_header(line: bytes, path: str) -> Sizes:
    """Parses the first line of a file that has a header.

    Raises:
        DataError: the line is empty, or not three numbers in range.
    """
    if not line.strip():
        what = "no header" if line else "the file is empty"
        raise DataError(f"{path}:1: {what}, 'rows features labels' was expected")
    check_not_compressed(line, path)
    fields = line.split()
    if len(fields) != 3 or not all(field.isdigit() for field in fields):
        raise DataError(f"{path}:1: header '{_shown_text(line)}' is not 'rows features labels'")
    # Python converts no number of thousands of digits. The first digits exceed the limit as well.
    counts = [int(field.lstrip(b"0")[:SHOWN_CHARACTERS] or b"0") for field in fields]
    for name, count in zip(Sizes._fields, counts, strict=True):
        if count > MAX_INDEX:
            raise DataError(f"{path}:1: header has {count} {name}, more than {MAX_INDEX}")
    return Sizes(*counts)


def read_text_blocks(
    path: str | Path,
    variant: Variant = XMC,
    sizes: Sizes | None = None,
    *,
    lenient: bool = False,
    chunk_bytes: int = PARSED_BYTES,
) -> Iterator[Block]:
    """Parses a text file in chunks of whole lines.

    Memory is bounded by a few times the chunk, or the longest line.

    Args:
        path: the file.
        variant: what its lines mean.
        sizes: the expected sizes; unknown ones are not checked. A header replaces them.
        lenient: leave malformed lines out and count them.
        chunk_bytes: bytes to read at once.

    Yields:
        The rows of each chunk.

    Raises:
        DataError: a malformed line, or another number of rows than expected.
    """
    path = Path(path)
    with path.open("rb") as file:
        options = {"lenient": lenient, "chunk_bytes": chunk_bytes}
        yield from parse_text(file, str(path), variant, sizes, path.stat().st_size, **options)


def parse_text(
    file: IO[bytes],
    path: str,
    variant: Variant,
    sizes: Sizes | None = None,
    num_bytes: int | None = None,
    *,
    cut: bool = False,
    lenient: bool = False,
    chunk_bytes: int = PARSED_BYTES,
) -> Iterator[Block]:
    """Parses an open file or a pipe, from its first line; see `read_text_blocks`.

    Args:
        file: the file, opened for bytes.
        path: its name, for messages.
        num_bytes: size of the file, for the progress bar; None: it is not known.
        cut: the file is a part of another one, whose header it does not have.
    """
    headed = variant.header and not cut
    header = file.readline() if headed else b""
    if headed:
        sizes = parse_header(header, path)
    sizes = sizes or Sizes()
    # Only a header tells which line is the first row too many.
    max_rows = sizes.rows if headed else None
    columns = parse.Columns(
        variant.first_feature,
        variant.first_label,
        MAX_INDEX if sizes.features is None else sizes.features,
        MAX_INDEX if sizes.labels is None else sizes.labels,
    )
    line = int(headed)  # Lines that have been parsed.
    rows = 0  # Rows in these lines, with those that were left out.
    bar = ProgressBar(total=num_bytes, unit="B", unit_scale=True, desc=path)
    bar.update(len(header))
    for chunk in _line_chunks(file, chunk_bytes, bar):
        end = 0
        if line == 0:
            check_not_compressed(chunk, path)
        if max_rows is None or rows < max_rows:
            room = chunk.count(b"\n") if max_rows is None else max_rows - rows
            block, lines, end, status = _parse_chunk(chunk, variant, columns, room, lenient)
            line += lines
            rows += block.features.num_rows + block.skipped
            if status != parse.OK:
                _raise_bad_line(f"{path}:{line + 1}", chunk, end, status, columns)
            yield block
        if rows == max_rows:
            rest = chunk[end:].lstrip(b"\r\n")
            line += chunk.count(b"\n", end, len(chunk) - len(rest))
            if rest:
                raise DataError(f"{path}:{line + 1}: row {rows + 1}, but the header has {max_rows}")
    if sizes.rows is not None and rows != sizes.rows:
        if headed:
            raise DataError(f"{path}:1: header has {sizes.rows} rows, but the file has {rows}")
        raise DataError(f"{path}: file has {rows} rows, but {sizes.rows} were expected")


def count_rows(path: str | Path) -> int:
    """Counts the rows of a file without a header, with malformed ones; it parses nothing."""
    with Path(path).open("rb") as file:
        return sum(not (line in _EMPTY or line.lstrip(b" \t").startswith(b"#")) for line in file)


def _line_chunks(file: IO[bytes], size: int, bar: ProgressBar) -> Iterator[bytes]:
    """Yields the lines that follow, in pieces that end with a line feed."""
    with bar:
        pieces = []  # Of a line whose end has not been read yet.
        while piece := file.read(size):
            cut = piece.rfind(b"\n") + 1
            if cut:
                yield b"".join([*pieces, piece[:cut]])
                pieces = []
            pieces.append(piece[cut:])
            bar.update(len(piece))
        if any(pieces):
            yield b"".join([*pieces, b"\n"])


def _parse_chunk(
    chunk: bytes, variant: Variant, columns: parse.Columns, max_lines: int, lenient: bool
) -> tuple[Block, int, int, int]:
    """Parses a chunk; returns its rows, the number of lines, their end (an offset), the status."""
    lines = min(chunk.count(b"\n"), max_lines)
    room = chunk.count(b":")
    features = CSR(np.empty(lines + 1, np.int64), np.empty(room, np.int32), np.empty(room, "f4"))
    label_room = chunk.count(b",") + lines
    labels = Pattern(np.empty(lines + 1, np.int64), np.empty(label_room, np.int32))
    lines, rows, skipped, end, status = parse.parse_rows(
        np.frombuffer(chunk, np.uint8),
        columns,
        max_lines,
        lenient,
        not variant.header,
        *features,
        *labels,
    )
    block = Block(features.slice(0, rows), labels.slice(0, rows), skipped)
    return block, lines, end, status


def _raise_bad_line(
    place: str, chunk: bytes, at: int, status: int, columns: parse.Columns
) -> NoReturn:
    """Raises DataError for the token at an offset."""
    begin = max(chunk.rfind(space, 0, at) for space in (b" ", b"\t", b"\n")) + 1
    word, number = (
        _shown_text(_first_word(chunk[i : chunk.index(b"\n", at)])) for i in (begin, at)
    )
    feature, _, value = number.partition(":")
    label = number.partition(",")[0]
    if status == parse.MALFORMED_FEATURE and _is_not_finite(value):
        status = parse.NOT_FINITE
    first_feature, first_label, num_features, num_labels = columns
    problems = {
        parse.MALFORMED_LABEL: f"malformed labels '{word}', 'label,label' was expected"
        " (a row without labels begins with a space)",
        parse.MALFORMED_FEATURE: f"malformed feature '{word}', 'feature:value' was expected",
        parse.LABEL_RANGE: out_of_range("label", label, first_label, num_labels),
        parse.FEATURE_RANGE: out_of_range("feature", feature, first_feature, num_features),
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


def _shown_text(text: bytes) -> str:
    shown = text[: 8 * SHOWN_CHARACTERS].decode("utf-8", "replace").strip()
    shown = shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)
