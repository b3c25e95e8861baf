"""What is printed: results, log lines, errors, and bars; without a terminal, lines instead of bars.

All commands print here and nowhere else, so that no name in a file is a command to the terminal.
Messages that standard error does not take are lost: a run matters more than what it says.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import IO, Any, NoReturn, cast

from tqdm import tqdm
from tqdm.utils import CallbackIOWrapper

from slide.utils.checks import printable

# A phase that is shorter has no bar; in seconds.
SHOWN_AFTER = 2.0
# Seconds between lines where standard error is not a terminal.
LINE_EVERY = 10.0
# Whether this process shows no bars and writes no lines.
_process = {"silent": False}
_silenced = ContextVar("silenced", default=False)  # Of this thread.


class _StandardError:
    """What ``sys.stderr`` is at the moment; where it is full, closed or missing, text is lost."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)  # None has none of them.

    def write(self, text: str) -> int:
        with _losses_taken():
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with _losses_taken():
            sys.stderr.flush()

    def isatty(self) -> bool:
        with _losses_taken():
            return sys.stderr.isatty()
        return False


@contextmanager
def _losses_taken() -> Iterator[None]:
    """Inside of it, a stream may fail; ValueError: it is closed, AttributeError: it is None."""
    try:
        yield
    except (OSError, ValueError, AttributeError):
        _end_without_rest()


@cache
def _end_without_rest() -> None:
    """At its end Python flushes once more; let that not change the exit status to 120."""
    atexit.register(_drop_rest)


def _drop_rest() -> None:
    try:
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        with suppress(OSError, ValueError, AttributeError):
            _to_null_device(sys.stderr.fileno())


def _to_null_device(number: int) -> None:
    """Let a file descriptor lead nowhere, also that of processes which this one starts."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, number)
        os.close(null)


def open_streams() -> None:
    """Begin a command: standard streams that are closed lead nowhere.

    Else the file that is opened next would get the number of standard error, and with it the
    messages of libraries.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _to_null_device(number)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115, it stays open
    _end_without_rest()


_ERRORS = _StandardError()


class ProgressBar(tqdm):
    """A bar of tqdm on standard error for phases over two seconds; without a terminal, lines."""

    # That of tqdm is one of all processes, and a process that is killed would keep it.
    _lock = threading.RLock()

    def __init__(self, *arguments: Any, **keywords: Any):
        self._lines = not _ERRORS.isatty()
        self._said = self._begun = time.monotonic()
        more = {"mininterval": LINE_EVERY, "ncols": 0} if self._lines else {}
        more["delay"], more["disable"] = SHOWN_AFTER, _is_silent()
        super().__init__(*arguments, **{"file": _ERRORS, **more, **keywords})
        self._time = time.monotonic  # The clock of tqdm may be set while the phase goes on.
        self.start_t = self.last_print_t = self._begun

    def __str__(self) -> str:
        """The bar; figures behind a sentence are whole or left out, as half of one misleads."""
        values: dict[str, Any] = {**self.format_dict}
        values["prefix"] = printable(values["prefix"] or "", "")  # It may be the name of a file.
        unbounded: dict[str, Any] = {**values, "ncols": None}
        width = values["ncols"]
        if self.bar_format and width and len(self.format_meter(**unbounded)) > width:
            values["postfix"] = None
        return self.format_meter(**values)

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Draw the bar, or write its line if that is due."""
        now = time.monotonic()
        if not self._lines:
            if msg is None and now < self._begun + SHOWN_AFTER:
                return False
            return super().display(msg, pos)
        if msg is not None or now < self._said + LINE_EVERY:
            return False
        self._said = now
        self.fp.write(f"{self}\n")
        self.fp.flush()
        return True

    def clear(self, *arguments: Any, **keywords: Any) -> None:
        """Make room for a log line; lines stay where they are."""
        if not self._lines:
            super().clear(*arguments, **keywords)

    def close(self) -> None:
        """End the phase."""
        if getattr(self, "disable", True):  # Also of one that was interrupted while it was made.
            return
        if self._lines:
            self.leave = False  # Else the last line would come twice.
        super().close()


@contextmanager
def until_reader_goes() -> Iterator[None]:
    """Ends the process, with status 1 and no word, when who reads its output has seen enough."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _to_null_device(1)
        sys.exit(1)


@contextmanager
def counted_bytes(file: IO[bytes], size: int, name: str) -> Iterator[Any]:
    """The same file, with a bar of the bytes that are read from it."""
    with ProgressBar(desc=name, total=size, unit="B", unit_scale=True) as bar:
        yield CallbackIOWrapper(bar.update, file, "read")


def show(text: str, end: str = "\n") -> None:
    """Write a result to standard output."""
    try:
        with until_reader_goes():
            print(printable(text), end=end, flush=True)
    except OSError as error:
        _to_null_device(1)
        fail(f"standard output: {error.strerror}")


def fail(sentence: str) -> NoReturn:
    """End the process with an error."""
    sys.exit(f"error: {printable(sentence)}")


def _renew_lock() -> None:
    ProgressBar.set_lock(threading.RLock())


if hasattr(os, "register_at_fork"):  # A thread of the parent may hold it.
    os.register_at_fork(after_in_child=_renew_lock)


def log(sentence: str) -> None:
    """Write a line to standard error, above the progress bars."""
    if not _is_silent():
        ProgressBar.write(printable(sentence), file=cast(IO[str], _ERRORS))


def _is_silent() -> bool:
    return _process["silent"] or _silenced.get()


@contextmanager
def silenced(wanted: bool = True) -> Iterator[None]:
    """Inside of it, this thread shows no bars and writes no lines; other threads do."""
    token = _silenced.set(wanted or _silenced.get())
    try:
        yield
    finally:
        _silenced.reset(token)


def silence(silent: bool = True) -> None:
    """Let this process show no bars and write no lines: another process of its run does."""
    _process["silent"] = silent
