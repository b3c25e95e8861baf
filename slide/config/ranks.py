"""A run of several processes: how they find each other, share a folder, and end.

Each machine has one or more of them, as ``torchrun`` starts them. The first one, rank 0, writes and
speaks for all.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar
from uuid import uuid4

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from slide.config.arithmetic import arithmetic, package_versions
from slide.config.compose import settings
from slide.config.defaults import run_device
from slide.data import SparseDataset, fingerprint
from slide.distributed import Group
from slide.distributed.launch import Errors, Place, find_place, meet, patient_group
from slide.distributed.sharded_loss import check_loss_of_group
from slide.utils.progress_bar import log, silence
from slide.utils.run_folders import comes_in_sight

# Settings in which processes may differ: where the files of a machine are, and its cores.
OWN = ("dataset.root", "dataset.cache", "runtime.threads")
_TIMEOUT = 600
_ALONE = "{} needs a run of one process: set {}, or start it without torchrun"
_T = TypeVar("_T")


class Ranks(NamedTuple):
    """The processes of a run, as this one sees them.

    Attributes:
        place: of this process.
        group: all processes.
        errors: lets one of them speak.
    """

    place: Place = Place()
    group: Group = Group.alone()
    errors: Errors = Errors()

    @property
    def leads(self) -> bool:
        """Whether this process writes and speaks."""
        return self.group.rank == 0


ALONE = Ranks()
_joined: list[Ranks] = []


def join_ranks(config: DictConfig) -> Ranks:
    """The processes of the run; the first call waits until all are there.

    Args:
        config: from `slide.config.read_config`.

    Raises:
        ValueError: if one does not come in time, or for a device that there is not.

    Example:
        >>> from slide.config import read_config
        >>> from slide.config.ranks import join_ranks
        >>> join_ranks(read_config([])).group.size
        1
    """
    place = find_place()
    if place.size == 1:
        return ALONE
    if not _joined:
        silence(place.rank > 0)
        device = run_device(config)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # What NCCL works on.
        store = meet(place, config.runtime.get("timeout", _TIMEOUT), device)
        group = Group()
        group.patient = patient_group()
        _joined.append(Ranks(place, group, Errors(store)))
    return _joined[0]


@contextmanager
def parting() -> Iterator[None]:
    """After it, this process has left those of its run.

    Threads of gloo that are still there when a process ends abort it at random. An operation of
    NCCL that one process has not joined would be waited for, so after an error it is left as it is.
    """
    ended_well = False
    try:
        yield
        ended_well = True
    finally:
        if _joined:
            import torch.distributed as dist

            _joined.clear()
            if ended_well or "nccl" not in str(dist.get_backend_config()):
                dist.destroy_process_group()


def note_slurm() -> None:
    """Tell each task of a job of Hydra's launcher submitit its place, as torchrun would."""
    if "RANK" in os.environ or "SUBMITIT_EXECUTOR" not in os.environ:
        return
    from submitit import JobEnvironment  # pyright: ignore[reportMissingImports]
    from submitit.helpers import (  # pyright: ignore[reportMissingImports]
        TorchDistributedEnvironment,
    )

    if JobEnvironment().num_tasks > 1:
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        silence(find_place().rank > 0)


class LostExit(SystemExit):
    """The end of a process because another process of its run has ended."""


@contextmanager
def one_voice() -> Iterator[None]:
    """Inside of it, an error that ends several processes is said by one of them.

    Before they have met, each that finds an error says it.
    """
    try:
        yield
    except SystemExit as end:
        errors = _joined[0].errors if _joined else Errors()
        if isinstance(end.code, str) and not errors.first(end.code, isinstance(end, LostExit)):
            sys.exit(1)
        raise


def once_a_machine(ranks: Ranks, work: Callable[[], _T]) -> _T:
    """The result of ``work``: first of one process of each machine, then of the others.

    What the first one prepares and leaves on the disk, the others find there.
    """
    if ranks.place.local_size == 1 and ranks.group.size == 1:
        return work()
    found = [work()] if ranks.place.local_rank == 0 else []
    ranks.group.patient.barrier()
    return found[0] if found else work()


def share_folder(ranks: Ranks, make: Callable[[], Path]) -> Path:
    """The folder that the first process makes, on all of them.

    Raises:
        ValueError: if it is not the same folder for all.
    """
    if ranks.group.size == 1:
        return make()
    said = []
    if ranks.leads:
        try:
            said = [str(make()), ""]
        except (ValueError, OSError) as error:  # All end with this error.
            said = ["", str(error)]
    name, wrong = ranks.group.patient.broadcast(said)  # They draw first weights before.
    if wrong:
        raise ValueError(wrong)
    check_shared(ranks, Path(name))
    return Path(name)


def check_shared(ranks: Ranks, folder: Path) -> None:
    """Raise ValueError unless all processes see what the first one writes into a folder."""
    if ranks.group.size == 1:
        return
    name = ranks.group.broadcast(f"shared-{uuid4().hex}.tmp")
    if ranks.leads:
        (folder / name).touch()
    ranks.group.barrier()
    there = comes_in_sight(folder / name)
    blind = [rank for rank, seen in enumerate(ranks.group.gather(there)) if not seen]
    if ranks.leads:
        (folder / name).unlink()
    if blind:
        raise ValueError(
            f"{_ranks(blind)} cannot see what rank 0 writes into {folder}: the folder of a run "
            "must be on a disk that all machines share; name one by run_dir="
        )


def check_same(ranks: Ranks, config: DictConfig, data: SparseDataset) -> None:
    """Raise ValueError unless all processes have the same settings, data and packages.

    Weights that all of them keep stay the same because all compute them in the same way. Where one
    may round otherwise, a warning says so.

    Args:
        ranks: the processes of the run.
        config: of this process.
        data: the data set, as this process has opened it.

    Raises:
        ValueError: also if there are more processes than labels or features.
    """
    if ranks.group.size == 1:
        return
    keys = [key for key in settings(config) if key not in OWN]
    own = package_versions() | {key: str(OmegaConf.select(config, key)) for key in keys}
    for name, split in (("training", data.train), ("test", data.test)):
        own[f"the number of {name} rows"] = f"{len(split):,}"
        own[f"the checksum of the {name} rows"] = fingerprint(split)
    group = ranks.group.patient  # They have read all data.
    for said in _differences(group.gather(own)):
        raise ValueError(
            f"the processes of a run must agree, but {said}: start all of them with the same "
            "words, the same data and the same packages"
        )
    for said in _differences(group.gather(arithmetic(run_device(config)))):
        log(
            f"warning: {said}: sums may be rounded in other ways, and weights that all ranks keep "
            "may drift apart"
        )
    for name, number in (("labels", data.num_labels), ("features", data.num_features)):
        if ranks.group.size > number:
            raise ValueError(
                f"{ranks.group.size} processes cannot share {number} {name}: start at most {number}"
            )


def check_ranks(ranks: Ranks, config: DictConfig) -> None:
    """Raise an error for a setting that needs a single process, before the data are read.

    Args:
        ranks: the processes of the run.
        config: of this process.

    Raises:
        ValueError: for a setting that needs a single process.
        TypeError: for a loss that does.
    """
    if ranks.group.size == 1:
        return
    check_loss_of_group(instantiate(config.loss), ranks.group)
    if config.network.get("host_rows", False):
        raise ValueError(_ALONE.format("network.host_rows=true", "network.host_rows=false"))
    sizes = config.network.hidden_active
    first, *others = sizes if OmegaConf.is_list(sizes) and sizes else [None]
    looked_up = config.sampler.get("proposer") is not None and any(n is not None for n in others)
    if first is not None or looked_up:
        how = (
            "begin it with null: the first layer computes all its neurons"
            if first is not None
            else "set sampler=uniform: hidden neurons can be drawn, and not looked up"
        )
        raise ValueError(
            f"network.hidden_active={list(sizes)} needs a run of one process; on several, {how}"
        )


def _differences(found: list[dict[str, str]]) -> Iterator[str]:
    """What another rank has otherwise than the first one, each name once."""
    told: set[str] = set()
    for rank, other in enumerate(found):
        # Those that others follow from have the shortest names.
        for key in sorted({**found[0], **other}, key=lambda key: key.count(".")):
            here, there = found[0].get(key, "not set"), other.get(key, "not set")
            if here != there and key not in told:
                told.add(key)
                yield f"{key} is {here} on rank 0 and {there} on rank {rank}"


def _ranks(numbers: list[int]) -> str:
    said = ", ".join(map(str, numbers))
    return f"rank {said}" if len(numbers) == 1 else f"ranks {said}"
