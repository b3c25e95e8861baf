"""A model that knows fewer labels: the weights and lists of some labels, in a new order."""

import copy

import numpy as np
import torch
from torch import nn

from slide.data import SeenItems, SeenLabels
from slide.data.row_transform import keep_labels
from slide.nn import SlideNetwork
from slide.nn.stored_layers import StoredLinear
from slide.ops.kernels.ragged import select_rows
from slide.optim import RowSparseAdam
from slide.ranking import EnsembleRanker
from slide.sampling import FullSampler
from slide.sparse import CSR


def kept_network(network: SlideNetwork, kept: np.ndarray) -> SlideNetwork:
    """A network with some of the outputs; the other layers are shared.

    Args:
        network: a trained network.
        kept: ``(n,)`` numbers of outputs.
    """
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
    """A network with copies of all layers but the output layer, and its optimizer with theirs.

    Args:
        network: its output layer is no other network's.
        optimizer: of the network; None: there is none.
    """
    kept: list[object] = [network.output, *network.output.parameters()]
    if optimizer is not None:
        kept += [optimizer.state[p] for p in network.output.parameters() if p in optimizer.state]
    return copy.deepcopy((network, optimizer), {id(each): each for each in kept})


def kept_ranker(ranker: EnsembleRanker, kept: np.ndarray) -> EnsembleRanker:
    """A ranker of these labels only; classifiers, lists and rows are those of the other one.

    Args:
        ranker: a trained ranker.
        kept: ``(n,)`` numbers of labels, ascending.
    """
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
