"""Rows of a weight that stay in the memory of the host, for weights larger than a device's memory.

A step brings the rows that it uses to the device and computes with them there as with a small
weight. Their gradients are left on the large weight as rows, and `slide.RowSparseAdam` takes them
back to the host. Caches of embeddings work in this way, too (Zhao et al. 2020, "Distributed
hierarchical GPU parameter server for massive scale deep learning ads systems").
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.functional.drawn_ids import check_drawn, drawn_ids
from slide.functional.first_derivatives import FirstDerivatives
from slide.row_gradients import RowGradient, hand_over
from slide.sparse import CSR
from slide.utils.profiling import profiled


def fetch_set(
    weight: Tensor, bias: Tensor | None, active: ActiveSet, device: torch.device
) -> tuple[Tensor, Tensor | None, ActiveSet]:
    """The rows of an active set on a device, and the set by their numbers there.

    Args:
        weight: ``(N, D)``, on the host; a leaf.
        bias: ``(N,)``, on the host, or None.
        active: a set out of N outputs; its ids are an array.
        device: where the layer computes.

    Returns:
        Rows ``(R, D)`` and their biases ``(R,)``, and the same set out of R outputs. Gradients of
        rows and biases reach weight and bias as row gradients.

    Example:
        >>> import numpy as np, slide, torch
        >>> from slide.functional.host_rows import fetch_set
        >>> weight = torch.eye(4, requires_grad=True)
        >>> active = slide.ActiveSet(4, np.array([3, 1], np.int32))
        >>> rows, _, few = fetch_set(weight, None, active, torch.device("cpu"))
        >>> rows.tolist(), few.ids.tolist()
        ([[0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]], [0, 1])
    """
    ids, places = active.ids, np.arange(len(active.ids), dtype=np.int32)
    if not active.shared:
        ids, places = _distinct(ids)
    known = active.indptr, active.targets, active.log_weights
    rows = _fetch(weight, ids, device)
    return (
        rows,
        None if bias is None else _fetch(bias, ids, device),
        ActiveSet(len(ids), places, *known),
    )


def fetch_features(weight: Tensor, x: CSR, device: torch.device) -> tuple[Tensor, CSR]:
    """The rows of the features of a sparse matrix on a device, and the matrix by their numbers.

    Args:
        weight: ``(D, H)``, on the host; a leaf.
        x: ``(B, D)``.
        device: where the layer computes.

    Returns:
        Rows ``(R, H)`` and the matrix as ``(B, R)``.
    """
    ids, places = _distinct(x.indices)
    return _fetch(weight, ids, device), CSR(x.indptr, places, x.values)


def _distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ids, ascending, and the place of each id among them; both int32."""
    distinct, places = np.unique(ids, return_inverse=True)
    return distinct.astype(np.int32), places.astype(np.int32)


def _fetch(tensor: Tensor, ids: np.ndarray, device: torch.device) -> Tensor:
    return _Fetch.apply(tensor, ids, device)  # type: ignore[return-value]


class _Fetch(FirstDerivatives):
    """Rows ``(R, ...)`` of a tensor on the host, on a device."""

    @staticmethod
    @profiled("fetch rows")
    def forward(ctx: Any, tensor: Tensor, ids: np.ndarray, device: torch.device):
        ctx.tensor, ctx.ids = tensor, ids
        ctx.save_for_backward(drawn_ids(ctx, ids))
        # The copy of pinned memory waits for nothing, and PyTorch keeps it until it is done.
        shape, pinned = (len(ids), *tensor.shape[1:]), device.type == "cuda"
        rows = torch.empty(shape, dtype=tensor.dtype, pin_memory=pinned)
        torch.index_select(tensor.detach(), 0, torch.from_numpy(ids), out=rows)
        return rows.to(device, non_blocking=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        check_drawn(ctx, *ctx.saved_tensors)
        rows = grads[0]
        if rows.layout == torch.sparse_coo:  # To coalesce it would wait for the device.
            ids, values = rows._indices()[0], rows._values()
            rows = values.new_zeros(rows.shape).index_add_(0, ids, values)
        gradient = RowGradient(ctx.ids, rows.reshape(len(ctx.ids), math.prod(rows.shape[1:])))
        return hand_over(ctx, ctx.tensor, gradient, False), None, None
