"""After Ctrl-C or SIGTERM a run first completes its step."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a run as Ctrl-C does.

    Example:
        >>> from slide.training.interrupt import Terminated, exit_status
        >>> exit_status(KeyboardInterrupt()), exit_status(Terminated())
        (130, 143)
    """


_ERRORS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


def exit_status(error: KeyboardInterrupt) -> int:
    """The exit status of a process that ends so, as shells give it: 128 plus the signal."""
    number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
    return 128 + number


class Interrupt:
    """Whether the run was asked to stop.

    Attributes:
        error: what to raise after the step; None: nothing was asked.
    """

    def __init__(self) -> None:
        self.error: KeyboardInterrupt | None = None


@contextmanager
def noted_interrupts() -> Iterator[Interrupt]:
    """Inside of it, the first Ctrl-C or SIGTERM is only noted; the second one is as outside."""
    interrupt, before = Interrupt(), {}

    def note(number: int, _: Any) -> None:
        interrupt.error = _ERRORS[signal.Signals(number)]()
        for each, handler in before.items():
            signal.signal(each, handler)

    with ExitStack() as stack:
        for number in _ERRORS:
            try:
                before[number] = signal.signal(number, note)
            except ValueError:  # Only the main thread may set handlers. In others none is noted.
                break
            stack.callback(signal.signal, number, before[number])
        yield interrupt


@contextmanager
def raised_terminations() -> Iterator[None]:
    """Inside of it, SIGTERM raises `Terminated`, so that files are closed and messages written."""

    def stop(*_: Any) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # Not the main thread.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
