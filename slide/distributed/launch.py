"""Processes of one run, as ``torchrun`` starts them: which one this is, and who is there."""

import hashlib
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from slide.backend import CPU, find_device
from slide.distributed.group import Group
from slide.utils import checks

# What torchrun tells each process; Slurm and others may set the same variables.
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Seconds that a process waits for the others in phases of any length, such as reading the data. A
# process that ends meanwhile is noticed at once: its connections close.
_LONG = 30 * 24 * 3600


class Place(NamedTuple):
    """Which of the processes of a run this one is.

    Attributes:
        rank: number of this process, in [0, size).
        size: number of processes.
        local_rank: number of this process on its machine.
        local_size: number of processes on this machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def find_place(environment: Mapping[str, str] = os.environ) -> Place:
    """The place that ``torchrun`` gave this process; without it, that of a single process.

    Args:
        environment: the variables of the environment.

    Raises:
        ValueError: for variables that are no numbers, or that do not fit each other.

    Example:
        >>> from slide.distributed.launch import find_place
        >>> find_place({})
        Place(rank=0, size=1, local_rank=0, local_size=1)
        >>> told = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
        >>> find_place({**told, "MASTER_ADDR": "host", "MASTER_PORT": "29400"})
        Place(rank=3, size=4, local_rank=1, local_size=2)
    """
    if any(name not in environment for name in _NEEDED):
        return Place()
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    local = _number(environment, "LOCAL_RANK", 0), _number(environment, "LOCAL_WORLD_SIZE", 1)
    place = Place(rank, size, *local)
    if not (rank < size and place.local_rank < place.local_size <= size):
        raise ValueError(f"the variables of torchrun do not fit each other: {place}")
    return place


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    said = environment.get(name, str(default))
    if not said.isdecimal():
        raise ValueError(f"the variable {name} of the environment must be a number, not {said!r}")
    return int(said)


class Errors:
    """Lets one process alone say what several processes find.

    Args:
        store: a store of `torch.distributed` that all processes share; None: they have not joined
            yet, and each speaks: the others may not know what it has found.

    Example:
        >>> from slide.distributed.launch import Errors
        >>> Errors().first("there is no key epoch")
        True
    """

    def __init__(self, store: Any = None):
        self._store = store

    def first(self, sentence: str, of_another: bool = False) -> bool:
        """Whether this process is to say a sentence: no other process has said it.

        Args:
            sentence: what it has to say.
            of_another: whether it is about another process that has ended; then it is not said if
                that one has said why.
        """
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


def meet(place: Place, timeout: float, device: torch.device = CPU) -> Any:
    """Wait for the other processes and connect with them; returns the store they share.

    Args:
        place: of this process, from `find_place`; there are at least two.
        timeout: seconds to wait for them, now and in each exchange.
        device: where this process computes; see `backends_for`.

    Raises:
        ValueError: for a time out of range, or if a process has not come in this time.
    """
    checks.positive("timeout", timeout)
    import torch.distributed as dist

    wait, store = timedelta(seconds=timeout), None
    try:
        found = dist.rendezvous("env://", timeout=wait)  # pyright: ignore[reportPrivateImportUsage]
        store, rank, size = next(found)
        store.add("came", 1)
        kind = backends_for(device)
        dist.init_process_group(kind, store=store, rank=rank, world_size=size, timeout=wait)
    except RuntimeError as error:
        raise ValueError(
            f"{_came(store)} {place.size} processes were there after {timeout:g} seconds "
            f"(runtime.timeout): look at what the others say, and whether this machine reaches "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        ) from error
    return store


def find_rank_device(name: str, place: Place) -> torch.device:
    """The device of that name for one of the processes of a run.

    Args:
        name: as in `slide.backend.find_device`; with ``"cuda"`` each process of a machine takes a
            GPU of its own, by its number there.
        place: of this process, from `find_place`.

    Raises:
        ValueError: as in `find_device`, for fewer GPUs than processes on this machine, or for one
            GPU that all processes of a machine would take.

    Example:
        >>> from slide.distributed.launch import Place, find_rank_device
        >>> find_rank_device("cpu", Place(rank=1, size=2, local_rank=1, local_size=2))
        device(type='cpu')
    """
    device = find_device(name)
    if device.type == "cpu" or place.size == 1:
        return device
    found, there = torch.cuda.device_count(), place.local_size
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
    return torch.device("cuda", place.local_rank)


def backends_for(device: torch.device) -> str:
    """What carries tensors between processes, as ``init_process_group`` takes it.

    Labels and sizes are on the host, so gloo is always there; NCCL carries what is on GPUs.

    Example:
        >>> import torch
        >>> from slide.distributed.launch import backends_for
        >>> backends_for(torch.device("cpu")), backends_for(torch.device("cuda", 1))
        ('gloo', 'cpu:gloo,cuda:nccl')
    """
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def patient_group() -> Group:
    """All processes of the run once more, for waits of any length: one of them does long work.

    All processes call this at the same time, when they have met.
    """
    import torch.distributed as dist

    return Group(dist.new_group(timeout=timedelta(seconds=_LONG), backend="gloo"))


def _came(store: Any) -> str:
    try:
        return f"{store.add('came', 0)} of"
    except (RuntimeError, AttributeError):  # There is no store, or it does not answer.
        return "fewer than"
