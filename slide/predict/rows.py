"""Rows to predict: text, matrices or lines of JSON, read in pieces from files and pipes."""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from slide.data import DataError
from slide.data.dataset import Block
from slide.data.errors import check_not_compressed
from slide.data.formats.npz_reader import read_npz_blocks, read_npz_shape
from slide.data.formats.text_reader import VARIANTS, Sizes, parse_header, parse_text
from slide.model import Model
from slide.predict.beginning import Beginning
from slide.predict.numbering import Numbering, number_features, number_labels
from slide.sparse import CSR, Pattern
from slide.utils.progress_bar import ProgressBar, log

ROW_FORMATS = ("xmc", "svmlight", "npz", "jsonl")
_SUFFIXES = {
    **{".npz": "npz", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"},
    **{".svm": "svmlight", ".svmlight": "svmlight", ".libsvm": "svmlight"},
}
# Bytes that are read at a time: a second of predictions or so, for the bar and for memory.
_CHUNK = 1 << 20
# Lines of JSON in a block.
_LINES = 1024


# Features by number, or a text; and numbers of labels.
_Row = tuple[dict[int, float] | str, list[int]]


class RowSource(NamedTuple):
    """Where rows come from.

    Attributes:
        path: a file; ``-`` is standard input.
        format: one of `ROW_FORMATS`; None: by the file's name, else by its first line.
        labels: npz: file of the labels; None: there are none.
    """

    path: str
    format: str | None = None
    labels: str | None = None


def read_rows(source: RowSource, model: Model) -> Iterator[Block]:
    """Yields the rows in blocks.

    Features are numbers, or names in lines of JSON. Labels may be missing. A label that the model
    does not know gets a number that is none of its labels.

    Args:
        source: the rows.
        model: says how many features and labels there are, and their names.

    Raises:
        DataError: a malformed line, or a feature that the model does not have.
        FileNotFoundError: there is no such file.
        ValueError: a source that cannot be read this way.
    """
    path = Path(source.path)
    if source.path != "-" and (path.is_dir() or not path.exists()):  # A pipe is no file, either.
        raise FileNotFoundError(f"there is no file {source.path}")
    format = source.format or _SUFFIXES.get(path.suffix)
    if source.labels is not None and format != "npz":
        raise ValueError("--labels is for npz; other formats have the labels in their rows")
    if format == "npz":
        yield from _matrices(source, model)
        return
    with _opened(source.path) as (file, size):
        first, counted = file.first, Numbering.of(model)
        name = "standard input" if source.path == "-" else source.path
        piped = f"unpack it first, as in zcat {source.path} | slide-predict MODEL -"
        check_not_compressed(first, name, piped)
        if source.format is None and model.vectorizer is not None:
            format = "jsonl"
        format = format or _guessed(file.telling, counted, name)
        if format == "jsonl":
            yield from _json_rows(file, name, size, model)
            return
        variant = VARIANTS[format]
        if format == counted.format:
            _, first_feature, first_label = counted
            variant = variant._replace(first_feature=first_feature, first_label=first_label)
        cut = variant.header and source.format is None and not _is_header(first)
        if variant.header and not cut and first.endswith(b"\n"):
            header = parse_header(first, name)
            _check_width(header.features, model, name)
            _warn_of_sizes(header, model, name)
        sizes = Sizes(features=model.num_features)
        text = cast(IO[bytes], file)  # It has what is called of it.
        yield from parse_text(text, name, variant, sizes, size, cut=cut, chunk_bytes=_CHUNK)


@contextmanager
def _opened(path: str) -> Iterator[tuple[Beginning, int | None]]:
    """A file with its first lines, and its size if it is known."""
    if path == "-":
        yield Beginning(sys.stdin.buffer), None
        return
    with open(path, "rb", buffering=_CHUNK) as file:
        yield Beginning(file), Path(path).stat().st_size if Path(path).is_file() else None


def _guessed(line: bytes, counted: Numbering, name: str) -> str:
    """The format of text: by its first line, or else that of the training files."""
    if line.lstrip().startswith(b"{"):
        return "jsonl"
    if _is_header(line):
        return "xmc"
    if counted.format is None:
        log(f"{name}: read as svmlight, with features from 1 on; --format says otherwise")
    return counted.format or "svmlight"


def _is_header(line: bytes) -> bool:
    words = line.split()
    return len(words) == 3 and all(word.isdigit() for word in words)


def _check_width(found: int | None, model: Model, name: str) -> None:
    if found is not None and found > model.num_features:
        raise DataError(f"{name}: rows of {found} features, but the model has {model.num_features}")


def _warn_of_sizes(header: Sizes, model: Model, name: str) -> None:
    """Say if the header of rows is not that of the model's data, which may be a mistake."""
    own, found = (model.num_features, model.num_labels), (header.features, header.labels)
    if found != own:
        log(
            f"warning: {name} has {found[0]:,} features and {found[1]:,} labels, and the model "
            f"{own[0]:,} and {own[1]:,}: are they of the same data?"
        )


def _matrices(source: RowSource, model: Model) -> Iterator[Block]:
    if source.path == "-":
        raise ValueError("npz is read from a file, not from standard input")
    path, labels = Path(source.path), Path(source.labels) if source.labels else None
    width, wanted = read_npz_shape(path)[1], model.num_features
    if width != wanted:  # Labels in the place of features, for example.
        raise DataError(f"{path}: a matrix of {width} columns does not fit {wanted} features")
    if labels is not None and (found := read_npz_shape(labels)[1]) != model.num_labels:
        raise DataError(
            f"{labels}: a matrix of {found} columns does not fit {model.num_labels} labels"
        )
    blocks = read_npz_blocks(path, labels)
    with ProgressBar(unit=" rows", desc=source.path) as bar:
        for block in blocks:
            bar.total = block.features.num_rows
            for start in range(0, block.features.num_rows, _LINES):
                inside = start, start + _LINES
                part = Block(block.features.slice(*inside), block.labels.slice(*inside))
                yield part
                bar.update(part.features.num_rows)


def _json_rows(file: Beginning, name: str, size: int | None, model: Model) -> Iterator[Block]:
    """Rows of ``{"features": {feature: value}, "labels": [label]}``, or with a ``text``."""
    rows: list[_Row] = []
    unknown: dict[Any, int] = {}
    counted = Numbering.of(model)
    with ProgressBar(total=size, unit="B", unit_scale=True, desc=name) as bar:
        for number, line in enumerate(file, 1):
            bar.update(len(line))
            if not line.strip():
                continue
            try:
                row = json.loads(line, object_pairs_hook=_added_up)
                rows.append(_json_row(row, model, counted, unknown))
            except (ValueError, TypeError, RecursionError) as error:
                told = str(error)
                if isinstance(error, json.JSONDecodeError) and model.vectorizer is not None:
                    told = f'the model reads texts; a line must be {{"text": "..."}} ({error})'
                raise DataError(f"{name}:{number}: {told}") from error
            if len(rows) == _LINES:
                yield _block(rows, model)
                rows = []
    if rows:
        yield _block(rows, model)


def _added_up(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; numbers of the same name are added up, of other values the last one stays."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    found = {}
    for name, value in pairs:
        before = found.get(name)
        if isinstance(value, int | float) and isinstance(before, int | float):
            try:
                value = value + before
            except OverflowError:  # Of a whole number of hundreds of digits.
                value = math.inf
        found[name] = value
    return found


def _json_row(row: Any, model: Model, counted: Numbering, unknown: dict[Any, int]) -> _Row:
    labels = (
        number_labels(row.get("labels"), model, counted, unknown) if isinstance(row, dict) else []
    )
    if isinstance(row, dict) and isinstance(row.get("text"), str) and model.vectorizer is not None:
        return row["text"], labels
    if not isinstance(row, dict) or not isinstance(row.get("features"), dict | list):
        known = "" if model.vectorizer is None else ' or {"text": "...", "labels": [...]}'
        wanted = '{"features": {feature: value, ...}, "labels": [...]}'
        raise ValueError(f"a line must be {wanted}{known}")
    return number_features(row["features"], model, counted), labels


def _block(given: list[_Row], model: Model) -> Block:
    texts = [features for features, _ in given if isinstance(features, str)]
    vectors = iter(_as_dicts(model.rows_of(texts)) if texts else ())
    rows = [
        (next(vectors) if isinstance(features, str) else features, labels)
        for features, labels in given
    ]
    pattern = Pattern.from_lists([list(features) for features, _ in rows])
    values = np.array([value for features, _ in rows for value in features.values()], np.float32)
    return Block(CSR(*pattern, values), Pattern.from_lists([labels for _, labels in rows]))


def _as_dicts(rows: CSR) -> Iterator[dict[int, float]]:
    """Each row as values by feature."""
    for begin, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
        values = rows.values[begin:end].tolist()
        yield dict(zip(rows.indices[begin:end].tolist(), values, strict=True))
