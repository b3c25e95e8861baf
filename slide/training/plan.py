"""How long a run with ``epochs=auto`` trains: warm-up, a steady rate, then a rate that falls to 0.

The rate rises over some steps and stays up while the next epoch is expected to raise precision on
held-out training rows by more than a little. Then it falls linearly to 0. So the number of steps
need not be known at the start, unlike with a rate that falls from the first step on (Hu et al.
2024, "MiniCPM", section 4; Haegele et al. 2024, "Scaling laws and compute-optimal training beyond
fixed training durations", section 3).
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

# Steps in which the rate rises; at most this share of the largest number of steps.
WARMUP, WARMUP_SHARE = 50, 0.1
# Steps of the fall, as a share of the steps before it.
DECAY_SHARE = 0.5
# The rate stays up while the next epoch is expected to raise precision by this share of what the
# network has learnt: of precision, less that of always naming the most frequent labels.
LEAST_GAIN = 0.06
# In a knowledge graph the rate stays up for at least so many epochs. A network may learn nothing
# there for some epochs, until the features of a head and of a relation work together, and it goes
# on learning when gains are small.
GRAPH_EPOCHS = 6
# In a graph and with dense rows, such as measurements, the rate stays up for at least so many rows.
# A hundred rows of four measurements need hundreds of steps, and say little about precision.
FEWEST_ROWS = 1 << 15
# Steps between evaluations: an epoch, but not fewer than the first number, and a part of an epoch
# of no more steps than the second.
FEWEST_STEPS, MOST_STEPS = 50, 2000


@dataclass
class Plan:
    """When the rate of a run begins to fall, and when the run ends. It is in the checkpoint.

    Attributes:
        steps_per_epoch: steps in a pass over the training rows.
        most_steps: largest number of steps, with the fall of the rate.
        most_seconds: largest training time, with the fall of the rate; 0: no limit.
        least_steps: the rate stays up for so many steps, if no limit comes before; see
            `least_steps`.
        steps: the steps after which the network was evaluated on held-out rows.
        scores: its precision at each of them, in [0, 1].
        decay_from: number of steps before the rate falls; 0: it is not known yet.
        total: number of steps of the run; 0: it is not known yet.
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

    @property
    def phase(self) -> str:
        """``"stable"`` while the rate stays up (and in the warm-up), then ``"decay"``."""
        return "decay" if self.decay_from else "stable"

    def factor(self, step: int) -> float:
        """The rate of a step as a share of the highest rate."""
        rise = min(WARMUP, int(WARMUP_SHARE * self.most_steps)) + 1
        factor = min(1.0, (step + 1) / rise)
        if self.decay_from and step > self.decay_from:
            factor *= max(0.0, (self.total - step) / max(self.total - self.decay_from, 1))
        return factor

    def schedule(self, optimizer: Optimizer, total_steps: int) -> LambdaLR:
        """A schedule of learning rates; see `slide.training.lr_schedules`."""
        return LambdaLR(optimizer, self.factor)

    def wants_score(self, step: int) -> bool:
        """Whether the network is to be evaluated after ``step`` steps."""
        return not self.decay_from and step % evaluation_interval(self.steps_per_epoch) == 0

    def note_score(self, step: int, score: float, baseline: float = 0.0) -> None:
        """Take down a precision; the rate begins to fall if little more is expected.

        Gains shrink about geometrically. So the gain of the next epoch is expected to be smaller
        than that of the last one by the same factor as this one was smaller than that before it.
        Where a network begins to learn its rows by heart, an epoch later would be too late.

        Args:
            step: number of steps done.
            score: precision of the network, in [0, 1].
            baseline: precision without any learning, which is no gain of the first epoch.
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
        """Let the rate begin to fall, if the run would otherwise pass a limit.

        If it falls, the run ends where it reaches a limit: a resumed run may have lower limits.

        Args:
            step: number of steps done.
            seconds: training time so far.
        """
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
        """Apply the limits that are lower than those of the state that was loaded.

        While the rate falls, others are left alone: at the pace of now, a run would not end as one
        without a break.

        Args:
            step: number of steps done.
            seconds: training time so far.

        Returns:
            A sentence if a limit is higher and the rate falls already, else an empty text.
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

    def sentence(self) -> str:
        """What the run is waiting for."""
        if self.decay_from:
            return f"{self._precision()}; the rate falls until step {self.total}"
        if self.steps and self.steps[-1] < self.least_steps:
            return f"{self._precision()}; the rate stays up until step {self.least_steps} at least"
        return f"{self._precision()}; the rate stays up while it rises enough"

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        state = asdict(self)
        return {name: state[name] for name in (*_STATE, *_LIMITS)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` gave, but for the limits: a resumed run may have others."""
        for name in _STATE:
            setattr(self, name, state[name])
        # Earlier checkpoints have none.
        self._saved_limits = tuple(state.get(name) or math.inf for name in _LIMITS)

    def _precision(self) -> str:
        if not self.scores:
            return "no held-out precision yet"
        return f"held-out precision {self.scores[-1]:.3f}, best {max(self.scores):.3f}"


_STATE = ("steps", "scores", "decay_from", "total")
_LIMITS = ("most_steps", "most_seconds")


def least_steps(kind: str, steps_per_epoch: int, batch_size: int) -> int:
    """Steps before the rate may fall because precision hardly rises.

    Args:
        kind: of the training rows; see `slide.data.kind_of`.
        steps_per_epoch: steps in a pass over them.
        batch_size: rows in a step.

    Example:
        >>> from slide.training.plan import least_steps
        >>> least_steps("graph", 50, 64), least_steps("graph", 200, 128)
        (512, 1200)
        >>> least_steps("dense", 2, 64), least_steps("other", 50, 64)
        (512, 0)
    """
    if kind not in ("graph", "dense"):
        return 0
    least = -(-FEWEST_ROWS // batch_size)
    return max(GRAPH_EPOCHS * steps_per_epoch, least) if kind == "graph" else least


def evaluation_interval(steps_per_epoch: int) -> int:
    """Steps between evaluations on held-out rows."""
    if steps_per_epoch < FEWEST_STEPS:
        return -(-FEWEST_STEPS // steps_per_epoch) * steps_per_epoch
    parts = -(-steps_per_epoch // MOST_STEPS)
    return -(-steps_per_epoch // parts)
