"""Files that are written completely or not at all, files that are compared, and folders of runs."""

import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import count
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

RUN_LOCK = "run.lock"
# What a new run must not find in its folder: that of a run, and last that of a saved model.
RUN_MARKS = ("config.yaml", "checkpoints", "model.json")
# A piece of a file that is hashed while it is still in the cache of the core that has read it.
_PIECE = 1 << 18
# Bytes that are worth threads, and how many read at most: the system keeps the memory of a thread.
_LARGE, _READERS = 64 << 20, 4
# A lock that nothing refers to is released.
_HELD: set[FileLock] = set()
# Seconds after which a file that one machine wrote is seen by all others: network file systems may
# remember for a minute that it was missing.
SEEN_AFTER = 90.0


def write_atomic(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace the file ``path`` by what ``write`` writes into a temporary file beside it.

    The new file is complete on the disk before it gets its name, so a crash at any point leaves the
    old file as it was.

    Raises:
        OSError: if the file cannot be written, for example on a full disk. The message names the
            path; the old file stays.
    """
    try:
        with replacing(path) as file:
            write(file)
    except OSError as error:
        kept = "the file written before is kept" if path.exists() else "nothing was written"
        raise OSError(f"cannot write {path}: {error}; {kept}") from error


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file that takes the place of ``path`` if a ``with`` block ends without an error.

    The new file is complete on the disk before it gets its name.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Let the names of files in ``folder`` reach the disk; systems without this go without."""
    with suppress(OSError):  # Windows opens no folders, and some file systems do not sync them.
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def comes_in_sight(path: Path) -> bool:
    """Wait for a file that another machine has written; returns whether it is there."""
    end = time.monotonic() + SEEN_AFTER
    while not (there := path.exists()) and time.monotonic() < end:
        time.sleep(0.2)
        for folder in path.parents[:3]:  # Some file systems look again only then.
            with suppress(OSError):
                os.listdir(folder)
    return there


def check_run_dir(run_dir: object) -> None:
    """Raise ValueError if ``run_dir`` cannot be the folder of a new run.

    Args:
        run_dir: path of the folder, or None: a new folder will be made.
    """
    if run_dir is None:
        return
    folder = Path(str(run_dir))
    if run_dir == "" or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"run_dir must be the path of a folder, not {run_dir!r}")
    found = [mark for mark in RUN_MARKS if (folder / mark).exists()]
    if found == [RUN_MARKS[-1]]:
        raise ValueError(f"run_dir={folder} holds a model: name a new folder")
    if found:
        raise ValueError(f"run_dir={folder} holds a run: {resume_word(folder)} goes on with it")


def resume_word(folder: Path) -> str:
    """What goes on with a run, as a word of a command line; the shell gets it quoted if need be.

    Example:
        >>> from pathlib import Path
        >>> from slide.files import resume_word
        >>> resume_word(Path("results/a b")), resume_word(Path("results/x_lr=0.1"))
        ("'resume=results/a b'", 'resume=results/x_lr=0.1')
    """
    return shlex.quote(f"resume={folder}")


def make_run_folder(run_dir: object, parent: Path, label: str = "") -> Path:
    """Make the folder ``run_dir``; None makes a new folder in ``parent``, named by the time.

    Args:
        run_dir: path of the folder, or None.
        parent: where a new folder is made.
        label: follows the time in the name of a new folder.
    """
    if run_dir is not None:
        folder = Path(str(run_dir))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"run_dir={folder} cannot be made: {error.strerror}") from error
        return folder
    stamp = parent / "_".join(filter(None, [time.strftime("%Y-%m-%d_%H-%M-%S"), label]))
    for number in count():
        folder = Path(f"{stamp}_{number}") if number else stamp
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:  # Another run started in the same second.
            continue
    raise AssertionError("count() does not end")


def hold_folder(folder: Path) -> None:
    """Keep the folder of a run for this process; a killed process holds nothing.

    It is kept until the process ends, or until `release_folder` was called as often as this.

    Raises:
        ValueError: if another process holds the folder.
    """
    lock = _lock_of(folder)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(f"another process is running in {folder}: wait until it ends") from None
    except OSError:  # A file system without locks, or one where nothing can be written.
        return
    _HELD.add(lock)


def release_folder(folder: Path) -> None:
    """Take back one `hold_folder`; nothing happens if the folder is not held."""
    lock = _lock_of(folder)
    lock.release()
    if not lock.is_locked:
        _HELD.discard(lock)


def _lock_of(folder: Path) -> FileLock:
    """One for each folder and process: several runs of one process, one after the other."""
    return FileLock(folder / RUN_LOCK, is_singleton=True, fallback_to_soft=False)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` as JSON, atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text``, atomically."""
    write_atomic(path, lambda file: file.write(text.encode()))


def json_digest(content: Mapping[str, Any]) -> str:
    """The SHA-256 of JSON values, whatever the order of their keys and the white space.

    Example:
        >>> from slide.files import json_digest
        >>> json_digest({"a": 1, "b": [2]}) == json_digest({"b": [2], "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def pieces(file: FileIO) -> Iterator[memoryview]:
    """The bytes of an open file, from where it stands to its end.

    Args:
        file: opened with ``buffering=0``; a piece is gone when the next one is asked for.

    Raises:
        OSError: if the disk does not give them; it names the file.
    """
    memory = memoryview(bytearray(_PIECE))
    try:
        while size := file.readinto(memory):
            yield memory[:size]
    except OSError as error:
        raise OSError(error.errno, error.strerror, file.name) from error


def side_by_side(work: Callable[[str], object], sizes: Mapping[str, int]) -> None:
    """Do ``work`` for each file; reading and hashing large ones goes on in threads.

    Args:
        work: called with a name.
        sizes: bytes of the files, by name.

    Raises:
        Exception: that of the first file whose work failed.
    """
    if sum(sizes.values()) < _LARGE:
        for name in sizes:
            work(name)
        return
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _READERS)) as pool:
        for _ in pool.map(work, sizes):
            pass


def file_state(path: Path) -> list[int]:
    """What tells whether a file has changed: its size in bytes, and its time in nanoseconds.

    Raises:
        OSError: if there is no such file.

    Example:
        >>> from pathlib import Path
        >>> from slide.files import file_state
        >>> len(file_state(Path(__import__("slide").__file__)))
        2
    """
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]
