"""Cells of tables as people and programs write them: gaps, numbers, and lists of labels."""

import ast
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import suppress
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np

from slide.utils.checks import NO_LITERAL

# Characters that part the labels of a cell, the least ambiguous first.
_SEPARATORS = ("|", ";", ",")
# What stands in a column of numbers where there is none, in lower case: words of people, of pandas
# and databases, and of spreadsheets.
_NOTHING = {"-", "--", "---", "\N{EN DASH}", "\N{EM DASH}", "?", "??", ".", "..", "..."}
_NOTHING |= {"n/a", "na", "n.a.", "n. a.", "n.a", "missing", "unknown", "not available"}
_NOTHING |= {"nan", "-nan", "+nan", "null", "(null)", "none", "nil", "nat", "<na>", "\\n"}
_NOTHING |= {"#n/a", "#n/a n/a", "#na", "#null!", "#value!", "#ref!", "#div/0!", "#num!", "#name?"}
_NOTHING |= {"1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"}
# Longer texts are no numbers, unless Python reads them.
_LONGEST_NUMBER = 400
# What parts thousands beside a point or a comma.
_GAPS = "' \N{RIGHT SINGLE QUOTATION MARK}\N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}"
_MINUS = "\N{MINUS SIGN}"
_CLOSED = {"[": "]", "(": ")", "{": "}"}
_QUOTED = r"""[bBuUrR]{0,2}(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
# What Python, NumPy, pandas and R write around a list: array(['a'], dtype=object), set().
_AROUND = re.compile(
    r"(?:\w+\.)?(?:array|list|tuple|set|frozenset|deque|Index|tensor|dict_keys|dict_values)"
    r"\(\s*([\[({].*[\])}])?\s*(?:,\s*\w+\s*=[^\[\](){}]*)?\)",
    re.DOTALL,
)
_OF_R = re.compile(rf"c(\(\s*{_QUOTED}\s*(?:,\s*{_QUOTED}\s*)*\))", re.DOTALL)
# An element: in quotes, as np.str_('a') or np.int64(3), or words; and what ends it.
_ELEMENT = re.compile(
    rf"(?:(?:np\.\w+\(\s*)?(?P<quoted>{_QUOTED})(?:\s*\))?"
    r"|np\.\w+\(\s*(?P<scalar>[^()'\"]*)\)"
    r"|(?P<word>(?!['\"])(?:(?!\s['\"])[^,\[\](){}])+))"
    r"(?P<end>\s*,\s*|\s+)?",
    re.DOTALL,
)
# Between brackets, what is more than words; and how a list begins that is no text.
_SPECIAL = re.compile(r"['\"\[\](){}]")
_BEGUN = re.compile(rf"[\[{{][\[({{\s]*(?:np\.\w+\(\s*)?[bBuUrR]{{0,2}}['\"]|\(\s*{_QUOTED}\s*,")
_GAP_WORDS = {"None", "null", "NULL", "nan", "NaN", "<NA>", "NaT"}
_FLAGS = {"True": True, "False": False, "true": True, "false": False}
_NUMBER = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_NO_LITERAL, _CUT = object(), object()


def is_gap(cell: Any) -> bool:
    """Whether a cell is None, NaN, or one of the missing values of pandas."""
    nan = isinstance(cell, float | np.floating) and math.isnan(cell)
    return cell is None or nan or type(cell).__name__ in ("NAType", "NaTType")


def is_missing(cell: Any) -> bool:
    """Whether a cell is empty: a gap, or white space."""
    return is_gap(cell) or (isinstance(cell, str) and not cell.strip())


def says_nothing(cell: Any) -> bool:
    """Whether a cell is a word that stands for no number, such as ``n/a``."""
    return isinstance(cell, str) and cell.strip().lower() in _NOTHING


def number_of(cell: Any, comma: bool = False) -> float | None:
    """A cell as a number, NaN if there is none, infinite beyond float64; None: it is no number.

    Texts may part thousands, as in ``1,234.5``, ``1 234,5`` or ``1'234``, and end in ``%``. With
    ``comma``, the decimal sign is a comma in texts that can be read in both ways, such as
    ``1,234``.
    """
    if is_missing(cell) or says_nothing(cell):
        return math.nan
    if isinstance(cell, str):
        found = _read_number(cell, comma)
        return _read_number(cell, not comma) if found is None else found
    try:
        numeric = isinstance(cell, int | float | np.number | Decimal)
        return float(cell) if numeric else None
    except OverflowError:
        return math.inf
    except ValueError:
        return None


def is_marked(cell: Any) -> bool:
    """Whether a cell is 1 or true, not 0, false or empty; ValueError for another one."""
    found = number_of(_FLAGS.get(cell.strip().lower(), cell) if isinstance(cell, str) else cell)
    if found is None or (found not in (0, 1) and not math.isnan(found)):
        raise ValueError(f"neither 0 nor 1, but {cell!r:.60}")
    return found == 1


def decimal_sign(cell: Any) -> str:
    """The decimal sign of a text that is a number by one sign only; else empty."""
    if not isinstance(cell, str) or ("." not in cell and "," not in cell):
        return ""
    point, comma = (_read_number(cell, comma) is not None for comma in (False, True))
    return "" if point == comma else "." if point else ","


def is_plain(cell: Any) -> bool:
    """Whether a cell is empty, or a number as Python writes it."""
    if is_missing(cell) or not isinstance(cell, str):
        return True
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_number(text: str, comma: bool) -> float | None:
    """A text as a number with this decimal sign; None: it is none."""
    text = text.strip()
    if not comma or "." not in text:
        try:
            return float(text)
        except ValueError:
            pass
    match = _form(comma).fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    if match is None:
        return None
    digits = "".join(each for each in match["whole"] if each.isdigit())
    found = float(f"{digits}.{match['fraction'] or ''}{match['power'] or ''}")
    found = -found if match["sign"] in ("-", _MINUS) else found
    return found / 100 if match["percent"] else found


@cache
def _form(comma: bool) -> re.Pattern[str]:
    """A sign, a whole part, a fraction, a power of ten, and percent."""
    point, parts = (",", f".{_GAPS}") if comma else (r"\.", f",{_GAPS}")
    # After a leading 0 nobody parts thousands: 0,125 is an eighth.
    grouped = rf"[1-9]\d{{0,2}}(?P<part>[{parts}])\d{{3}}(?:(?P=part)\d{{3}})*"
    whole = rf"(?P<whole>{grouped}|\d+|(?={point}\d))"
    rest = rf"(?:{point}(?P<fraction>\d*))?(?P<power>[eE][-+]?\d+)?\s?(?P<percent>%)?"
    return re.compile(rf"(?P<sign>[-+{_MINUS}]?){whole}{rest}")


def likely_separator(cells: Iterable[str]) -> str | None:
    """The character that parts the names in cells, if there are fewer parts than cells."""
    distinct = set(cells)
    for separator in _SEPARATORS:
        lists = [cell for cell in distinct if separator in cell]
        parts = {part.strip() for cell in distinct for part in cell.split(separator)}
        if len(lists) > 2 and 3 * len(lists) >= len(distinct) > len(parts):
            return separator
    return None


def label_separator(cells: Iterable[str]) -> str | None:
    """`likely_separator` of cells of labels, some of which may write lists of their own."""
    distinct = set(cells)
    names = [cell for cell in distinct if not writes_list(cell)]
    if names and len(names) < len(distinct) and all(cell.strip()[:1] == "[" for cell in names):
        return ","  # A list of one word, as in [draft], may be a name elsewhere.
    return likely_separator(names)


def writes_list(cell: str) -> bool:
    """Whether a text is a list, or one that cannot be read."""
    try:
        return list_of(cell) is not None
    except ValueError:  # The reader of its row says so.
        return True


def labels_of(cell: Any, separator: str | None) -> list[str]:
    """The names in a cell: a list, a list as programs write it, or separated text.

    ValueError for a list that cannot be read, and for names that are no texts or numbers.
    """
    if isinstance(cell, str):
        found = list_of(cell, separator)
        cell = cell if found is None else found
    if hasattr(cell, "tolist"):  # An array, a series or a tensor.
        cell = cell.tolist()
    if isinstance(cell, str) and separator is not None:
        cell = cell.split(separator)
    if not isinstance(cell, Collection) or isinstance(cell, str | bytes | Mapping):
        cells = [cell]
    else:
        cells = sorted(cell, key=str) if isinstance(cell, Set) else cell
    return list(dict.fromkeys(_name(each) for each in cells if not is_missing(each)))


def _name(cell: Any) -> str:
    """The name of a label; columns of whole numbers with gaps are floats in pandas."""
    cell = cell.item() if isinstance(cell, np.generic) else cell
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    if not isinstance(cell, str | int | float) or cell in (math.inf, -math.inf):
        raise ValueError(f"{cell!r:.60} is no name of a label: it must be text or a number")
    return str(cell).strip()


def list_of(text: str, separator: str | None = None) -> Any:
    """The list that a text writes, as Python, JSON, NumPy, R or a database do; None: it is none.

    Such as ``["a"]``, ``['a' 'b']``, ``('a', 'b')``, ``array(['a'])``, ``{a,b}``, ``[a, b]`` and
    ``[1 2]``. An object is a dict. ValueError for a list that cannot be read.
    """
    whole = text = text.strip()
    if text[-1:] not in ("]", ")", "}"):
        if text[:1] in ("[", "{") and _BEGUN.match(text):
            raise _not_read(text)  # It may be cut.
        return None
    if around := _AROUND.fullmatch(text):
        text = around[1] or "[]"
    elif of_r := _OF_R.fullmatch(text):
        text = of_r[1]
    if _CLOSED.get(text[:1]) != text[-1]:
        return None
    if text[0] != "(":
        with suppress(*NO_LITERAL):
            return json.loads(text) or []
    found = _elements(text[1:-1], text[0], separator)
    if found is None and _BEGUN.match(text):
        inner: Any = ()
        with suppress(*NO_LITERAL):
            inner = ast.literal_eval(text)
        # Of two in quotes without a comma, Python makes one: lists of texts are not read by it.
        if isinstance(inner, dict) or any(isinstance(each, list | tuple | dict) for each in inner):
            return inner
        raise _not_read(whole)
    return found


def _not_read(text: str) -> ValueError:
    return ValueError(f"the list of labels {text!r:.60} cannot be read: write ['a', 'b']")


def _elements(inner: str, opened: str, separator: str | None) -> list[Any] | None:
    """The elements between two brackets; None: this is no list."""
    inner = inner.strip()
    if not _SPECIAL.search(inner):
        return _words(inner, opened, separator)
    found, at = list[Any](), 0
    while at < len(inner):
        match = _ELEMENT.match(inner, at)
        if match is None:
            return None
        if match["quoted"] is not None:
            found.append(_unquoted(match["quoted"]))
        else:
            words = _words(match["scalar"] or match["word"] or "", opened, ",")
            if words is None:
                return None
            found += words
        if not match["end"] and match.end() < len(inner):
            return None
        at = match.end()
    return found


def _words(inner: str, opened: str, separator: str | None) -> list[Any] | None:
    """Elements without quotes: parted by spaces if all are numbers, as in NumPy, else by commas."""
    found = [_literal(word) for word in inner.split()]
    if _CUT in found:
        raise ValueError(
            f"a list of labels is cut, {inner!r:.60}: NumPy leaves out elements of long arrays, "
            "so write array.tolist()"
        )
    if all(each is not _NO_LITERAL for each in found) and (opened != "(" or not found):
        return found
    parts = inner.split(separator if separator and separator in inner else ",")
    found = [_literal(part.strip()) for part in parts]
    if opened == "(" and (len(parts) == 1 or _NO_LITERAL in found):
        return None  # A remark, such as (draft).
    if opened == "[" and len(parts) == 1 and separator is None:
        return None
    pairs = zip(parts, found, strict=True)
    return [part.strip() if each is _NO_LITERAL else each for part, each in pairs]


def _literal(word: str) -> Any:
    """A gap, a number or a flag; `_NO_LITERAL` for another word."""
    if word in _GAP_WORDS:
        return None
    if word == "...":
        return _CUT
    if not _NUMBER.fullmatch(word):
        return _FLAGS.get(word, _NO_LITERAL)
    return int(word) if word.lstrip("-").isdigit() else float(word)


def _unquoted(word: str) -> Any:
    """What a text in quotes says; as JSON if it is some, which has pairs of surrogates."""
    if word[0] in "'\"" and "\\" not in word:
        return word[1:-1]
    if word.startswith('"'):
        with suppress(*NO_LITERAL):
            return json.loads(word)
    with suppress(*NO_LITERAL):
        return ast.literal_eval(word)
    raise ValueError(f"{word!r:.60} in a list of labels is no text as Python writes it")
