"""Targets in the forms of scikit-learn, and as lists of label names."""

import math
import operator
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from slide.data import Split
from slide.data.cells import is_gap, likely_separator, writes_list
from slide.sparse import CSR, Pattern, as_csr, marked, without_frame
from slide.utils import checks
from slide.utils.array_checks import Stored
from slide.utils.names import Names, check_columns


class Targets(NamedTuple):
    """The labels of R rows, one in each unless ``multilabel``, and the names ``(N,)`` of labels."""

    labels: Pattern
    classes: np.ndarray
    multilabel: bool


def without_torch(x: Any) -> Any:
    """A sparse tensor of torch, which scikit-learn does not take, as a SciPy matrix."""
    if not isinstance(x, torch.Tensor) or x.layout == torch.strided:
        return x
    import scipy.sparse

    found = as_csr(x)
    return scipy.sparse.csr_array((found.values, found.indices, found.indptr), tuple(x.shape))


def without_numpy(value: Any) -> Any:
    """A scalar of numpy, or another whole number, as Python's own, also in a list."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [without_numpy(each) for each in value]
    whole = hasattr(value, "__index__") and not isinstance(value, bool) and not np.ndim(value)
    return operator.index(value) if whole else value


def holds_texts(X: Any) -> bool:
    """Whether rows are texts, or have one among their first values, instead of features."""
    table = any(hasattr(X, name) for name in ("to_numpy", "column_names"))
    if table and not hasattr(X, "tocsr"):
        X = np.asarray(X.iloc[:5] if hasattr(X, "iloc") else X[:5])  # Not a copy of all rows.
    kind = getattr(getattr(X, "dtype", None), "kind", "f")  # Types of torch have no kind.
    if not isinstance(X, Sequence) and kind not in "OUST":
        return False
    rows = [[row] if isinstance(row, str | bytes) or not np.ndim(row) else row for row in X[:5]]
    return any(isinstance(each, str | bytes) for row in rows for each in row)


def one_label_each(classes: np.ndarray) -> None:
    """Warn of names that look like lists of names."""
    names = [name for name in classes.tolist() if isinstance(name, str)]
    found = likely_separator(names)
    # Python writes intervals as it does lists of numbers.
    example = next((n for n in names if ("'" in n or '"' in n) and writes_list(n)), None)
    way = ""
    if example is None and found is not None:
        example = next(name for name in names if found in name)
        way = f", [text.split({found!r}) for text in y]"
    if example is not None:
        warnings.warn(
            f"labels such as {example!r:.60} count as one label each: for several labels of a row "
            f"give lists{way}",
            stacklevel=4,
        )


def _check_no_gaps(y: Any) -> None:
    """Raise ValueError for a row that has no label, or a label that is missing."""
    if isinstance(y, np.ndarray) and y.dtype != object:
        gaps = np.isnan(y) if y.ndim == 1 and y.dtype.kind == "f" else np.zeros(0, bool)
        rows: Iterable[tuple[int, Any]] = ((int(n), y[n]) for n in np.flatnonzero(gaps))
    elif isinstance(y, list | tuple | np.ndarray):
        rows = enumerate(y)
    else:
        return
    for number, row in rows:
        if is_gap(row):
            raise ValueError(
                f"row {number} of y has no label, but {without_numpy(row)!r}: leave the row out, "
                "or give a list of names for each row, which may be empty"
            )
        known = isinstance(row, np.ndarray) and row.dtype.kind not in "fO"  # No gaps in others.
        listed = isinstance(row, list | tuple | set | np.ndarray) and not known
        if listed and any(map(is_gap, row)):
            found = without_numpy(list(row))
            raise ValueError(f"a label of row {number} of y is missing: {found!r}; leave it out")


def read_targets(y: Any, classes: Any = None, skip_unknown: bool = False) -> Targets:
    """A matrix, a frame, lists of names or a name for each row, as numbers of labels.

    Names that are not among the ``classes`` are an error, or skipped; None: all that occur.
    """
    if y is None:
        raise ValueError("SlideClassifier requires y to be passed, but the target y is None")
    y = without_torch(y)
    if hasattr(y, "column_names"):  # A table of pyarrow, or a data set of Hugging Face.
        y = y.to_pandas()
    if isinstance(y, CSR | Pattern) or hasattr(y, "tocsr"):
        return _from_matrix(y, classes)
    if hasattr(y, "columns"):
        names, y = list(y.columns), without_frame(y)
        if len(names) != 1:
            _check_marks(y, names)
            if classes is not None:
                check_columns("labels", names, classes)
            return _from_matrix(y, names if classes is None else classes)
    else:
        y = _column(y)
    _check_no_gaps(y)
    if _holds_lists(y):
        rows = [list(row) for row in y]
        _check_no_matrix(rows)
        return _from_names(rows, classes, True, skip_unknown)
    array = name_array(y) if isinstance(y, list) else np.asarray(y)
    if array.ndim == 2 and array.shape[1] > 1:
        _check_marks(array, range(array.shape[1]))
        return _from_matrix(array, classes)
    array = column_or_1d(array, warn=True)
    if isinstance(y, list) or array.dtype == object:
        _check_kinds(y if isinstance(y, list) else array)
    if array.dtype != object:
        check_classification_targets(array)
    if classes is None:
        found, numbers = np.unique(array, return_inverse=True)
        labels = Pattern(np.arange(len(array) + 1), numbers.astype(np.int32))
        return Targets(labels, found, False)
    rows = [[name] for name in array.tolist()]
    return _from_names(rows, classes, False, skip_unknown)


def _column(y: Any) -> Any:
    """A column of a library as a list or an array."""
    if hasattr(y, "to_pylist"):  # pyarrow
        return y.to_pylist()
    if hasattr(y, "to_numpy"):  # pandas, polars
        return y.to_numpy()
    if isinstance(y, np.ndarray) and y.dtype.kind == "T":  # scikit-learn does not take StringDType.
        return y.astype(object)
    return list(y) if isinstance(y, Sequence) and not isinstance(y, str | bytes) else y


def _check_kinds(names: Iterable[Any]) -> None:
    """Raise ValueError for names that are no texts or numbers, or that numpy would make equal."""
    first = {type(name): name for name in names}
    kinds = {}
    for kind, name in first.items():
        if issubclass(kind, bytes):
            continue  # Which scikit-learn refuses.
        if not issubclass(kind, str | int | float | np.generic):
            raise ValueError(f"names of labels must be texts or numbers, not {name!r}")
        truth = issubclass(kind, bool | np.bool_)
        kinds["text" if issubclass(kind, str) else "truth" if truth else "number"] = kind.__name__
    if len(kinds) > 1:
        raise ValueError(
            "names of labels must be of one kind, text or numbers, not "
            f"{' and '.join(sorted(kinds.values()))}"
        )


def is_matrix(y: Any) -> bool:
    """Whether targets have a column for each label; one dense column is a vector."""
    shape = tuple(getattr(y, "shape", ()))
    sparse = hasattr(y, "tocsr") or (isinstance(y, torch.Tensor) and y.layout != torch.strided)
    return len(shape) == 2 and (shape[1] != 1 or sparse)


def _holds_lists(y: Any) -> bool:
    """Whether each row is a list of names; an array of two dimensions is a matrix."""
    if isinstance(y, np.ndarray) and (y.ndim != 1 or y.dtype != object):
        return False
    if not isinstance(y, Sequence | np.ndarray) or isinstance(y, str | bytes):
        return False
    if any(isinstance(row, dict) for row in y):
        raise ValueError("y holds dicts: give a list of label names for each row, or a matrix")
    return len(y) > 0 and all(
        isinstance(row, Iterable) and not isinstance(row, str | bytes) for row in y
    )


def _check_no_matrix(rows: list[list[Any]]) -> None:
    """Raise ValueError for lists of zeros and ones that can only be rows of a matrix."""
    width = len(rows[0])
    if width < 2 or any(len(row) != width for row in rows):
        return
    names = chain.from_iterable(rows)
    flags = all(isinstance(name, int | float | np.generic) and name in (0, 1) for name in names)
    if flags and any(len(set(row)) < width for row in rows):
        raise ValueError(
            f"y holds {width} zeros and ones in each row, which as lists of names would be the "
            "labels 0 and 1: give a matrix, np.array(y)"
        )


def _check_marks(y: np.ndarray, names: Sequence[Any]) -> None:
    """Raise ValueError for a table of names, or one with gaps, instead of zeros and ones."""
    if y.dtype.kind in "OUST" and any(isinstance(each, str) for each in y.flat):
        raise ValueError(
            f"y has {checks.counted(len(names), 'column')} of names: give a list of names for "
            "each row, or a column of zeros and ones for each label"
        )
    if y.dtype.kind == "f" and np.isnan(y).any():
        row, column = np.argwhere(np.isnan(y))[0]
        raise ValueError(f"row {row} of y has a gap in the column {names[column]!r}")


def _from_matrix(y: Any, classes: Any) -> Targets:
    if isinstance(y, Pattern | CSR):
        if isinstance(y, CSR):
            matrix = as_csr(y, name="labels").without_zeros()
        else:
            matrix = CSR(*y, np.ones(len(y.indices), np.float32))
        width = int(matrix.indices.max(initial=-1)) + 1 if classes is None else len(classes)
    else:
        matrix, width = as_csr(y, name="labels"), y.shape[1]
    try:
        marks = marked(matrix)
    except ValueError as error:  # In the words of scikit-learn.
        raise ValueError(f"Unknown label type: {error}") from error
    if classes is not None and len(classes) != width:
        raise ValueError(
            f"a list of {checks.counted(len(classes), 'class', 'classes')} does not fit a matrix "
            f"of {checks.counted(width, 'column')}"
        )
    found = np.arange(width) if classes is None else name_array(classes)
    # A re-ranker keeps the labels, and the arrays of y are the caller's, who may change them.
    return Targets(Pattern(*map(np.copy, marks)), found, True)


def _from_names(
    rows: list[list[Any]], classes: Any, multilabel: bool, skip_unknown: bool
) -> Targets:
    try:
        known = sorted(set(chain.from_iterable(rows))) if classes is None else list(classes)
    except TypeError as error:  # Names of several kinds have no order.
        kinds = sorted({type(name).__name__ for row in rows for name in row})
        raise ValueError(
            f"names of labels must be of one kind, text or numbers, not {' and '.join(kinds)}"
        ) from error
    if known and classes is None and not isinstance(known[0], str):
        _check_kinds(chain.from_iterable(rows))  # A set takes True for 1.
    for name in known:
        if np.ndim(name):  # numpy would make a matrix of these.
            raise ValueError(f"names of labels must be texts or numbers, not {name!r}")
    numbers = {name: number for number, name in enumerate(known)}
    if skip_unknown:
        rows = [[name for name in row if name in numbers] for row in rows]
    try:
        lists = [[numbers[name] for name in dict.fromkeys(row)] for row in rows]
    except KeyError as error:
        new = repr(error.args[0])
        raise ValueError(
            f"label {new} is not among the classes; partial_fit(..., classes=[*classes_, {new}]) "
            "adds it"
        ) from error
    return Targets(Pattern.from_lists(lists), name_array(known), multilabel)


def name_array(names: Any) -> np.ndarray:
    """Names as an array ``(N,)``; of objects where numpy would make them texts or floats."""
    if isinstance(names, np.ndarray):
        return names
    names = list(names)
    found = np.array(names)
    changed = found.tolist() != names
    if found.dtype.kind == "f":
        changed |= all(isinstance(name, int | np.integer) for name in names)
    if names and changed:
        found = np.empty(len(names), object)
        found[:] = names
    return found


def restored_names(names: list[Any], stored: Stored) -> np.ndarray:
    """Names as an array of the type that they had, but texts as long as they need."""
    array, text, found = name_array(names), stored.text("classes"), None
    with suppress(ValueError, TypeError):
        kind = np.dtype(text)
        if kind.kind in "biufO":
            found = array.astype(kind)
        elif kind.kind == array.dtype.kind == "U":  # A file may say any length.
            found = array
    if found is None or found.tolist() != names:
        stored.refuse("have classes of a type that holds the names of the labels")
    return found


def check_same_kind(new: Iterable[Any], known: np.ndarray) -> None:
    """Raise ValueError if a name is a text where all known ones are numbers, or the other way."""
    kinds = {isinstance(name, str) for name in known.tolist()}
    for name in new:
        if kinds and isinstance(name, str) not in kinds:
            wanted = "texts" if True in kinds else "numbers"
            raise ValueError(f"names of labels must be {wanted}, as the others are, not {name!r}")


def checked_sample_weight(weights: Any, num_rows: int) -> np.ndarray | None:
    """Weights of rows as ``(R,)`` float64; None stays None."""
    found = checks.row_weights("sample_weight", weights, num_rows)
    if found is not None and not found.any():  # In the words of scikit-learn.
        raise ValueError("Sample weights must contain at least one non-zero number")
    return found


def weighted_rows(split: Split, weights: Any) -> Split:
    """Rows with weights of mean 1; rows of weight 0 are left out."""
    found = checked_sample_weight(weights, len(split))
    if found is None:
        return split
    left = np.flatnonzero(found)
    return replace(split.take(left), weights=found[left] / found[left].mean())


def check_class_names(classes: np.ndarray) -> None:
    """Raise ValueError unless these can be names of classes: each once, and in UTF-8."""
    Names.of(label_names(classes) or (), "names of labels")


def label_names(classes: np.ndarray) -> list[Any] | None:
    """The names of classes for `slide.Model`; None: they are 0, 1, ..., N - 1."""
    names = without_numpy(classes.tolist())
    for name in names:
        if name is None or (isinstance(name, float) and not math.isfinite(name)):
            raise ValueError(f"names of labels must be texts or finite numbers, not {name}")
        if not isinstance(name, str | int | float):
            raise ValueError(f"names of labels must be texts or numbers, not {name!r}")
    if all(type(name) is int and name == number for number, name in enumerate(names)):
        return None
    if any(isinstance(name, str) for name in names):
        # An Enum of texts writes itself otherwise.
        return [str.__str__(name) if isinstance(name, str) else str(name) for name in names]
    return names if len(set(map(type, names))) < 2 else [float(name) for name in names]
