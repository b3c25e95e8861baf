"""A run of several processes: how they find each other, share a machine and a folder, and end.

The functions and the methods of `SeveralRanks` do what those of `slide.config.ranks` do for one.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from slide import runtime
from slide.backend import has_bfloat16
from slide.config import ranks
from slide.config.compose import (
    CONFIG,
    as_dict,
    asked_for,
    foreign_targets,
    leaves,
    read_config,
)
from slide.config.ranks import (
    FolderNote,
    LostExit,
    RankInfo,
    Ranks,
    find_rank_device,
    find_rank_info,
)
from slide.config.recipe import build_loss
from slide.data import SparseDataset, fingerprint
from slide.distributed.group import Group
from slide.distributed.launch import Errors, meet, patient_group, watch_connections
from slide.distributed.sharded_loss import check_loss_of_group
from slide.distributed.sharded_network import ShardedNetwork
from slide.utils.checks import override_key
from slide.utils.files import read_text, write_json
from slide.utils.progress_bar import log, silence
from slide.utils.resources import core_limit
from slide.utils.run_folders import comes_in_sight

# Settings in which processes may differ: where the files of a machine are, and its cores.
OWN = ("dataset.root", "dataset.cache", "runtime.threads")
# Other versions of these packages compute or draw otherwise; of other packages hardly.
_COMPUTING = ("slide", "torch", "numpy", "numba")
_T = TypeVar("_T")
_joined: list["SeveralRanks"] = []


def join_ranks(config: DictConfig) -> Ranks:
    """The processes of the run; the first call waits until all are there."""
    alone, info = ranks.join_ranks(config), find_rank_info()
    if info.size == 1:
        return alone
    if not _joined:
        silence(info.rank > 0)
        device = find_rank_device(config.runtime.device, info)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # What NCCL works on.
        store = meet(info, config.runtime.timeout, device)
        group = Group()
        group.patient = patient_group()
        watch_connections(config.runtime.timeout)
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        _joined.append(SeveralRanks(info, group, Errors(store, address)))
    return _joined[0]


@contextmanager
def parting() -> Iterator[None]:
    """After it, this process has left the others of its run: threads of gloo would abort it.

    After an error it stays in NCCL, which would wait for an operation that others have not joined.
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
    """Tell each task of a job of Hydra's launcher submitit its rank, as torchrun would."""
    if "RANK" in os.environ or "SUBMITIT_EXECUTOR" not in os.environ:
        return
    from submitit import JobEnvironment  # pyright: ignore[reportMissingImports]
    from submitit.helpers import (  # pyright: ignore[reportMissingImports]
        TorchDistributedEnvironment,
    )

    if JobEnvironment().num_tasks > 1:
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        silence(find_rank_info().rank > 0)


@contextmanager
def one_voice() -> Iterator[None]:
    """Inside of it, an error that ends several processes is written by one, once they have met."""
    try:
        yield
    except SystemExit as end:
        errors = _joined[0].errors if _joined else Errors()
        if isinstance(end.code, str) and not errors.first(end.code, isinstance(end, LostExit)):
            sys.exit(1)
        raise


class SeveralRanks(Ranks):
    """The processes of a run, as this one sees them; ``errors`` says who reports one."""

    group: Group

    def __init__(self, info: RankInfo, group: Group, errors: Errors | None = None):
        super().__init__(info, group)
        self.errors, self._note = errors or Errors(), FolderNote()

    def share_threads(self, asked: int) -> None:
        """Give this process its share of the cores, or the threads ``asked`` for.

        ``torchrun`` says one thread; Slurm may bind each process to cores that it need not share.
        """
        runtime.set_threads(asked)
        found = self.group.gather([platform.node(), _cores()])  # What others ask for is not known.
        there = self.info.local_size
        if asked or there == 1:
            return
        machine, own = found[self.group.rank]
        cores = [each for name, each in found if name == machine]
        sharers = there
        # Machines and containers may have equal names, or each process a name of its own.
        if len(cores) == there and own:
            sharers = sum(not each or not set(own).isdisjoint(each) for each in cores)
        share = runtime.num_threads() // sharers
        limit = core_limit()  # A limit of time holds for all of them together.
        runtime.set_threads(max(min(share, share if limit is None else limit // there), 1))

    def check_settings(self, config: DictConfig) -> None:
        """Raise ValueError, or TypeError for a loss, for a setting that needs a single process."""
        check_loss_of_group(build_loss(config), self.group)
        sizes = config.network.hidden_active
        first, *others = sizes if OmegaConf.is_list(sizes) and sizes else [None]
        how = ""
        if first is not None:
            how = "begin it with null: the first layer computes all its neurons"
        elif config.sampler.get("proposer") is not None and any(n is not None for n in others):
            how = "set sampler=uniform: hidden neurons can be drawn, and not looked up"
        if how:
            raise ValueError(
                f"network.hidden_active={list(sizes)} needs a run of one process; on several, {how}"
            )

    def once_a_machine(self, work: Callable[[], _T]) -> _T:
        """The result of ``work``, of one process of each machine first: others find its files."""
        found = [work()] if self.info.local_rank == 0 else []
        self.group.patient.barrier()
        return found[0] if found else work()

    def check_same(self, config: DictConfig, data: SparseDataset) -> None:
        """Raise ValueError unless all processes have the same settings, data and packages.

        What may only round otherwise is a warning.
        """
        versions = runtime.versions()
        own = {f"the version of {name}": versions[name] for name in _COMPUTING}
        own |= {key: str(value) for key, value in leaves(as_dict(config)).items() if key not in OWN}
        for name, split in (("training", data.train), ("test", data.test)):
            own[f"the number of {name} rows"] = f"{len(split):,}"
            own[f"the checksum of the {name} rows"] = fingerprint(split)
        group = self.group.patient  # They have read all data.
        for said in _differences(group.gather(own)):
            raise ValueError(
                f"the processes of a run must agree, but {said}: start all of them with the same "
                "words, the same data and the same packages"
            )
        for said in _differences(
            group.gather(_arithmetic(find_rank_device(config.runtime.device, self.info)))
        ):
            log(
                f"warning: {said}: sums may be rounded in other ways, and weights that all ranks "
                "keep may drift apart"
            )
        size = self.group.size
        for name, number in (("labels", data.num_labels), ("features", data.num_features)):
            if size > number:
                raise ValueError(
                    f"{size} processes cannot share {number} {name}: start at most {number}"
                )

    def network_maker(
        self, seed: int, counts: dict[str, np.ndarray]
    ) -> Callable[..., ShardedNetwork]:
        """See `slide.config.ranks.Ranks.network_maker`."""
        return partial(ShardedNetwork, group=self.group, seed=seed, **counts)

    def counts(self, data: SparseDataset) -> dict[str, np.ndarray]:
        """See `slide.config.ranks.Ranks.counts`."""
        split = data.train
        return {
            "feature_counts": np.bincount(split.features.indices, minlength=data.num_features),
            "label_counts": np.bincount(split.labels.indices, minlength=data.num_labels),
        }

    def share_folder(self, make: Callable[[], Path], new: bool = False) -> Path:
        """See `slide.config.ranks.Ranks.share_folder`."""
        said = []
        if self.group.is_main_process:
            try:
                made = make()
                if new:
                    self._note.write(made)
                said = [str(made), ""]
            except (ValueError, OSError) as error:  # All end with this error.
                said = ["", str(error)]
        name, wrong = self.group.patient.broadcast(said)  # They draw first weights before.
        if wrong:
            raise ValueError(wrong)
        folder = Path(name)
        file = folder / self.group.broadcast(f"shared-{uuid4().hex}.tmp")
        if self.group.is_main_process:
            for left in folder.glob("shared-*.tmp"):  # By a process that was killed here.
                left.unlink(missing_ok=True)
            file.touch()
        try:
            self.group.barrier()
            seen = self.group.gather(comes_in_sight(file))
        finally:
            if self.group.is_main_process:
                file.unlink()
        if blind := [str(rank) for rank, there in enumerate(seen) if not there]:
            raise ValueError(
                f"rank{'s' * (len(blind) > 1)} {', '.join(blind)} cannot see what rank 0 writes "
                f"into {folder}: the folder of a run must be on a disk that all machines share; "
                "name one by run_dir="
            )
        return folder

    def note(self, place: Path, words: Sequence[str]) -> "WrittenNote":
        """See `WrittenNote`."""
        note = self._note = WrittenNote(self, place, words)
        return note

    def restarted(
        self, composed: DictConfig, overrides: Sequence[str], note: FolderNote
    ) -> tuple[DictConfig, Sequence[str]]:
        """See `slide.config.ranks.Ranks.restarted`; ``torchrun`` starts processes again."""
        if composed.resume is not None:
            return composed, overrides
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if not max(self.group.gather(int(restarts) if restarts.isdecimal() else 0)):
            note.forget()
            return composed, overrides
        folder = note.found()
        if not self.group.broadcast(folder is not None and (folder / CONFIG).exists()):
            return composed, overrides
        own = ",".join(foreign_targets(composed))  # The same command line has named them.
        again = [f"resume={folder}", f"allow_targets=[{own}]"]
        again += [word for word in overrides if override_key(word) in OWN]
        return read_config(asked_for(again)), again


def _arithmetic(device: torch.device) -> dict[str, str]:
    """What else a process may round otherwise by: packages, processor and threads."""
    found = {
        f"the version of {name}": each
        for name, each in runtime.versions().items()
        if name not in _COMPUTING
    }
    if device.type == "cuda":
        found["the GPU"] = torch.cuda.get_device_name(device)
    known = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "unknown")()
    known += " with bfloat16" if has_bfloat16() else ""
    threads = str(runtime.openmp_threads())
    return {**found, "the instruction set": known, "the number of threads": threads}


def _differences(found: list[dict[str, str]]) -> Iterator[str]:
    """What another rank has otherwise than the first one, each name once."""
    told: set[str] = set()
    for rank, other in enumerate(found):
        # Settings that others follow from have the shortest names.
        for key in sorted({**found[0], **other}, key=lambda key: key.count(".")):
            here, there = found[0].get(key, "not set"), other.get(key, "not set")
            if here != there and key not in told:
                told.add(key)
                yield f"{key} is {here} on rank 0 and {there} on rank {rank}"


def _cores() -> list[int]:
    """The cores that this process is bound to; empty: the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class WrittenNote(FolderNote):
    """A file that tells processes which are started again where the folder of their run is.

    A digest of the words and of what ``torchrun`` says of the run names it.
    """

    def __init__(self, ranks: Ranks, place: Path, words: Sequence[str]):
        self.ranks = ranks
        told = [word for word in words if override_key(word) not in OWN]
        names = [os.environ.get("TORCHELASTIC_RUN_ID", "none")]
        # Without --rdzv-id all runs have one name; torchrun keeps the port of its own store.
        if names == ["none"] and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            names += [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")]
        of_run = json.dumps([told, *names]).encode()
        self.path = place / f".torchrun-{hashlib.sha256(of_run).hexdigest()[:16]}"

    def write(self, folder: Path) -> None:
        """Note the folder of the run; the first process does it."""
        if self.ranks.group.is_main_process:
            write_json(self.path, {"folder": str(folder)})

    def found(self) -> Path | None:
        """The folder that was noted before these processes were started again, or None."""
        said = self.ranks.group.broadcast(
            self._said() if self.ranks.group.is_main_process else None
        )
        return None if said is None else Path(said)

    def forget(self, folder: Path | None = None) -> None:
        """Remove the note, because the run has ended; one of another folder stays. None: any."""
        if self.ranks.group.is_main_process:
            said = self._said()
            if said is not None and (folder is None or Path(said) == folder):
                self.path.unlink(missing_ok=True)

    def _said(self) -> str | None:
        return json.loads(read_text(self.path))["folder"] if self.path.exists() else None
