"""The loop of training, which `slide.training.Trainer` and ``Model.partial_fit`` share."""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from slide.active_set import ActiveSet
from slide.data import Batch
from slide.nn import ActiveLoss, SlideNetwork
from slide.optim import RowSparseAdam
from slide.sparse import Pattern
from slide.training.group import Group
from slide.training.monitor import Counters
from slide.training.selection import inspect_selection
from slide.utils.checks import DivergenceError
from slide.utils.profiling import clock

# Outputs of which the log estimates the share that was never updated (its second moments are 0):
# 1,024 are enough for a standard error below 0.02.
_WITNESSES = 1024

LastCheckpoint = Callable[[], Path | None]


class TrainingLoop:
    """Makes the steps of training and counts them; without a scheduler the rates stay.

    An error about a loss names ``last_checkpoint()``. ``inspected`` samples measure an active set.
    """

    def __init__(
        self,
        network: SlideNetwork,
        optimizer: RowSparseAdam,
        loss: ActiveLoss,
        counters: Counters | None = None,
        scheduler: LRScheduler | None = None,
        last_checkpoint: LastCheckpoint | None = None,
        group: Group | None = None,
    ):
        self.network, self.optimizer, self.loss = network, optimizer, loss
        self.counters, self.scheduler = counters or Counters(), scheduler
        self.last_checkpoint, self.group = last_checkpoint, group or Group.alone()
        self.rate, self.inspected = 0.0, 16
        self._active = 0.0  # Outputs that this process computed and that `counters` lack.

    def steps(self, batches: Iterable[Batch], inspect_every: int = 0) -> Iterator[dict[str, float]]:
        """Make a step with each batch; yields scalars, measured every ``inspect_every`` steps.

        A loss that is NaN or infinite raises DivergenceError before the update.
        """
        counters, begin = self.counters, clock()  # The time of a step includes making its batch.
        for batch in batches:
            loss, active, hidden = self.forward(batch)
            measured: dict[str, float] = {}
            if is_due(counters.step + 1, inspect_every):
                # Before the update, because the set was chosen for the present weights.
                pause = clock()
                measured = self._inspect(hidden, active)
                spent = clock() - pause
                counters.measuring_seconds += spent
                begin += spent
            self.update(loss)
            counters.network_seconds += clock() - begin
            yield measured
            begin = clock()

    def forward(self, batch: Batch) -> tuple[Tensor, ActiveSet, Tensor]:
        """The loss (a scalar), the active set of the output layer, and its input ``(B, H)``."""
        counters, rebuilt, exchanged = self.counters, self._rebuild_seconds(), self.group.seconds
        self.network.train()
        hidden = self.network.encode(batch.features)
        loss, active = self.network.output.loss(hidden, batch.labels, self.loss, batch.weights)
        value = loss.item()
        if not math.isfinite(value):
            raise loss_error(value, counters.step + 1, self.last_checkpoint)
        counters.samples += len(batch.rows)
        if self.group.size == 1:
            counters.active_total += active.mean_size()
        self._active += active.mean_size()
        counters.loss_total += value
        counters.rebuild_seconds += self._rebuild_seconds() - rebuilt
        counters.exchange_seconds += self.group.seconds - exchanged
        return loss, active, hidden

    def update(self, loss: Tensor) -> None:
        """Backward, a step of the optimizer, and the learning rates of the next step."""
        self.rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.counters.step += 1

    def _inspect(self, hidden: Tensor, active: ActiveSet) -> dict[str, float]:
        """Scalars for the log of what `forward` returned, before `update`."""
        output, never = self.network.output, 1.0
        found = inspect_selection(output, hidden, active, self.inspected)
        weight = getattr(output, "local", output).weight
        moments = self.optimizer.state.get(weight, {}).get("exp_avg_sq")
        if moments is not None:  # Not before the first step.
            some = moments[:: -(-len(moments) // _WITNESSES)]
            never = float((some == 0).all(1).float().mean())
        return found | {"selection/never_updated": never}

    def settle(self) -> None:
        """Add the outputs that the processes of a run have computed to the counters of all."""
        if self.group.size > 1:
            own = torch.tensor([self._active], dtype=torch.float64)
            self.counters.active_total += float(self.group.all_reduce(own))
            self._active = 0.0

    def _rebuild_seconds(self) -> float:
        return sum(layer.sampler.rebuild_seconds for layer in self.network.layers())


def is_due(step: int, every: int) -> bool:
    """Whether something with a period of ``every`` steps is due after ``step``; 0: never."""
    return every > 0 and step % every == 0


def start_biases(network: SlideNetwork, loss: Any, labels: Pattern, margin: float = 0.0) -> None:
    """Start the biases of the outputs from label frequencies, if the loss has scores that fit.

    Where the loss has a margin for negatives, they start ``margin`` lower. At the margin itself the
    noise of the first weights gives half of all negatives a gradient, and the sum over them hides
    what the labels and the hardest negatives teach a row.
    """
    if not hasattr(loss, "prior_scores"):
        return
    output = network.output
    scores = loss.prior_scores(labels, output.out_features)
    if loss.record.score_range is not None:
        scores -= margin
    if (rows := network.own_rows()) is not None:
        scores = scores[torch.from_numpy(rows["output"])]
    assert output.bias is not None
    output.bias.data.copy_(scores)


def loss_error(value: float, step: int, last: LastCheckpoint | None) -> DivergenceError:
    """The error for a loss of ``step`` that is NaN or infinite."""
    if last is None:
        return DivergenceError(
            f"the loss is {value} after {step - 1} steps of this pass: lower lr; the weights are "
            "those after these steps"
        )
    what = f"the loss is {value} at step {step}"
    if step == 1:
        return DivergenceError(
            f"{what}, before any update, so the first weights or the features are too large: "
            "lower network.init_scale or network.output_scale, or set transform.l2_norm=true"
        )
    return _error(what, last)


def check_weights(network: nn.Module, step: int, last: LastCheckpoint) -> None:
    """Raise DivergenceError if a weight is NaN or infinite after ``step``."""
    for name, weight in network.named_parameters():
        if not weight.detach().sum().isfinite():
            raise _error(f"{name} is no longer finite after step {step}", last)


def _error(what: str, last: LastCheckpoint) -> DivergenceError:
    checkpoint = last()
    said = f"the last good checkpoint is {checkpoint}"
    if checkpoint is None:
        said = "there is no checkpoint yet (trainer.checkpoint_every)"
    return DivergenceError(f"{what}: lower optimizer.lr; {said}")
