"""Checks of numbers and names that users set: errors of one sentence name value and bound."""

import operator
import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

# Most characters of an error of a library in a sentence: two lines of a terminal.
_LONGEST = 200
# Python has larger integers, which become no floats.
LARGEST_FLOAT = sys.float_info.max
# Halfway between the largest float32 and the next power of two: float32 rounds larger numbers to
# infinity.
FLOAT32_LIMIT = 3.4028235677973366e38
FLOAT32_MOST = f"at most {np.finfo(np.float32).max:.7e}"
NO_FLOAT32 = f"is not a finite float32 ({FLOAT32_MOST})"
# What Python's reader of literals raises for a text that is none, or is nested too deeply.
NO_LITERAL = (ValueError, SyntaxError, RecursionError, MemoryError)
# Keys that users may call by the letters of the papers.
LETTERS = {
    **dict.fromkeys(("hash.K", "K"), "hash.hashes_per_table"),
    **dict.fromkeys(("hash.L", "L"), "hash.num_tables"),
}


class Alone:
    """``with`` this, one thread at a time runs a block; RuntimeError in another one.

    Waiting would mix their steps, and two of them at once would write behind each other's back.
    """

    def __init__(self, said: str):
        self._lock, self._said = threading.RLock(), said

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(self._said)

    def __exit__(self, *_: Any) -> None:
        self._lock.release()


def whole(name: str, value: Any, least: int) -> int:
    """A whole number, of any type that can be an index; raises ValueError below ``least``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return number


def positive(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a finite number above 0."""
    if not _is_number(value) or not 0 < value <= LARGEST_FLOAT:
        raise ValueError(f"{name} must be a number above 0, not {value!r}")


def not_negative(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a finite number of at least 0."""
    if not _is_number(value) or not 0 <= value <= LARGEST_FLOAT:
        raise ValueError(f"{name} must be a number of at least 0, not {value!r}")


def within(name: str, value: Any, least: float, most: float) -> None:
    """Raise ValueError unless ``value`` is a number in [``least``, ``most``]."""
    if not _is_number(value) or not least <= value <= most:
        raise ValueError(f"{name} must be in [{least}, {most}], not {value!r}")


def whole_within(name: str, value: Any, least: int, most: int) -> int:
    """`whole`, for a number in [``least``, ``most``]."""
    within(name, value, least, most)
    return whole(name, value, least)


def share(name: str, value: Any, with_one: bool = False) -> None:
    """Raise ValueError unless ``value`` lies in [0, 1), or in [0, 1] ``with_one``."""
    if not _is_number(value) or not 0 <= value <= 1 or (value == 1 and not with_one):
        raise ValueError(f"{name} must be in [0, 1{']' if with_one else ')'}, not {value!r}")


def one_of(name: str, value: Any, names: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of ``names``; the message suggests a near one."""
    names = list(names)
    if value not in names:
        asked = near_word(value, names) if isinstance(value, str) else ""
        raise ValueError(f"{name} must be one of {', '.join(names)}, not {value!r}{asked}")


def near_word(word: str, known: Sequence[str], cutoff: float = 0.6) -> str:
    """``; did you mean ...?`` with the known word nearest to ``word``, if one is near."""
    near = get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def maker(name: str, value: Any, example: str) -> None:
    """Raise TypeError unless ``value`` is None, or a class or function that makes something."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a class or function such as {example}, not {value!r}")


def listing(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a list."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{name} must be a list, such as [1, 2], not {value!r}")


def flag(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")


def counted(number: int, noun: str, several: str | None = None) -> str:
    """A number with its noun: ``1 row``, ``2,000 rows``, and ``several`` where -s is wrong."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


def filled_text(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a text that is not empty, not {value!r}")


def finite(name: str, values: np.ndarray) -> None:
    """Raises ValueError for NaN or infinite values."""
    if not np.isfinite(values).all():
        raise ValueError(f"{name} hold NaN or infinite values")


def row_weights(name: str, values: Any, num_rows: int) -> np.ndarray | None:
    """``values``, how much each row counts, as ``(num_rows,)`` float64; None stays None."""
    if values is None:
        return None
    found = np.asarray(values, np.float64)
    if found.shape != (num_rows,):
        raise ValueError(f"{name} {found.shape} do not fit {num_rows} rows")
    bad = found[~(np.isfinite(found) & (found >= 0))]
    if len(bad):
        raise ValueError(f"{name} must be finite and at least 0, not {bad[0]}")
    return found


class ScoresNotFinite(ValueError):
    """A row has scores that are no finite numbers."""

    def __init__(self, row: int):
        super().__init__(f"the values of row {row} are too large: its scores are not finite")
        self.row = row


class DivergenceError(RuntimeError):
    """The loss or a weight became NaN or infinite; the last good checkpoint of a run is kept.

    Example:
        >>> from slide.training import DivergenceError
        >>> raise DivergenceError("the loss is nan at step 3")
        Traceback (most recent call last):
        slide.utils.checks.DivergenceError: the loss is nan at step 3
    """


def encodable(name: str, path: str | os.PathLike[str]) -> None:
    """Raise ValueError for a path that the locale cannot encode, so no such file can be found."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} {str(path)!a} has characters that {error.encoding} lacks, the encoding of "
            "names of files in this locale: set LC_ALL=C.UTF-8"
        ) from error


def printable(text: str, kept: str = "\n\t") -> str:
    """A text for a terminal: control characters are spelt out, but for the ``kept`` ones."""
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape").decode()
        for each in text
    )


def shortened(error: object) -> str:
    """What an error of a library says of a file: one line, and not all of it."""
    said = printable(" ".join(f"{error}".split()))
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."


def error_message(error: BaseException | None, overrides: Sequence[str] = ()) -> str:
    """The message of an error, with the whole key of a value, and a file before what is wrong."""
    return printable(_message(error, overrides))


def _message(error: BaseException | None, overrides: Sequence[str]) -> str:
    # Errors of HTTP have an address as filename, and no strerror.
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        to = "" if error.filename2 is None else f" -> {error.filename2}"
        return f"{error.filename}{to}: {error.strerror}"
    name = re.split(r"[ =]", str(error), maxsplit=1)[0]
    rest = str(error).removeprefix(name)
    # Other sentences may begin with the same word: "bias (3,) does not fit ...".
    if not rest.startswith((" must ", " would ", " = ", "=")):
        return str(error)
    keys = {override_key(word): typed_key(word) for word in overrides}
    meant = [typed for key, typed in keys.items() if name in (key, key.rpartition(".")[2])]
    return f"{meant[0]}{rest}" if len(meant) == 1 else str(error)


def typed_key(word: str) -> str:
    """The key of an override of a command line as it was typed: ``seed`` of ``+seed=3``."""
    return word.partition("=")[0].lstrip("+")


def override_key(word: str) -> str:
    """`typed_key`, or the key that a letter of the papers stands for."""
    return LETTERS.get(typed_key(word), typed_key(word))


def typed_value(value: object) -> str:
    """A value of a setting as it is typed on a command line."""
    if isinstance(value, list):
        return f"[{','.join(map(typed_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer) and not isinstance(value, bool)
