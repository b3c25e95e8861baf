"""The two sparse containers that everything else passes around."""

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
