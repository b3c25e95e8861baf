"""Values on an active set, and the same values in a dense matrix."""

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.runtime import untraced


@untraced
def gather_active(values: Tensor, active: ActiveSet) -> Tensor:
    """The entries of a dense ``(B, N)`` on the active set; the inverse of `scatter_active`.

    Returns:
        ``(B, A)`` for a shared set, else ``(nnz,)``.
    """
    if active.complete:
        return values
    ids = torch.from_numpy(active.ids).long()
    if active.indptr is None:
        return values[:, ids]
    return values[_samples(active), ids]


def _samples(active: ActiveSet) -> Tensor:
    """The sample of each entry of per-sample sets, ``(nnz,)`` int64."""
    assert active.indptr is not None
    counts = torch.from_numpy(np.diff(active.indptr))
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


@untraced
def scatter_active(values: Tensor, active: ActiveSet, num_samples: int) -> Tensor:
    """A dense ``(B, N)`` with ``values`` on the active set and zeros elsewhere.

    For hidden layers, where N is some thousands: it costs B x N.

    Args:
        values: ``(B, A)`` for a shared set, or ``(B, A, H, W)`` of a convolution, else ``(nnz,)``.
        active: where they belong.
        num_samples: B.
    """
    if active.complete:
        return values
    ids = torch.from_numpy(active.ids).long()
    out = values.new_zeros(num_samples, active.out_features, *values.shape[2:])
    if active.indptr is None:
        return out.index_copy(1, ids, values)
    return out.index_put((_samples(active), ids), values)
