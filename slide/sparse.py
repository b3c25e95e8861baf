"""The sparse containers `CSR` and, without values, `Pattern`, their checks, and conversions."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import index
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from slide.utils.checks import FLOAT32_MOST
from slide.utils.resources import check_room

_FEATURES = "a slide.CSR, a SciPy sparse matrix, a torch tensor or an array of 2 dimensions"
_LABELS = "lists of label numbers, one number for each row, or a matrix with a column for each"
_MOST = 2**31 - 1
# What becomes of values; what they are and where, for messages.
_Cast = Callable[[Any, str, "Pattern"], np.ndarray]
_Rows = TypeVar("_Rows", bound="Pattern | CSR")


def _slice(self: _Rows, start: int, stop: int) -> _Rows:
    """The rows from ``start`` to before ``stop``, or to the last one, as views; else IndexError."""
    if not 0 <= start <= min(stop, self.num_rows):
        raise IndexError(f"[{start}, {stop}) are none of {self.num_rows} rows")
    bounds = self.indptr[start : stop + 1]
    entries = (part[bounds[0] : bounds[-1]] for part in self[1:])
    return type(self)(bounds - bounds[0], *entries)  # pyright: ignore[reportReturnType]


def _keep(self: _Rows, mask: np.ndarray) -> _Rows:
    """The same rows with the entries for which ``mask`` ``(nnz,)`` is true, as a copy."""
    mask, shape = np.asarray(mask), np.shape(self.indices)
    if mask.dtype != bool or mask.shape != shape:
        raise ValueError(f"a mask of entries must be {shape} bools, not {mask.shape} {mask.dtype}")
    entries = (np.asarray(part)[mask] for part in self[1:])
    return type(self)(row_bounds(mask)[self.indptr], *entries)  # pyright: ignore[reportReturnType]


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

        ValueError for a column that is no whole number of 32 bits, TypeError for anything but lists
        of lists. Numbers below 0 are refused where the number of columns is known
        (`check_pattern`).
        """
        rows = [list(row) for row in _lists("rows", lists)]
        columns = [_column(column) for row in rows for column in row]
        return cls(row_bounds([len(row) for row in rows]), np.array(columns, np.int32))

    @classmethod
    def from_padded(cls, ids: np.ndarray) -> "Pattern":
        """A pattern of the ids ``(B, k)`` of each row, int32; ids below 0 are none."""
        ids = _id_matrix("ids", ids)
        if ids.dtype != np.int32 and ids.max(initial=0) > _MOST:
            raise ValueError(f"ids must be at most {_MOST}, not {ids.max()}")
        known = ids >= 0
        return cls(row_bounds(known.sum(1)), ids[known].astype(np.int32, copy=False))

    def padded(self, width: int | None = None) -> np.ndarray:
        """The ids of each row ``(B, width)`` int32, -1 after the last one; see `from_padded`.

        width: at least the largest number of ids of a row; None: that number.
        """
        counts = np.diff(self.indptr)
        width = int(counts.max(initial=0)) if width is None else width
        out = np.full((len(counts), width), -1, np.int32)
        out[np.arange(width) < counts[:, None]] = self.indices
        return out

    def entry_rows(self) -> np.ndarray:
        """The row of each entry, ``(nnz,)`` int64."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    slice, keep = _slice, _keep


def _lists(name: str, given: Any) -> Iterator[Any]:
    """The rows of a list of lists; raise TypeError for something else."""
    wrong = str | bytes | dict
    if isinstance(given, wrong) or not isinstance(given, Iterable):
        raise TypeError(f"{name} must be a list of lists, not {type(given).__name__}")
    for number, row in enumerate(given):
        if isinstance(row, wrong) or not isinstance(row, Iterable):
            raise TypeError(f"{name} of row {number} must be a list of numbers, not {row!r}")
        yield row


def _id_matrix(name: str, ids: Any) -> np.ndarray:
    """Numbers ``(n, k)`` as an array; raise for another shape or type."""
    found = _as_array(ids, name)
    if found.ndim != 2:
        raise ValueError(f"{name} must have 2 dimensions, (n, k), not the shape {found.shape}")
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"{name} must be whole numbers, not {found.dtype}")
    return found


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

    num_rows, entry_rows = Pattern.num_rows, Pattern.entry_rows
    slice, keep = _slice, _keep

    def without_zeros(self) -> "CSR":
        """The same rows without entries of value 0; without a copy if there are none."""
        return self if self.values.all() else self.keep(self.values != 0)


def row_bounds(sizes: np.ndarray | Sequence[int]) -> np.ndarray:
    """The bounds of rows of ``sizes`` entries, as in ``Pattern.indptr``."""
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def stacked(parts: Sequence[_Rows]) -> _Rows:
    """The rows of all parts, of which there is one at least, one after the other."""
    if len(parts) == 1:
        return parts[0]
    bounds = row_bounds(np.concatenate([np.diff(part.indptr) for part in parts]))
    entries = list(zip(*parts, strict=True))[1:]
    return type(parts[0])(bounds, *map(np.concatenate, entries))  # pyright: ignore[reportReturnType]


def check_pattern(
    name: str, pattern: Pattern | CSR, num_rows: int | None, num_columns: int
) -> None:
    """Raise unless all entries lie inside of a matrix, in time proportional to their number.

    ``name`` says in messages what the columns are, such as "labels"; ``num_rows`` None: any number.
    """
    if not isinstance(pattern, Pattern | CSR):
        raise TypeError(
            f"{name} must be a slide.Pattern or slide.CSR, not {type(pattern).__name__}"
        )
    indptr, indices = pattern.indptr, pattern.indices
    if not _are_indexes(indptr, indices):
        kinds = [getattr(part, "dtype", type(part).__name__) for part in (indptr, indices)]
        raise TypeError(
            f"{name} need arrays, int64 indptr and int32 indices, not {kinds[0]} and {kinds[1]}"
        )
    if indptr.ndim != 1 or indices.ndim != 1:
        raise ValueError(
            f"indptr and indices of {name} must have 1 dimension, not the shapes {indptr.shape} and"
            f" {indices.shape}"
        )
    if num_rows is not None and pattern.num_rows != num_rows:
        raise ValueError(f"{pattern.num_rows} rows of {name} do not fit {num_rows} inputs")
    if isinstance(pattern, CSR) and np.shape(pattern.values) != indices.shape:
        raise ValueError(
            f"{np.shape(pattern.values)} values do not fit {indices.shape} column numbers"
        )
    ends = len(indptr) and not indptr[0] and indptr[-1] == len(indices)
    if not ends or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"indptr of {name} must rise from 0 to their number, {len(indices)}")
    if not inside(indices, num_columns):
        first = int((indices.view(np.uint32) >= num_columns).argmax())
        row = int(np.searchsorted(indptr, first, side="right")) - 1
        raise ValueError(
            f"{name} must lie in [0, {num_columns}), and row {row} has {indices[first]}"
        )


def inside(numbers: Any, stop: int) -> bool:
    """Whether all numbers of an array or a tensor are at least 0 and below ``stop``."""
    if not len(numbers):
        return True
    if isinstance(numbers, np.ndarray) and numbers.dtype == np.int32:
        # Read without their sign, numbers below 0 are above all others: one pass instead of two.
        return bool(numbers.view(np.uint32).max() < stop)
    return bool(0 <= numbers.min() <= numbers.max() < stop)


def _are_indexes(indptr: Any, indices: Any) -> bool:
    """Whether bounds and columns are arrays of the types that kernels read."""
    arrays = isinstance(indptr, np.ndarray) and isinstance(indices, np.ndarray)
    return arrays and indptr.dtype == np.int64 and indices.dtype == np.int32


def check_labels(name: str, labels: Pattern, num_rows: int | None, num_columns: int) -> None:
    """`check_pattern`, and ValueError for a label that a row has twice: it would count twice."""
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
    ids = _id_matrix("ids", ids)
    if len(ids) != num_rows:
        raise ValueError(f"ids of shape {ids.shape} do not fit {num_rows} rows")
    if ids.size and ids.max() >= num_labels:
        raise ValueError(f"ids must be below {num_labels}, not {ids.max()}")


def hits(predicted: np.ndarray, labels: Pattern) -> np.ndarray:
    """Which predictions ``(n, k)`` are labels of their row, ``(n, k)`` bool.

    Raises ValueError for another shape or number of rows, TypeError for numbers that are not whole.
    """
    predicted = _id_matrix("predictions", predicted)
    labels = as_pattern(labels, _MOST)
    if len(predicted) != labels.num_rows:
        raise ValueError(
            f"{len(predicted)} predictions do not fit {labels.num_rows} rows of labels"
        )
    width = 1 + max(int(predicted.max(initial=0)), int(labels.indices.max(initial=0)))
    # In order but for labels within a row, and with an end, so that each search finds a number.
    truth = np.append(np.sort(labels.entry_rows() * width + labels.indices), -1)
    asked = np.arange(len(predicted))[:, None] * width + predicted
    return (truth[np.searchsorted(truth[:-1], asked)] == asked) & (predicted >= 0)


def as_csr(x: Any, num_columns: int | None = None, name: str = "features") -> CSR:
    """A sparse matrix as `CSR`.

    Entries that are zero are left out, also those that a sparse matrix stores. Entries of the same
    row and column are added up. The order of the entries of a row stays.

    Args:
        x: ``(B, D)``: `CSR` (not copied, and its values are not checked), a SciPy sparse matrix
            of any kind, a torch tensor (dense, COO, CSR, CSC), a numpy array, or lists of numbers.
        num_columns: D; None: any number.
        name: what the matrix holds, for messages.

    Raises:
        ValueError: for another number of columns, values that are not finite float32, or a tensor
            that needs a gradient.
        TypeError: for values that are no real numbers, or another kind of object.

    Example:
        >>> import numpy as np, scipy.sparse, slide
        >>> matrix = scipy.sparse.csr_array(np.array([[0, 0.5, 2], [0, 0, 0]]))
        >>> slide.as_csr(matrix)
        CSR(indptr=array([0, 2, 2]), indices=array([1, 2], dtype=int32), values=array([0.5, 2. ],
        dtype=float32))
    """
    if isinstance(x, CSR):
        return x if _is_exact(x) else _cast_csr(_indexes(x, name), x.values, name, _values)
    found = _csr_or_array(x, num_columns, name, _values)
    return found if isinstance(found, CSR) else _from_dense(found, num_columns, name)


def as_pattern(labels: Any, num_columns: int, name: str = "labels") -> Pattern:
    """The labels of rows as a `Pattern`.

    Args:
        labels: `Pattern` (not copied); or label numbers: a list (or array, or set) of them for each
            row, or one for each row ``(B,)``; or a matrix ``(B, N)`` of zeros and ones, sparse or
            dense.
        num_columns: N, number of labels.
        name: what the columns are, for messages.

    Raises:
        ValueError: for another shape, a number beyond int32, or a matrix with other values than 0
            and 1.
        TypeError: for label numbers that are not whole, or another kind of object.

    Example:
        >>> import slide, torch
        >>> slide.as_pattern(torch.tensor([4, 1]), 5)
        Pattern(indptr=array([0, 1, 2]), indices=array([4, 1], dtype=int32))
        >>> slide.as_pattern([[4, 1], []], 5).indptr
        array([0, 2, 2])
        >>> slide.as_pattern(torch.eye(2), 2).indices
        array([0, 1], dtype=int32)
    """
    if isinstance(labels, Pattern):
        return labels if _is_exact(labels) else _indexes(labels, name)
    if not isinstance(labels, CSR):
        labels = _csr_or_array(labels, num_columns, name, _finite)
    elif not _is_exact(labels):
        labels = _cast_csr(_indexes(labels, name), labels.values, name, _finite)
    if isinstance(labels, CSR):
        return marked(labels, name)
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        return _from_array(labels, num_columns, name)
    if isinstance(labels, Iterable) and not isinstance(labels, str | bytes | dict):
        return _from_lists(list(labels), name)
    raise TypeError(f"{name} must be {_LABELS}, not {type(labels).__name__}")


def _csr_or_array(x: Any, num_columns: int | None, name: str, cast: _Cast) -> Any:
    """Sparse matrices as `CSR`, tensors and frames as arrays, anything else as it is."""
    if hasattr(x, "tocsr"):
        _check_matrix(x.shape, num_columns, name)
        return _from_scipy(x, name, cast)
    x = without_frame(x)
    if not isinstance(x, torch.Tensor):
        return x
    x = _on_host(x, name)
    if x.layout == torch.strided:
        return _to_numpy(x)
    _check_matrix(tuple(x.shape), num_columns, name)
    return _from_scipy(_as_scipy(x, name), name, cast)


def without_frame(x: Any) -> Any:
    """A table with named columns as an array; anything else as it is."""
    if not hasattr(x, "columns") or not hasattr(x, "to_numpy"):
        return x
    array = x.to_numpy()  # Columns of several types make one of objects.
    return np.array(array.tolist()) if array.dtype == object and array.ndim == 2 else array


def _is_exact(x: CSR | Pattern) -> bool:
    """Whether the arrays have the types that kernels read."""
    if not _are_indexes(x.indptr, x.indices) or x.indptr.ndim != 1 or x.indices.ndim != 1:
        return False
    if isinstance(x, Pattern):
        return True
    values: Any = x.values  # float64 is for checks of gradients.
    floats = isinstance(values, np.ndarray) and values.dtype in (np.float32, np.float64)
    return floats and values.ndim == 1


def _indexes(x: Any, name: str) -> Pattern:
    """Bounds of rows and column numbers, of the types that kernels read."""
    arrays = {part: _as_array(getattr(x, part), name) for part in ("indptr", "indices")}
    for part, array in arrays.items():
        if array.ndim != 1:
            raise ValueError(
                f"{part} of {name} has the shape {array.shape}, not (n,): rows that were stacked "
                "one by one are no matrix; collate them with slide.as_csr and slide.as_pattern"
            )
    bounds, columns = arrays.values()
    return Pattern(_whole(bounds, np.int64, name), _whole(columns, np.int32, name))


def _cast_csr(entries: Pattern, values: Any, name: str, cast: _Cast) -> CSR:
    return CSR(*entries, cast(values, name, entries))


def _whole(numbers: Any, dtype: type, name: str) -> np.ndarray:
    """Numbers of columns or bounds as integers."""
    array = np.asarray(numbers)
    if array.dtype == dtype:
        return array
    if not array.size:
        return array.astype(dtype)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be whole numbers, not {array.dtype}")
    if dtype == np.int32 and (array.max() > _MOST or array.min() < -_MOST):
        bad = array.max() if array.max() > _MOST else array.min()
        raise ValueError(f"{name} must be numbers below {_MOST}, not {bad}")
    return array.astype(dtype)


def _as_array(values: Any, name: str) -> np.ndarray:
    return np.asarray(_on_host(values, name) if isinstance(values, torch.Tensor) else values)


def _values(values: Any, name: str, entries: Pattern) -> np.ndarray:
    """Values as finite float32."""
    array = _as_array(values, name)
    if array.ndim != 1:
        raise ValueError(f"values of {name} must be (n,), not of the shape {array.shape}")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be real numbers, not {array.dtype}")
    with np.errstate(over="ignore"):
        found = array.astype(np.float32, copy=False)
    check_float32(name, CSR(*entries, found), array)
    return found


def check_float32(name: str, x: CSR, values: np.ndarray | None = None) -> None:
    """Raise ValueError for an entry that is not finite; ``values`` are those before a cast."""
    finite = np.isfinite(x.values)
    if finite.all():
        return
    at = int(finite.argmin())
    bad, place = (x.values if values is None else values)[at], ""
    if at < len(x.indices):
        row = int(np.searchsorted(x.indptr, at, side="right")) - 1
        place = f"row {row}, column {x.indices[at]}; "
    raise ValueError(f"{name} must be finite float32 values, not {bad} ({place}{FLOAT32_MOST})")


def _finite(values: Any, name: str, entries: Pattern) -> np.ndarray:
    """The same values, if `_values` takes them: in float32 one near 0 or 1 would be 0 or 1."""
    _values(values, name, entries)
    return np.asarray(values)


def _on_host(x: torch.Tensor, name: str) -> torch.Tensor:
    """A tensor on the CPU; from another device this waits for the copy."""
    if x.device.type == "meta":
        raise ValueError(f"{name} are on meta, so they have no values")
    if x.requires_grad:
        raise ValueError(f"{name} get no gradient: detach them")
    return x.cpu()


def _check_matrix(shape: tuple[int, ...], num_columns: int | None, name: str) -> None:
    if len(shape) != 2:
        raise ValueError(f"{name} must be a matrix of 2 dimensions, not {shape}")
    if num_columns not in (None, shape[1]):
        raise ValueError(f"a matrix of {shape[1]} columns does not fit {num_columns} {name}")
    check_room(8 * shape[0], f"{name} of {shape[0]:,} rows")  # For the bounds of rows.


def _from_scipy(matrix: Any, name: str, cast: _Cast) -> CSR:
    matrix = as_wide(matrix, name).tocsr()
    if not matrix.has_canonical_format:
        summed = matrix.astype(np.float64) if _is_short(matrix.dtype) else matrix.copy()
        summed.sum_duplicates()  # It sorts; without duplicates the order of the columns stays.
        matrix = summed if summed.nnz < matrix.nnz else matrix
    return _cast_csr(_indexes(matrix, name), matrix.data, name, cast).without_zeros()


def check_scipy(matrix: Any, name: str) -> None:
    """Raise ValueError for a SciPy matrix with entries outside of it, where `tocsr` would write."""
    try:
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
            if (np.diff(matrix.indptr) < 0).any():  # Not seen if the last one is 0.
                raise ValueError("index pointers decrease")
        if matrix.format == "coo":
            for numbers, size in zip((matrix.row, matrix.col), matrix.shape, strict=True):
                _check_inside(numbers, size, matrix.shape)
        if matrix.format == "lil":
            if [*map(len, matrix.rows)] != [*map(len, matrix.data)]:
                raise ValueError("a row has other numbers of columns and of values")
            for numbers in matrix.rows:
                _check_inside(np.array(numbers, np.int64), matrix.shape[1], matrix.shape)
    except ValueError as error:
        raise ValueError(f"{name} are no sparse matrix: {error}") from error


def _check_inside(numbers: np.ndarray, size: int, shape: tuple[int, ...]) -> None:
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < size:
        raise ValueError(f"numbers of rows or columns are outside of {shape}")


def as_wide(matrix: Any, name: str = "features") -> Any:
    """A SciPy matrix, checked, whose whole numbers are float64 unless it is CSR: `tocsr` adds."""
    check_scipy(matrix, name)
    wide = matrix.format == "csr" or not _is_short(matrix.dtype)
    return matrix if wide else matrix.astype(np.float64)


def _is_short(dtype: Any) -> bool:
    """Whether sums may leave a type of numbers, as sums of bytes wrap around at 256."""
    return np.dtype(dtype).kind in "biu"


def _as_scipy(x: torch.Tensor, name: str) -> Any:
    """A matrix of SciPy with the arrays of a sparse tensor."""
    from scipy import sparse  # Here: `import slide` stays fast.

    shape, by_places = tuple(x.shape), x.layout == torch.sparse_coo
    values = _to_numpy(x._values() if by_places else x.values())
    try:
        if by_places:
            return sparse.coo_array((values, tuple(x._indices().numpy())), shape)
        blocks = values.shape[1:]  # None in CSR and CSC. SciPy does not see sizes that do not fit.
        if any(size % max(1, block) for size, block in zip(shape, blocks, strict=False)):
            raise ValueError(f"blocks {blocks} do not fit {shape}")
        if x.layout in (torch.sparse_csr, torch.sparse_bsr):
            kind = sparse.csr_array if x.layout == torch.sparse_csr else sparse.bsr_array
            return kind((values, x.col_indices().numpy(), x.crow_indices().numpy()), shape)
        arrays = x.row_indices().numpy(), x.ccol_indices().numpy()
        if x.layout == torch.sparse_csc:
            return sparse.csc_array((values, *arrays), shape)
        turned = sparse.bsr_array((values.transpose(0, 2, 1), *arrays), shape[::-1])
    except ValueError as error:
        raise ValueError(f"{name} are no sparse matrix: {error}") from error
    check_scipy(turned, name)  # `T` writes where the indices say.
    return turned.T


def _to_numpy(values: torch.Tensor) -> np.ndarray:
    # SciPy has no short floats.
    return (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()


def _from_dense(x: Any, num_columns: int | None, name: str, cast: _Cast = _values) -> CSR:
    try:
        array = np.asarray(x)
    except ValueError as error:  # Lists of different lengths.
        raise TypeError(f"{name} must be {_FEATURES}, not {type(x).__name__}") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be {_FEATURES}, not {type(x).__name__} of {array.dtype}")
    _check_matrix(array.shape, num_columns, name)
    if 0 in array.strides:  # Few numbers, each of them often.
        what = f"{name} of shape {array.shape}"
        check_room(array.nbytes, what)
        check_room(16 * np.count_nonzero(array), what)  # A row and a column of each.
    rows, columns = np.nonzero(array)
    bounds = row_bounds(np.bincount(rows, minlength=len(array)))
    found = _cast_csr(Pattern(bounds, columns.astype(np.int32)), array[rows, columns], name, cast)
    return found.without_zeros()  # Of numbers that are zero in float32.


def marked(matrix: CSR, name: str = "labels") -> Pattern:
    """The entries of a matrix of zeros and ones that are 1; ValueError for any other value."""
    entries, ones = Pattern(matrix.indptr, matrix.indices), matrix.values == 1
    if ones.all():
        return entries
    if (other := ~ones & (matrix.values != 0)).any():
        at = int(other.argmax())
        row = int(np.searchsorted(matrix.indptr, at, side="right")) - 1
        raise ValueError(
            f"a matrix of {name} must hold zeros and ones only, and row {row} has "
            f"{matrix.values[at]} in column {matrix.indices[at]}: give matrix != 0 where each "
            "entry is a label, or matrix > 0"
        )
    return entries.keep(ones)


def _from_array(array: np.ndarray, num_columns: int, name: str) -> Pattern:
    """One label number for each row, or a dense matrix with a column for each label."""
    if array.ndim == 1:
        check_room(8 * len(array), f"{name} of {len(array):,} rows")
        numbers = _whole(array, np.int32, name)
        return Pattern(np.arange(len(numbers) + 1), numbers)
    if array.ndim == 2 and array.shape[1] == num_columns:
        return marked(_from_dense(array, num_columns, name, _finite), name)
    raise ValueError(
        f"{name} of shape {array.shape} are neither one number for each row, (B,), nor a matrix "
        f"(B, {num_columns}) with a column for each; several numbers for each row go as lists"
    )


def _from_lists(rows: Sequence[Any], name: str) -> Pattern:
    """A list of label numbers for each row; also one number for each row."""
    if rows and all(isinstance(row, int | np.integer) for row in rows):
        return _from_array(np.array(rows), 0, name)
    parts = []
    for number, row in enumerate(_lists(name, rows)):
        part = np.asarray(row if isinstance(row, np.ndarray | torch.Tensor) else list(row))
        if part.ndim != 1:
            raise ValueError(f"{name} of row {number} must be a list, not of shape {part.shape}")
        parts.append(_whole(part, np.int32, f"{name} of row {number}"))
    bounds = row_bounds([len(part) for part in parts])
    return Pattern(bounds, np.concatenate([np.empty(0, np.int32), *parts]))
