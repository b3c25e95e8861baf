"""One process at a time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: two processes may then do the same work
    fcntl = None

__all__ = ["locked"]


@contextmanager
def locked(path: Path, what: str) -> Iterator[bool]:
    """Waits until no other process or thread holds the lock, saying so if it has to wait.

    Args:
        path: of the lock file, which is made if it is missing and left where it is.
        what: what is prepared under the lock, for the message.

    Yields:
        Whether there is a lock at all: some file systems have none.

    Raises:
        OSError: the lock file cannot be made.
    """
    with path.open("ab") as file:
        yield fcntl is not None and _lock(file.fileno(), what)  # closing the file releases it


def _lock(descriptor: int, what: str) -> bool:
    assert fcntl is not None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that prepares {what}", file=sys.stderr, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:  # a file system without locks
        return False
    return True
