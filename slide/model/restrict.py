"""A network that knows fewer labels: the weights of some of them, in a new order."""

import copy

import numpy as np
import torch
from torch import nn

from slide.nn import SlideNetwork
from slide.nn.stored_layers import StoredLinear
from slide.optim import RowSparseAdam
from slide.sampling import FullSampler


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
