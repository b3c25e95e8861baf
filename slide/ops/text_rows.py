"""A parser of rows as text, ``label,label feature:value feature:value ...``.

The kernels know bytes and bounds. `slide.data.row_files` knows files, headers and error messages.
"""

from typing import NamedTuple

import numpy as np

from slide.ops.compile import helper, serial
from slide.utils.checks import FLOAT32_LIMIT

TAB, LF, CR, SPACE = 9, 10, 13, 32
HASH, PLUS, COMMA, MINUS, DOT, COLON = 35, 43, 44, 45, 46, 58
ZERO, UPPER_E, LOWER_E = 48, 69, 101


# One more digit keeps a mantissa below this in int64.
MANTISSA_LIMIT = 10**17
# An index above this is out of any range, and float64 has no larger exponent.
INDEX_LIMIT = 1 << 40
EXPONENT_LIMIT = 400
# Further digits of an exponent do not matter.
POWER_LIMIT = 1_000_000_000


@helper
def _read_digits(data, at, limit):
    """Reads digits; returns (value, end). A value of at least ``limit`` does not grow further."""
    value = 0
    while True:
        digit = np.int64(data[at]) - ZERO
        if digit < 0 or digit > 9:
            return value, at
        if value < limit:
            value = value * 10 + digit
        at += 1


@serial
def read_index(data, at):
    """Reads ``[-]digits``; returns (value, end), value -1: negative, -2: no number."""
    negative = data[at] == MINUS
    first = at + negative
    value, at = _read_digits(data, first, INDEX_LIMIT)
    if at == first:
        return -2, at
    return (-1 if negative and value > 0 else value), at


@serial
def read_number(data, at):
    """Reads a decimal number; returns (value, end, whether there was one).

    The value is the nearest float64 if it has up to 15 significant digits and an exponent of at
    most 22: then the mantissa and the power of ten are exact, and only their product is rounded.
    """
    negative = data[at] == MINUS
    if negative or data[at] == PLUS:
        at += 1
    mantissa = 0
    exponent = 0
    digits = 0
    fraction = False
    while True:
        digit = np.int64(data[at]) - ZERO
        if digit == DOT - ZERO and not fraction:
            fraction = True
        elif digit < 0 or digit > 9:
            break
        else:
            digits += 1
            if mantissa < MANTISSA_LIMIT:
                mantissa = mantissa * 10 + digit
                if fraction:
                    exponent -= 1
            elif not fraction:
                exponent += 1
        at += 1
    if digits == 0:
        return 0.0, at, False
    if data[at] == LOWER_E or data[at] == UPPER_E:
        shrink = data[at + 1] == MINUS
        first = at + 1 + (shrink or data[at + 1] == PLUS)
        power, at = _read_digits(data, first, POWER_LIMIT)
        if at == first:
            return 0.0, at, False
        exponent += -power if shrink else power
    value = float(mantissa)
    if mantissa != 0 and exponent != 0:
        # 10 ** 22 is the last exact power of ten in float64; products below it are exact as well.
        scale = 1.0
        for _ in range(min(abs(exponent), EXPONENT_LIMIT)):
            scale *= 10.0
        value = value * scale if exponent > 0 else value / scale
    return (-value if negative else value), at, True


OK = 0
MALFORMED_LABEL = 1
MALFORMED_FEATURE = 2
LABEL_RANGE = 3
FEATURE_RANGE = 4
NOT_FINITE = 5
DUPLICATE_LABEL = 6
DUPLICATE_FEATURE = 7
TABLE_FULL = 8  # never returned

# 4,096 positions for the columns of a row, to find a column that occurs twice; long rows get more.
TABLE_SIZE = 1 << 12
# The multiplicative hash of Knuth, The Art of Computer Programming 3, section 6.4.
MULTIPLIER = 2654435769


class Columns(NamedTuple):
    """The numbers that columns have in a file: ``[first, first + count)``.

    first_feature, first_label: the number of the first column; num_features, num_labels: how many
    there are, at most 2 ** 31 - 1.
    """

    first_feature: int
    first_label: int
    num_features: int
    num_labels: int


@helper
def _is_separator(byte):
    return byte in (SPACE, LF, CR, TAB)


@helper
def _enter(table, owner, column):
    """Enters a column under an owner, a positive number; returns whether it was new.

    An entry is ``owner * 2 ** 31 + column``. Entries of earlier owners count as free positions, so
    the table is never cleared. At least one position must be free.
    """
    entry = (owner << 31) + column
    position = (column * MULTIPLIER >> 16) & (len(table) - 1)
    while table[position] >> 31 == owner:
        if table[position] == entry:
            return False
        position = (position + 1) & (len(table) - 1)
    table[position] = entry
    return True


@helper
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


@helper
def _skip_line(data, at):
    """The position of the next line feed."""
    while data[at] != LF:
        at += 1
    return at


@helper
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


@helper
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

    data (bytes,) uint8 whole lines; columns: the numbers of features and labels; max_lines: stop
    after this many lines; lenient: skip a bad line instead of stopping at it; comments: the text
    after a # is not part of a row, and a line with nothing before it is none; feature_indptr,
    label_indptr (lines + 1,) int64 outputs; feature_indices, feature_values int32 and float32
    outputs, one position per colon in the data; label_indices int32 output, one position per comma
    and per line. Returns (lines, rows, skipped, end, status): end is the offset after the lines
    that were read, or of the bad token.
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
