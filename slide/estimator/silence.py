"""Keeps what this thread writes to standard error to itself."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LOCK, _SILENT = threading.Lock(), threading.local()
_users = 0
_before: Any = None


class _Filter:
    """Standard error; writes of silent threads are dropped, and to them it is no terminal."""

    def __init__(self, stream: Any):
        self.stream = stream

    def write(self, text: str) -> int:
        return len(text) if _is_silent() else self.stream.write(text)

    def isatty(self) -> bool:
        return not _is_silent() and self.stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _is_silent() -> bool:
    return getattr(_SILENT, "depth", 0) > 0


@contextmanager
def silence(wanted: bool = True) -> Iterator[None]:
    """Inside of it, this thread's bars and sentences do not appear; other threads' do."""
    global _users, _before
    if not wanted:
        yield
        return
    with _LOCK:
        if not _users:
            _before, sys.stderr = sys.stderr, _Filter(sys.stderr)
        _users += 1
    _SILENT.depth = getattr(_SILENT, "depth", 0) + 1
    try:
        yield
    finally:
        _SILENT.depth -= 1
        with _LOCK:
            _users -= 1
            if not _users:
                sys.stderr = _before
