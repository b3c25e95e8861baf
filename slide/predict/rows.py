"""Rows to predict, from files and pipes, and how a model's training files number their columns."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from slide.data import DataError
from slide.data.columns import Row
from slide.data.dataset import Block
from slide.data.errors import check_not_compressed
from slide.data.row_files import (
    VARIANTS,
    JoinedText,
    Sizes,
    Variant,
    parse_header,
    parse_text,
    read_npz_blocks,
    read_npz_shape,
    text_variant,
)
from slide.data.sources.table import features_of
from slide.data.table_files import (
    BYTE_ORDER_MARK,
    NameTwice,
    blank_lines,
    json_rows,
    lines_of,
    names_once,
    open_text,
    read_lines,
    read_table,
)
from slide.model import Model, Names
from slide.sparse import CSR, Pattern, stacked
from slide.utils import checks
from slide.utils.files import open_bytes
from slide.utils.progress_bar import ProgressBar, log

ROW_FORMATS = ("xmc", "svmlight", "npz", "jsonl", "csv", "parquet")
SUFFIXES = {
    **{".npz": "npz", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"},
    **{".csv": "csv", ".tsv": "csv", ".parquet": "parquet"},
    **{".svm": "svmlight", ".svmlight": "svmlight", ".libsvm": "svmlight"},
}
# Bytes that are read at a time: a second of predictions or so, for the bar and for memory.
_CHUNK = 1 << 20
# Lines of JSON in a block.
_LINES = 1024

_LABELS_ELSEWHERE = (
    "--labels is for npz, and for text that begins with 'rows features'; others have the labels in "
    "their rows"
)

# Features by number, texts with numbers, and numbers of labels.
_Row = tuple[dict[int, float] | Row, list[int]]


class Beginning:
    """A file without byte order mark, of which the ``first`` line is known before it is read.

    ``telling`` is the first line that is not blank; empty: there is none.
    """

    def __init__(self, file: IO[bytes], name: str):
        self._file, self._lines = file, lines_of(file, name)
        self.first = next(self._lines, b"").removeprefix(BYTE_ORDER_MARK)
        self.telling, self._before = blank_lines(chain([self.first], self._lines), name)

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes, none only at the end."""
        return self._before.read(size) or self._file.read(size)

    def readline(self) -> bytes:
        """The next line."""
        return self._before.readline() or next(self._lines, b"")

    def __iter__(self) -> Iterator[bytes]:
        yield from self._before
        yield from self._lines


class Numbering(NamedTuple):
    """How a model's training files count, and so do rows to predict; ``format`` None: no text."""

    format: str | None = None
    first_feature: int = 0
    first_label: int = 0

    @classmethod
    def of(cls, model: Model) -> "Numbering":
        """The numbering of a model that ``train.py`` or the model's own folder describes."""
        files = model.settings.get("dataset")
        files = files if isinstance(files, dict) else {}
        format = files.get("format")
        if not isinstance(format, str) or format not in VARIANTS:
            return cls()
        variant = text_variant(format, files.get("first_feature"), files.get("first_label"))
        return cls(format, variant.first_feature, variant.first_label)

    def variant(self, format: str) -> Variant:
        """How rows of a text format are read: as those of the training files, if it is theirs."""
        own = (self.first_feature, self.first_label) if format == self.format else (None, None)
        return text_variant(format, *own)


def shown_labels(ids: np.ndarray, model: Model, as_numbers: bool) -> np.ndarray:
    """The names of labels, or their numbers in the training files, as people write them."""
    if as_numbers or model.label_names is None:
        return ids + Numbering.of(model).first_label
    return model.label_names.take(ids)


def number_features(
    given: dict[Any, Any] | list[Any], model: Model, counted: Numbering
) -> dict[int, float]:
    """Values by column of the feature; values of the same feature are added up."""
    pairs = given.items() if isinstance(given, dict) else ((each, 1.0) for each in given)
    first, features = counted.first_feature, {}
    for feature, value in pairs:
        _check_finite(value, feature)
        column = _column_of(feature, model.feature_names, first)
        if model.feature_names is None and not 0 <= column < model.num_features:
            last = first + model.num_features
            raise ValueError(f"feature {feature!s:.60} is not in [{first}, {last})")
        if column is not None:  # Else a word, for example, that no training row has.
            features[column] = features.get(column, 0.0) + value
            _check_finite(features[column], feature)
    return features


def one_row(pairs: dict[int, float]) -> CSR:
    """A row of values by column."""
    columns, values = np.array([*pairs], np.int32), np.array([*pairs.values()], np.float32)
    return CSR(np.array([0, len(columns)]), columns, values)


def each_row(rows: CSR | None) -> Iterator[CSR]:
    """The rows one by one; None: there are none."""
    return (rows.slice(at, at + 1) for at in range(rows.num_rows)) if rows else iter(())


def _check_finite(value: Any, feature: Any) -> None:
    if not isinstance(value, int | float) or not abs(value) < checks.FLOAT32_LIMIT:
        raise ValueError(f"value {value!r:.60} of feature {feature!r:.60} {checks.NO_FLOAT32}")


def _column_of(name: Any, names: Names | None, first: int) -> Any:
    """The column of a feature or label; None if there is none of that name."""
    if names is not None:
        if names.kind in ("float", "flag") and isinstance(name, int | float):
            return names.number(name)
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise ValueError(f"{name!r:.60} is neither text nor a whole number")
        if names.kind in ("text", "number"):
            return names.number(str(name) if names.kind == "text" else _whole(name))
        return names.number(names.parsed(str(name)))
    number = _whole(name)
    if number is None:
        raise ValueError(f"{name!r:.60} is no number; the model has no names")
    return number - first


def _whole(name: Any) -> int | None:
    """A whole number, or the one that a text is; else None."""
    if isinstance(name, str) and name.removeprefix("-").isdecimal():
        return int(name)
    return name if isinstance(name, int) and not isinstance(name, bool) else None


def read_rows(
    source: str, model: Model, format: str | None = None, labels: str | None = None
) -> Iterator[Block]:
    """Yields the rows of a file or of standard input (``-``), in blocks.

    The format is one of `ROW_FORMATS`, or None; ``labels`` is the file beside a matrix. Labels that
    the model does not know get numbers that are none of its labels.
    """
    path, piped = Path(source), source == "-"
    checks.encodable("file", path)
    if not piped and (path.is_dir() or not path.exists()):  # A pipe is no file, either.
        raise FileNotFoundError(f"there is no file {source}")
    given, format, reader = format, format or SUFFIXES.get(path.suffix), _RowReader(model)
    if labels is not None and format not in ("npz", "xmc", None):
        raise ValueError(_LABELS_ELSEWHERE)
    if format in ("npz", "parquet"):
        if piped:
            raise ValueError(f"{format} is read from a file, not from standard input")
        if format == "parquet":
            yield from reader.table(read_table(path))
            return
        yield from _matrices(path, None if labels is None else Path(labels), model)
        return
    name, counted = "standard input" if piped else source, reader.counted
    with nullcontext(sys.stdin.buffer) if piped else open_bytes(path, _CHUNK) as opened:
        file = Beginning(opened, name)
        size = path.stat().st_size if path.is_file() else None
        advice = f"unpack it first, as in zcat {source} | slide-predict MODEL -"
        check_not_compressed(file.first, name, advice)
        if format is None and reader.columns is not None and labels is None:
            format = "jsonl" if file.telling.lstrip()[:1] in (b"{", b"[", b"") else "csv"
        if format == "csv":
            yield from reader.table(read_lines(file, name))
            return
        sizes = Sizes(features=model.num_features)
        if format in ("xmc", None) and _is_header(file.first, 2):
            yield from _joined(file, name, labels, model)
            return
        if labels is not None:
            raise ValueError(_LABELS_ELSEWHERE)
        format = format or _guessed(file.telling, counted, name)
        if format == "jsonl":
            yield from reader.json(file, name, size)
            return
        variant = counted.variant(format)
        cut = variant.header and given is None and not _is_header(file.first)
        if variant.header and not cut and file.first.endswith(b"\n"):
            _check_header(parse_header(file.first, name), model, name)
        text = cast(IO[bytes], file)  # It has what is called of it.
        yield from parse_text(text, name, variant, sizes, size, cut=cut, chunk_bytes=_CHUNK)


class _RowReader:
    """Cells of tables and lines of JSON as rows of a model; unknown labels get further numbers."""

    def __init__(self, model: Model):
        self.model, self.counted, self.columns = model, Numbering.of(model), model.columns
        self._unknown: dict[str, int] = {}

    def table(self, rows: Iterable[tuple[str, Any]]) -> Iterator[Block]:
        """The rows of a table, with the columns that the model was trained on."""
        if self.columns is None:
            raise ValueError(
                "the model was trained on no table: it reads xmc, svmlight, npz, jsonl"
            )

        def read() -> Iterator[_Row]:
            for position, cells in rows:
                try:
                    yield self._cells(cells, complete=True)
                except (ValueError, TypeError) as error:
                    raise DataError(f"{position}: {error}") from error

        return self._blocks(read())

    def json(self, file: Beginning, name: str, size: int | None) -> Iterator[Block]:
        """Rows of ``{"features": {feature: value}, "labels": [label]}``, or with a ``text``."""
        hook = object_hook("columns" in self.model.settings)

        def read() -> Iterator[_Row]:
            with ProgressBar(total=size, unit="B", unit_scale=True, desc=name) as bar:

                def lines() -> Iterator[bytes]:
                    for line in file:
                        bar.update(len(line))
                        yield line

                for position, row in json_rows(lines(), name, hook, self._wanted):
                    try:
                        yield self._line(row)
                    except (ValueError, TypeError) as error:
                        raise DataError(f"{position}: {error}") from error

        return self._blocks(read())

    @property
    def _wanted(self) -> str:
        known = "" if self.model.vectorizer is None else ' or {"text": "...", "labels": [...]}'
        return '{"features": {feature: value, ...}, "labels": [...]}' + known

    def _cells(self, cells: Any, complete: bool) -> _Row:
        assert self.columns is not None
        row = self.columns.row(self.columns.found_in(cells, complete))
        return row, self._labels(row.labels)

    def _line(self, row: Mapping[str, Any]) -> _Row:
        model = self.model
        if isinstance(row.get("features"), dict | list):
            labels = self._labels(row.get("labels"))
            return number_features(row["features"], model, self.counted), labels
        if "columns" in model.settings:
            return self._cells(row, complete=False)
        if isinstance(row.get("text"), str) and model.vectorizer is not None:
            return Row(row["text"], []), self._labels(row.get("labels"))
        raise ValueError(f"a line must be {self._wanted}")

    def _labels(self, given: Any) -> list[int]:
        """Columns of labels, each once."""
        if given is not None and not isinstance(given, list):
            raise ValueError(f"labels must be a list of names, not {given!r:.60}")
        labels, known = [], self.model.num_labels
        for label in given or []:
            column = _column_of(label, self.model.label_names, self.counted.first_label)
            if column is None or not 0 <= column < known:
                column = known + self._unknown.setdefault(str(label), len(self._unknown))
            labels.append(column)
        return list(dict.fromkeys(labels))  # 5 and "5" are one name.

    def _blocks(self, rows: Iterator[_Row]) -> Iterator[Block]:
        while part := list(islice(rows, _LINES)):
            cells = [features for features, _ in part if isinstance(features, Row)]
            made = features_of(cells, self.model.vectorizer, self.columns) if cells else None
            own = each_row(made)
            found = [next(own) if isinstance(each, Row) else one_row(each) for each, _ in part]
            yield Block(stacked(found), Pattern.from_lists([each for _, each in part]))


def _guessed(line: bytes, counted: Numbering, name: str) -> str:
    """The format of text: by its first line, or else that of the training files."""
    if line.lstrip().startswith((b"{", b"[")):
        return "jsonl"
    if _is_header(line):
        return "xmc"
    if counted.format is None:
        log(f"{name}: read as svmlight, with features from 1 on; --format says otherwise")
    return counted.format or "svmlight"


def _is_header(line: bytes, count: int = 3) -> bool:
    words = line.split()
    return len(words) == count and all(word.isdigit() for word in words)


def _joined(file: Beginning, name: str, labels: str | None, model: Model) -> Iterator[Block]:
    """The rows of a file of features, whose ``labels`` are in another file, or unknown."""
    with nullcontext() if labels is None else open_text(Path(labels)) as beside:
        files: dict[str, Iterable[bytes]] = {name: file}
        if labels is not None and beside is not None:
            files[labels] = lines_of(beside, labels)
        text: Any = JoinedText(files)
        _check_header(parse_header(text.readline(), name), model, name, labels is not None)
        variant = Numbering.of(model).variant("xmc")
        yield from parse_text(text, name, variant, chunk_bytes=_CHUNK)


def _check_header(header: Sizes, model: Model, name: str, labelled: bool = True) -> None:
    """Say if the header of rows is not that of the model's data, which may be a mistake."""
    own, found = (model.num_features, model.num_labels), (header.features, header.labels)
    if header.features is not None and header.features > own[0]:
        raise DataError(f"{name}: rows of {found[0]} features, but the model has {own[0]}")
    if found[: 1 + labelled] != own[: 1 + labelled]:
        log(
            f"warning: {name} has {found[0]:,} features and {found[1]:,} labels, and the model "
            f"{own[0]:,} and {own[1]:,}: are they of the same data?"
        )


def _matrices(path: Path, labels: Path | None, model: Model) -> Iterator[Block]:
    given = (path, model.num_features, "features"), (labels, model.num_labels, "labels")
    for file, own, what in given:  # Labels instead of features are a usual mistake.
        if file is not None and (width := read_npz_shape(file)[1]) != own:
            raise DataError(f"{file}: a matrix of {width} columns does not fit {own} {what}")
    with ProgressBar(unit=" rows", desc=str(path)) as bar:
        for block in read_npz_blocks(path, labels):
            bar.total = block.features.num_rows
            for start in range(0, block.features.num_rows, _LINES):
                stop = start + _LINES
                part = Block(block.features.slice(start, stop), block.labels.slice(start, stop))
                yield part
                bar.update(part.features.num_rows)


def object_hook(columns: bool) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """How objects of JSON are read: of cells each has a name of its own, values are added up."""
    return names_once if columns else _added_up


def _added_up(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; numbers of the same name, which are values of a feature, are added up."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    found = {}
    for name, value in pairs:
        if name in found:
            before = found[name]
            if not isinstance(value, int | float) or not isinstance(before, int | float):
                raise NameTwice(name)
            try:
                value = value + before
            except OverflowError:  # Of a whole number of hundreds of digits.
                value = math.inf
        found[name] = value
    return found
