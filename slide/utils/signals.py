"""Signals that end a program: they are raised, or noted until a step is complete."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, or the SIGHUP of a terminal that closes, which end a program as Ctrl-C does."""

    def __init__(self, number: int = signal.SIGTERM):
        super().__init__()
        self.number = number


# Not empty after a signal inside of `raised_terminations`. Python drops an error that is raised in
# a callback of compiled code, such as the compiler of kernels, so the error alone is not enough.
_ASKED: list[KeyboardInterrupt] = []
# Installed commands. Their imports take seconds, in which nothing can be lost: Ctrl-C ends them at
# once, and without a traceback. From then on it does so where no function below handles it.
_COMMANDS = {f"slide-{name}" for name in ("train", "data", "predict", "serve", "compare")}
_starts = not _COMMANDS.isdisjoint(map(os.path.basename, sys.argv[:1]))
if _starts and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # It is not ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
# Windows has none. A terminal that closes sends it twice, so the second one asks for nothing more.
_HANGUP = getattr(signal, "SIGHUP", None)


def _raise(number: int, _: Any) -> None:
    if _ASKED and number == _HANGUP:
        return
    _ASKED.append(error_of(number))
    raise _ASKED[0]


def error_of(number: int) -> KeyboardInterrupt:
    """What a signal raises."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


def _ending_signals() -> list[int]:
    """The signals that end a program: none that is ignored, nor a SIGHUP that the program handles.

    ``nohup`` ignores SIGHUP, and shells ignore Ctrl-C for programs in the background of a script.
    """
    found = [signal.SIGINT, signal.SIGTERM]
    if _HANGUP is not None and signal.getsignal(_HANGUP) in (signal.SIG_DFL, _raise):
        found.append(_HANGUP)
    return [number for number in found if signal.getsignal(number) != signal.SIG_IGN]


def signal_of(error: KeyboardInterrupt) -> int:
    """The number of the signal that raised an error."""
    return error.number if isinstance(error, Terminated) else signal.SIGINT


def exit_status(error: KeyboardInterrupt) -> int:
    """The exit status of a process that ends so, as shells give it: 128 plus the signal."""
    return 128 + signal_of(error)


@dataclass
class Interrupt:
    """Whether the run was asked to stop: ``error`` is what to raise after the step, or None."""

    error: KeyboardInterrupt | None = None


@contextmanager
def noted_interrupts() -> Iterator[Interrupt]:
    """Inside of it, the first Ctrl-C or SIGTERM is only noted; the second one is as outside.

    SIGHUP is noted, too, unless it is ignored, or the program has a handler of its own.
    """
    interrupt, before = Interrupt(), {}

    def note(number: int, _: Any) -> None:
        interrupt.error = error_of(number)
        for each, handler in before.items():
            if each != _HANGUP:
                signal.signal(each, handler)

    with ExitStack() as stack:
        for number in _ending_signals():
            try:
                before[number] = signal.signal(number, note)
            except ValueError:  # Only the main thread may set handlers. In others none is noted.
                break
            stack.callback(signal.signal, number, before[number])
        if _ASKED:  # Else a signal may have been noted just now.
            interrupt.error = _ASKED[0]
        yield interrupt


@contextmanager
def raised_terminations() -> Iterator[None]:
    """Inside of it, signals raise KeyboardInterrupt or `Terminated`: files are removed or closed.

    If the error gets lost, the next `noted_interrupts` notes it, or the end of this raises it.
    """
    _ASKED.clear()
    try:
        before = {number: signal.signal(number, _raise) for number in _ending_signals()}
    except ValueError:  # Not the main thread.
        yield
        return
    try:
        try:
            yield
        except Exception as error:
            if _ASKED:
                raise _ASKED[0] from error
            raise
        if _ASKED:
            raise _ASKED[0]
    finally:
        _ASKED.clear()
        for number, handler in before.items():
            signal.signal(number, handler)
