"""The two sparse containers that everything else passes around."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Pattern(NamedTuple):
    """Which columns each row uses: a CSR matrix without values.

    Row ``b`` uses columns ``indices[indptr[b]:indptr[b + 1]]``.

    Attributes:
        indptr: ``(B + 1,)`` int64, starts at 0.
        indices: ``(nnz,)`` int32 column numbers.
    """

    indptr: np.ndarray
    indices: np.ndarray

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]]) -> "Pattern":
        """One row a list of column numbers."""
        indptr = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(row) for row in lists], out=indptr[1:])
        return cls(indptr, np.array([column for row in lists for column in row], np.int32))


class CSR(NamedTuple):
    """A CSR matrix.

    Attributes:
        indptr: ``(B + 1,)`` int64, starts at 0.
        indices: ``(nnz,)`` int32 column numbers.
        values: ``(nnz,)`` float32.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1


def check_pattern(
    name: str, pattern: Pattern | CSR, num_rows: int | None, num_columns: int
) -> None:
    """Raise unless kernels can follow ``pattern`` without leaving an array.

    Args:
        name: of its columns, for the message: "labels", "features".
        pattern: to be checked, in time proportional to its entries.
        num_rows: rows that it must have; None: any.
        num_columns: columns lie in ``[0, num_columns)``.

    Raises:
        ValueError: naming what is wrong; TypeError: for a wrong dtype.
    """
    indptr, indices = pattern.indptr, pattern.indices
    if indptr.dtype != np.int64 or indices.dtype != np.int32:
        raise TypeError(
            f"{name} need int64 indptr and int32 indices, not {indptr.dtype} and {indices.dtype}"
        )
    if num_rows is not None and pattern.num_rows != num_rows:
        raise ValueError(f"{pattern.num_rows} rows of {name} do not fit {num_rows} inputs")
    if not len(indptr) or indptr[0] or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise ValueError(f"indptr of {name} must rise from 0 to their number, {len(indices)}")
    if indices.size and not (indices.min() >= 0 and indices.max() < num_columns):
        raise ValueError(
            f"{name} must lie in [0, {num_columns}), not in [{indices.min()}, {indices.max()}]"
        )
