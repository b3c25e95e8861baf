"""The processes of a run: here one; `slide.distributed.processes` lets several do the same."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from omegaconf import DictConfig

from slide import runtime
from slide.backend import find_device
from slide.data import SparseDataset
from slide.nn import SlideNetwork
from slide.training.group import Group
from slide.utils import checks

# What torchrun tells each process; Slurm and others may set the same variables.
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LONGEST_WAIT = 10**9  # Seconds; Python has no times much longer.
_T = TypeVar("_T")


class RankInfo(NamedTuple):
    """The rank of this process in the run and on its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def find_rank_info() -> RankInfo:
    """The `RankInfo` that ``torchrun`` gave this process; without it, of a single process."""
    if any(name not in os.environ for name in TORCHRUN):
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


class FolderNote:
    """Tells processes which are started again where the folder of their run is; one needs none."""

    def write(self, folder: Path) -> None:
        """Note the folder of the run."""

    def found(self) -> Path | None:
        """The folder that was noted before these processes were started again, or None."""
        return None

    def forget(self, folder: Path | None = None) -> None:
        """Remove the note, because the run has ended; one of another folder stays. None: any."""


class Ranks:
    """The processes of a run, as this one sees them: its rank, all of them. Here it is alone.

    What several have to do together is a method.
    """

    def __init__(self, info: RankInfo | None = None, group: Group | None = None):
        self.info, self.group = info or RankInfo(), group or Group.alone()

    def share_threads(self, asked: int) -> None:
        """Give this process its share of the cores, or the threads ``asked`` for."""
        runtime.set_threads(asked)

    def check_settings(self, config: DictConfig) -> None:
        """Raise ValueError, or TypeError for a loss, for a setting that needs a single process."""

    def once_a_machine(self, work: Callable[[], _T]) -> _T:
        """The result of ``work``, of one process of each machine first: others find its files."""
        return work()

    def check_same(self, config: DictConfig, data: SparseDataset) -> None:
        """Raise ValueError unless all processes have the same settings, data and packages."""

    def network_maker(
        self, seed: int, counts: dict[str, np.ndarray]
    ) -> Callable[..., SlideNetwork]:
        """What makes the network, of which the processes share the rows by these `counts`."""
        return SlideNetwork

    def counts(self, data: SparseDataset) -> dict[str, np.ndarray]:
        """How often training rows have each feature and label, if rows are shared by that."""
        return {}

    def share_folder(self, make: Callable[[], Path], new: bool = False) -> Path:
        """The folder that the main process makes, on all of them, which must see it.

        That of a ``new`` run is noted.
        """
        return make()

    def note(self, place: Path, words: Sequence[str]) -> FolderNote:
        """The note of the folder of a run with these words, which lies in a place."""
        return FolderNote()

    def restarted(
        self, composed: DictConfig, overrides: Sequence[str], note: FolderNote
    ) -> tuple[DictConfig, Sequence[str]]:
        """Configuration and overrides of a run that a launcher has started again: it is resumed."""
        return composed, overrides


ALONE = Ranks()


def join_ranks(config: DictConfig) -> Ranks:
    """The processes of the run; the first call waits until all are there."""
    checks.within("timeout", config.runtime.timeout, 1, _LONGEST_WAIT)
    return ALONE


@contextmanager
def parting() -> Iterator[None]:
    """After it, this process has left the others of its run."""
    yield


@contextmanager
def one_voice() -> Iterator[None]:
    """Inside of it, an error that ends several processes is written by one."""
    yield


class LostExit(SystemExit):
    """The end of a process because another process of its run has ended."""
