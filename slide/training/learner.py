"""One step of training: loss, gradients, update."""

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from slide.active_set import ActiveSet
from slide.data import Batch
from slide.nn import ActiveLoss, SlideNetwork
from slide.optim import RowSparseAdam
from slide.training.checkpoint import Checkpoint
from slide.training.divergence import check_loss
from slide.training.progress import Counters


class Learner:
    """Makes the steps of a run and counts them.

    Args:
        network: to be trained.
        optimizer: over its parameters.
        loss: see `slide.SampledLinear.loss`.
        scheduler: of the optimizer's learning rates, at the next step.
        counters: of the run; each step brings them up to date.
        checkpoint: of the run, for the message when a loss is not finite.
    """

    def __init__(
        self,
        network: SlideNetwork,
        optimizer: RowSparseAdam,
        loss: ActiveLoss,
        scheduler: LRScheduler,
        counters: Counters,
        checkpoint: Checkpoint,
    ):
        self.network = network
        self.optimizer = optimizer
        self.loss = loss
        self.scheduler = scheduler
        self.counters = counters
        self.checkpoint = checkpoint
        self.rate = 0.0  # of the last step

    def forward(self, batch: Batch) -> tuple[Tensor, ActiveSet, Tensor]:
        """Loss (a scalar), the output layer's active set, and its input ``(B, H)``.

        Raises:
            DivergenceError: where the loss is NaN or infinite.
        """
        rebuilt = rebuild_seconds(self.network)
        self.network.train()
        hidden = self.network.encode(batch.features)
        loss, active = self.network.output.loss(hidden, batch.labels, self.loss)
        value = loss.item()
        check_loss(value, self.counters.step + 1, self.checkpoint.path)
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
    """Seconds in which the samplers of ``network`` brought their indexes up to date, so far."""
    return sum(layer.sampler.rebuild_seconds for layer in network.layers())
