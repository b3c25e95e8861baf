"""One pass of a model over further rows: what it trains with, and its steps."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from slide.data import Batch
from slide.functional.losses import LOSSES
from slide.nn import ActiveLoss, SlideNetwork
from slide.nn.stored_layers import make_float32
from slide.optim import RowSparseAdam
from slide.sampling import ActiveSampler
from slide.utils.checks import DivergenceError
from slide.utils.sizes import active_outputs

_OPTIMIZER = ("betas", "eps", "weight_decay", "correct_skipped", "rowwise")


def make_trainable(network: SlideNetwork) -> None:
    """Let a network that was opened for prediction learn, from uniform draws.

    Args:
        network: changed in place; one that learns already stays as it is.
    """
    make_float32(network)
    layer = network.output
    if not layer.weight.requires_grad:
        sizes = layer.in_features, layer.out_features
        options = {"active": active_outputs(layer.out_features), "weighting": "none"}
        layer.sampler = ActiveSampler(*sizes, **options)
    network.requires_grad_(True)


def loss_of(settings: Mapping[str, Any]) -> str:
    """The loss that a run was trained with."""
    found = settings.get("loss")
    names = found.get("_args_") if isinstance(found, dict) else None
    return names[0] if names and names[0] in LOSSES else "squared_hinge"


def optimizer_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the optimizer of a run or classifier was made with, but for its rates."""
    found = settings.get("optimizer")
    found = found if isinstance(found, dict) else {}
    return {name: found[name] for name in _OPTIMIZER if name in found}


def train_pass(
    network: SlideNetwork, optimizer: RowSparseAdam, loss: ActiveLoss, batches: Iterable[Batch]
) -> None:
    """Make a step with each batch; the network predicts afterwards.

    Raises:
        DivergenceError: if the loss of a batch is NaN or infinite, before its step.
    """
    network.train()
    try:
        for number, batch in enumerate(batches):
            hidden = network.encode(batch.features)
            mean, _ = network.output.loss(hidden, batch.labels, loss, batch.weights)
            value = mean.item()
            if not math.isfinite(value):
                raise DivergenceError(
                    f"the loss is {value} after {number} steps of this pass: lower lr; the weights "
                    "are those after these steps"
                )
            optimizer.zero_grad()
            mean.backward()
            optimizer.step()
    finally:
        network.eval()
