"""Lines of JSON, as documents and as rows to predict: what plain readers read, or the same line."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from helpers import naive_json
from helpers.corpus import FEATURES, LABELS
from helpers.limits import more_memory
from helpers.naive_rows import BadLine, to_lists

from fuzz.shared import MEMORY, check_sentence, has_mark, kept_rows
from slide import FullSampler, Model, SlideNetwork
from slide.data import DataError
from slide.data.sources.table import read_documents
from slide.predict.rows import read_rows


def seeds(folder: Path) -> list[bytes]:
    """See `fuzz`."""
    long = b'{"text": "", "features": [], "labels": "%s"}' % (b"9" * 2000)
    return [*kept_rows("documents"), *kept_rows("jsonl"), long]


@cache
def _model() -> Model:
    return Model(SlideNetwork(FEATURES, [2], LABELS, FullSampler))


def _documents(path: Path) -> list[Any]:
    return [tuple(each[:2]) for each in read_documents(path)]


def _rows(path: Path) -> list[Any]:
    blocks = read_rows(str(path), _model())
    return [row for block in blocks for row in to_lists(block.features, block.labels)]


def check(data: bytes, folder: Path) -> bool:
    """See `fuzz`."""
    path = folder / "rows.jsonl"
    path.write_bytes(data)
    documents = _compare(data, path, _documents, naive_json.document)
    rows = _compare(data, path, _rows, naive_json.prediction_row(FEATURES, LABELS))
    return documents or rows


def _compare(
    data: bytes, path: Path, read: Callable[[Path], list[Any]], plain: Callable[[bytes], Any]
) -> bool:
    found, wrong = None, None
    try:
        with more_memory(MEMORY):
            found = read(path)
    except DataError as error:
        check_sentence(error, path)
        wrong = error
    if has_mark(data) or data.lstrip()[:1] == b"[":  # A list of rows is no lines.
        return wrong is None
    try:
        expected = naive_json.parsed(data, plain)
    except BadLine as bad:
        if not str(wrong).startswith(f"{path}:{bad.args[0]}: "):
            raise AssertionError(f"line {bad.args[0]} is bad: {wrong or found}") from bad
        return False
    assert found == expected, wrong or found
    return True
