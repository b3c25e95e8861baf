"""One step of training: loss, gradients, update."""

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from slide.active_set import ActiveSet
from slide.data import Batch
from slide.nn import ActiveLoss, SlideNetwork
from slide.optim import RowSparseAdam
from slide.training.divergence import LastCheckpoint, check_loss
from slide.training.progress import Counters


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
    """

    def __init__(
        self,
        network: SlideNetwork,
        optimizer: RowSparseAdam,
        loss: ActiveLoss,
        scheduler: LRScheduler,
        counters: Counters,
        last: LastCheckpoint,
    ):
        self.network = network
        self.optimizer = optimizer
        self.loss = loss
        self.scheduler = scheduler
        self.counters = counters
        self.last = last
        self.rate = 0.0  # Learning rate of the last step.

    def forward(self, batch: Batch) -> tuple[Tensor, ActiveSet, Tensor]:
        """The loss (a scalar), the active set of the output layer, and its input ``(B, H)``.

        Raises:
            DivergenceError: if the loss is NaN or infinite.
        """
        rebuilt = rebuild_seconds(self.network)
        self.network.train()
        hidden = self.network.encode(batch.features)
        loss, active = self.network.output.loss(hidden, batch.labels, self.loss, batch.weights)
        value = loss.item()
        check_loss(value, self.counters.step + 1, self.last)
        self.counters.samples += len(batch.rows)
        self.counters.active_total += active.mean_size()
        self.counters.loss_total += value
        self.counters.rebuild_seconds += rebuild_seconds(self.network) - rebuilt
        return loss, active, hidden

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
