"""Short races between settings of a network, on held-out training rows."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch.optim.lr_scheduler import LambdaLR

from slide.checks import DivergenceError
from slide.data import Batches
from slide.nn import ActiveLoss, SlideNetwork
from slide.optim import RowSparseAdam
from slide.training.learner import Learner
from slide.training.plan import Plan
from slide.training.planner import HeldRows
from slide.training.progress import Counters


class Standing(NamedTuple):
    """Precision of a contender on held-out rows, in [0, 1]; -1 if its loss was not finite.

    Attributes:
        half: after half of the steps.
        end: after all steps; -1 for a contender that left after half of them.
    """

    half: float
    end: float


class Contender:
    """A network that takes part in a race.

    Args:
        network: the network; it is trained.
        optimizer: the optimizer of its parameters.
        loss: see `slide.SampledLinear.loss`.
        batches: rows that it learns from; all contenders get the same batches.
        held: rows that judge it.
        steps: number of steps of the race, at least 2. From half of them on, the rate falls to 0.
    """

    def __init__(
        self,
        network: SlideNetwork,
        optimizer: RowSparseAdam,
        loss: ActiveLoss,
        batches: Batches,
        held: HeldRows,
        steps: int,
    ):
        plan = Plan(len(batches), steps, decay_from=steps // 2, total=steps)
        scheduler = LambdaLR(optimizer, plan.factor)
        self.steps, self.network, self.batches, self.held = steps, network, batches, held
        # It has no checkpoint: that is only part of a message that nobody sees.
        parts = network, optimizer, loss, scheduler, Counters(), lambda: None
        self._learner = Learner(*parts)

    def run_to(self, step: int) -> float:
        """Train until ``step`` steps are done; returns the precision, or -1 as in `Standing`."""
        learner = self._learner
        try:
            while learner.counters.step < step:
                batch = self.batches.batch(*divmod(learner.counters.step, len(self.batches)))
                learner.update(learner.forward(batch)[0])
        except DivergenceError:
            return -1.0
        return self.held.precision(self.network)


def run_alone(make: Callable[[], Contender]) -> Standing:
    """The standing of a contender that no other one can push out."""
    contender = make()
    half = contender.run_to(contender.steps // 2)
    return Standing(half, contender.run_to(contender.steps))


def race(makers: Mapping[str, Callable[[], Contender]]) -> dict[str, Standing]:
    """Successive halving in two rounds: after half of the steps, the worse half leaves.

    Source: Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter
    optimization", section 3.

    Args:
        makers: for each name a function that makes its contender; all have the same number of
            steps. All contenders are in memory until half of the steps are done.

    Returns:
        The standing of each name.
    """
    contenders = {name: make() for name, make in makers.items()}
    halves = {name: each.run_to(each.steps // 2) for name, each in contenders.items()}
    order = sorted(halves, key=lambda name: -halves[name])
    found = {name: Standing(half, -1.0) for name, half in halves.items()}
    for name in order[(len(order) + 1) // 2 :]:
        del contenders[name]
    for name, each in contenders.items():
        found[name] = Standing(halves[name], each.run_to(each.steps))
    return found
