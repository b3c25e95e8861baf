"""What the processes of a run decide together, so that all of them make the same steps.

A step must not depend on the clock of one process, or on a signal that reaches some processes
earlier than others: they would wait for each other in different places. So they agree on both,
about every half second, after a step that all of them know beforehand.
"""

import torch

from slide.distributed.group import Group
from slide.training.interrupt import Terminated

# Seconds between agreements, and most steps between them.
_EVERY, _MOST_STEPS = 0.5, 1000


class Together:
    """The decisions of a run that depend on time or on signals.

    Args:
        group: the processes of the run; a single one decides alone, in each step.
        step: number of steps done.

    Attributes:
        leads: whether this process writes what the run leaves, and shows how it goes on.

    Example:
        >>> from slide.distributed import Group
        >>> from slide.training.together import Together
        >>> together = Together(Group.alone())
        >>> together.look(step=1, seconds=0.25, error=None)
        >>> together.seconds(0.25)
        0.25
    """

    def __init__(self, group: Group, step: int = 0):
        self.group, self.leads = group, group.rank == 0
        self._last = self._next = step
        self._seconds = self._said = 0.0

    def look(
        self, step: int, seconds: float, error: KeyboardInterrupt | None, at_once: bool = False
    ) -> KeyboardInterrupt | None:
        """After each step: what ends the run now, on all processes; None: it goes on.

        Args:
            step: number of steps done.
            seconds: training time of this process so far.
            error: what this process was asked to end with; None: nothing.
            at_once: whether all look now: after the last step.
        """
        if self.group.size == 1:
            return error
        if step < self._next and not at_once:
            return None
        each = (seconds - self._said) / max(step - self._last, 1)
        self._last, self._said = step, seconds
        pause = min(max(round(_EVERY / max(each, 1e-6)), 1), _MOST_STEPS)
        own = [float(pause), seconds] if self.leads else [0.0, 0.0]
        own += [float(error is not None), float(isinstance(error, Terminated))]
        told = self.group.all_reduce(torch.tensor(own, dtype=torch.float64)).tolist()
        self._next, self._seconds = step + int(told[0]), told[1]
        if not told[2]:
            return None
        return error or (Terminated() if told[3] else KeyboardInterrupt())

    def seconds(self, own: float) -> float:
        """Training time that decisions use: that of the first process, as of the last agreement."""
        return own if self.group.size == 1 else self._seconds
