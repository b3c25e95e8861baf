"""Twins of the readers of numbers, by regular expressions and Python's own conversions."""

import re


def read_index(text):
    """Value and length of the index at the beginning; value -1: negative, -2: none."""
    found = re.match(r"-?\d+", text)
    if found is None:
        return -2, 1 if text.startswith("-") else 0
    return max(int(found[0]), -1), found.end()


def read_number(text):
    """Value and length of the decimal number at the beginning; None: there is none."""
    found = re.match(r"[+-]?(\d+\.?\d*|\.\d+)", text)
    if found is None:
        return None
    end = found.end()
    if text[end : end + 1] in ("e", "E"):
        exponent = re.match(r"[eE][+-]?\d+", text[end:])
        if exponent is None:
            return None
        end += exponent.end()
    return float(text[:end]), end
