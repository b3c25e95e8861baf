"""After Ctrl-C a run first completes its step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupt:
    """Whether Ctrl-C was pressed.

    Attributes:
        asked: true after Ctrl-C.
    """

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def noted_interrupts() -> Iterator[Interrupt]:
    """Inside of it, the first Ctrl-C is only noted; the second one raises KeyboardInterrupt."""
    interrupt = Interrupt()

    def note(*_: Any) -> None:
        interrupt.asked = True
        signal.signal(signal.SIGINT, before)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # Only the main thread may set handlers. In others Ctrl-C is not noted.
        yield interrupt
        return
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
