"""A naive parser of rows as text, and a comparison of the reader with it."""

import math
import re

import numpy as np
import pytest

from slide.data import DataError
from slide.data.row_files import XMC, read_text_blocks

LABELS = re.compile(rb"-?\d+(,-?\d+)*")
FEATURE = re.compile(rb"(-?\d+):([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
COUNTS = re.compile(rb"\s*(\d+)\s+(\d+)\s+(\d+)\s*")
MAX_INDEX = 2**31 - 1


class BadLine(Exception):
    """Its argument is the line number; None: something is wrong with the file as a whole."""


def parse_line(line, variant, num_features, num_labels):
    """The labels and the (feature, value) pairs of a line; ValueError if there is something bad."""
    if not variant.header:
        line = re.sub(rb"(^|[ \t])#.*", rb"\1", line, flags=re.DOTALL)
    line = line.removesuffix(b"\r")
    head, *tokens = re.split(rb"[ \t]", line)
    if head and not LABELS.fullmatch(head):
        raise ValueError(head)
    labels = [int(label) - variant.first_label for label in head.split(b",")] if head else []
    pairs = []
    for token in filter(None, tokens):
        match = FEATURE.fullmatch(token)
        if match is None:
            raise ValueError(token)
        with np.errstate(over="ignore"):
            value = np.float32(float(match[2]))
        pairs.append((int(match[1]) - variant.first_feature, value))
    features = [feature for feature, _ in pairs]
    if any(not 0 <= label < num_labels for label in labels) or len({*labels}) < len(labels):
        raise ValueError("label")
    if any(not 0 <= i < num_features for i in features) or len({*features}) < len(features):
        raise ValueError("feature")
    if not all(math.isfinite(value) for _, value in pairs):
        raise ValueError("value")
    return labels, pairs


def parse(data, variant=XMC, lenient=False, sizes=(None, None, None)):
    """A list of (labels, pairs), and the number of lines left out; a header gives the sizes.

    Raises:
        BadLine: something is wrong.
    """
    lines = data.split(b"\n")
    start = 1
    if variant.header:
        match = COUNTS.fullmatch(lines.pop(0))
        if not data or match is None or max(map(float, match.groups())) > MAX_INDEX:
            raise BadLine(1)  # Python makes no whole number of thousands of digits.
        sizes = tuple(map(int, match.groups()))
        start = 2
    if lines and lines[-1] == b"":
        lines.pop()
    max_rows, *columns = sizes
    columns = [MAX_INDEX if count is None else count for count in columns]
    rows = []
    skipped = 0
    for number, line in enumerate(lines, start):
        if not variant.header and (line in (b"", b"\r") or re.match(rb"[ \t]*#", line)):
            continue
        if variant.header and len(rows) + skipped == max_rows:
            if line.strip(b"\r"):
                raise BadLine(number)
            continue
        try:
            rows.append(parse_line(line, variant, *columns))
        except ValueError:
            if not lenient:
                raise BadLine(number) from None
            skipped += 1
    if max_rows not in (None, len(rows) + skipped):
        raise BadLine(1 if variant.header else None)
    return rows, skipped


def read(path, variant=XMC, **options):
    """The same from the reader."""
    rows = []
    skipped = 0
    for features, labels, left_out in read_text_blocks(path, variant, **options):
        assert [a.dtype for a in features] == [np.int64, np.int32, np.float32]
        assert [a.dtype for a in labels] == [np.int64, np.int32]
        assert features.num_rows == labels.num_rows
        assert features.indptr[-1] == len(features.indices) == len(features.values)
        assert labels.indptr[-1] == len(labels.indices)
        skipped += left_out
        rows += to_lists(features, labels)
    return rows, skipped


def to_lists(features, labels):
    """A list of (labels, pairs)."""
    rows = []
    for row in range(features.num_rows):
        at = slice(features.indptr[row], features.indptr[row + 1])
        pairs = zip(features.indices[at].tolist(), features.values[at], strict=True)
        own = labels.indices[labels.indptr[row] : labels.indptr[row + 1]].tolist()
        rows.append((own, list(pairs)))
    return rows


def assert_agrees(path, data, variant=XMC, **options):
    """Reader and naive parser give the same rows, or an error in the same line."""
    data = data if isinstance(data, bytes) else data.encode()
    path.write_bytes(data)
    try:
        expected = parse(
            data, variant, options.get("lenient", False), options.get("sizes") or (None,) * 3
        )
    except BadLine as bad:
        where = str(path) if bad.args[0] is None else f"{path}:{bad.args[0]}"
        with pytest.raises(DataError, match=rf"^{re.escape(where)}: "):
            read(path, variant, **options)
    else:
        assert read(path, variant, **options) == expected
