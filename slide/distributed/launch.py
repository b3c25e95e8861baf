"""Processes of one run, as ``torchrun`` starts them: which one this is, and who is there."""

import hashlib
import os
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from slide.backend import CPU, find_device
from slide.distributed.group import Group

# What torchrun tells each process; Slurm and others may set the same variables.
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Seconds that a process waits for the others in phases of any length, such as reading the data. A
# process that ends meanwhile is noticed at once: its connections close.
_LONG = 30 * 24 * 3600


class RankInfo(NamedTuple):
    """The rank of this process in the run and on its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def find_rank_info() -> RankInfo:
    """The `RankInfo` that ``torchrun`` gave this process; without it, of a single process."""
    if any(name not in os.environ for name in _NEEDED):
        return RankInfo()
    info = RankInfo(
        rank=_number("RANK"),
        size=_number("WORLD_SIZE"),
        local_rank=_number("LOCAL_RANK", "0"),
        local_size=_number("LOCAL_WORLD_SIZE", "1"),
    )
    if not (info.rank < info.size and info.local_rank < info.local_size <= info.size):
        raise ValueError(f"the variables of torchrun do not fit each other: {info}")
    return info


def _number(name: str, default: str = "") -> int:
    text = os.environ.get(name, default)
    if not text.isdecimal():
        raise ValueError(f"the variable {name} of the environment must be a number, not {text!r}")
    return int(text)


class Errors:
    """Lets one process report what several find; without a ``store`` each reports it."""

    def __init__(self, store: Any = None):
        self._store = store

    def first(self, sentence: str, of_another: bool = False) -> bool:
        """Whether no other process reported this, or, ``of_another`` process, anything."""
        if self._store is None:  # Better twice than never.
            return True
        name = f"said/{hashlib.sha256(sentence.encode()).hexdigest()}"
        try:
            if of_another and self._store.add("said", 0):
                return False
            self._store.add("said", 1)
            return self._store.add(name, 1) == 1
        except RuntimeError:  # The process that keeps the store has ended.
            return True


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


def find_rank_device(name: str, info: RankInfo) -> torch.device:
    """The device of one process; with ``"cuda"`` each of a machine has its own, or ValueError."""
    device = find_device(name)
    if device.type == "cpu" or info.size == 1:
        return device
    found, there = torch.cuda.device_count(), info.local_size
    if device.index is not None:
        if there == 1 or found == 1:  # Some launchers show each process its own GPU only.
            return device
        raise ValueError(
            f"device={name} would give one GPU to all {there} processes of a machine: with "
            "device=cuda each takes its own"
        )
    if there > found:
        raise ValueError(
            f"device=cuda needs a GPU for each of the {there} processes of a machine, and PyTorch "
            f"finds {found}: start at most {found}, or set device=cuda:0 if each process sees only "
            "a GPU of its own"
        )
    return torch.device("cuda", info.local_rank)


def patient_group() -> Group:
    """All processes once more, for waits of any length; all of them call this at the same time."""
    import torch.distributed as dist

    return Group(dist.new_group(timeout=timedelta(seconds=_LONG), backend="gloo"))


def _came(store: Any) -> str:
    try:
        return f"{store.add('came', 0)} of"
    except (RuntimeError, AttributeError):  # There is no store, or it does not answer.
        return "fewer than"
