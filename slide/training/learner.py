"""One step of training: loss, gradients, update."""

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from slide.active_set import ActiveSet
from slide.data import Batch
from slide.distributed import Group
from slide.nn import ActiveLoss, SlideNetwork
from slide.optim import RowSparseAdam
from slide.training.divergence import LastCheckpoint, check_loss
from slide.training.progress import Counters
from slide.training.selection import inspect_selection

# Outputs that are looked at for whether a step has changed them.
_WITNESSES = 1024


class Learner:
    """Makes the steps of a run and counts them.

    Args:
        network: the network to train.
        optimizer: the optimizer of its parameters.
        loss: see `slide.SampledLinear.loss`.
        scheduler: scheduler of the learning rates, at the next step.
        counters: counters of the run; each step updates them.
        last: gives the last checkpoint of the run; an error about a loss that is not finite names
            it.
        group: the processes of the run; None: this one alone.
    """

    def __init__(
        self,
        network: SlideNetwork,
        optimizer: RowSparseAdam,
        loss: ActiveLoss,
        scheduler: LRScheduler,
        counters: Counters,
        last: LastCheckpoint,
        group: Group | None = None,
    ):
        self.network = network
        self.optimizer = optimizer
        self.loss = loss
        self.scheduler = scheduler
        self.counters = counters
        self.last = last
        self.group = group or Group.alone()
        self.rate = 0.0  # Learning rate of the last step.
        self._active = 0.0  # Outputs that this process computed and that `counters` lack.

    def forward(self, batch: Batch) -> tuple[Tensor, ActiveSet, Tensor]:
        """The loss (a scalar), the active set of the output layer, and its input ``(B, H)``.

        Raises:
            DivergenceError: if the loss is NaN or infinite.
        """
        rebuilt, exchanged = rebuild_seconds(self.network), self.group.seconds
        self.network.train()
        hidden = self.network.encode(batch.features)
        loss, active = self.network.output.loss(hidden, batch.labels, self.loss, batch.weights)
        value = loss.item()
        check_loss(value, self.counters.step + 1, self.last)
        self.counters.samples += len(batch.rows)
        if self.group.size == 1:
            self.counters.active_total += active.mean_size()
        self._active += active.mean_size()
        self.counters.loss_total += value
        self.counters.rebuild_seconds += rebuild_seconds(self.network) - rebuilt
        self.counters.exchange_seconds += self.group.seconds - exchanged
        return loss, active, hidden

    def inspect(self, hidden: Tensor, active: ActiveSet) -> dict[str, float]:
        """Scalars for the log of what `forward` returned, before `update`."""
        output = self.network.output
        found = inspect_selection(output, hidden, active)
        weight = getattr(output, "local", output).weight
        moments = self.optimizer.state.get(weight, {}).get("exp_avg_sq")
        if moments is None:  # Before the first step.
            return found | {"selection/never_updated": 1.0}
        some = moments[:: -(-len(moments) // _WITNESSES)]
        return found | {"selection/never_updated": float((some == 0).all(1).float().mean())}

    def settle(self) -> None:
        """Add the outputs that the processes of a run have computed to the counters of all."""
        if self.group.size > 1:
            own = torch.tensor([self._active], dtype=torch.float64)
            self.counters.active_total += float(self.group.all_reduce(own))
            self._active = 0.0

    def update(self, loss: Tensor) -> None:
        """Backward, a step of the optimizer, and the learning rates of the next step."""
        self.rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.counters.step += 1


def rebuild_seconds(network: SlideNetwork) -> float:
    """Seconds that the samplers of ``network`` have spent on updates of their indexes so far."""
    return sum(layer.sampler.rebuild_seconds for layer in network.layers())
