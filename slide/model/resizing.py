"""Models that get more or fewer labels and features: network, re-ranker, names, transforms."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from slide.data import RowTransform, SeenItems, SeenLabels
from slide.data.row_transform import keep_labels
from slide.nn import SlideNetwork
from slide.nn.stored_layers import StoredLinear
from slide.ops.kernels.ragged import select_rows
from slide.optim import RowSparseAdam
from slide.ranking import EnsembleRanker
from slide.sampling import FullSampler
from slide.sparse import CSR
from slide.utils import checks
from slide.utils.names import Names


def grown_ranker(ranker: EnsembleRanker, labels: int = 0, features: int = 0) -> EnsembleRanker:
    """A ranker that takes more labels or features, which no training row of it had."""
    large = copy.copy(ranker)
    large.frequency = _padded(ranker.frequency, labels, 0)
    rarest = ranker.inverse.max(initial=0)  # That of a label without a row.
    large.inverse = _padded(ranker.inverse, labels, rarest)
    large.classifiers = copy.copy(ranker.classifiers)
    assert ranker.classifiers.weights is not None
    large.classifiers.weights = _more_rows(ranker.classifiers.weights, labels)
    large.classifiers.num_features += features
    near = large.neighbours = copy.copy(ranker.neighbours)
    near.num_labels += labels
    near.search = near.fitted().grown(features)
    large.associations = copy.copy(ranker.associations)
    large.associations.num_labels += labels
    large.associations.lists = _more_rows(ranker.associations.lists, features)
    large.associations.unseen = _padded(ranker.associations.unseen, features, 1)
    one_row = 1 / max(near.search.num_rows, 1)
    large.associations.label_shares = _padded(ranker.associations.label_shares, labels, one_row)
    if not ranker.substitutes.empty:
        asked = large.substitutes = copy.copy(ranker.substitutes)
        asked.num_labels += labels
        asked.similar = _more_rows(asked.similar, features)
    if isinstance(ranker.known_labels, SeenItems) and labels:
        large.known_labels = ranker.known_labels.grown(labels)
    return large


def with_label_ids(
    steps: Sequence[RowTransform], ids: np.ndarray, num_labels: int, num_features: int
) -> tuple[RowTransform, ...]:
    """The same steps, whose outputs are other labels; the first of them renumbers all."""
    renumbers = len(ids) != num_labels or bool((ids != np.arange(num_labels)).any())
    if not steps:
        steps = [RowTransform(num_features, num_labels)] if renumbers else []
    kept = ids.astype(np.int32) if renumbers else None
    return tuple(
        replace(step, num_labels=len(ids) if number else num_labels, label_ids=None)
        if number or not renumbers
        else replace(step, num_labels=num_labels, label_ids=kept)
        for number, step in enumerate(steps)
    )


def with_features(
    steps: Sequence[RowTransform], count: int
) -> tuple[tuple[RowTransform, ...], int]:
    """The steps for rows with more features, and how many more the network sees.

    A new feature weighs in tf-idf as much as the rarest one. Where features are hashed, the network
    sees no more of them.
    """
    found = []
    for step in steps:
        weights = step.tf_idf_weights
        if weights is not None:
            weights = _padded(weights, count, weights.max(initial=0))
        found.append(replace(step, num_features=step.num_features + count, tf_idf_weights=weights))
        count = 0 if step.hashed_features else count
    return tuple(found), count


def extended_names(known: Names | None, new: Any, what: str) -> tuple[Names | None, int]:
    """Names with further ones, and how many these are."""
    if known is None:
        if not isinstance(new, int | np.integer):
            raise ValueError(f"the {what} have no names: say how many are new, not {new!r}")
        checks.whole(what, new, 1)
        return None, int(new)
    if isinstance(new, int | np.integer | str) or not isinstance(new, Iterable | Sequence):
        raise ValueError(f"the {what} have names: give a list of new names, not {new!r}")
    found = known.extended(new, what)
    if len(found) == len(known):
        raise ValueError(f"add_{what} needs at least one name")
    return found, len(found) - len(known)


def _more_rows(matrix: CSR, count: int) -> CSR:
    """The matrix with empty rows at its end."""
    indptr = _padded(matrix.indptr, count, matrix.indptr[-1])
    return matrix._replace(indptr=indptr)


def _padded(array: np.ndarray, count: int, value: float) -> np.ndarray:
    """The array with further entries, in its type."""
    return np.concatenate([array, np.full(count, value, array.dtype)])


def kept_network(network: SlideNetwork, kept: np.ndarray) -> SlideNetwork:
    """A network with some of the outputs; the other layers are shared."""
    small, at = copy.copy(network), torch.from_numpy(kept.astype(np.int64))
    small._modules = dict(network._modules)
    if isinstance(network.output, StoredLinear):
        small._modules["output"] = network.output.kept(at)
        return small
    layer = copy.copy(network.output)
    layer._modules, layer._parameters = dict(layer._modules), dict(layer._parameters)
    for name in ("weight", "bias"):
        values = network.output.get_parameter(name).detach()[at]
        setattr(layer, name, nn.Parameter(values, requires_grad=False))
    layer.out_features, layer.sampler = len(kept), FullSampler(layer.in_features, len(kept))
    small.output = layer
    return small


def own_layers(
    network: SlideNetwork, optimizer: RowSparseAdam | None
) -> tuple[SlideNetwork, RowSparseAdam | None]:
    """A network with copies of all layers but the output layer, and its optimizer with theirs."""
    kept: list[object] = [network.output, *network.output.parameters()]
    if optimizer is not None:
        kept += [optimizer.state[p] for p in network.output.parameters() if p in optimizer.state]
    return copy.deepcopy((network, optimizer), {id(each): each for each in kept})


def kept_ranker(ranker: EnsembleRanker, kept: np.ndarray) -> EnsembleRanker:
    """A ranker of these labels only, ascending; its lists and rows are those of the other one."""
    small, count = copy.copy(ranker), len(ranker.frequency)
    small.frequency, small.inverse = ranker.frequency[kept], ranker.inverse[kept]
    small.classifiers = copy.copy(ranker.classifiers)
    assert ranker.classifiers.weights is not None
    indptr, *entries = ranker.classifiers.weights
    small.classifiers.weights = CSR(*select_rows(indptr, kept, *entries))
    small.neighbours = copy.copy(ranker.neighbours)
    small.neighbours.labels = keep_labels(ranker.neighbours.labels, kept, count)
    small.associations = copy.copy(ranker.associations)
    small.associations.lists = keep_labels(ranker.associations.lists, kept, count)
    small.associations.label_shares = ranker.associations.label_shares[kept]
    small.neighbours.num_labels = small.associations.num_labels = len(kept)
    if not ranker.substitutes.empty:
        asked = small.substitutes = copy.copy(ranker.substitutes)
        asked.labels, asked.num_labels = keep_labels(asked.labels, kept, count), len(kept)
    known = ranker.known_labels
    if isinstance(known, SeenItems):
        small.known_labels = known.restricted(kept)
    elif known is not None:
        labels = keep_labels(known.labels, kept, count)
        small.known_labels = SeenLabels.restored(known.keys, known.rows, labels)
    return small
