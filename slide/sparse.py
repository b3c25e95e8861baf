"""The two sparse containers of the library, `CSR` and, without values, `Pattern`; their checks."""

from collections.abc import Sequence
from contextlib import suppress
from operator import index
from typing import Any, NamedTuple

import numpy as np


class Pattern(NamedTuple):
    """The columns that each row uses: a CSR matrix without values.

    Row ``b`` uses the columns ``indices[indptr[b]:indptr[b + 1]]``.

    Attributes:
        indptr: ``(B + 1,)`` int64 bounds of the rows; the first one is 0.
        indices: ``(nnz,)`` int32 column numbers.

    Example:
        >>> import slide
        >>> labels = slide.Pattern.from_lists([[4, 1], [], [2]])  # Labels of three samples.
        >>> labels.indptr, labels.indices
        (array([0, 2, 2, 3]), array([4, 1, 2], dtype=int32))
    """

    indptr: np.ndarray
    indices: np.ndarray

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]]) -> "Pattern":
        """A pattern with one row for each list of column numbers.

        Raises:
            ValueError: for a column that is no whole number of 32 bits. Numbers below 0 are refused
                where the number of columns is known (`check_pattern`).
        """
        columns = [_column(column) for row in lists for column in row]
        return cls(row_bounds([len(row) for row in lists]), np.array(columns, np.int32))

    @classmethod
    def from_padded(cls, ids: np.ndarray) -> "Pattern":
        """A pattern of the ids ``(B, k)`` of each row, int32; those below 0 are none.

        Example:
            >>> import numpy as np, slide
            >>> slide.Pattern.from_padded(np.array([[4, -1], [3, 1]])).indptr
            array([0, 1, 3])
        """
        known = ids >= 0
        return cls(row_bounds(known.sum(1)), ids[known].astype(np.int32, copy=False))

    def entry_rows(self) -> np.ndarray:
        """The row of each entry, ``(nnz,)`` int64."""
        return _entry_rows(self.indptr)

    def slice(self, start: int, stop: int) -> "Pattern":
        """The rows from ``start`` to before ``stop``, or to the last one; indices are a view.

        Raises:
            IndexError: not ``0 <= start <= stop``, or ``start`` above the number of rows.
        """
        indptr, inside = _cut(self.indptr, start, stop)
        return Pattern(indptr, self.indices[inside])

    def keep(self, mask: np.ndarray) -> "Pattern":
        """The same rows with the entries for which ``mask`` ``(nnz,)`` is true, as a copy.

        Example:
            >>> import slide
            >>> labels = slide.Pattern.from_lists([[4, 1], [], [2]])
            >>> labels.keep(labels.indices > 1).indptr
            array([0, 1, 1, 2])
        """
        return Pattern(row_bounds(mask)[self.indptr], _kept(self.indices, mask))


def _column(given: Any) -> int:
    with suppress(TypeError):
        if -(1 << 31) <= (column := index(given)) < 1 << 31:
            return column
    raise ValueError(f"columns must be whole numbers in [0, 2147483648), not {given!r}")


class CSR(NamedTuple):
    """A sparse matrix in compressed rows.

    Row ``b`` has ``values[indptr[b]:indptr[b + 1]]`` in the columns with the same positions in
    ``indices``, and zeros elsewhere.

    Attributes:
        indptr: ``(B + 1,)`` int64 bounds of the rows; the first one is 0.
        indices: ``(nnz,)`` int32 column numbers.
        values: ``(nnz,)`` float32.

    `slide.as_csr` makes one from a SciPy matrix, a tensor or an array.

    Example:
        >>> import numpy as np, slide
        >>> x = slide.CSR(
        ...     np.array([0, 2, 2]), np.array([1, 2], np.int32), np.array([0.5, 2], np.float32)
        ... )
        >>> x.num_rows, x.values
        (2, array([0.5, 2. ], dtype=float32))
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    def entry_rows(self) -> np.ndarray:
        """The row of each entry, ``(nnz,)`` int64."""
        return _entry_rows(self.indptr)

    def slice(self, start: int, stop: int) -> "CSR":
        """The rows from ``start`` to before ``stop``, or to the last; the entries are views.

        Raises:
            IndexError: see `Pattern.slice`.
        """
        indptr, inside = _cut(self.indptr, start, stop)
        return CSR(indptr, self.indices[inside], self.values[inside])

    def keep(self, mask: np.ndarray) -> "CSR":
        """The same rows with the entries for which ``mask`` ``(nnz,)`` is true, as a copy."""
        indptr = row_bounds(mask)[self.indptr]
        return CSR(indptr, _kept(self.indices, mask), _kept(self.values, mask))

    def without_zeros(self) -> "CSR":
        """The same rows without entries of value 0; without a copy if there are none.

        Example:
            >>> import numpy as np, slide
            >>> x = slide.CSR(np.array([0, 2]), np.array([1, 2], np.int32), np.array([0.0, 2.0]))
            >>> x.without_zeros().indices
            array([2], dtype=int32)
        """
        return self if self.values.all() else self.keep(self.values != 0)


def _cut(indptr: np.ndarray, start: int, stop: int) -> tuple[np.ndarray, slice]:
    """The bounds of some rows, counted from the first of them, and where their entries are."""
    if not 0 <= start <= min(stop, len(indptr) - 1):
        raise IndexError(f"[{start}, {stop}) are none of {len(indptr) - 1} rows")
    bounds = indptr[start : stop + 1]
    return bounds - bounds[0], slice(bounds[0], bounds[-1])


def _entry_rows(indptr: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def _kept(entries: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Some of the entries; a plain array also of entries that lie in a file."""
    return np.asarray(entries)[mask]


def row_bounds(sizes: np.ndarray | Sequence[int]) -> np.ndarray:
    """The bounds of rows of these sizes, as in ``Pattern.indptr``.

    Args:
        sizes: ``(B,)`` integers, the number of entries of each row. For a padded matrix of ids,
            ``(ids >= 0).sum(1)``.

    Returns:
        ``(B + 1,)`` int64.

    Example:
        >>> from slide.sparse import row_bounds
        >>> row_bounds([2, 0, 1])
        array([0, 2, 2, 3])
    """
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def check_pattern(
    name: str, pattern: Pattern | CSR, num_rows: int | None, num_columns: int
) -> None:
    """Raise unless all entries of ``pattern`` lie inside of a matrix.

    Kernels do not check indices. The check takes time proportional to the number of entries.

    Args:
        name: what the columns are, for the message: "labels", "features".
        pattern: the pattern to be checked.
        num_rows: number of rows that it must have; None: any number.
        num_columns: columns must lie in ``[0, num_columns)``.

    Raises:
        ValueError: for a wrong shape, or columns out of range.
        TypeError: for a wrong dtype, or another kind of object.
    """
    if not isinstance(pattern, Pattern | CSR):
        raise TypeError(
            f"{name} must be a slide.Pattern or slide.CSR, not {type(pattern).__name__}"
        )
    indptr, indices = pattern.indptr, pattern.indices
    if indptr.dtype != np.int64 or indices.dtype != np.int32:
        raise TypeError(
            f"{name} need int64 indptr and int32 indices, not {indptr.dtype} and {indices.dtype}"
        )
    if num_rows is not None and pattern.num_rows != num_rows:
        raise ValueError(f"{pattern.num_rows} rows of {name} do not fit {num_rows} inputs")
    if isinstance(pattern, CSR) and pattern.values.shape != indices.shape:
        raise ValueError(f"{pattern.values.shape} values do not fit {indices.shape} column numbers")
    if (
        not len(indptr)
        or indptr[0]
        or indptr[-1] != len(indices)
        or (len(indptr) > 2 and bool((indptr[1:] < indptr[:-1]).any()))
    ):
        raise ValueError(f"indptr of {name} must rise from 0 to their number, {len(indices)}")
    # Read without their sign, numbers below 0 are above all others: one pass instead of two.
    if indices.size and indices.view(np.uint32).max() >= num_columns:
        first = int((indices.view(np.uint32) >= num_columns).argmax())
        row = int(np.searchsorted(indptr, first, side="right")) - 1
        raise ValueError(
            f"{name} must lie in [0, {num_columns}), and row {row} has {indices[first]}"
        )


def check_labels(name: str, labels: Pattern, num_rows: int | None, num_columns: int) -> None:
    """`check_pattern`, and raise for a label that a row has twice: a loss would count it twice.

    Raises:
        ValueError: as `check_pattern`, or for a repeated label.
        TypeError: as `check_pattern`.
    """
    check_pattern(name, labels, num_rows, num_columns)
    indptr, indices = labels.indptr, labels.indices
    rises = np.diff(indices) > 0
    begins = indptr[(indptr > 0) & (indptr < len(indices))]
    rises[begins - 1] = True
    if rises.all():  # As in most files; this is much faster than to sort.
        return
    pairs = np.sort(labels.entry_rows() << 32 | indices)
    repeated = pairs[1:][pairs[1:] == pairs[:-1]]
    if len(repeated):
        row, column = divmod(int(repeated[0]), 1 << 32)
        raise ValueError(f"{name} of a row must be distinct; row {row} has {column} twice")


def check_ids(ids: np.ndarray, num_rows: int, num_labels: int) -> None:
    """Raise ValueError unless ``ids`` are ``(num_rows, K)`` labels; below 0 they are none."""
    if ids.ndim != 2 or len(ids) != num_rows:
        raise ValueError(f"ids of shape {ids.shape} do not fit {num_rows} rows")
    if ids.size and ids.max() >= num_labels:
        raise ValueError(f"ids must be below {num_labels}, not {ids.max()}")


def hits(predicted: np.ndarray, labels: Pattern) -> np.ndarray:
    """Which predictions are labels of their row.

    Args:
        predicted: ``(n, k)`` integers.
        labels: of n rows, in any order within a row.

    Returns:
        ``(n, k)`` bool.

    Raises:
        ValueError: if the numbers of rows differ.
    """
    if len(predicted) != labels.num_rows:
        raise ValueError(
            f"{len(predicted)} predictions do not fit {labels.num_rows} rows of labels"
        )
    width = 1 + max(int(predicted.max(initial=0)), int(labels.indices.max(initial=0)))
    # In order but for labels within a row, and with an end, so that each search finds a number.
    truth = np.append(np.sort(labels.entry_rows() * width + labels.indices), -1)
    asked = np.arange(len(predicted))[:, None] * width + predicted
    return (truth[np.searchsorted(truth[:-1], asked)] == asked) & (predicted >= 0)
