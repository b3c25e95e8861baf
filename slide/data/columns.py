"""The columns of a table: which hold texts, numbers and labels, and what rows they make."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slide.data.bins import MOST_BINNED, bin_edges, bin_features, bin_names, num_bins
from slide.data.cells import (
    decimal_sign,
    is_marked,
    is_missing,
    is_plain,
    label_separator,
    labels_of,
    number_of,
    says_nothing,
)
from slide.utils import checks
from slide.utils.array_checks import Stored
from slide.utils.names import Names

# Names that columns of labels have, the most usual first.
_LABELS = ("labels", "label", "tags", "tag", "topics", "topic", "categories", "category")
_LABELS += ("classes", "class", "targets", "target", "y")
# Names of columns that number rows: no features.
_IDS = ("id", "index", "uid", "uuid", "guid", "rownames", "row.names", "...1", "")
# The index of a frame without a name, in files that pandas and others write.
_INDEX = re.compile(r"__index_level_\d+__")
# Cells of a column of texts among which numbers are looked for.
_SCANNED = 1000
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


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are, and how they become rows.

    Attributes:
        labels: name of the column of labels, or names of columns of zeros and ones, each a label.
        separator: parts the labels in a cell; None: a cell has one, or is a list.
        text: names of the columns of texts, which are read as one text.
        numbers: names of the columns of numbers, whose features come after the words.
        edges: of each column of numbers, ascending: quantiles of training rows, which part fine
            bins. A number has two features, its fine bin and the coarse one of 8 of these around
            it, and none where a cell is empty.
        means, scales: with more than 32 columns, as of an embedding, a number has the one feature
            ``(value - mean) / scale`` instead, and 0 where a cell is empty.
        commas: those of the ``numbers`` whose decimal sign is a comma.
        row_names: names of columns that tell rows apart, such as id, and are no features.
        notes: further sentences about the table, for people.
    """

    labels: str | tuple[str, ...]
    separator: str | None = None
    text: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    edges: tuple[tuple[float, ...], ...] = ()
    means: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    commas: tuple[str, ...] = ()
    row_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of features."""
        return (*self.text, *self.numbers)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of labels."""
        return (self.labels,) if isinstance(self.labels, str) else self.labels

    def row(self, cells: Mapping[str, Any]) -> Row:
        """The row of some cells, by the names of their columns."""
        numbers = []
        for name in self.numbers:
            found = number_of(cells.get(name), name in self.commas)
            if found is None or abs(found) >= checks.FLOAT32_LIMIT:
                bound = "" if found is None else f" ({checks.FLOAT32_MOST})"
                raise ValueError(
                    f"the column {name} must hold numbers, not {cells[name]!r:.60}{bound}"
                )
            numbers.append(found)
        texts = [_text(cells.get(name)) for name in self.text]
        return Row("\n".join(filter(None, texts)), self._labels(cells), numbers).encodable()

    def _labels(self, cells: Mapping[str, Any]) -> list[str]:
        if isinstance(self.labels, str):
            return labels_of(cells.get(self.labels), self.separator)
        found = []
        for name in self.labels:
            try:
                found += [name] if is_marked(cells.get(name)) else []
            except ValueError as error:
                raise ValueError(f"the column {name}, a label, is {error}") from error
        return found

    def found_in(self, cells: Mapping[str, Any], complete: bool = False) -> Mapping[str, Any]:
        """The cells of a row to answer, in which ``text`` may stand for all columns of texts.

        A missing column is an error in a ``complete`` row, or if another one is called nearly so.
        """
        if self.text and "text" in cells and not any(name in cells for name in self.text):
            cells = {**cells, **dict.fromkeys(self.text), self.text[0]: cells["text"]}
        known = set(self.names)
        missing = [name for name in self.names if name not in cells]
        if missing:  # Blanks around a name do not count.
            trimmed = {name.strip(): name for name in missing}
            cells = {trimmed.get(name.strip(), name): cell for name, cell in cells.items()}
            missing = [name for name in missing if name not in cells]
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
        ids = [name for name in self.row_names if name.strip() and name in cells]
        said = ", ".join(f"{name} {cells[name]}" for name in ids)
        return f"{place} ({said})" if said else place

    def number_names(self) -> list[str]:
        """Names of the features of numbers."""
        if self.scales:
            return [_NUMBER + name for name in self.numbers]
        pairs = zip(self.numbers, self.edges, strict=True)
        found = [each for name, edges in pairs for each in bin_names(_NUMBER + name, edges)]
        # A fine bin may be a coarse one, too; and of "x" and "x above 1" some bins read the same.
        times = Counter[str]()
        for number, name in enumerate(found):
            times[name] += 1
            if times[name] > 1:
                found[number] = f"{name} ({times[name]})"
        return found

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
            return sparse.csr_array(np.nan_to_num(found, nan=0.0))
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
        several = isinstance(whole["labels"], list)
        lists = [Stored({"edges": list(each)}, {}, file) for each in kept.lists("edges")]
        edges = tuple(tuple(each.list_of("edges")) for each in lists)
        scaled = len(numbers) if whole["scales"] else 0
        scales = kept.list_of("scales", scaled)
        if not all(scale > 0 for scale in scales):
            kept.refuse("have scales above 0")
        if len(edges) != len(numbers) - scaled or not all(map(_ascend, edges)):
            kept.refuse("have ascending edges for each column of numbers")
        return cls(
            labels=tuple(kept.texts("labels")) if several else kept.text("labels"),
            separator=None if separator is None else kept.text("separator"),
            text=tuple(kept.texts("text")),
            numbers=tuple(numbers),
            edges=edges,
            means=tuple(kept.list_of("means", scaled)),
            scales=tuple(scales),
            commas=tuple(kept.texts("commas")),
            row_names=tuple(kept.texts("row_names")),
            notes=tuple(kept.texts("notes")),
        )

    def told(self) -> list[tuple[str, str]]:
        """What was understood, as lines of a heading and a sentence."""
        parted = "one in a cell, or a list"
        if self.separator is not None:
            parted = f"separated by {self.separator!r}"
        if not isinstance(self.labels, str):
            parted = f"{len(self.labels):,} columns of zeros and ones, each a label"
        said = [("labels", f"{_listed(self.label_columns)} ({parted})")]
        if self.text:
            said.append(("texts", _listed(self.text)))
        if self.numbers:
            how = "brought to mean 0 and deviation 1" if self.scales else "in bins by quantiles"
            said.append(("numbers", f"{_listed(self.numbers)} ({how})"))
        if self.commas:
            said.append(("", f"with decimal commas: {_listed(self.commas)}"))
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


@dataclass
class _Seen:
    """What the cells of a column have been so far."""

    kind: str = ""  # "text", "other" or "number", or as yet nothing of them.
    numbers: int = 0
    texts: int = 0
    words: int = 0  # That stand for no number, such as n/a.
    points: int = 0
    commas: int = 0
    first_text: tuple[str, Any] = ("", None)
    # The first word of these, and the first number that is not as Python writes it.
    odd: dict[bool, tuple[str, Any]] = field(default_factory=dict)
    odd_numbers: int = 0

    def add(self, cell: Any, place: str) -> None:
        kind = _kind(cell)
        self.kind = kind if kind and self.kind in ("", "number") else self.kind
        if kind == "text":
            self.first_text = self.first_text if self.texts else (place, cell)
            self.texts += 1
        elif kind == "number":
            self.numbers += 1
            sign = decimal_sign(cell)
            self.points, self.commas = self.points + (sign == "."), self.commas + (sign == ",")
        elif says_nothing(cell):
            self.words += 1
        if self.texts == 0 and not is_plain(cell):
            self.odd.setdefault(kind == "number", (place, cell))
            self.odd_numbers += kind == "number"

    @property
    def is_settled(self) -> bool:
        """Whether more cells say nothing new of a column."""
        return self.kind == "other" or self.texts > self.numbers + _SCANNED

    @property
    def has_commas(self) -> bool:
        """Whether the decimal sign is a comma, where a text can be read in both ways."""
        return self.commas > self.points

    def told_as_text(self, name: str) -> list[str]:
        """Which cell has made a column of numbers one of texts."""
        if self.kind != "text" or self.numbers <= self.texts:
            return []
        place, cell = self.first_text
        return [
            f"{name} is text, not numbers: {Path(place).name} has {cell!r:.40}, no number "
            f"({checks.counted(self.texts, 'such cell')}, {self.numbers:,} others; "
            f"dataset.numbers=[{name}] makes it an error)"
        ]

    def told_as_numbers(self, name: str) -> list[str]:
        """How words for nothing, and numbers as Python does not write them, are read."""
        said = []
        for is_number, (place, cell) in self.odd.items():
            found = number_of(cell, self.has_commas)
            meant = f"{found:.10g}" if is_number else "no number"
            count = checks.counted(self.odd_numbers if is_number else self.words, "such cell")
            said.append(f"{cell!r:.40} ({Path(place).name}) is {meant} ({count})")
        return [f"{name}: {'; '.join(said)}"] if said else []


def understood(
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    labels: str | Sequence[str] | None = None,
    separator: str | None = "auto",
    text: Sequence[str] | None = None,
    numbers: Sequence[str] | None = None,
    without: Iterable[str] = (),
    index: Collection[str] = (),
) -> tuple[Columns, int]:
    """Finds out what the columns of a table hold, and counts its rows; see `slide.data.table`.

    Rows come with their positions; ``index`` are the columns that were the index of a frame.
    """
    seen: dict[str, _Seen] = {}
    cells: dict[str, set[str]] = {}
    count = 0
    for place, row in rows:
        count += 1
        for name, cell in row.items():
            own = seen.get(name)
            if own is None:
                own = seen[name] = _Seen()
            if not own.is_settled:
                own.add(cell, place)
            if name in cells or name.lower() in _LABELS or name == labels:
                known = cells.setdefault(name, set())
                if isinstance(cell, str) and len(known) < 10_000:
                    known.add(cell)
    if not count:
        raise ValueError("the table has no rows")
    # Words such as n/a alone are texts: no number tells that they mean one.
    kinds = {n: each.kind or ("text" if each.words else "") for n, each in seen.items()}
    listed = _listed(kinds)
    Names.of(kinds, "names of columns")  # They are written into models and messages.
    if labels is None:
        lower = {name.lower(): name for name in reversed(list(kinds))}
        labels = next((lower[name] for name in _LABELS if name in lower), None)
        if labels is None:
            raise ValueError(
                "labels must name the column of labels, or, as in dataset.labels=[a,b], columns of "
                f"zeros and ones, each a label; the columns are {listed}"
            )
    labels = labels if isinstance(labels, str) else tuple(labels)
    label_columns = (labels,) if isinstance(labels, str) else labels
    for name in (*label_columns, *(text or ()), *(numbers or ()), *without):
        if name not in kinds:
            raise ValueError(f"there is no column {name!r}; the columns are {listed}")
    out = {*label_columns, *without}
    asked = {*out, *(text or ()), *(numbers or ())}
    of_frame = [name for name in kinds if name not in asked and (name in index or is_index(name))]
    ids = [n for n in kinds if n not in asked and _is_id(n) and n not in of_frame]
    left_out = {*out, *ids, *of_frame}
    free = [name for name in kinds if name not in left_out]
    if numbers is None:
        numbers = [n for n in free if kinds[n] == "number" and n not in (text or ())]
    if text is None:
        taken = set(numbers)
        text = [n for n in free if kinds[n] == "text" and n not in taken]
    taken = {*text, *numbers}
    left = [name for name in free if name not in taken]
    reasons = {"": ids, ", as the index of a frame": of_frame, ", as no texts or numbers": left}
    notes = [f"left out{why}: {_listed(names)}" for why, names in reasons.items() if names]
    notes += [note for name in numbers for note in seen[name].told_as_numbers(name)]
    notes += [note for name in text if name not in asked for note in seen[name].told_as_text(name)]
    if not (text or numbers):
        raise ValueError(f"no column of texts or numbers is left; the columns are {listed}")
    if separator == "auto":
        separator = label_separator(cells.get(labels, ())) if isinstance(labels, str) else None
    found = Columns(
        labels,
        separator,
        tuple(text),
        tuple(numbers),
        commas=tuple(name for name in numbers if seen[name].has_commas),
        row_names=(*of_frame, *ids),
        notes=tuple(notes),
    )
    return found, count


def is_index(name: str) -> bool:
    """Whether a name is that of the index of a frame which has none."""
    return _INDEX.fullmatch(name) is not None


def _kind(cell: Any) -> str:
    """``"number"``, ``"text"`` or ``"other"``; empty: the cell does not tell."""
    if isinstance(cell, list | tuple):
        return "text" if all(isinstance(each, str) for each in cell) else "other"
    if isinstance(cell, dict | np.ndarray):
        return "other"
    if is_missing(cell) or says_nothing(cell):
        return ""
    return "text" if number_of(cell) is None else "number"


def _listed(names: Collection[str]) -> str:
    """The names in a sentence, of very many the first ones."""
    more = len(names) - _SHOWN
    shown = (checks.printable(name, "") for name in islice(names, _SHOWN))
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def _is_id(name: str) -> bool:
    short = name.lower().strip()
    return short in _IDS or short.endswith(("_id", " id")) or short.startswith("unnamed:")
