"""The ids of active sets from labels and proposals: by kernels, or in plain torch on a device.

Labels are on the host, so all sizes are known there. On another device the ids never leave it.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import Scratch
from slide.backend import native, on_device, on_host, plain
from slide.kernels import assemble_sets as kernels
from slide.kernels.votes import RankedIds
from slide.plain.assemble_sets import assemble, stratified_log_weights
from slide.runtime import num_threads
from slide.sampling.best_ids import most_labels, padded
from slide.sparse import Pattern


def per_sample_ids(
    labels: Pattern,
    proposed: RankedIds | Tensor,
    indptr: np.ndarray,
    key: np.uint64,
    scratch: Scratch,
    device: torch.device,
) -> tuple[Any, Any]:
    """The ids of one set for each sample ``(nnz,)``, and how many of each are known ``(B,)``.

    Known are labels and proposals; the others are drawn.

    Args:
        labels: labels of each sample, which are in its set.
        proposed: see `slide.Proposer.propose`.
        indptr: ``(B + 1,)`` int64 bounds of the sets.
        key: key of the uniform fill.
        scratch: that of the layer; it knows the number of outputs.
        device: of the layer.
    """
    if plain(device):
        return _plain_ids(
            padded(labels, most_labels(labels)),
            _ranked(proposed, device),
            np.diff(indptr),
            key,
            scratch,
        )
    ids, num_known = np.empty(indptr[-1], np.int32), np.empty(len(indptr) - 1, np.int64)
    marks = scratch.marks(num_threads())
    places = marks, indptr, ids, num_known
    kernels.assemble_per_sample(labels, proposed, scratch.out_features, key, *places)
    return ids, num_known


def distinct_labels(labels: Pattern, scratch: Scratch) -> int:
    """The number of distinct labels of a batch."""
    if plain():
        return len(np.unique(labels.indices))
    return kernels.count_distinct(labels.indices, scratch.marks(1)[0])


def shared_ids(
    labels: Pattern,
    proposed: np.ndarray | Tensor,
    size: int,
    key: np.uint64,
    scratch: Scratch,
    device: torch.device,
) -> tuple[Any, np.ndarray, Any]:
    """The ids of one set for a batch, the place of each label in it, and how many are known.

    Args:
        labels: labels of each sample, which are in the set.
        proposed: see `slide.Proposer.propose_shared`.
        size: size of the set.
        key, scratch, device: see `per_sample_ids`.
    """
    if plain(device):
        known, positions = _by_appearance(labels)
        best = on_device(proposed, device)[None]
        ids, num_known = _plain_ids(known[None], best, np.array([size]), key, scratch)
        return ids, positions, num_known
    ids, positions = np.empty(size, np.int32), np.empty(len(labels.indices), np.int32)
    places = scratch.marks(1)[0], scratch.slots(), ids, positions
    known = kernels.assemble_shared(labels, proposed, scratch.out_features, key, *places)
    return ids, positions, np.array([known])


def log_weights(indptr: np.ndarray, num_known: np.ndarray | Tensor, num_rows: int) -> Any:
    """The stratified log weights of sets ``(nnz,)`` with these bounds, out of N outputs."""
    if isinstance(num_known, Tensor):
        sizes = np.diff(indptr)
        wanted, width = on_device(sizes, num_known.device), int(sizes.max(initial=0))
        return _flat(stratified_log_weights(num_known, wanted, width, num_rows), sizes)
    out = np.empty(indptr[-1], np.float32)
    kernels.stratified_log_weights(indptr, num_known, num_rows, out)
    return out


def num_proposed(proposed: RankedIds | Tensor) -> np.ndarray:
    """How many ids are proposed for each sample, ``(B,)``; see `slide.Proposer.propose`."""
    return on_host((proposed >= 0).sum(1)) if isinstance(proposed, Tensor) else proposed.counts


def _plain_ids(
    rows: np.ndarray, proposed: Tensor, sizes: np.ndarray, key: np.uint64, scratch: Scratch
) -> tuple[Any, Tensor]:
    """Ids of sets of some sizes, set after set, and how many of each are known.

    ``rows`` ``(B, most labels)`` and ``proposed`` ``(B, most)`` have -1 for none.
    """
    device, width, num_rows = proposed.device, int(sizes.max(initial=0)), scratch.out_features
    wanted, labels = on_device(sizes, device), on_device(rows, device)
    ids, known = assemble(labels, proposed, wanted, width, num_rows, int(key))
    return _flat(ids, sizes), known


def _flat(values: Tensor, sizes: np.ndarray) -> Any:
    """The first ``sizes[b]`` values of each row, one row after the other."""
    width = values.shape[1]
    if (sizes == width).all():
        return native(values.flatten())
    at = np.flatnonzero(np.arange(width) < sizes[:, None])
    return native(values.flatten()[on_device(at, values.device)])


def _ranked(proposed: RankedIds | Tensor, device: torch.device) -> Tensor:
    """Proposals of each sample as ``(B, most)`` int32 on a device; -1: none."""
    if isinstance(proposed, Tensor):
        return proposed
    kept = np.arange(proposed.ids.shape[1]) < proposed.counts[:, None]
    return on_device(np.where(kept, proposed.ids, np.int32(-1)), device)


def _by_appearance(labels: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """The distinct labels of a batch by first appearance, and the place of each label in them."""
    ids, first, inverse = np.unique(labels.indices, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order))
    return ids[order], rank[inverse]
