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
