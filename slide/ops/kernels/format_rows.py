"""Rows as text ``label,label feature:value feature:value ...``, which `parse_rows` reads back."""

import math

import numpy as np

from slide.ops.kernels.characters import COLON, COMMA, DOT, LF, LOWER_E, MINUS, SPACE, ZERO
from slide.ops.kernels.compile import serial

__all__ = ["FEATURE_BYTES", "LABEL_BYTES", "ROW_BYTES", "format_rows"]

# Upper bounds. The longest value is "-0.00000" and 10 digits; a column number has up to 10 digits.
FEATURE_BYTES = 30
LABEL_BYTES = 11
ROW_BYTES = 2

# Nine digits distinguish all float32. The tenth is for a logarithm that was rounded up.
MIN_DIGITS, MAX_DIGITS = 7, 10
# A decimal stands for a float32 if all numbers within this relative distance are rounded to it. So
# a reader with this precision reads the same float32.
TOLERANCE = 1e-12
# Up to so many zeros are written after the point or at the end; beyond it an exponent is written.
MAX_ZEROS = 5


@serial
def _power_of_ten(exponent):
    power = 1.0
    for _ in range(exponent):
        power *= 10.0
    return power


@serial
def _count_digits(number):
    count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@serial
def _write_digits(out, at, number, count):
    """Writes the last ``count`` digits of a number; returns their end."""
    for place in range(at + count - 1, at - 1, -1):
        out[place] = ZERO + number % 10
        number //= 10
    return at + count


@serial
def _write_number(out, at, number):
    return _write_digits(out, at, number, _count_digits(number))


@serial
def _to_decimal(value):
    """Few digits that stand for a positive float32; returns (mantissa, exponent of ten)."""
    number = np.float64(value)
    first = math.floor(math.log10(number))  # the exponent of the first digit
    mantissa = 0
    exponent = 0
    for digits in range(MIN_DIGITS, MAX_DIGITS + 1):
        exponent = first + 1 - digits
        if exponent < 0:
            power = _power_of_ten(-exponent)
            mantissa = np.int64(number * power + 0.5)
            decimal = mantissa / power
        else:
            power = _power_of_ten(exponent)
            mantissa = np.int64(number / power + 0.5)
            decimal = mantissa * power
        margin = decimal * TOLERANCE
        if np.float32(decimal - margin) == value and np.float32(decimal + margin) == value:
            break
    while mantissa % 10 == 0:
        mantissa //= 10
        exponent += 1
    return mantissa, exponent


@serial
def _write_value(out, at, value, negative):
    """Writes a decimal that is read back as this float32; returns its end."""
    if negative:
        out[at] = MINUS
        at += 1
    if value == 0:
        out[at] = ZERO
        return at + 1
    mantissa, exponent = _to_decimal(abs(value))
    digits = _count_digits(mantissa)
    before = digits + exponent  # digits before the point; if negative, zeros after it
    if exponent > MAX_ZEROS or before < -MAX_ZEROS:
        at = _write_digits(out, at, mantissa, digits)
        out[at] = LOWER_E
        at += 1
        if exponent < 0:
            out[at] = MINUS
            at += 1
        return _write_number(out, at, abs(exponent))
    if exponent >= 0:
        at = _write_digits(out, at, mantissa, digits)
        return _write_digits(out, at, 0, exponent)
    power = 1
    for _ in range(-exponent):
        power *= 10
    at = _write_number(out, at, mantissa // power)
    out[at] = DOT
    return _write_digits(out, at + 1, mantissa % power, -exponent)


@serial
def format_rows(
    feature_indptr, feature_indices, feature_values, label_indptr, label_indices,
    first_feature, first_label, out,
):  # fmt: skip
    """Writes a line for each row; one without labels begins with a space.

    Args:
        feature_indptr, feature_indices, feature_values: B rows, of finite float32 values.
        label_indptr, label_indices: B rows.
        first_feature, first_label: numbers of the first columns.
        out: uint8 output; per feature, label and row it needs `FEATURE_BYTES`, `LABEL_BYTES` and
            `ROW_BYTES`.

    Returns:
        How many bytes were written.
    """
    bits = feature_values.view(np.int32)  # compiled code may treat -0 as 0
    at = 0
    for row in range(len(feature_indptr) - 1):
        begin = at
        for k in range(label_indptr[row], label_indptr[row + 1]):
            if k > label_indptr[row]:
                out[at] = COMMA
                at += 1
            at = _write_number(out, at, np.int64(label_indices[k]) + first_label)
        for k in range(feature_indptr[row], feature_indptr[row + 1]):
            out[at] = SPACE
            at = _write_number(out, at + 1, np.int64(feature_indices[k]) + first_feature)
            out[at] = COLON
            at = _write_value(out, at + 1, feature_values[k], bits[k] < 0)
        if at == begin:
            out[at] = SPACE
            at += 1
        out[at] = LF
        at += 1
    return at
