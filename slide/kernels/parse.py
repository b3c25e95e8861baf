"""A state machine over the bytes of an XMC text file.

The kernel knows bytes and bounds; files, messages and headers are the business of `slide.data.xmc`.
"""

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

TAB, LF, CR, SPACE, PLUS, COMMA, MINUS, DOT, COLON = 9, 10, 13, 32, 43, 44, 45, 46, 58
UPPER_E, LOWER_E = 69, 101

# Halfway between the largest float32 and the next power of two: from here on float32 rounds to
# infinity.
FLOAT32_LIMIT = 3.4028235677973366e38
# Another digit keeps a mantissa below this in int64.
MANTISSA_LIMIT = 10**17
# Beyond this an index is out of any range, and an exponent out of float64.
INDEX_LIMIT = 1 << 40
EXPONENT_LIMIT = 400


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
def parse_rows(
    data,
    max_lines,
    first_line,
    lenient,
    feature_stamps,
    label_stamps,
    feature_indptr,
    feature_indices,
    feature_values,
    label_indptr,
    label_indices,
):
    """Parses lines ``label,label feature:value feature:value ...``.

    Args:
        data: ``(bytes,)`` uint8 whole lines; the last byte is a line feed.
        max_lines: stop after this many lines.
        first_line: a positive number that no earlier call with the same stamps reached; line
            ``i`` of this call marks its columns with ``first_line + i``.
        lenient: skip a bad line instead of stopping at it.
        feature_stamps, label_stamps: ``(features,)`` and ``(labels,)`` int32 scratch, zeros before
            the first call: the last line in which a column was seen.
        feature_indptr, label_indptr: ``(lines + 1,)`` int64 outputs.
        feature_indices, feature_values: int32 and float32 outputs, one place per colon in the data.
        label_indices: int32 output, one place per comma and per line.

    Returns:
        (rows, skipped lines, end, status): ``end`` is the offset of the first byte after the lines
        read or, when status is not `OK`, of the token at fault; the line at fault is number
        ``rows + skipped`` of this call.
    """
    at = 0
    rows = 0
    skipped = 0
    num_features = len(feature_stamps)
    num_labels = len(label_stamps)
    feature_indptr[0] = 0
    label_indptr[0] = 0
    while at < len(data) and rows + skipped < max_lines:
        stamp = first_line + rows + skipped
        features = feature_indptr[rows]
        labels = label_indptr[rows]
        status = OK
        token = at
        more = not _is_separator(data[at])
        while more:
            token = at
            index, at = _read_index(data, at)
            more = data[at] == COMMA
            if index == -2 or not (more or _is_separator(data[at])):
                status = MALFORMED_LABEL
            elif index < 0 or index >= num_labels:
                status = LABEL_RANGE
            elif label_stamps[index] == stamp:
                status = DUPLICATE_LABEL
            else:
                label_stamps[index] = stamp
                label_indices[labels] = index
                labels += 1
                at += more
            if status != OK:
                break
        while status == OK:
            while data[at] == SPACE or data[at] == TAB:
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
            if not valid or not _is_separator(data[at]):
                status = MALFORMED_FEATURE
            elif index < 0 or index >= num_features:
                status = FEATURE_RANGE
            elif not abs(value) < FLOAT32_LIMIT:
                status = NOT_FINITE
            elif feature_stamps[index] == stamp:
                status = DUPLICATE_FEATURE
            else:
                feature_stamps[index] = stamp
                feature_indices[features] = index
                feature_values[features] = value
                features += 1
        if status == OK:
            at += 1
            rows += 1
            feature_indptr[rows] = features
            label_indptr[rows] = labels
        elif lenient:
            while data[at] != LF:
                at += 1
            at += 1
            skipped += 1
        else:
            return rows, skipped, token, status
    return rows, skipped, at, OK
