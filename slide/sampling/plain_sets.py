"""Active sets that are put together on the device of a layer, by `slide.plain.assemble_sets`.

Labels are on the host, so all sizes are known there. The ids never leave the device.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import on_device
from slide.kernels.votes import RankedIds
from slide.plain.assemble_sets import assemble, stratified_log_weights
from slide.scratch import Scratch
from slide.sparse import Pattern


def distinct_labels(labels: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """The distinct labels of a batch by first appearance, and the place of each label in them."""
    ids, first, inverse = np.unique(labels.indices, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order))
    return ids[order], rank[inverse]


def as_rows(labels: Pattern) -> np.ndarray:
    """Labels of each sample as ``(B, most labels)`` int32; -1: none."""
    counts = np.diff(labels.indptr)
    out = np.full((len(counts), counts.max(initial=0)), -1, np.int32)
    out[np.arange(out.shape[1]) < counts[:, None]] = labels.indices
    return out


def ranked_rows(proposed: RankedIds | Tensor, device: torch.device) -> Tensor:
    """Proposals of each sample as ``(B, most)`` int32 on a device; -1: none."""
    if isinstance(proposed, Tensor):
        return proposed
    kept = np.arange(proposed.ids.shape[1]) < proposed.counts[:, None]
    return on_device(np.where(kept, proposed.ids, np.int32(-1)), device)


def plain_set(
    rows: np.ndarray, proposed: Tensor, sizes: np.ndarray, key: Any, scratch: Scratch
) -> tuple[Tensor, Tensor]:
    """The ids of sets and their stratified log weights, ``(nnz,)`` each, set after set.

    Args:
        rows: ``(B, most labels)`` int32; -1: none.
        proposed: ``(B, most)`` int32 tensor on the device of the layer; -1: none.
        sizes: ``(B,)`` sizes of the sets.
        key: key of the uniform fill.
        scratch: that of the layer; it knows the number of outputs.
    """
    device, width, num_rows = proposed.device, int(sizes.max(initial=0)), scratch.out_features
    wanted = on_device(sizes, device)
    labels = on_device(rows, device)
    ids, known = assemble(labels, proposed, wanted, width, num_rows, int(key))
    weights = stratified_log_weights(known, wanted, width, num_rows)
    if (sizes == width).all():
        return ids.flatten(), weights.flatten()
    at = on_device(np.flatnonzero(np.arange(width) < sizes[:, None]), device)
    return ids.flatten()[at], weights.flatten()[at]
