"""What profilers show, what compilation takes, and what ``torch.compile`` must not trace."""

import functools
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from numba.core import event

from slide.utils.progress_bar import log

_F = TypeVar("_F", bound=Callable)
_NOTHING = nullcontext()
_LONG = 3.0  # Seconds of compilation after which a program is told why nothing seems to happen.


def _note() -> None:
    log("slide compiles its kernels, for up to a minute; later programs read them from the disk")


class _Watch(event.Listener):
    """Adds up the seconds of compilations; one inside of another counts once.

    It calls ``tell`` at the first one; without it, a note follows where they take long.
    """

    def __init__(self) -> None:
        self.seconds, self.told = 0.0, False
        self.tell: Callable[[], object] | None = None
        self._depth, self._begun, self._own = 0, 0.0, 0.0

    def on_start(self, event: event.Event) -> None:
        if not self._depth:
            self._begun = time.perf_counter()
            if not self.told and (self.tell is not None or self._own > _LONG):
                self.told = True
                (self.tell or _note)()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        self._depth -= 1
        if not self._depth:
            spent = time.perf_counter() - self._begun
            self.seconds += spent
            function = getattr((event.data or {}).get("dispatcher"), "py_func", None)
            if getattr(function, "__module__", "").startswith("slide."):  # None of the program's.
                self._own += spent


# numba holds a lock while it compiles, so the events of threads do not mix. A kernel that is read
# from disk is not compiled.
_WATCH = _Watch()
event.register("numba:compile", _WATCH)


def compile_seconds() -> float:
    """Seconds that this process has spent on the compilation of kernels."""
    return _WATCH.seconds


def clock() -> float:
    """A clock in seconds, as ``time.perf_counter``, that stands still while kernels compile."""
    return time.perf_counter() - _WATCH.seconds


def tell_first(tell: Callable[[], object] | None) -> None:
    """Call ``tell`` when this process first compiles a kernel; None: only a note if it is long."""
    _WATCH.tell = tell


def span(name: str) -> AbstractContextManager:
    """A ``with`` block that PyTorch's profiler, if one runs, shows as a range ``slide::name``."""
    running = torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateImportUsage]
    return torch.profiler.record_function(f"slide::{name}") if running else _NOTHING


def profiled(name: str) -> Callable[[_F], _F]:
    """Make all calls of a function a `span`."""

    def wrap(function: _F) -> _F:
        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            with span(name):
                return function(*arguments, **keywords)

        return call  # type: ignore[return-value]

    return wrap


def untraced(function: _F) -> _F:
    """Exclude a function from ``torch.compile``, which cannot trace numba kernels."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return untraced_twin(function)(*arguments, **keywords)

    return call  # type: ignore[return-value]


# Functions that the compiler does not trace. PyTorch warns of a `functools.cache` here.
_DISABLED: dict[Callable, Callable] = {}


def untraced_twin(function: Callable) -> Callable:
    """The function itself until the compiler is imported, then one that it does not trace."""
    # Importing the compiler takes a second, and nothing is traced before it is imported.
    if "torch._dynamo" not in sys.modules:
        return function
    if function not in _DISABLED:
        _DISABLED[function] = torch.compiler.disable(function)
    return _DISABLED[function]
