"""Output biases before the first step: frequent labels start with higher scores."""

from typing import Any

import torch

from slide.distributed import ShardedNetwork
from slide.nn import SlideNetwork
from slide.sparse import Pattern


def start_biases(network: SlideNetwork, loss: Any, labels: Pattern) -> None:
    """Start the biases of the outputs from the frequencies of the labels.

    Args:
        network: changed in place, before its first step.
        loss: says which scores fit the frequencies, as `slide.ActiveLoss` does. With another
            function, biases start at zero.
        labels: of the training rows.
    """
    output = network.output
    assert output.bias is not None
    if not hasattr(loss, "prior_scores"):
        return
    scores = loss.prior_scores(labels, output.out_features)
    if isinstance(network, ShardedNetwork):
        scores = scores[torch.from_numpy(network.output.shares.ids).long()]
    output.bias.data.copy_(scores)
