"""Learning-rate schedules: called with optimizer and number of steps, they return a scheduler.

Schedulers of PyTorch whose second argument is the number of steps are schedules, too.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from slide.utils import checks
from slide.utils.array_checks import Stored

LRSchedule = Callable[[Optimizer, int], LRScheduler]

# Steps of the warm-up of `AutoSchedule`: 50, as Adam's second moments need some tens of gradients.
WARMUP = 50
# The warm-up takes at most this share of the largest number of steps, so that short runs learn.
WARMUP_SHARE = 0.1
# Steps of the fall, as a share of the steps before it.
DECAY_SHARE = 0.5
# The rate stays up while the next epoch is expected to raise precision by this share of what the
# network has learnt: of precision, less that of always naming the most frequent labels.
LEAST_GAIN = 0.06
# Fewest epochs with a steady rate in a knowledge graph. There a network may learn nothing for some
# epochs, until the features of a head and of a relation work together, and it goes on learning when
# gains are small.
GRAPH_EPOCHS = 6
# Fewest samples with a steady rate, in a graph and with dense features: a hundred samples of four
# measurements need hundreds of steps, and tell little about precision.
FEWEST_SAMPLES = 1 << 15
# Fewest steps between validation steps; epochs that are shorter are taken together.
FEWEST_STEPS = 50
# Most steps between validation steps; epochs that are longer have several.
MOST_STEPS = 2000


def constant(optimizer: Optimizer, total_steps: int, warmup: float = 0.0) -> LambdaLR:
    """A linear rise from 0, then the constant learning rate of the optimizer.

    Args:
        warmup: share of the steps in which the rate rises, in [0, 1).

    Example:
        >>> import torch
        >>> from slide.training import constant
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        >>> schedule = constant(optimizer, total_steps=10, warmup=0.2)
        >>> schedule.get_last_lr()
        [0.0]
    """
    return linear(optimizer, total_steps, warmup, floor=1.0)


def linear(
    optimizer: Optimizer, total_steps: int, warmup: float = 0.0, floor: float = 0.0
) -> LambdaLR:
    """A linear rise from 0, then a linear fall to a share of the learning rate.

    Args:
        warmup: share of the steps in which the rate rises, in [0, 1).
        floor: share of the rate that is left at the end, in [0, 1].

    Example:
        >>> import torch
        >>> from slide.training import linear
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = linear(optimizer, total_steps=4)
        >>> for _ in range(3):
        ...     optimizer.step()
        ...     schedule.step()
        >>> schedule.get_last_lr()
        [0.25]
    """
    checks.share("warmup", warmup)
    checks.share("floor", floor, with_one=True)

    def factor(step: int) -> float:
        progress = step / total_steps
        if progress < warmup:
            return progress / warmup
        return floor + (1 - floor) * max(0.0, 1 - (progress - warmup) / max(1 - warmup, 1e-12))

    return LambdaLR(optimizer, factor)


def scheduler_at(
    schedule: LRSchedule, optimizer: Optimizer, rates: Sequence[float], total_steps: int, step: int
) -> LRScheduler:
    """The scheduler of a run that has done ``step`` of its steps; ``rates`` are the highest."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = group["initial_lr"] = rate
    scheduler = schedule(optimizer, total_steps)
    with warnings.catch_warnings():
        # The optimizer made its steps before the run was resumed.
        warnings.filterwarnings("ignore", ".*lr_scheduler.step", UserWarning)
        for _ in range(step):
            scheduler.step()
    return scheduler


# Limits of a run that its checkpoint keeps: a resumed one may have others.
_LIMITS = ("most_steps", "most_seconds")


@dataclass
class AutoSchedule:
    """Warm-up, a steady rate, then a rate that falls to 0 when precision hardly rises.

    So the number of steps need not be known at the start (Hu et al. 2024, "MiniCPM", section 4;
    Haegele et al. 2024, "Scaling laws and compute-optimal training beyond fixed training
    durations", section 3). The limits include the fall; 0 seconds: no limit.
    """

    steps_per_epoch: int
    most_steps: int
    most_seconds: float = 0.0
    least_steps: int = 0
    steps: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    decay_from: int = 0
    total: int = 0
    _saved_limits: tuple[float, ...] = field(default=(), repr=False, compare=False)

    def factor(self, step: int) -> float:
        """The rate of a step as a share of the highest rate."""
        rise = min(WARMUP, int(WARMUP_SHARE * self.most_steps)) + 1
        factor = min(1.0, (step + 1) / rise)
        if self.decay_from and step > self.decay_from:
            factor *= max(0.0, (self.total - step) / max(self.total - self.decay_from, 1))
        return factor

    def __call__(self, optimizer: Optimizer, total_steps: int) -> LambdaLR:
        """The scheduler; the number of steps has no effect."""
        return LambdaLR(optimizer, self.factor)

    def is_validation_step(self, step: int) -> bool:
        """Whether the network is to be evaluated after ``step`` steps."""
        return not self.decay_from and step % evaluation_interval(self.steps_per_epoch) == 0

    def add_score(self, step: int, score: float, baseline: float = 0.0) -> None:
        """Note a precision in [0, 1]; the rate begins to fall if little more is expected.

        Gains shrink about geometrically, so the next is to the last as this is to that before it.
        The ``baseline``, precision without any learning, is no gain of the first epoch.
        """
        self.steps.append(step)
        self.scores.append(score)
        back = -(-self.steps_per_epoch // evaluation_interval(self.steps_per_epoch))
        last = self.scores[::-1][::back]  # Of whole epochs, the last one first.
        if len(last) > 1:
            gain, before = last[0] - last[1], last[1] - (last[2] if len(last) > 2 else baseline)
            expected = gain * min(gain / before, 1.0) if gain > 0 < before else gain
            if expected <= LEAST_GAIN * max(score - baseline, 0.0) and step >= self.least_steps:
                self.begin_decay(step)

    def check_limits(self, step: int, seconds: float) -> None:
        """Let the rate fall so that the run ends where it reaches a limit of steps or seconds."""
        if not self.decay_from:
            late = step * (1 + DECAY_SHARE) > self.most_steps - 1
            slow = 0 < self.most_seconds <= seconds * (1 + DECAY_SHARE)
            if not (late or slow):
                return
            self.begin_decay(step)
        self._end_within(step, seconds, self._limits())

    def _end_within(self, step: int, seconds: float, limits: tuple[float, ...]) -> None:
        """End the fall of the rate where a limit is reached; infinity: no limit."""
        most_steps, most_seconds = limits
        at_this_pace = step * most_seconds / seconds if seconds else math.inf
        most = int(min(self.total, most_steps, at_this_pace))
        self.total = min(self.total, max(most, step))

    def apply_lower_limits(self, step: int, seconds: float) -> str:
        """Apply limits that are lower than the loaded ones; a sentence if others come too late.

        While the rate falls, others are left alone: a run must end as one without a break.
        """
        pairs = list(zip(self._limits(), self._saved_limits, strict=True))
        lower = tuple(new if new < old else math.inf for new, old in pairs)
        if self.decay_from:
            self._end_within(step, seconds, lower)
        elif min(lower) < math.inf:
            self.check_limits(step, seconds)
        if self.decay_from and any(new > old for new, old in pairs):
            return f"the rate falls until step {self.total}; higher limits come too late"
        return ""

    def _limits(self) -> tuple[float, ...]:
        return tuple(getattr(self, name) or math.inf for name in _LIMITS)

    def begin_decay(self, step: int) -> None:
        """Let the rate fall from ``step`` on, which is at least 1."""
        self.decay_from = step
        self.total = min(step + max(round(DECAY_SHARE * step), 1), max(self.most_steps, step))

    def waiting(self, measure: str = "precision") -> str:
        """How long the rate stays up, as the format of a bar of tqdm; measure: what scores are."""
        minutes = f" or {self.most_seconds / 60:g} min" if self.most_seconds else ""
        # What narrow terminals cut off comes last.
        said = "step {n:,}, at most " + f"{self.most_steps:,}{minutes}"
        said += " [{elapsed}, {rate_noinv_fmt}]"
        if (self.steps or [0])[-1] < self.least_steps:
            return f"{said}, at least {self.least_steps:,}"
        score = f" {self.scores[-1]:.3f}" if self.scores else ""
        return f"{said} until {measure}{score} levels off"

    def falling(self, measure: str = "precision") -> str:
        """A sentence for the step from which the rate falls."""
        found = ""
        if self.scores:
            best = max(self.scores)
            found = f"{measure} of held-out rows {self.scores[-1]:.3f}, best {best:.3f}; "
        return f"{found}the rate falls until step {self.total}"

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        state = asdict(self)
        return {name: state[name] for name in ("steps", "scores", "decay_from", "total", *_LIMITS)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` gave, but for the limits: a resumed run may have others."""
        stored = Stored(state, {}, "the state of an AutoSchedule")
        self.steps = stored.list_of("steps", whole=True)
        self.scores = stored.list_of("scores", len(self.steps))
        self.decay_from = stored.count("decay_from")
        self.total = stored.count("total", self.decay_from)
        self._saved_limits = tuple(stored.number(name, 0) or math.inf for name in _LIMITS)


def least_steps(kind: str, steps_per_epoch: int, batch_size: int) -> int:
    """Steps before the rate may fall because precision hardly rises, for a `slide.data.kind_of`."""
    if kind not in ("graph", "dense"):
        return 0
    least = -(-FEWEST_SAMPLES // batch_size)
    return max(GRAPH_EPOCHS * steps_per_epoch, least) if kind == "graph" else least


def evaluation_interval(steps_per_epoch: int) -> int:
    """Steps between validation steps."""
    if steps_per_epoch < FEWEST_STEPS:
        return -(-FEWEST_STEPS // steps_per_epoch) * steps_per_epoch
    parts = -(-steps_per_epoch // MOST_STEPS)
    return -(-steps_per_epoch // parts)
