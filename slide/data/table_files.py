"""Tables in files and in memory: CSV, JSON, Parquet, frames and lists, as cells by column."""

import codecs
import csv
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from slide.data.errors import LONGEST_LINE, DataError, check_line_length, check_not_compressed
from slide.utils.checks import counted
from slide.utils.files import open_bytes
from slide.utils.progress_bar import ProgressBar

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Rows of frames that are converted at a time.
_ROWS = 4096
# Rows of Parquet that are read at a time: a file holds a text once that each of them has.
_PARQUET_ROWS = 256
# About 16 MiB of them become Python objects at a time, which take several times as much.
_CONVERTED = 16 << 20
_DELIMITERS = ",\t;|"
# Excel's own first line of CSV, which names the delimiter.
_SEP = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)
# Lines and characters of CSV by which its delimiter is chosen.
_SCANNED, _SCANNED_SIZE = 20, 1 << 16
_RECORDS = "DataFrame.to_json(path, orient='records', lines=True) of pandas writes rows"

Cells = Mapping[str, Any]


def open_text(path: Path) -> IO[bytes]:
    """Opens a file after its byte order mark, which editors of Windows write."""
    with ExitStack() as stack:
        file = stack.enter_context(open_bytes(path))
        if file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
            file.seek(0)
        stack.pop_all()  # It stays open.
    return file


def lines_of(file: IO[bytes], path: str) -> Iterator[bytes]:
    """The lines of a file; one without an end, as of /dev/zero, does not fill the memory."""
    while line := file.readline(LONGEST_LINE + 1):
        check_line_length(len(line), path)
        yield line


def blank_lines(lines: Iterable[bytes], path: str) -> tuple[bytes, IO[bytes]]:
    """The first line that is not blank, empty if all are, and the lines up to its end as a file."""
    before = io.BytesIO()
    for line in lines:
        before.write(line)
        check_line_length(before.tell(), path)
        if line.strip():
            break
    else:
        line = b""
    before.seek(0)
    return line, before


def read_table(source: Any, encoding: str = "utf-8") -> Iterator[tuple[str, Cells]]:
    """Yields the rows of a file, a frame or an iterable of dicts, with positions for messages."""
    if not isinstance(source, str | Path):
        for number, row in enumerate(_memory_rows(source)):
            yield f"row {number}", row
        return
    path = Path(source)
    if _is_parquet(path):
        yield from _parquet_rows(path)
        return
    with counted_lines(path) as lines:
        yield from read_lines(lines, str(path), encoding)


def index_columns(source: Any) -> list[str]:
    """The columns that were the index of a frame of pandas, as Parquet and pyarrow note them."""
    if not isinstance(source, str | Path):
        schema = getattr(source, "schema", None)
    elif not _is_parquet(Path(source)):
        return []
    else:
        with _reading_parquet(Path(source)) as parquet:
            schema = parquet.read_schema(source)
    noted = getattr(schema, "metadata", None)
    noted = noted.get(b"pandas") if isinstance(noted, dict) else None
    try:
        found = json.loads(noted or b"{}")["index_columns"]
        return [each for each in found if isinstance(each, str)]  # A range is no column.
    except (ValueError, KeyError, TypeError, RecursionError):
        return []  # Of another program.


def _is_parquet(path: Path) -> bool:
    with open_text(path) as file:
        return file.read(4) == b"PAR1"


@contextmanager
def counted_lines(path: Path) -> Iterator[Iterator[bytes]]:
    """The lines of a file, with a bar of their bytes."""
    options = {"total": path.stat().st_size, "unit": "B", "unit_scale": True}
    with open_text(path) as file, ProgressBar(desc=f"reading {path}", **options) as bar:

        def lines() -> Iterator[bytes]:
            for line in lines_of(file, str(path)):
                bar.update(len(line))
                yield line

        yield lines()


def read_lines(
    lines: Iterable[bytes], path: str, encoding: str = "utf-8"
) -> Iterator[tuple[str, Cells]]:
    """The rows of CSV or JSON, whichever the first line is; see `read_table`."""
    lines = iter(lines)
    first, before = blank_lines(lines, path)
    lines = itertools.chain(before, lines)
    check_not_compressed(first, path)
    if first.lstrip()[:1] in (b"{", b"["):
        return json_rows(lines, path)
    return _csv_rows(lines, path, encoding)


def json_rows(
    lines: Iterable[bytes],
    path: str,
    hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
    wanted: str = "",
) -> Iterator[tuple[str, Cells]]:
    """The objects of JSON, in lines or in one list, each with its position for messages.

    ``hook`` makes objects, by default `names_once`; ``wanted`` says what they must be.
    """
    lines, hook = iter(lines), hook or names_once
    first, before = blank_lines(lines, path)
    check_not_compressed(first, path)
    lines = itertools.chain(before, lines)
    if first.lstrip()[:1] == b"[":
        found = _parsed(b"".join(lines), path, hook, wanted)
        rows = ((f"{path}: item {number}", "an item", row) for number, row in enumerate(found))
    else:
        places = ((f"{path}:{number}", line) for number, line in enumerate(lines, 1))
        rows = (
            (at, "a line", _parsed(line, at, hook, wanted)) for at, line in places if line.strip()
        )
    begun = False
    for position, what, row in rows:
        if not isinstance(row, dict):
            told = f"{what} must be {wanted or 'an object {...}'}, not {row!r:.40}"
            told += f"; {_RECORDS}" if isinstance(row, list) and not begun else ""
            raise DataError(f"{position}: {told}")
        if not begun and (form := _whole_table(row)):
            raise DataError(f"{position}: this is {form}, not a row; {_RECORDS}")
        begun = True
        yield position, row


def _whole_table(row: dict[str, Any]) -> str:
    """How an object writes a whole table; empty: it is a row."""
    if {"columns", "data"} <= row.keys() <= {"columns", "index", "data"}:
        return "a table of orient='split'"
    if row.keys() == {"schema", "data"}:
        return "a table of orient='table'"
    if row and "features" not in row and all(isinstance(each, dict) for each in row.values()):
        return "a table of orient='columns' or 'index'"
    return "an object with a list of rows" if len(row) == 1 and _holds_rows(*row.values()) else ""


def _holds_rows(cell: Any) -> bool:
    return isinstance(cell, list) and bool(cell) and all(isinstance(each, dict) for each in cell)


class NameTwice(ValueError):
    """A name stands twice in an object of JSON."""

    def __init__(self, name: str):
        super().__init__(f"{name!r:.60} stands twice in an object")


def names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An ``object_pairs_hook``: JSON itself keeps the last value of a name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NameTwice(_twice([name for name, _ in pairs]))
    return found


def _twice(names: list[Any]) -> Any:
    """The first of the names that stand there more than once."""
    counts = Counter(names)
    return next(name for name in names if counts[name] > 1)


def _parsed(text: bytes, position: str, hook: Callable[..., Any], wanted: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=hook)
    except RecursionError as error:
        raise DataError(f"{position}: lists or objects are nested too deeply") from error
    except ValueError as error:
        told = str(error).partition("; use sys.")[0]
        if text.strip()[:1] != b"{" and wanted:
            told = f"a line must be {wanted} ({told})"
        elif isinstance(error, json.JSONDecodeError) and text.strip()[-1:] in b"{[,":
            told += f"; each object must end in its line: {_RECORDS}"
        raise DataError(f"{position}: {told}") from error


def _csv_rows(lines: Iterable[bytes], path: str, encoding: str) -> Iterator[tuple[str, Cells]]:
    csv.field_size_limit(2**31 - 1)  # Long texts are cells, too.
    decoded, size = _decoded(lines, path, encoding), 0

    def bounded() -> Iterator[str]:
        """Lines as above; a quotation without an end does not fill the memory, either."""
        nonlocal size
        for line in decoded:
            size += len(line)
            check_line_length(size, path)
            yield line

    header = next(decoded, "")
    told = _SEP.fullmatch(header)
    before = 1 if told else 0
    scanned = [next(decoded, "") if told else header]
    while len(scanned) < _SCANNED and sum(map(len, scanned)) < _SCANNED_SIZE:
        if not (line := next(decoded, "")):
            break
        scanned.append(line)
    delimiter = told[1] if told else _delimiter(scanned)
    # Programs write "a,b", people also "a, b".
    gaps = any(name.startswith(" ") for name in _cells(scanned[:1], delimiter)[0])
    every = itertools.chain(scanned, bounded())
    reader = csv.reader(every, delimiter=delimiter, skipinitialspace=gaps, strict=True)
    try:
        names = [name.strip() for name in next(reader, [])]
        if len(set(names)) < len(names):
            raise DataError(f"{path}:{before + 1}: two columns are called {_twice(names)!r:.60}")
        for cells in reader:
            size = 0
            if cells and len(cells) != len(names):
                raise DataError(
                    f"{path}:{before + reader.line_num}: {counted(len(cells), 'cell')}, but the "
                    f"first line has {counted(len(names), 'column')}"
                )
            if cells:
                yield f"{path}:{before + reader.line_num}", dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}:{before + reader.line_num}: {error}") from error


def _delimiter(lines: list[str]) -> str:
    """What parts the first lines of CSV: rows as long as the header, or else most of its cells."""

    def fits(delimiter: str) -> tuple[bool, int]:
        header, *rows = _cells(lines, delimiter)
        # The last row may go on in later lines.
        same = all(len(row) == len(header) for row in rows[:-1] or rows if row)
        return same and len(header) > 1, len(header)

    return max(_DELIMITERS, key=fits)


def _cells(lines: list[str], delimiter: str) -> list[list[str]]:
    """The cells of some lines of CSV, of an empty one if they are malformed."""
    try:
        return [*csv.reader(lines, delimiter=delimiter)] or [[]]
    except csv.Error:  # The reader of all rows says so.
        return [[]]


def _decoded(lines: Iterable[bytes], path: str, encoding: str) -> Iterator[str]:
    decoder, parts = codecs.getincrementaldecoder(encoding)(), list[str]()
    for number, line in enumerate(itertools.chain(lines, [b""]), 1):
        try:
            text = decoder.decode(line, final=not line)
            bad = line[line.index(0)] if "\0" in text else None
        except UnicodeDecodeError as error:
            text, bad = "", error.object[error.start]
        except UnicodeError as error:  # Of UTF-16 and UTF-32, without the mark of their byte order.
            raise DataError(
                f"{path}:{number}: {error}: dataset.encoding may be utf-16-le"
            ) from error
        if bad is not None:
            raise DataError(
                f"{path}:{number}: byte {bad:#x} is no {encoding}: dataset.encoding names the "
                "encoding of the file, such as cp1252 of Windows, latin-1 or utf-16"
            )
        parts.append(text)
        if "\n" in text:  # In UTF-16 a line ends after its byte, and other characters have it, too.
            *whole, rest = re.split("(?<=\n)", "".join(parts))
            parts = [rest]
            yield from whole
    if rest := "".join(parts):
        yield rest


@contextmanager
def _reading_parquet(path: Path) -> Iterator[Any]:
    """pyarrow's module of Parquet, whose errors are those of the file."""
    try:
        from pyarrow import ArrowException, parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        said = f"{path} is Parquet, which pyarrow reads: pip install pyarrow, or slide-xmc[table]"
        raise ValueError(said) from error
    try:
        yield parquet
    except (ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: {' '.join(str(error).split())}") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Cells]]:
    number = 0
    with (
        _reading_parquet(path) as parquet,
        parquet.ParquetFile(path) as file,
        ProgressBar(desc=f"reading {path}", unit=" rows") as bar,
    ):
        _check_distinct(file.schema_arrow.names)
        bar.total = file.metadata.num_rows
        for batch in file.iter_batches(_PARQUET_ROWS):
            step = max(1, len(batch) * _CONVERTED // max(batch.nbytes, _CONVERTED))
            for part in (batch.slice(at, step) for at in range(0, len(batch), step)):
                if part.nbytes > LONGEST_LINE:
                    raise ValueError(f"row {number} has more than {LONGEST_LINE:,} bytes")
                for row in part.to_pylist():
                    yield f"{path}: row {number}", row
                    number += 1
            bar.update(len(batch))


def _check_distinct(names: Iterable[Any]) -> None:
    """Raise ValueError for two columns of one name: of cells by name, one would be lost."""
    names = list(names)
    if len(set(names)) < len(names):
        raise ValueError(f"two columns are called {_twice(names)!r:.60}")


def _memory_rows(source: Any) -> Iterator[Cells]:
    if hasattr(source, "iloc"):  # pandas, whose names of columns may be numbers
        names = [str(name) for name in source.columns]
        _check_distinct(names)
        for start in range(0, len(source), _ROWS):
            part = source.iloc[start : start + _ROWS].set_axis(names, axis=1)
            yield from part.to_dict("records")
        return
    if hasattr(source, "iter_rows"):  # polars
        yield from source.iter_rows(named=True)
        return
    if hasattr(source, "to_batches"):  # pyarrow
        _check_distinct(source.schema.names)
        for batch in source.to_batches(max_chunksize=_ROWS):
            yield from batch.to_pylist()
        return
    if hasattr(source, "collect"):
        raise TypeError("the table is a query of polars that was not run yet: give its .collect()")
    if isinstance(source, Mapping):
        raise TypeError(
            "a table must be a frame or a list of rows, not a dict of "
            f"{', '.join(map(str, source))}: of several tables give one as path and one as "
            "test_path; of columns make a frame"
        )
    if hasattr(source, "with_format"):  # Hugging Face: cells as Python has them, not tensors.
        source = source.with_format(None)
    named = {
        name: names
        for name, feature in dict(getattr(source, "features", None) or {}).items()
        if (names := getattr(getattr(feature, "feature", feature), "names", None))
    }
    for row in source:
        if not isinstance(row, Mapping):
            raise TypeError(
                f"a row of a table must be a dict of cells, not {row!r:.60}; a frame of pandas or "
                "polars, a table of pyarrow and a data set of Hugging Face are tables, too"
            )
        yield {
            n: _class_name(c, named[n]) if n in named else c for n, c in named_by_text(row).items()
        }


def named_by_text(row: Mapping[Any, Any]) -> Cells:
    """The same cells by names that are texts; ValueError where two names then are the same."""
    if all(isinstance(name, str) for name in row):
        return row
    _check_distinct(map(str, row))
    return {str(name): cell for name, cell in row.items()}


def _class_name(cell: Any, names: list[str]) -> Any:
    """The name of a class that Hugging Face keeps as a number; -1 is a class that is not known."""
    if isinstance(cell, list | tuple):
        return [_class_name(each, names) for each in cell]
    return names[cell] if isinstance(cell, int) and cell >= 0 else None
