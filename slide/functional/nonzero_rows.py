"""The samples of a batch whose gradient is not zero: a backward pass visits only these.

A loss over the hardest samples leaves zero gradients for the others. Shrivastava, Gupta and
Girshick (2016, "Training region-based object detectors with online hard example mining", section
4.2) run a second forward pass over the hard samples for this reason. Here the layers find the rows
of the gradient that are not zero, for any loss, and the backward pass visits only these.
"""

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view, plain
from slide.kernels.ragged import mark_nonzero_rows

# Above this share of samples, a copy of them takes more time than a visit to all samples.
DENSE_ROW_SHARE = 0.75


def rows_to_visit(gradient: Tensor, indptr: np.ndarray | None = None) -> np.ndarray | None:
    """The samples whose gradient is not zero.

    Args:
        gradient: ``(B, A)``, or ``(nnz,)`` with ``indptr``; contiguous.
        indptr: ``(B + 1,)`` int64 bounds of the samples' entries.

    Returns:
        ``(R,)`` int64, ascending. None if visiting all samples is faster: their share is above
        `DENSE_ROW_SHARE`, there are fewer than two samples, or the host would wait for a device.
    """
    if plain(gradient) or len(gradient if indptr is None else indptr[1:]) < 2:
        return None
    if indptr is None:
        # The first column usually decides.
        if np.count_nonzero(array_view(gradient)[:, :1]) > DENSE_ROW_SHARE * len(gradient):
            return None
        indptr = np.arange(len(gradient) + 1, dtype=np.int64) * gradient.shape[1]
    marks = np.empty(len(indptr) - 1, np.bool_)
    mark_nonzero_rows(indptr, array_view(gradient).reshape(-1), marks)
    rows = np.flatnonzero(marks)
    return None if len(rows) > DENSE_ROW_SHARE * len(marks) else rows


def scatter_rows(values: Tensor, rows: np.ndarray, num_rows: int) -> Tensor:
    """``(num_rows, D)`` with ``values`` ``(R, D)`` in ``rows`` and zeros elsewhere."""
    out = values.new_zeros(num_rows, values.shape[1])
    return out.index_copy_(0, torch.from_numpy(rows), values)
