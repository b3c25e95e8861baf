"""Reading whole and decimal numbers from bytes; a byte that is not a digit ends a number."""

import numpy as np

from slide.ops.kernels.characters import DOT, LOWER_E, MINUS, PLUS, UPPER_E
from slide.ops.kernels.compile import serial

__all__ = ["read_index", "read_number"]

# One more digit keeps a mantissa below this in int64.
MANTISSA_LIMIT = 10**17
# An index above this is out of any range, and float64 has no larger exponent.
INDEX_LIMIT = 1 << 40
EXPONENT_LIMIT = 400
# Further digits of an exponent do not matter.
POWER_LIMIT = 1_000_000_000


@serial
def read_index(data, at):
    """Reads ``[-]digits``; returns (value, end), value -1: negative, -2: no number."""
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
def _read_exponent(data, at):
    """Reads ``[+-]digits``; returns (value, end, whether there were digits)."""
    shrink = data[at] == MINUS
    if shrink or data[at] == PLUS:
        at += 1
    first = at
    power = 0
    while True:
        digit = np.int64(data[at]) - 48
        if digit < 0 or digit > 9:
            break
        if power < POWER_LIMIT:
            power = power * 10 + digit
        at += 1
    return (-power if shrink else power), at, at > first


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
        power, at, valid = _read_exponent(data, at + 1)
        if not valid:
            return 0.0, at, False
        exponent += power
    value = float(mantissa)
    if mantissa != 0 and exponent != 0:
        # 10 ** 22 is the last exact power of ten in float64; products below it are exact as well.
        scale = 1.0
        for _ in range(min(abs(exponent), EXPONENT_LIMIT)):
            scale *= 10.0
        value = value * scale if exponent > 0 else value / scale
    return (-value if negative else value), at, True
