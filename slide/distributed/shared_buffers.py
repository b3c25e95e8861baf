"""Tensors that the processes of one machine exchange through memory that they share."""

import mmap
import os
import platform
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slide.utils.profiling import clock

# A folder in memory, which no other machine sees.
_FOLDER = Path("/dev/shm")
# Processors on which all see the writes of one in their order, so that a counter can follow data.
_ORDERED = ("x86_64", "AMD64")
_CAPACITY = 1 << 22  # Bytes of a message: 4,096 samples of 256 numbers in float32.
_LINE = 64  # Bytes of a line of the caches, which no two processes write at once.
# Seconds for which a rank asks again and again, and between looks whether another one is there.
_EAGER, _CALM = 0.0005, 0.1


class SharedBuffers:
    """Two buffers of each rank, which all ranks read, and how many messages each has written.

    Messages take turns in the buffers. A rank writes one after it has read the last one of all
    ranks, so nobody reads the one before any more. Each rank holds a lock while it lives, which the
    operating system removes however it ends.

    Args:
        file: descriptor of the file, from `create` or `open_created`; each rank has its own.
        timeout: seconds that a rank waits for another one.
    """

    def __init__(self, file: int, rank: int, size: int, timeout: float):
        weakref.finalize(self, os.close, file)
        self._file, self._rank, self._size, self._timeout = file, rank, size, timeout
        if not self._lock(rank):
            raise BlockingIOError(f"another process is rank {rank}")
        memory = mmap.mmap(file, num_bytes(size))
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._written = np.frombuffer(memory, np.int64, size * _LINE // 8)[:: _LINE // 8]
        self._number = 0

    def write(self, tensor: Tensor) -> None:
        """Give a tensor to the other ranks, which give one of its shape and type."""
        self._number += 1
        with torch.no_grad():
            self._message(self._rank, tensor).copy_(tensor)
        self._written[self._rank] = self._number

    def read(self, tensor: Tensor) -> list[Tensor]:
        """What the ranks have written, in the memory that they share; ``tensor`` is this one's.

        RuntimeError if a rank has ended, or does not write in time.
        """
        for rank in range(self._size):
            self._wait(rank)
        return [self._message(rank, tensor) for rank in range(self._size)]

    def _message(self, rank: int, like: Tensor) -> Tensor:
        begin = self._size * _LINE + (2 * rank + self._number % 2) * _CAPACITY
        return self._bytes[begin : begin + like.nbytes].view(like.dtype).view(like.shape)

    def _wait(self, rank: int) -> None:
        begin = looked = clock()
        while self._written[rank] < self._number:
            now = clock()
            if now - begin < _EAGER:
                os.sched_yield()
                continue
            time.sleep(min((now - begin) / 100, 0.01))
            if now - looked > _CALM:
                looked, ended = now, self._has_ended(rank)
                late = now - begin > self._timeout
                # It may have written before it ended.
                if (ended or late) and self._written[rank] < self._number:
                    raise RuntimeError(f"rank {rank} has {'closed' if ended else 'timed out'}")

    def _has_ended(self, rank: int) -> bool:
        found = self._lock(rank)
        if found:
            self._lock(rank, leaves=True)  # So that the others find it, too.
        return found

    def _lock(self, rank: int, leaves: bool = False) -> bool:
        """Take the lock of a rank, or leave it; false if another process, the rank, has it."""
        import fcntl  # Not on Windows, where there is no such folder either.

        how = fcntl.LOCK_UN if leaves else fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.lockf(self._file, how, 1, rank)
        except OSError:
            return False
        return True


def fits(tensor: Tensor) -> bool:
    """Whether buffers can take a tensor."""
    return tensor.is_cpu and tensor.nbytes <= _CAPACITY


def num_bytes(size: int) -> int:
    """The size of a file for ``size`` ranks."""
    return size * (_LINE + 2 * _CAPACITY)


def create(size: int) -> tuple[int, str, str] | None:
    """A file for ``size`` ranks; None where there is no memory for it.

    It has no name any more, so that no killed process leaves it behind. Returns its descriptor,
    the path by which other processes open it, and the name that it had.
    """
    if platform.machine() not in _ORDERED or not _FOLDER.is_dir():
        return None
    with suppress(OSError):
        file, name = tempfile.mkstemp(prefix="slide-", dir=_FOLDER)
        os.unlink(name)
        try:
            os.posix_fallocate(file, 0, num_bytes(size))  # Else a write could end the process.
            path = f"/proc/{os.getpid()}/fd/{file}"
            return file, path, os.readlink(path)
        except OSError:
            os.close(file)
    return None


def open_created(path: str, name: str) -> int:
    """A descriptor of the file that another process has created; OSError if it is not there."""
    if os.readlink(path) != name:
        raise FileNotFoundError(f"{path} is a file of another machine or container")
    return os.open(path, os.O_RDWR)
