"""Fewer threads while other processes use the same cores.

A parallel kernel ends when its slowest thread ends. If another process has one of the cores, the
threads of a kernel rarely run at the same time: some wait for a core while the others spin, and a
run takes many times as long as its share of the cores would allow. With as many threads as the
cores that it really gets, it loses no more than that share.

Linux counts for each thread how long it ran and how long it waited for a core.
"""

import time
from collections.abc import Callable
from pathlib import Path

from slide import runtime
from slide.utils.progress_bar import log

_TASKS = Path("/proc/self/task")
# Seconds between looks, and until all threads are tried again, at first and at most.
_EVERY, _PAUSE, _LONGEST = 0.5, 5.0, 60.0
# Share of their time for which threads wait on a quiet machine, at most.
_QUIET = 0.1


class CoreShare:
    """Sets the number of threads by the share of the cores that this process gets.

    If threads waited for cores in two looks in a row, it takes as many as could run at the same
    time. When these hardly wait, all threads are tried again: after 5 seconds, then after 10, up to
    a minute. Another number of threads may change the last bits of torch's products, but not in
    deterministic mode (`slide.runtime.set_deterministic`). Where the system does not count, the
    number stays as it is.

    Args:
        most: the number of threads on a quiet machine; None: the present one. With 1 there is
            nothing to watch.
        now: the time in seconds.
        times: how long the threads of this process ran and waited so far, in seconds.

    Attributes:
        threads: the present number.

    Example:
        >>> from slide.training.sharing import CoreShare
        >>> share = CoreShare()
        >>> share.look()  # Once in a step.
        >>> share.threads >= 1
        True
    """

    def __init__(
        self,
        most: int | None = None,
        now: Callable[[], float] = time.monotonic,
        times: Callable[[], tuple[float, float] | None] | None = None,
    ):
        self.most = runtime.num_threads() if most is None else most
        self.threads, self._now, self._times = self.most, now, times or run_and_waited
        self._last = self._times() if self.most > 1 else None
        self._next = now() + _EVERY
        self._crowded, self._pause, self._again, self._said = 0, _PAUSE, 0.0, False

    def look(self) -> None:
        """Look whether threads had to wait, at most every half second, and change their number."""
        if self._last is None or (now := self._now()) < self._next:
            return
        self._next, before, self._last = now + _EVERY, self._last, self._times()
        if self._last is None:
            return
        run, waited = (max(b - a, 0.0) for a, b in zip(before, self._last, strict=True))
        share = run / (run + waited) if run + waited else 1.0
        self._crowded = self._crowded + 1 if share < 1 - _QUIET else 0
        if self.threads < self.most:
            if not self._crowded and now >= self._again:
                self._set(self.most)
        elif self._crowded > 1 or (self._crowded and self._pause > _PAUSE):
            # A trial ends after one look.
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
            log(
                f"other processes use the cores, so {threads} of {self.most} threads are used for "
                "now"
            )
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
