"""A state machine over the bytes of lines ``label,label feature:value feature:value ...``.

The kernel knows bytes and bounds; files, messages and headers are the business of
`slide.data.formats.rows`.
"""

from typing import NamedTuple

import numpy as np

from slide.kernels.compile import serial

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

TAB, LF, CR, SPACE, HASH, PLUS, COMMA, MINUS, DOT, COLON = 9, 10, 13, 32, 35, 43, 44, 45, 46, 58
UPPER_E, LOWER_E = 69, 101

# Halfway between the largest float32 and the next power of two: from here on float32 rounds to
# infinity.
FLOAT32_LIMIT = 3.4028235677973366e38
# Another digit keeps a mantissa below this in int64.
MANTISSA_LIMIT = 10**17
# Beyond this an index is out of any range, and an exponent out of float64.
INDEX_LIMIT = 1 << 40
EXPONENT_LIMIT = 400
# Places for the columns of a row, to find those that occur twice; longer rows get more.
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
def _read_index(data, at):
    """Reads ``[-]digits``; returns (value, end), value -1 for a negative, -2 for no number."""
    negative = data[at] == MINUS
    if negative:
        at += 1
    first = at
    value = 0
    while True:
        digit = np.int64(data[at]) - 48
        if digit < 0 or digit > 9:
            break
        if value < INDEX_LIMIT:
            value = value * 10 + digit
        at += 1
    if at == first:
        return -2, at
    if negative and value > 0:
        return -1, at
    return value, at


@serial
def _read_number(data, at):
    """Reads a decimal number; returns (value, end, whether there was one).

    Up to 15 significant digits with an exponent of at most 22 the value is the nearest float64:
    mantissa and power of ten are exact, and one rounding joins them.
    """
    negative = data[at] == MINUS
    if negative or data[at] == PLUS:
        at += 1
    mantissa = 0
    exponent = 0
    digits = 0
    fraction = False
    while True:
        digit = np.int64(data[at]) - 48
        if digit == DOT - 48 and not fraction:
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
        at += 1
        shrink = data[at] == MINUS
        if shrink or data[at] == PLUS:
            at += 1
        first = at
        power = 0
        while True:
            digit = np.int64(data[at]) - 48
            if digit < 0 or digit > 9:
                break
            if power < 1_000_000_000:
                power = power * 10 + digit
            at += 1
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


@serial
def _enter(table, owner, column):
    """Enters a column under an owner, a positive number; returns whether it was new.

    An entry is ``owner * 2 ** 31 + column``; those of earlier owners count as free places, so that
    the table need not be cleared. At least one place must be free.
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
def parse_rows(
    data,
    columns,
    max_lines,
    lenient,
    comments,
    feature_indptr,
    feature_indices,
    feature_values,
    label_indptr,
    label_indices,
):
    """Parses lines ``label,label feature:value feature:value ...``.

    Args:
        data: ``(bytes,)`` uint8 whole lines; the last byte is a line feed.
        columns: the numbers of features and labels; the indices of the outputs begin at 0.
        max_lines: stop after this many lines.
        lenient: skip a bad line instead of stopping at it.
        comments: what follows a ``#`` is no part of a row, and a line of nothing else, or of
            nothing at all, is no row.
        feature_indptr, label_indptr: ``(lines + 1,)`` int64 outputs.
        feature_indices, feature_values: int32 and float32 outputs, one place per colon in the data.
        label_indices: int32 output, one place per comma and per line.

    Returns:
        (lines, rows, skipped, end, status): ``end`` is the offset of the first byte after the lines
        read or, when status is not `OK`, of the token at fault, which stands in the line after
        those counted.
    """
    table = np.zeros(TABLE_SIZE, np.int64)
    at = 0
    lines = 0
    rows = 0
    skipped = 0
    feature_indptr[0] = 0
    label_indptr[0] = 0
    while at < len(data) and lines < max_lines:
        begin = at
        features = feature_indptr[rows]
        labels = label_indptr[rows]
        # Half of the table is for the row's columns, of which each takes two bytes or more.
        room = len(table) // 2 + features + labels
        owner = 2 * lines + 2
        status = OK
        token = at
        is_row = not comments or not (
            data[at] in (LF, HASH) or (data[at] == CR and data[at + 1] == LF)
        )
        more = is_row and not _is_separator(data[at])
        while more:
            token = at
            index, at = _read_index(data, at)
            more = data[at] == COMMA
            column = index - columns.first_label
            if index == -2 or not (more or _is_separator(data[at])):
                status = MALFORMED_LABEL
            elif index < 0 or column < 0 or column >= columns.num_labels:
                status = LABEL_RANGE
            elif features + labels >= room:
                status = TABLE_FULL
            elif not _enter(table, owner, column):
                status = DUPLICATE_LABEL
            else:
                label_indices[labels] = column
                labels += 1
                at += more
            if status != OK:
                break
        while status == OK:
            while data[at] == SPACE or data[at] == TAB:
                at += 1
            if comments and data[at] == HASH:
                while data[at] != LF:
                    at += 1
            if data[at] == LF:
                break
            if data[at] == CR and data[at + 1] == LF:
                at += 1
                break
            token = at
            index, at = _read_index(data, at)
            if index == -2 or data[at] != COLON:
                status = MALFORMED_FEATURE
                break
            value, at, valid = _read_number(data, at + 1)
            column = index - columns.first_feature
            if not valid or not _is_separator(data[at]):
                status = MALFORMED_FEATURE
            elif index < 0 or column < 0 or column >= columns.num_features:
                status = FEATURE_RANGE
            elif not abs(value) < FLOAT32_LIMIT:
                status = NOT_FINITE
            elif features + labels >= room:
                status = TABLE_FULL
            elif not _enter(table, owner + 1, column):
                status = DUPLICATE_FEATURE
            else:
                feature_indices[features] = column
                feature_values[features] = value
                features += 1
        if status == TABLE_FULL:
            table = np.zeros(4 * len(table), np.int64)
            at = begin
            continue
        if status == OK:
            at += 1
            if is_row:
                rows += 1
                feature_indptr[rows] = features
                label_indptr[rows] = labels
        elif lenient:
            while data[at] != LF:
                at += 1
            at += 1
            skipped += 1
        else:
            return lines, rows, skipped, token, status
        lines += 1
    return lines, rows, skipped, at, OK
