"""The time that kernels take to compile, which does not belong to what is measured.

Kernels are compiled when they are first called, and then kept on disk. So only the first run on a
machine compiles, and its times would not be those of the next ones.
"""

import time
from collections.abc import Callable

from numba.core import event


class _Watch(event.Listener):
    """Adds up the seconds of compilations; one inside of another counts once."""

    def __init__(self) -> None:
        self.seconds, self.told = 0.0, False
        self.tell: Callable[[], object] | None = None
        self._depth, self._begun = 0, 0.0

    def on_start(self, event: event.Event) -> None:
        if not self._depth:
            self._begun = time.perf_counter()
            if self.tell is not None and not self.told:
                self.told = True
                self.tell()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        self._depth -= 1
        if not self._depth:
            self.seconds += time.perf_counter() - self._begun


# numba holds a lock while it compiles, so the events of threads do not mix. A kernel that is read
# from disk is not compiled.
_WATCH = _Watch()
event.register("numba:compile", _WATCH)


def compile_seconds() -> float:
    """Seconds that this process has spent on the compilation of kernels."""
    return _WATCH.seconds


def clock() -> float:
    """A clock in seconds, as ``time.perf_counter``, that stands still while kernels compile.

    Example:
        >>> from slide import compilation
        >>> begin = compilation.clock()
        >>> 0 <= compilation.clock() - begin < 1
        True
    """
    return time.perf_counter() - _WATCH.seconds


def tell_first(tell: Callable[[], object] | None) -> None:
    """Call ``tell`` when this process first compiles a kernel; None: nobody is told.

    Example:
        >>> from slide import compilation
        >>> compilation.tell_first(lambda: print("compiling kernels, once"))
        >>> compilation.tell_first(None)
    """
    _WATCH.tell = tell
