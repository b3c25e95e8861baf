"""The columns of a table: which hold texts, numbers and labels, and what rows they make."""

import ast
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from slide.data.bins import MOST_BINNED, bin_edges, bin_features, bin_names, num_bins
from slide.utils import checks
from slide.utils.array_checks import Stored
from slide.utils.checks import NO_LITERAL
from slide.utils.names import Names

# Characters that part the labels of a cell, the least ambiguous first.
_SEPARATORS = ("|", ";", ",")
# Names that columns of labels have, the most usual first.
_LABELS = ("labels", "label", "tags", "tag", "topics", "topic", "categories", "category")
_LABELS += ("classes", "class", "targets", "target", "y")
# Names of columns that number rows: no features.
_IDS = ("id", "index", "uid", "uuid", "guid", "")
# Names of columns in a sentence: 100 are a page.
_SHOWN = 100
# Begins the name of a feature of a column of numbers. No word has a colon.
_NUMBER = "column:"
# The two features of a number have the value 0.25, so that those of eight columns weigh as much as
# a text. At 1, numbers that tell nothing took more from the words beside them.
_BIN_VALUE = 0.25


class Row(NamedTuple):
    """A text, the names of labels, each of them once, and numbers, NaN where there is none.

    ``name`` says where the row stands and what its table calls it; it may be empty.
    """

    text: str
    labels: list[str]
    numbers: Sequence[float] = ()
    name: str = ""

    def encodable(self) -> "Row":
        """The same; UnicodeEncodeError for half a pair of surrogates, while its line is known."""
        for each in (self.text, *self.labels):
            each.encode()
        return self


def likely_separator(cells: Iterable[str]) -> str | None:
    """The character that parts the names in cells, if there are fewer parts than cells."""
    distinct = set(cells)
    for separator in _SEPARATORS:
        lists = [cell for cell in distinct if separator in cell]
        parts = {part.strip() for cell in distinct for part in cell.split(separator)}
        if len(lists) > 2 and 3 * len(lists) >= len(distinct) > len(parts):
            return separator
    return None


def is_gap(cell: Any) -> bool:
    """Whether a cell is None, NaN, or one of the missing values of pandas."""
    nan = isinstance(cell, float | np.floating) and math.isnan(cell)
    return cell is None or nan or type(cell).__name__ in ("NAType", "NaTType")


def is_missing(cell: Any) -> bool:
    """Whether a cell is empty: a gap, or white space."""
    return is_gap(cell) or (isinstance(cell, str) and not cell.strip())


def number_of(cell: Any) -> float | None:
    """A cell as a number, NaN if it is empty, infinite beyond float64; None: it is no number."""
    if is_missing(cell):
        return math.nan
    try:
        numeric = isinstance(cell, str | int | float | np.number | Decimal)
        return float(cell) if numeric else None
    except OverflowError:
        return math.inf
    except ValueError:
        return None


def labels_of(cell: Any, separator: str | None) -> list[str]:
    """The names in a cell: a list, a list as Python or JSON writes it, or separated text."""
    if isinstance(cell, str) and cell.strip().startswith("[") and cell.strip().endswith("]"):
        for read in (json.loads, ast.literal_eval):
            try:
                cell = read(cell)
                break
            except NO_LITERAL:
                continue
    if isinstance(cell, np.ndarray):
        cell = cell.tolist()
    if isinstance(cell, str) and separator is not None:
        cell = cell.split(separator)
    cells = cell if isinstance(cell, list | tuple | set | frozenset) else [cell]
    return list(dict.fromkeys(_name(each) for each in cells if not is_missing(each)))


def _name(cell: Any) -> str:
    """The name of a label; columns of whole numbers with gaps are floats in pandas."""
    cell = cell.item() if isinstance(cell, np.generic) else cell
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    if not isinstance(cell, str | int | float) or cell in (math.inf, -math.inf):
        raise ValueError(f"{cell!r:.60} is no name of a label: it must be text or a number")
    return str(cell).strip()


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are, and how they become rows.

    Attributes:
        labels: name of the column of labels.
        separator: parts the labels in a cell; None: a cell has one, or is a list.
        text: names of the columns of texts, which are read as one text.
        numbers: names of the columns of numbers, whose features come after the words.
        edges: of each column of numbers, ascending: quantiles of training rows, which part fine
            bins. A number has two features, its fine bin and the coarse one of 8 of these around
            it, and none where a cell is empty.
        means, scales: with more than 32 columns, as of an embedding, a number has the one feature
            ``(value - mean) / scale`` instead, and 0 where a cell is empty.
        notes: further sentences about the table, for people.
    """

    labels: str
    separator: str | None = None
    text: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    edges: tuple[tuple[float, ...], ...] = ()
    means: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of features."""
        return (*self.text, *self.numbers)

    def row(self, cells: Mapping[str, Any]) -> Row:
        """The row of some cells, by the names of their columns."""
        numbers = []
        for name in self.numbers:
            found = number_of(cells.get(name))
            if found is None or math.isinf(found):
                raise ValueError(f"the column {name} must hold numbers, not {cells[name]!r:.60}")
            numbers.append(found)
        texts = [_text(cells.get(name)) for name in self.text]
        names = labels_of(cells.get(self.labels), self.separator)
        return Row("\n".join(filter(None, texts)), names, numbers).encodable()

    def found_in(self, cells: Mapping[str, Any], complete: bool = False) -> Mapping[str, Any]:
        """The cells of a row to answer, in which ``text`` may stand for all columns of texts.

        A missing column is an error in a ``complete`` row, or if another one is called nearly so.
        """
        if self.text and "text" in cells and not any(name in cells for name in self.text):
            cells = {**cells, **dict.fromkeys(self.text), self.text[0]: cells["text"]}
        known = set(self.names)
        missing = [name for name in self.names if name not in cells]
        others = [name for name in cells if name not in known]
        near = next((n for n in others if checks.near_word(n, missing, cutoff=0.75)), None)
        if missing and (complete or near is not None or len(missing) == len(self.names)):
            told = f"the model reads the columns {_listed(self.names)}"
            told += f"; {_listed(missing)} {'is' if len(missing) == 1 else 'are'} not among "
            told += _listed(cells) or "none"
            if near is not None:
                told += f" (for {near}{checks.near_word(near, missing)[1:]})"
            raise ValueError(told)
        return cells

    def named(self, place: str, cells: Mapping[str, Any]) -> str:
        """A row's ``place``, and its cells of columns such as id, which are no features."""
        ids = [name for name in cells if _is_id(name) and name.strip() and name not in self.names]
        said = ", ".join(f"{name} {cells[name]}" for name in ids if name != self.labels)
        return f"{place} ({said})" if said else place

    def number_names(self) -> list[str]:
        """Names of the features of numbers."""
        if self.scales:
            return [_NUMBER + name for name in self.numbers]
        pairs = zip(self.numbers, self.edges, strict=True)
        return [each for name, edges in pairs for each in bin_names(_NUMBER + name, edges)]

    def usual_numbers(self) -> dict[str, float]:
        """A usual number of each column: its median, or its mean where there are no bins."""
        usual = self.means or [edges[len(edges) // 2] if edges else 0 for edges in self.edges]
        rounded = (float(f"{each:.3g}") for each in usual)
        return dict(zip(self.numbers, rounded, strict=True))

    def number_features(self, numbers: np.ndarray) -> Any:
        """Numbers ``(B, columns)``, NaN for none, as a sparse array of SciPy of their features."""
        from scipy import sparse  # Imported here, so that `import slide` stays fast.

        if self.scales:
            found = (numbers - np.array(self.means)) / np.array(self.scales)
            return sparse.csr_array(np.nan_to_num(found, nan=0.0).astype(np.float32))
        bins = bin_features(numbers, self.edges, _BIN_VALUE)
        return sparse.csr_array(bins[::-1], (len(numbers), num_bins(self.edges)))

    def fitted(self, numbers: np.ndarray) -> "Columns":
        """The columns with what the numbers ``(B, columns)`` of training rows tell."""
        if len(self.numbers) <= MOST_BINNED:
            return replace(self, edges=bin_edges(numbers))
        means, scales = means_and_scales(numbers)
        return replace(self, means=means, scales=scales)

    def settings(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return asdict(self)

    @classmethod
    def restored(cls, settings: Mapping[str, Any], file: str = "the list of columns") -> "Columns":
        """The object that had these `settings`, which ``file`` holds; ValueError for others."""
        whole = {**cls("").settings(), "labels": None, **settings}
        whole = {name: list(v) if isinstance(v, tuple) else v for name, v in whole.items()}
        kept = Stored(whole, {}, file)
        numbers, separator = kept.texts("numbers"), whole["separator"]
        lists = [Stored({"edges": list(each)}, {}, file) for each in kept.lists("edges")]
        edges = tuple(tuple(each.list_of("edges")) for each in lists)
        scaled = len(numbers) if whole["scales"] else 0
        scales = kept.list_of("scales", scaled)
        if not all(scale > 0 for scale in scales):
            kept.refuse("have scales above 0")
        if len(edges) != len(numbers) - scaled or not all(map(_ascend, edges)):
            kept.refuse("have ascending edges for each column of numbers")
        return cls(
            labels=kept.text("labels"),
            separator=None if separator is None else kept.text("separator"),
            text=tuple(kept.texts("text")),
            numbers=tuple(numbers),
            edges=edges,
            means=tuple(kept.list_of("means", scaled)),
            scales=tuple(scales),
            notes=tuple(kept.texts("notes")),
        )

    def told(self) -> list[tuple[str, str]]:
        """What was understood, as lines of a heading and a sentence."""
        parted = "one in a cell, or a list"
        if self.separator is not None:
            parted = f"separated by {self.separator!r}"
        said = [("labels", f"{self.labels} ({parted})")]
        if self.text:
            said.append(("texts", ", ".join(self.text)))
        if self.numbers:
            how = "brought to mean 0 and deviation 1" if self.scales else "in bins by quantiles"
            said.append(("numbers", f"{', '.join(self.numbers)} ({how})"))
        return [*said, *(("", note) for note in self.notes)]


def means_and_scales(numbers: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and the deviation of each column ``(B, columns)``; 0 and 1 if all are NaN."""
    counts = (~np.isnan(numbers)).sum(0)
    means = np.nansum(numbers, 0) / np.maximum(counts, 1)
    squares = np.nansum((numbers - means) ** 2, 0) / np.maximum(counts, 1)
    scales = np.sqrt(squares)
    scales[scales <= 1e-9 * np.abs(means)] = 1  # All values are the same.
    return tuple(means.tolist()), tuple(scales.tolist())


def _ascend(edges: Sequence[float]) -> bool:
    return all(low < high for low, high in pairwise(edges))


def _text(cell: Any) -> str:
    if is_missing(cell):
        return ""
    if isinstance(cell, list | tuple | np.ndarray):
        return " ".join(map(str, cell))
    return str(cell)


def understood(
    rows: Iterable[Mapping[str, Any]],
    *,
    labels: str | None = None,
    separator: str | None = "auto",
    text: Sequence[str] | None = None,
    numbers: Sequence[str] | None = None,
    without: Iterable[str] = (),
) -> tuple[Columns, int]:
    """Finds out what the columns of a table hold, and counts its rows; see `slide.data.table`."""
    kinds: dict[str, str] = {}
    cells: dict[str, set[str]] = {}
    count = 0
    for row in rows:
        count += 1
        for name, cell in row.items():
            if kinds.setdefault(name, "") in ("", "number"):
                kinds[name] = _kind(cell) or kinds[name]
            if name in cells or name.lower() in _LABELS or name == labels:
                own = cells.setdefault(name, set())
                if isinstance(cell, str) and len(own) < 10_000:
                    own.add(cell)
    if not count:
        raise ValueError("the table has no rows")
    listed = _listed(kinds)
    Names.of(kinds, "names of columns")  # They are written into models and messages.
    if labels is None:
        known = {name.lower(): name for name in reversed(list(kinds))}
        labels = next((known[name] for name in _LABELS if name in known), None)
        if labels is None:
            raise ValueError(f"labels must name the column of labels, one of {listed}")
    for name in (labels, *(text or ()), *(numbers or ()), *without):
        if name not in kinds:
            raise ValueError(f"there is no column {name!r}; the columns are {listed}")
    notes, out = [], {labels, *without}
    asked = {*out, *(text or ()), *(numbers or ())}
    ids = {name: None for name in kinds if _is_id(name) and name not in asked}
    free = [name for name in kinds if name not in out and name not in ids]
    if numbers is None:
        numbers = [n for n in free if kinds[n] == "number" and n not in (text or ())]
    if text is None:
        taken = set(numbers)
        text = [n for n in free if kinds[n] == "text" and n not in taken]
    taken = {*text, *numbers}
    left = [name for name in free if name not in taken]
    if ids or left:
        notes.append(f"left out: {_listed([*ids, *left])}")
    if not (text or numbers):
        raise ValueError(f"no column of texts or numbers is left; the columns are {listed}")
    if separator == "auto":
        names = [cell for cell in cells.get(labels, ()) if not cell.strip().startswith("[")]
        separator = likely_separator(names)
    found = Columns(labels, separator, tuple(text), tuple(numbers), notes=tuple(notes))
    return found, count


def _kind(cell: Any) -> str:
    """``"number"``, ``"text"`` or ``"other"``; empty: the cell does not tell."""
    if isinstance(cell, list | tuple):
        return "text" if all(isinstance(each, str) for each in cell) else "other"
    if isinstance(cell, dict | np.ndarray):
        return "other"
    if is_missing(cell):
        return ""
    return "text" if number_of(cell) is None else "number"


def _listed(names: Collection[str]) -> str:
    """The names in a sentence, of very many the first ones."""
    more = len(names) - _SHOWN
    return ", ".join(islice(names, _SHOWN)) + (f" and {more:,} more" if more > 0 else "")


def _is_id(name: str) -> bool:
    short = name.lower().strip()
    return short in _IDS or short.endswith(("_id", " id")) or short.startswith("unnamed:")
