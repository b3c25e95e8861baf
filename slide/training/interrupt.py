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


# Not empty after a SIGTERM inside of `raised_terminations`. Python drops an error that is raised in
# a callback of compiled code, such as the compiler of kernels, so the error alone is not enough.
_ASKED: list[Terminated] = []
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
        if _ASKED:  # Else a signal may have been noted just now.
            interrupt.error = _ASKED[0]
        yield interrupt


@contextmanager
def raised_terminations() -> Iterator[None]:
    """Inside of it, SIGTERM raises `Terminated`, so that files are closed and messages written.

    If the error gets lost, the next `noted_interrupts` notes it, or the end of this raises it.
    """

    def stop(*_: Any) -> None:
        _ASKED.append(Terminated())
        raise _ASKED[0]

    _ASKED.clear()
    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # Not the main thread.
        yield
        return
    try:
        yield
        if _ASKED:
            raise _ASKED[0]
    finally:
        _ASKED.clear()
        signal.signal(signal.SIGTERM, before)
