"""A run beside others: the processes of the run, and programs that use the same cores."""

import time
from pathlib import Path

import torch

from slide import runtime
from slide.training.group import Group
from slide.utils.progress_bar import log
from slide.utils.signals import error_of, signal_of

# Seconds between agreements of the processes: a signal is followed within about this time.
_AGREE_EVERY = 0.5
# Most steps between agreements, where steps are very short.
_MOST_STEPS = 1000


class Coordinator:
    """Lets the processes of a run make the same steps: what depends on time or signals is agreed.

    Else they would wait for each other in different operations. They agree about every half second,
    after a step that all of them know beforehand.
    """

    def __init__(self, group: Group | None = None, step: int = 0):
        self.group = group or Group.alone()
        self._last = self._next = step
        self._seconds = self._own_seconds = 0.0

    def interrupt(
        self, step: int, seconds: float, error: KeyboardInterrupt | None, at_once: bool = False
    ) -> KeyboardInterrupt | None:
        """After each step: what ends the run now, on all processes; None: it goes on."""
        if self.group.size == 1:
            return error
        if step < self._next and not at_once:
            return None
        each = (seconds - self._own_seconds) / max(step - self._last, 1)
        self._last, self._own_seconds = step, seconds
        pause = min(max(round(_AGREE_EVERY / max(each, 1e-6)), 1), _MOST_STEPS)
        own = [float(pause), seconds] if self.group.is_main_process else [0.0, 0.0]
        own.append(0.0 if error is None else float(signal_of(error)))
        told = self.group.all_reduce(torch.tensor(own, dtype=torch.float64), "max").tolist()
        self._next, self._seconds, number = step + int(told[0]), told[1], int(told[2])
        return error or (error_of(number) if number else None)

    def seconds(self, own: float) -> float:
        """Training time that decisions use: that of the first process, as of the last agreement."""
        return own if self.group.size == 1 else self._seconds


# Linux counts for each thread how long it ran and how long it waited for a core.
_TASKS = Path("/proc/self/task")
# Seconds between readings of the counts: fifty time slices of the scheduler, or more.
_EVERY = 0.5
# Seconds until all threads are tried again, at first (a compilation or a copy has mostly ended) and
# at most (a trial costs a step or two a minute).
_PAUSE, _LONGEST = 5.0, 60.0
# Share of their time for which threads wait on a quiet machine, at most.
_QUIET = 0.1


class CoreShare:
    """Sets the number of threads by the share of the cores that this process gets.

    A parallel kernel ends when its slowest thread ends. If another process has one of the cores,
    some threads wait for a core while the others spin, and a run takes many times as long as its
    share of the cores would allow. With as many threads as it gets cores it loses only that share.

    If threads waited for cores for a second, it takes as many as could run at the same time. When
    these hardly wait, all threads are tried again: after 5 seconds, then after 10, up to a minute.
    Another number of threads may change the last bits of torch's products, but not in deterministic
    mode (`slide.runtime.set_deterministic`). Where the system does not count, the number stays.

    Args:
        most: the number of threads on a quiet machine; None: the present one. With 1 there is
            nothing to watch.

    Example:
        >>> from slide.training import CoreShare
        >>> share = CoreShare()
        >>> share.adjust()  # Once in a step.
        >>> share.threads >= 1
        True
    """

    def __init__(self, most: int | None = None):
        self.most = runtime.num_threads() if most is None else most
        self.threads = self.most
        self._last = run_and_waited() if self.most > 1 else None
        self._next = time.monotonic() + _EVERY
        self._crowded, self._pause, self._again, self._said = 0, _PAUSE, 0.0, False

    def adjust(self) -> None:
        """Change the number of threads if they had to wait; it is due every half second."""
        if self._last is None or (now := time.monotonic()) < self._next:
            return
        self._next, before, self._last = now + _EVERY, self._last, run_and_waited()
        if self._last is None:
            return
        run, waited = (max(b - a, 0.0) for a, b in zip(before, self._last, strict=True))
        share = run / (run + waited) if run + waited else 1.0
        self._crowded = self._crowded + 1 if share < 1 - _QUIET else 0
        if self.threads < self.most:
            if not self._crowded and now >= self._again:
                self._set(self.most)
        elif self._crowded > 1 or (self._crowded and self._pause > _PAUSE):
            # A trial ends after half a second.
            self._again, self._pause = now + self._pause, min(2 * self._pause, _LONGEST)
            self._set(max(min(int(self.most * share), self.most - 1), 1))
        elif not self._crowded:
            self._pause = _PAUSE

    def close(self) -> None:
        """Back to all threads."""
        if self.threads != self.most:
            self._set(self.most)

    def _set(self, threads: int) -> None:
        if threads < self.most and not self._said:
            self._said = True
            log(f"other processes use the cores: {threads} of {self.most} threads are used for now")
        self.threads, self._crowded = threads, 0
        runtime.set_threads(threads)


def run_and_waited() -> tuple[float, float] | None:
    """Seconds that all threads of this process ran, and waited for a core; None: not counted."""
    run = waited = 0
    try:
        for task in _TASKS.iterdir():
            try:
                words = (task / "schedstat").read_text().split()
            except (FileNotFoundError, ProcessLookupError):  # It has ended just now.
                continue
            run, waited = run + int(words[0]), waited + int(words[1])
    except (OSError, ValueError, IndexError):
        return None
    return (run / 1e9, waited / 1e9) if run else None
