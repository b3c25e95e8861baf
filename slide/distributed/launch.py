"""Processes of one run, as ``torchrun`` starts them: they meet, and one speaks."""

import hashlib
import os
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from slide.backend import CPU
from slide.config.ranks import RankInfo
from slide.distributed.group import Group

# Seconds that a process waits for the others in phases of any length, such as reading the data. A
# process that ends meanwhile is noticed at once: its connections close.
_LONG = 30 * 24 * 3600
# Seconds until a store has to take a connection, when a process reports its last error.
_PROBE = 3
# Seconds between probes of a connection: Linux takes no more.
_LONGEST_PROBE = 32_767
# The files that this process has open, among them sockets; only Linux has the folder.
_FILES = Path("/proc/self/fd")


class Errors:
    """Lets one process report what several find; without a ``store`` each reports it.

    ``address`` is that of the store: of one that is gone PyTorch would write a page.
    """

    def __init__(self, store: Any = None, address: tuple[str, int] | None = None):
        self._store, self._address = store, address

    def first(self, sentence: str, of_another: bool = False) -> bool:
        """Whether no other process reported this, or, ``of_another`` process, anything."""
        if self._store is None or not self._answers():  # Better twice than never.
            return True
        name = f"said/{hashlib.sha256(sentence.encode()).hexdigest()}"
        try:
            if of_another and self._store.add("said", 0):
                return False
            self._store.add("said", 1)
            return self._store.add(name, 1) == 1
        except RuntimeError:  # The process that keeps the store has ended.
            return True

    def _answers(self) -> bool:
        """Whether there is a store at the address, if one is known."""
        if self._address is None:
            return True
        with suppress(OSError), socket.create_connection(self._address, _PROBE):
            return True
        return False


def meet(info: RankInfo, timeout: float, device: torch.device = CPU) -> Any:
    """Wait for the other processes and connect with them; returns the store they share."""
    import torch.distributed as dist

    wait, store = timedelta(seconds=timeout), None
    try:
        found = dist.rendezvous("env://", timeout=wait)  # pyright: ignore[reportPrivateImportUsage]
        store, rank, size = next(found)
        store.add("came", 1)
        # Labels and sizes are exchanged between hosts also where the layers are on GPUs.
        kind = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(kind, store=store, rank=rank, world_size=size, timeout=wait)
    except RuntimeError as error:
        raise ValueError(
            f"{_came(store)} {info.size} processes were there after {timeout:g} seconds "
            f"(runtime.timeout): look at what the others say, and whether this machine reaches "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        ) from error
    return store


def patient_group() -> Group:
    """All processes once more, for waits of any length; all of them call this at the same time."""
    import torch.distributed as dist

    return Group(dist.new_group(timeout=timedelta(seconds=_LONG), backend="gloo"))


def watch_connections(timeout: float) -> None:
    """Let connections of this process end when nothing answers for about ``timeout`` seconds.

    gloo has no limit for that where nobody sends, so a network that is lost would not be noticed.
    """
    each = min(max(round(timeout / 4), 1), _LONGEST_PROBE)
    options = {"TCP_KEEPIDLE": each, "TCP_KEEPINTVL": each, "TCP_KEEPCNT": 3}
    options["TCP_USER_TIMEOUT"] = 4 * each * 1000  # Milliseconds; for what was sent already.
    for path in _FILES.glob("*"):
        with suppress(OSError):  # It is no socket, or none of TCP.
            connection = socket.socket(fileno=int(path.name))
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in options.items():
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            finally:
                connection.detach()


def _came(store: Any) -> str:
    try:
        return f"{store.add('came', 0)} of"
    except (RuntimeError, AttributeError):  # There is no store, or it does not answer.
        return "fewer than"
