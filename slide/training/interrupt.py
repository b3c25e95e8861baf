"""Ctrl-C in the middle of a step lets the step end first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupt:
    """Whether Ctrl-C was pressed.

    Attributes:
        asked: it was.
    """

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def noted_interrupts() -> Iterator[Interrupt]:
    """While it is open, the first Ctrl-C is only noted; a second one ends the process at once."""
    interrupt = Interrupt()

    def note(*_: Any) -> None:
        interrupt.asked = True
        signal.signal(signal.SIGINT, before)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # Only the main thread may set handlers: Ctrl-C stays as it is.
        yield interrupt
        return
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
