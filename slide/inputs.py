"""Features and labels in the forms that users have, cast once to `CSR` and `Pattern`.

What is `CSR` or `Pattern` already, with the right types, is returned as it is. SciPy is not
imported here: its matrices are known by their methods.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from slide.sparse import CSR, Pattern, row_bounds

_FEATURES = "a slide.CSR, a SciPy sparse matrix, a torch tensor or an array of 2 dimensions"
_LABELS = "lists of label numbers, one number for each row, or a matrix with a column for each"
_MOST = 2**31 - 1
# What becomes of values, and what they are, for messages.
_Cast = Callable[[Any, str], np.ndarray]


def as_csr(x: Any, num_columns: int | None = None, name: str = "features") -> CSR:
    """A sparse matrix as `CSR`.

    Entries that are zero are left out, also those that a sparse matrix stores. Entries of the same
    row and column are added up. The order of the entries of a row stays.

    Args:
        x: ``(B, D)``: `CSR` (not copied, and its values are not looked at), a SciPy sparse matrix
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
        return x if _is_exact(x) else CSR(*_indexes(x, name), _values(x.values, name))
    if hasattr(x, "tocsr"):
        return _from_scipy(x, num_columns, name)
    x = without_frame(x)
    if isinstance(x, torch.Tensor):
        x = _on_host(x, name)
        if x.layout != torch.strided:
            return _from_torch(x, num_columns, name)
        x = x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()
    return _from_dense(x, num_columns, name)


def as_pattern(labels: Any, num_columns: int, name: str = "labels") -> Pattern:
    """The labels of rows as a `Pattern`.

    Args:
        labels: `Pattern` (not copied); or label numbers: a list (or array, or set) of them for each
            row, or one for each row ``(B,)``; or a matrix ``(B, N)``, sparse or dense, whose
            non-zeros are the labels.
        num_columns: N, number of labels.
        name: what the columns are, for messages.

    Raises:
        ValueError: for a shape that is none of these, or a number beyond int32.
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
        return labels if _is_exact(labels) else Pattern(*_indexes(labels, name))
    if isinstance(labels, CSR):
        if not _is_exact(labels):
            labels = CSR(*_indexes(labels, name), _marks(labels.values, name))
        return _nonzeros(labels)
    if hasattr(labels, "tocsr"):
        return _nonzeros(_from_scipy(labels, num_columns, name, _marks))
    labels = without_frame(labels)
    if isinstance(labels, torch.Tensor):
        labels = _on_host(labels, name)
        if labels.layout != torch.strided:
            return _nonzeros(_from_torch(labels, num_columns, name, _marks))
        labels = labels.float().numpy() if labels.dtype == torch.bfloat16 else labels.numpy()
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        return _from_array(labels, num_columns, name)
    if isinstance(labels, Iterable) and not isinstance(labels, str | bytes | dict):
        return _from_lists(list(labels), name)
    raise TypeError(f"{name} must be {_LABELS}, not {type(labels).__name__}")


def without_frame(x: Any) -> Any:
    """A table with named columns as an array; anything else as it is."""
    if not hasattr(x, "columns") or not hasattr(x, "to_numpy"):
        return x
    array = x.to_numpy()  # Columns of several types make one of objects.
    return np.array(array.tolist()) if array.dtype == object and array.ndim == 2 else array


def _is_exact(x: CSR | Pattern) -> bool:
    """Whether the arrays have the types that kernels read."""
    return (
        getattr(x.indptr, "dtype", None) == np.int64
        and getattr(x.indices, "dtype", None) == np.int32
        and isinstance(x.indptr, np.ndarray)
        and isinstance(x.indices, np.ndarray)
        and (isinstance(x, Pattern) or _is_float(x.values))
    )


def _is_float(values: Any) -> bool:
    # float64 is for checks of gradients.
    return isinstance(values, np.ndarray) and values.dtype in (np.float32, np.float64)


def _indexes(x: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of rows and column numbers, of the types that kernels read."""
    arrays = []
    for part in ("indptr", "indices"):
        array = np.asarray(getattr(x, part))
        if array.ndim != 1:
            raise ValueError(
                f"{part} of {name} has the shape {array.shape}, not (n,): rows that were stacked "
                "one by one are no matrix; collate them with slide.as_csr and slide.as_pattern"
            )
        arrays.append(array)
    return _whole(arrays[0], np.int64, name), _whole(arrays[1], np.int32, name)


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


def _values(values: Any, name: str) -> np.ndarray:
    """Values as finite float32."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be real numbers, not {array.dtype}")
    with np.errstate(over="ignore"):
        found = array.astype(np.float32, copy=False)
    if not np.isfinite(found).all():
        bad = array[~np.isfinite(found)][0]
        raise ValueError(f"{name} must be finite float32 values, not {bad}")
    return found


def _marks(values: Any, name: str) -> np.ndarray:
    """Whether values are not zero, which may be in float32; they must be such as `_values` takes.

    Returns:
        Booleans, in the place of values.
    """
    _values(values, name)
    return np.asarray(values) != 0


def _on_host(x: torch.Tensor, name: str) -> torch.Tensor:
    """A tensor on the CPU; from another device this waits for the copy."""
    if x.device.type == "meta":
        raise ValueError(f"{name} are on meta, so they have no values")
    if x.requires_grad:
        raise ValueError(f"{name} get no gradient: detach them")
    return x.cpu()


def _check_columns(found: int, wanted: int | None, name: str) -> None:
    if wanted is not None and found != wanted:
        raise ValueError(f"a matrix of {found} columns does not fit {wanted} {name}")


def _from_scipy(matrix: Any, num_columns: int | None, name: str, cast: _Cast = _values) -> CSR:
    if len(matrix.shape) != 2:
        raise ValueError(f"{name} must be a matrix of 2 dimensions, not {matrix.shape}")
    _check_columns(matrix.shape[1], num_columns, name)
    matrix = as_wide(matrix).tocsr()
    if not matrix.has_canonical_format and _has_duplicates(matrix):
        matrix = matrix.astype(np.float64) if _is_short(matrix.dtype) else matrix.copy()
        matrix.sum_duplicates()
    return CSR(*_indexes(matrix, name), cast(matrix.data, name)).without_zeros()


def as_wide(matrix: Any) -> Any:
    """A SciPy matrix whose whole numbers are float64, unless it is CSR: `tocsr` adds up."""
    wide = matrix.format == "csr" or not _is_short(matrix.dtype)
    return matrix if wide else matrix.astype(np.float64)


def _is_short(dtype: Any) -> bool:
    """Whether sums may leave a type of numbers, as those of bytes wrap around at 256."""
    return np.dtype(dtype).kind in "biu"


def _has_duplicates(matrix: Any) -> bool:
    """Whether a column occurs twice in a row; columns in another order are no duplicates."""
    ordered = matrix.sorted_indices()
    same = ordered.indices[1:] == ordered.indices[:-1]
    begins = ordered.indptr[1:-1]
    same[begins[(begins > 0) & (begins < ordered.nnz)] - 1] = False
    return bool(same.any())


def _from_torch(x: torch.Tensor, num_columns: int | None, name: str, cast: _Cast = _values) -> CSR:
    if x.ndim != 2:
        raise ValueError(f"{name} must be a matrix of 2 dimensions, not {tuple(x.shape)}")
    _check_columns(x.shape[1], num_columns, name)
    if x.layout == torch.sparse_coo:  # By numpy, as PyTorch's own conversion is slow and warns.
        if not x.is_complex() and x.dtype not in (torch.float32, torch.float64):
            x = x.double()  # `coalesce` adds up, and short types wrap around.
        x = x.coalesce()
        rows, columns = x.indices().numpy()
        sizes = np.bincount(rows, minlength=x.shape[0])
        bounds = row_bounds(sizes)
        columns = _whole(columns, np.int32, name)
        return CSR(bounds, columns, cast(_plain(x.values()), name)).without_zeros()
    if x.layout != torch.sparse_csr:
        return _from_torch(x.to_sparse_coo(), num_columns, name, cast)
    bounds = _whole(x.crow_indices().numpy(), np.int64, name)
    columns = _whole(x.col_indices().numpy(), np.int32, name)
    return CSR(bounds, columns, cast(_plain(x.values()), name)).without_zeros()


def _plain(values: torch.Tensor) -> np.ndarray:
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _from_dense(x: Any, num_columns: int | None, name: str, cast: _Cast = _values) -> CSR:
    try:
        array = np.asarray(x)
    except ValueError as error:  # Lists of different lengths.
        raise TypeError(f"{name} must be {_FEATURES}, not {type(x).__name__}") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be {_FEATURES}, not {type(x).__name__} of {array.dtype}")
    if array.ndim != 2:
        raise ValueError(f"{name} must be a matrix of 2 dimensions, not {array.shape}")
    _check_columns(array.shape[1], num_columns, name)
    rows, columns = np.nonzero(array)
    sizes = np.bincount(rows, minlength=len(array))
    bounds = row_bounds(sizes)
    found = CSR(bounds, columns.astype(np.int32), cast(array[rows, columns], name))
    return found.without_zeros()  # Of numbers that are zero in float32.


def _nonzeros(matrix: CSR) -> Pattern:
    """The entries of a matrix that are not zero."""
    entries = Pattern(matrix.indptr, matrix.indices)
    return entries if matrix.values.all() else entries.keep(matrix.values != 0)


def _from_array(array: np.ndarray, num_columns: int, name: str) -> Pattern:
    """One label number for each row, or a dense matrix with a column for each label."""
    if array.ndim == 1:
        numbers = _whole(array, np.int32, name)
        return Pattern(np.arange(len(numbers) + 1), numbers)
    if array.ndim == 2 and array.shape[1] == num_columns:
        return _nonzeros(_from_dense(array, num_columns, name, _marks))
    raise ValueError(
        f"{name} of shape {array.shape} are neither one number for each row, (B,), nor a matrix "
        f"(B, {num_columns}) with a column for each; several numbers for each row go as lists"
    )


def _from_lists(rows: Sequence[Any], name: str) -> Pattern:
    """A list of label numbers for each row; also one number for each row."""
    if rows and all(isinstance(row, int | np.integer) for row in rows):
        return _from_array(np.array(rows), 0, name)
    parts = []
    for place, row in enumerate(rows):
        if isinstance(row, str | bytes | dict) or not isinstance(row, Iterable):
            raise TypeError(f"{name} of row {place} must be a list of numbers, not {row!r}")
        part = np.asarray(row if isinstance(row, np.ndarray | torch.Tensor) else list(row))
        if part.ndim != 1:
            raise ValueError(f"{name} of row {place} must be a list, not of shape {part.shape}")
        parts.append(_whole(part, np.int32, f"{name} of row {place}"))
    sizes = [len(part) for part in parts]
    bounds = row_bounds(sizes)
    return Pattern(bounds, np.concatenate([np.empty(0, np.int32), *parts]))
