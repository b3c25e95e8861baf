"""A parser of the bytes of lines ``label,label feature:value feature:value ...``.

The kernel knows bytes and bounds. `slide.data.row_files` knows files, headers and error
messages.
"""

from typing import NamedTuple

import numpy as np

from slide.kernels.characters import COLON, COMMA, CR, HASH, LF, SPACE, TAB
from slide.kernels.compile import serial
from slide.kernels.read_numbers import read_index, read_number

__all__ = [
    "DUPLICATE_FEATURE",
    "DUPLICATE_LABEL",
    "FEATURE_RANGE",
    "LABEL_RANGE",
    "MALFORMED_FEATURE",
    "MALFORMED_LABEL",
    "NOT_FINITE",
    "OK",
    "Columns",
    "parse_rows",
]

OK = 0
MALFORMED_LABEL = 1
MALFORMED_FEATURE = 2
LABEL_RANGE = 3
FEATURE_RANGE = 4
NOT_FINITE = 5
DUPLICATE_LABEL = 6
DUPLICATE_FEATURE = 7
TABLE_FULL = 8  # never returned

# Halfway between the largest float32 and the next power of two: float32 rounds larger numbers to
# infinity.
FLOAT32_LIMIT = 3.4028235677973366e38
# Places for the columns of a row, to find a column that occurs twice; longer rows get more places.
TABLE_SIZE = 1 << 12
# The multiplicative hash of Knuth, The Art of Computer Programming 3, section 6.4.
MULTIPLIER = 2654435769


class Columns(NamedTuple):
    """The numbers that columns have in a file: those in ``[first, first + count)``.

    Attributes:
        first_feature, first_label: the number of the first column.
        num_features, num_labels: how many there are, at most ``2 ** 31 - 1``.
    """

    first_feature: int
    first_label: int
    num_features: int
    num_labels: int


@serial
def _is_separator(byte):
    return byte in (SPACE, LF, CR, TAB)


@serial
def _enter(table, owner, column):
    """Enters a column under an owner, a positive number; returns whether it was new.

    An entry is ``owner * 2 ** 31 + column``. Entries of earlier owners count as free places, so the
    table is never cleared. At least one place must be free.
    """
    entry = (owner << 31) + column
    place = (column * MULTIPLIER >> 16) & (len(table) - 1)
    while table[place] >> 31 == owner:
        if table[place] == entry:
            return False
        place = (place + 1) & (len(table) - 1)
    table[place] = entry
    return True


@serial
def _parse_labels(data, at, columns, table, owner, room, label_indices, labels):
    """Parses the labels at the start of a row; returns (labels, token, end, status)."""
    token = at
    more = not _is_separator(data[at])
    while more:
        token = at
        index, at = read_index(data, at)
        more = data[at] == COMMA
        column = index - columns.first_label
        if index == -2 or not (more or _is_separator(data[at])):
            return labels, token, at, MALFORMED_LABEL
        if index < 0 or column < 0 or column >= columns.num_labels:
            return labels, token, at, LABEL_RANGE
        if labels >= room:
            return labels, token, at, TABLE_FULL
        if not _enter(table, owner, column):
            return labels, token, at, DUPLICATE_LABEL
        label_indices[labels] = column
        labels += 1
        at += more
    return labels, token, at, OK


@serial
def _skip_line(data, at):
    """The place of the next line feed."""
    while data[at] != LF:
        at += 1
    return at


@serial
def _parse_features(
    data, at, columns, comments, table, owner, room, feature_indices, feature_values, features
):
    """Parses the features of a row; returns (features, token, end, status)."""
    token = at
    while True:
        while data[at] == SPACE or data[at] == TAB:
            at += 1
        if comments and data[at] == HASH:
            at = _skip_line(data, at)
        if data[at] == CR and data[at + 1] == LF:
            at += 1
        if data[at] == LF:
            return features, token, at, OK
        token = at
        index, at = read_index(data, at)
        if index == -2 or data[at] != COLON:
            return features, token, at, MALFORMED_FEATURE
        value, at, valid = read_number(data, at + 1)
        column = index - columns.first_feature
        if not valid or not _is_separator(data[at]):
            return features, token, at, MALFORMED_FEATURE
        if index < 0 or column < 0 or column >= columns.num_features:
            return features, token, at, FEATURE_RANGE
        if not abs(value) < FLOAT32_LIMIT:
            return features, token, at, NOT_FINITE
        if features >= room:
            return features, token, at, TABLE_FULL
        if not _enter(table, owner, column):
            return features, token, at, DUPLICATE_FEATURE
        feature_indices[features] = column
        feature_values[features] = value
        features += 1


@serial
def _is_blank(data, at):
    """Whether a line is empty, or holds nothing but white space and a comment."""
    if data[at] == LF or (data[at] == CR and data[at + 1] == LF):
        return True
    while data[at] == SPACE or data[at] == TAB:
        at += 1
    return data[at] == HASH


@serial
def parse_rows(
    data, columns, max_lines, lenient, comments,
    feature_indptr, feature_indices, feature_values, label_indptr, label_indices,
):  # fmt: skip
    """Parses lines ``label,label feature:value feature:value ...``.

    Args:
        data: ``(bytes,)`` uint8 whole lines; the last byte is a line feed.
        columns: the numbers of features and labels; the indices of the outputs begin at 0.
        max_lines: stop after this many lines.
        lenient: skip a bad line instead of stopping at it.
        comments: the text after a ``#`` is not part of a row. A line that is empty, or has nothing
            but white space before a ``#``, is not a row; one of white space alone is an empty row.
        feature_indptr, label_indptr: ``(lines + 1,)`` int64 outputs.
        feature_indices, feature_values: int32 and float32 outputs, one place per colon in the data.
        label_indices: int32 output, one place per comma and per line.

    Returns:
        (lines, rows, skipped, end, status): ``end`` is the offset after the lines that were read.
        If status is not `OK`, it is the offset of the bad token, in the line after those counted.
    """
    table = np.zeros(TABLE_SIZE, np.int64)
    at = lines = rows = skipped = 0
    feature_indptr[0] = label_indptr[0] = 0
    while at < len(data) and lines < max_lines:
        begin, features, labels = at, feature_indptr[rows], label_indptr[rows]
        # At most half of the table is filled, so a search ends soon.
        room, owner = len(table) // 2, 2 * lines + 2
        token, status = at, OK
        is_row = not (comments and _is_blank(data, at))
        if is_row:
            labels, token, at, status = _parse_labels(
                data, at, columns, table, owner, room + labels, label_indices, labels
            )
        if status == OK:
            room -= labels - label_indptr[rows]
            features, token, at, status = _parse_features(
                data, at, columns, comments, table, owner + 1, room + features,
                feature_indices, feature_values, features,
            )  # fmt: skip
        if status == TABLE_FULL:
            table = np.zeros(4 * len(table), np.int64)
            at = begin
            continue
        if status != OK and not lenient:
            return lines, rows, skipped, token, status
        if status != OK:
            at = _skip_line(data, at)
            skipped += 1
        elif is_row:
            rows += 1
            feature_indptr[rows], label_indptr[rows] = features, labels
        at += 1
        lines += 1
    return lines, rows, skipped, at, OK
