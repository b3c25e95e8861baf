"""Files that are written completely or not at all, and files that are compared by hash or state."""

import errno
import hashlib
import json
import operator
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import DEFAULT_BUFFER_SIZE, BufferedReader, FileIO
from pathlib import Path
from typing import IO, Any

from slide.utils.progress_bar import log

# A piece of a file that is hashed while it is still in the cache of the core that has read it.
_PIECE = 1 << 18
# From 64 MiB on, files are read by threads.
_LARGE = 64 << 20
# 64 MiB: lists and configurations have some KiB. Zeros at the end of a file may take no room on the
# disk, and do in memory.
_LONGEST_TEXT = 64 << 20
# Characters of a file in the name of its temporary file: systems take 255 bytes.
_NAMED = 40
_TEMPORARY = re.compile(r"(.+)-[0-9a-f]{16}\.tmp", re.DOTALL)
# Four threads at most: the system keeps the memory of each.
_READERS = 4


def write_atomic(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace a file by what ``write`` writes beside it; a crash leaves the old file as it was."""
    try:
        with replacing(path) as file:
            write(file)
    except OSError as error:
        kept = "the file written before is kept" if path.exists() else "nothing was written"
        raise OSError(f"cannot write {path}: {error}; {kept}") from error


def beside(path: Path) -> Path:
    """A name in the folder of ``path`` that no other file has, for what is to replace it."""
    return path.with_name(f"{path.name[:_NAMED]}-{uuid.uuid4().hex[:16]}.tmp")


def temporary_for(path: Path) -> Path | None:
    """The file that a temporary one, named by `beside`, is to replace; None: it is no such file."""
    found = _TEMPORARY.fullmatch(path.name)
    return path.with_name(found[1]) if found else None


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Let errors of the system name this file, unless they name one: those of open files do not."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


class _Named(FileIO):
    """A file whose errors name it."""

    def readinto(self, buffer: Any) -> int:
        with naming(str(self.name)):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with naming(str(self.name)):
            return super().readall()


def open_bytes(path: Path, buffering: int = DEFAULT_BUFFER_SIZE) -> BufferedReader:
    """Open a file for reading; errors of the disk name it, as those of opening do."""
    return BufferedReader(_Named(path), buffering)


def disk_error(error: BaseException) -> OSError | None:
    """The error of the disk that a library has raised, or taken for damage; None: there is none."""
    for each in (error, error.__context__):
        # Libraries ask for places before the beginning of a damaged file, which is EINVAL.
        if isinstance(each, OSError) and each.errno not in (None, errno.EINVAL):
            return each
    return None


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file that replaces ``path`` after a block without an error.

    It belongs to this call alone: of several that write one path at once, the last one stays.
    """
    temporary = beside(path)
    try:
        file = temporary.open("xb")
    except OSError as error:  # The caller has not named this one.
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        with file:
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


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait for others that change the files of a folder; a killed process holds nothing.

    The folder itself is locked, so that no file for it stays in a model, as one of filelock would.
    Systems and file systems without locks of folders go without.
    """
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log(f"waiting: another process or thread writes {folder}")
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        # Closing is not enough: a process that was forked meanwhile has the lock, too.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` as JSON, atomically."""
    write_text(path, json.dumps(content, indent=2, default=operator.index) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text``, atomically."""
    write_atomic(path, lambda file: file.write(text.encode()))


def read_text(path: Path) -> str:
    """The text of a list or a configuration; ValueError for more than 64 MiB, or no file.

    A pipe would be waited for, and a device such as ``/dev/zero`` has no end.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is no file")
    found = bytearray()
    with open_bytes(path) as file:
        for piece in pieces(file):
            found += piece
            if len(found) > _LONGEST_TEXT:
                raise ValueError(f"it has more than {_LONGEST_TEXT:,} bytes")
    return found.decode("utf-8")


def json_digest(content: Mapping[str, Any]) -> str:
    """The SHA-256 of JSON values, whatever the order of their keys and the white space."""
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, default=operator.index).encode()
    ).hexdigest()


def pieces(file: BufferedReader) -> Iterator[memoryview]:
    """The bytes of an open file, from where it stands to its end, in pieces of 256 KiB."""
    memory = memoryview(bytearray(_PIECE))
    while size := file.readinto(memory):
        yield memory[:size]


def side_by_side(work: Callable[[str], object], sizes: Mapping[str, int]) -> None:
    """Do ``work`` for each file; reading and hashing large ones goes on in threads."""
    if sum(sizes.values()) < _LARGE:
        for name in sizes:
            work(name)
        return
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _READERS)) as pool:
        for _ in pool.map(work, sizes):
            pass


def file_state(path: Path) -> list[int]:
    """What tells whether a file has changed: its size in bytes, and its time in nanoseconds."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]
