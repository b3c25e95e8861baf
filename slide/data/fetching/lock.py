"""One process at a time, by a lock file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from slide.utils.progress_bar import log

__all__ = ["locked"]


@contextmanager
def locked(path: Path, what: str) -> Iterator[bool]:
    """Waits until no other process or thread holds the lock, and says so if it has to wait.

    The system releases the lock of a process that was killed.

    Args:
        path: of the lock file. It is made if it is missing, and it stays afterwards.
        what: what is prepared under the lock, for the message.

    Yields:
        Whether the lock is held: some file systems have no locks, and then nothing is locked.

    Raises:
        OSError: the lock file cannot be made.
    """
    path.open("ab").close()  # Errors of the folder are raised here, those of its locks below.
    # A soft lock is a file that stays after a crash: no lock at all is better.
    lock = FileLock(path, fallback_to_soft=False)
    held = _acquire(lock, what)
    try:
        yield held
    finally:
        if held:
            lock.release()


def _acquire(lock: FileLock, what: str) -> bool:
    """Returns whether the lock is held now; False where the file system has no locks."""
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            log(f"waiting for another process that prepares {what}")
            lock.acquire()
    except OSError:
        return False
    return True
