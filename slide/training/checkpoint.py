"""Checkpoints of a run; of several processes each writes its rows, and any number reads them."""

import re
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slide.nn import SlideNetwork
from slide.nn.sampled_linear import SampledLayer
from slide.optim import RowSparseAdam
from slide.runtime import get_draws, set_draws, versions
from slide.training.group import Group
from slide.training.loop import check_weights
from slide.training.lr_schedules import AutoSchedule
from slide.training.monitor import Counters
from slide.utils.array_checks import Expected, Stored, check_arrays
from slide.utils.checks import DivergenceError, error_message, shortened
from slide.utils.files import sync_folder
from slide.utils.progress_bar import log
from slide.utils.run_folders import comes_in_sight, hold_folder, release_folder
from slide.utils.tensor_folder import (
    FolderKind,
    Written,
    check_files,
    join_state,
    read_folder,
    read_tensors,
    split_state,
    write_file,
    write_folder,
    write_list,
)

# The folder of checkpoints in the folder of a run.
CHECKPOINTS = "checkpoints"
CHECKPOINT = FolderKind("checkpoint", "checkpoint.json", format=2)
# Numbers rise with each checkpoint; steps need not, if a folder is used again.
_NAME, _UNFINISHED = re.compile(r"(\d+)-step-\d+"), ".tmp"
# What a state raises that is none of this run.
FAULTS = (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError)
_FILE = "rank-{}"
# The layers whose rows are shared, and which of their parameters have a row for each of them.
_OF_ROWS = {"first": ("weight",), "output": ("weight", "bias")}
_EXTRA = "output._extra_state"
# What only a network of several processes has: the number of its draws for dropout.
_DRAWS = "draws"

# Tensors by their file and name.
Files = dict[str, dict[str, Tensor]]


class Checkpoint:
    """The checkpoints of a run: network, samplers, optimizer, random state, schedule, counters.

    Learning rates follow from the number of steps. A checkpoint and the run that reads it must
    agree on ``facts``; the ``keep`` newest ones stay.
    """

    def __init__(
        self,
        run: Path,
        network: SlideNetwork,
        optimizer: RowSparseAdam,
        schedule: AutoSchedule | None = None,
        facts: Mapping[str, Any] | None = None,
        keep: int = 1,
        group: Group | None = None,
    ):
        self.run, self.network, self.facts, self.keep = run, network, dict(facts or {}), keep
        self.optimizer = optimizer
        self.group, self.closed = group or Group.alone(), False
        self._release: Callable[[], object] = bool  # Does nothing.
        if self.group.is_main_process:
            hold_folder(run)
            # Also where nobody closes this.
            self._release = weakref.finalize(self, release_folder, run)
        self._parts = {  # Besides network and counters: how to get the state, and to load it.
            "optimizer": (optimizer.state_dict, self._load_optimizer),
            "random": (get_draws, set_draws),
        }
        if schedule is not None:  # Checkpoints call it the plan.
            self._parts["plan"] = (schedule.state_dict, schedule.load_state_dict)
        self._writer: Thread | None = None
        self._error: BaseException | None = None
        self._written: Counters | None = None
        # Memory for copies, by the names of tensors. It is kept, because getting it from the system
        # may take longer than writing the files.
        self._room: dict[str, Tensor] = {}

    def found(self) -> bool:
        """Whether there is a checkpoint to read; all processes call this."""
        return newest_of_first(CHECKPOINT, self.run / CHECKPOINTS, self.group) is not None

    def last(self) -> Path | None:
        """The newest checkpoint; one that is being written is waited for. None: there is none."""
        if self._writer is not None:
            self._writer.join()
        return last_checkpoint(self.run)

    def write(self, counters: Counters) -> None:
        """Write a checkpoint, and remove too old ones."""
        if self._is_new(counters):
            self._room.clear()  # This comes last in a run.
            self._install(*self._packed(counters))
            self._written = replace(counters)

    def prepare(self) -> None:
        """Get the memory for the copies of `begin` in the background."""
        if self.group.size > 1:
            return
        self.wait()
        _, files = self._packed(Counters())

        def fill() -> None:
            for tensors in files.values():
                for name, tensor in tensors.items():
                    # Zeros would be promised by the system, and made when they are used.
                    self._room[name] = torch.empty_like(tensor, device="cpu").fill_(1)

        self._start(fill)

    def begin(self, counters: Counters) -> None:
        """Write a copy in the background, once the checkpoint before is written."""
        if not self._is_new(counters):
            return
        values, files = self._packed(counters)
        if self.group.size > 1:  # What the processes tell each other belongs to their main thread.
            self._install(values, files)
        else:
            for tensors in files.values():
                tensors.update({name: self._copied(name, each) for name, each in tensors.items()})
            self._start(lambda: self._install(values, files))
        self._written = replace(counters)

    def _copied(self, name: str, tensor: Tensor) -> Tensor:
        room = self._room.get(name)
        if room is None or (room.shape, room.dtype) != (tensor.shape, tensor.dtype):
            room = self._room[name] = torch.empty_like(tensor, device="cpu")
        return room.copy_(tensor)

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error

        # A daemon: a process that ends does not wait, and what is not complete is no checkpoint.
        self._writer = Thread(target=run, name="checkpoint", daemon=True)
        self._writer.start()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        error, self._error = self._error, None
        if error is not None:
            self._written = None
            raise error

    def check(self) -> None:
        """Raise the error of a checkpoint that `begin` could not write; it does not wait."""
        if self._error is not None:
            self.wait()

    def close(self) -> None:
        """As `wait`; other processes may have the folder then."""
        self.closed = True
        try:
            self.wait()
        finally:
            self._release()

    def read(self) -> Counters:
        """Load all parts of the newest checkpoint; returns the counters. All processes call it."""
        self.last()  # What is being written is waited for.
        folder = newest_of_first(CHECKPOINT, self.run / CHECKPOINTS, self.group)
        assert folder is not None
        states = read_states(folder, self.facts, self.group)
        try:
            state = state_for(states, self.network, self.optimizer)
            load_network_state(self.network, state["network"])
            for name, (_, load) in self._parts.items():
                load(state[name])
        except FAULTS as error:
            said = " ".join(error_message(error).split())
            raise ValueError(f"{folder} does not fit this run: {said}") from error
        stored = Stored(states[0], {}, str(folder / CHECKPOINT.list_file))
        for state in states:  # Of several processes each has written its own.
            stored.of(state, {}).exactly("step", step_of(folder))
        taken = {int: stored.count, float: stored.number}
        every = fields(Counters)
        return Counters(**{each.name: taken[type(each.default)](each.name) for each in every})

    def _load_optimizer(self, state: Mapping[str, Any]) -> None:
        """Load moments and steps; options come from the configuration."""
        own = self.optimizer.state_dict()["param_groups"]
        if [each["params"] for each in own] != [each["params"] for each in state["param_groups"]]:
            raise ValueError("its optimizer has other parameters")
        if not set(state["state"]) <= {each for group in own for each in group["params"]}:
            raise ValueError("its optimizer has a state of no parameter")
        self.optimizer.load_state_dict({**state, "param_groups": own})

    def _is_new(self, counters: Counters) -> bool:
        """Whether there is anything to write that was not written."""
        self.wait()
        said = None
        try:
            check_weights(self.network, counters.step, self.last)
        except DivergenceError as error:
            said = str(error)
        found = self.group.gather([said, self._written != counters])
        for wrong, _ in found:
            if wrong is not None:
                raise DivergenceError(wrong)
        return found[0][1]  # Of the first process: the seconds of the others may differ.

    def _packed(self, counters: Counters) -> tuple[dict[str, Any], Files]:
        values, files = network_files(self.network)
        for part, (get, _) in self._parts.items():
            values[part], tensors = split_state(get(), part)
            if tensors:
                files[part] = tensors
        return values | asdict(counters), files

    def _install(
        self, values: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        install(
            CHECKPOINT,
            self.group,
            self.run / CHECKPOINTS,
            step=values["step"],
            content={"run": self.facts},
            values=values,
            files=files,
            outdated=lambda found: found[: -self.keep],
        )


def install(
    kind: FolderKind,
    group: Group,
    parent: Path,
    step: int,
    content: Mapping[str, Any],
    values: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Tensor]],
    outdated: Callable[[list[Path]], list[Path]],
) -> None:
    """Write a numbered folder into ``parent``, complete or not at all; all processes call this.

    Then the ``outdated`` folders are removed, of all that there are, the new one last.
    """
    # The first process may remove old files for long, and one may write longer than another.
    group = group.patient
    if group.is_main_process:  # Before the others know the name: else it removes their files.
        clear_unfinished(parent)
    found = find_folders(parent)
    number = _number(found[-1]) + 1 if found else 1
    folder = parent / group.broadcast(f"{number}-step-{step}")
    try:
        write_state(kind, group, unfinished(folder), content, values, files)
        if group.is_main_process:
            unfinished(folder).rename(folder)
            sync_folder(parent)
            for path in outdated(find_folders(parent)):
                remove(path)
    except OSError as error:
        found = find_folders(parent)
        kept = f"{found[-1]} is kept" if found else f"there is no {kind.name} before it"
        raise OSError(f"cannot write the {kind.name} {folder}: {error}; {kept}") from error
    finally:
        if group.is_main_process:
            clear_unfinished(parent)
    group.barrier()


def newest_of_first(kind: FolderKind, parent: Path, group: Group) -> Path | None:
    """The newest folder that the first process sees; all others wait until they see it."""
    found = find_folders(parent) if group.is_main_process else []
    name = group.broadcast(found[-1].name if found else "")
    if not name:
        return None
    folder = parent / name
    seen = group.gather(group.is_main_process or comes_in_sight(folder / kind.list_file))
    if not all(seen):
        raise ValueError(
            f"rank {seen.index(False)} cannot see {folder}, from which rank 0 goes on: the "
            "folder of a run must be on a disk that all machines share"
        )
    return folder


def find_folders(parent: Path) -> list[Path]:
    """The complete folders that `install` has written, the newest one last."""
    found = [path for path in parent.glob("*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_number)


def find_checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints in the folder of a run, the newest one last."""
    return find_folders(run / CHECKPOINTS)


def last_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint in the folder of a run; None: there is none."""
    found = find_checkpoints(run)
    return found[-1] if found else None


def step_of(folder: Path) -> int:
    """The number of steps after which a checkpoint was written, as its name says."""
    return int(folder.name.rpartition("-")[2])


def unfinished(folder: Path) -> Path:
    """Where a folder is written before it gets its name."""
    return folder.with_name(folder.name + _UNFINISHED)


def remove(folder: Path) -> None:
    """Remove a complete folder, under another name: a crash must not leave one without files."""
    folder.rename(unfinished(folder))
    shutil.rmtree(unfinished(folder), ignore_errors=True)


def clear_unfinished(parent: Path) -> None:
    """Remove what killed processes have left."""
    for path in parent.glob(f"*{_UNFINISHED}"):
        shutil.rmtree(path, ignore_errors=True)


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def write_state(
    kind: FolderKind,
    group: Group,
    folder: Path,
    content: Mapping[str, Any],
    values: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Tensor]],
) -> None:
    """Write a state; of several processes each its own, the first one the list, or all raise."""
    if group.size == 1:
        _make(folder)
        write_folder(kind, folder, {**content, "state": values}, files)
        return
    group = group.patient  # One may write much longer than another.
    tensors = {name: each for part in files.values() for name, each in part.items()}
    _together(group, lambda: _make(folder))
    own = _together(group, lambda: write_file(folder, _FILE.format(group.rank), tensors))
    written = [Written(*each) for each in group.gather(list(own))]
    content = {**content, "parts": group.gather(dict(values))}
    _together(group, lambda: group.rank or write_list(kind, folder, content, written))


def _make(folder: Path) -> None:
    """Make a folder and the one that it is in, but not the folder of a run that was removed."""
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)


def _together(group: Group, work: Callable[[], Any]) -> Any:
    """Do something; if the system refuses it to one process, all raise OSError."""
    found, said = None, ""
    try:
        found = work()
    except OSError as error:
        said = str(error)
    for rank, each in enumerate(group.gather(said)):
        if each:
            raise OSError(f"rank {rank}: {each}")
    return found


def read_states(
    folder: Path, facts: Mapping[str, Any] | None = None, group: Group | None = None
) -> list[dict[str, Any]]:
    """The states in a checkpoint, one of each process that wrote it; tensors are memory maps.

    ValueError: a file is not the one that was written, or a fact differs from the run's.
    """
    try:
        content = read_checked(CHECKPOINT, folder, group or Group.alone())
        found, states = content["run"], joined_parts(folder, content)
    except (*FAULTS, OSError) as error:
        before = [path for path in find_checkpoints(folder.parents[1]) if path != folder]
        advice = f"; without {folder} the run goes on from {before[-1]}" if before else ""
        said = f"{error}" if f"{folder}" in f"{error}" else f"{folder} is damaged: {error!r}"
        raise ValueError(f"{said}{advice}") from error
    for name, own in (facts or {}).items():
        if name not in found:
            raise ValueError(
                f"{folder} is of an older version of slide, which did not note its {name}: go on "
                "with that version, or begin a new run"
            )
        if found[name] != own:
            said = shortened(found[name])
            raise ValueError(f"{folder} is of another run: its {name} is {said}, not {own}")
    wrote = content.get("versions", {})
    others = [
        f"{name} {shortened(wrote[name])}, and not {own}"
        for name, own in versions().items()
        if wrote.get(name, own) != own
    ]
    if others and facts is not None:
        log(
            f"warning: {folder} was written by {'; '.join(others)}: the run goes on, but numbers "
            "may be rounded in another way than in a run without a break"
        )
    return states


def read_checked(kind: FolderKind, folder: Path, group: Group) -> dict[str, Any]:
    """The list of a folder, whose files the processes check together; all raise ValueError."""
    content, said = {}, ""
    try:
        content = read_folder(kind, folder)
        # With as many processes as wrote it, each reads only the file that it wrote.
        check_files(kind, folder, content, list(content["files"])[group.rank :: group.size])
    except (ValueError, OSError) as error:
        said = str(error)
    for each in group.patient.gather(said):  # One may have read much more than another.
        if each:
            raise ValueError(each)
    return content


def joined_parts(folder: Path, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The states in a folder, one of each process that wrote it; tensors are memory maps."""
    stored = Stored(content, {}, f"{folder}")
    if "parts" in content:
        parts = stored.objects("parts")
        if not parts:
            raise ValueError(f"{folder} is damaged: parts must not be empty")
        return [
            join_state(part, read_tensors(folder, _FILE.format(rank)))
            for rank, part in enumerate(parts)
        ]
    names = [Path(name).stem for name in content["files"]]
    tensors = {n: each for name in names for n, each in read_tensors(folder, name).items()}
    return [join_state(stored.mapping("state"), tensors)]


def state_for(
    states: list[dict[str, Any]],
    network: SlideNetwork,
    optimizer: torch.optim.Optimizer | None = None,
) -> dict[str, Any]:
    """The state of the process that had the rows of this one; else it is put together."""
    rows = network.own_rows()
    for state in states:
        if same_rows(rows_in(state), rows):
            return state
    sizes = {"first": network.first.in_features, "output": network.output.out_features}
    known = {id(each): network.single_name(name) for name, each in network.named_parameters()}
    groups = [] if optimizer is None else optimizer.param_groups
    names = [known[id(each)] for group in groups for each in group["params"]]
    own_network, own_optimizer = assembled(states, rows, sizes, names)
    return {**states[0], "network": own_network, "optimizer": own_optimizer}


def rows_in(state: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
    """The ids of the rows in the state of a process, by layer; None: all of them."""
    return {name: np.asarray(ids) for name, ids in state.get("rows", {}).items()} or None


def network_state(network: SlideNetwork) -> dict[str, Any]:
    """Weights and samplers (``<layer>._extra_state``), with names for any number of processes."""
    return {network.single_name(name): value for name, value in _named_state(network).items()}


def _named_state(network: nn.Module) -> dict[str, Any]:
    samplers = {
        f"{name}._extra_state": layer.sampler_state()
        for name, layer in network.named_modules()
        if isinstance(layer, SampledLayer)
    }
    return {**network.state_dict(), **samplers}


def network_files(network: SlideNetwork) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """`network_state` and this process's rows, as values and as tensors by file, as in a model."""
    values, tensors = split_state(network_state(network), "")
    found = {"network": values}
    weights = {network.single_name(name) for name, _ in network.named_parameters()}
    files: dict[str, dict[str, Tensor]] = {"network": {}, "samplers": {}}
    for name, tensor in tensors.items():
        files["network" if name in weights else "samplers"][name] = tensor
    if (rows := network.own_rows()) is not None:
        ids = {name: torch.from_numpy(each) for name, each in rows.items()}
        found["rows"], files["rows"] = split_state(ids, "rows")
    return found, {name: part for name, part in files.items() if part}


def load_network_state(network: SlideNetwork, state: Mapping[str, Any]) -> None:
    """Load what `network_state` gave on any number of processes, for the rows of this one.

    ValueError: an array is missing, has another shape or type, or holds what is no number.
    """
    found, own = dict(state), _named_state(network)
    names, expected = {network.single_name(name): name for name in own}, {}
    for name, key in names.items():
        if isinstance(each := own[key], Tensor):
            kind = str(each.dtype).removeprefix("torch.")
            expected[name] = Expected(tuple(each.shape), kind)
    if _DRAWS in own:  # Several processes have them, and one has none.
        found.setdefault(_DRAWS, own[_DRAWS])
    else:
        found.pop(_DRAWS, None)
    check_arrays("its network", found, expected)
    network.load_state_dict({names.get(name, name): value for name, value in found.items()})


def same_rows(one: Mapping[str, np.ndarray] | None, other: Mapping[str, np.ndarray] | None) -> bool:
    """Whether two processes own the same rows."""
    if one is None or other is None:
        return one is other
    return all(np.array_equal(one[name], other[name]) for name in _OF_ROWS)


def assembled(
    parts: Sequence[Mapping[str, Any]],
    rows: Mapping[str, np.ndarray] | None,
    sizes: Mapping[str, int],
    parameters: Sequence[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of a network and its optimizer for a process that owns these rows; None: all."""
    own = rows or {name: np.arange(size) for name, size in sizes.items()}
    network: dict[str, Any] = {}
    for name, value in parts[0]["network"].items():
        layer = _layer_of(name)
        if layer is not None:
            network[name] = _taken(parts, own, layer, [part["network"][name] for part in parts])
        elif name == _EXTRA:  # The index of a sampler is over rows that have other owners now.
            network[name] = {**value, "proposer": {}} if "proposer" in value else value
        elif name != "first._extra_state":  # A layer of shared rows has none, and needs none.
            network[name] = value
    optimizers = [part.get("optimizer", {"state": {}}) for part in parts]
    moments: dict[int, dict[str, Any]] = {}
    for number, name in enumerate(parameters):
        # A part without a state has had no gradient of the parameter yet.
        states = [optimizer["state"].get(number) for optimizer in optimizers]
        if not any(states):
            continue
        known, layer = next(state for state in states if state), _layer_of(name)
        found = {**known, "step": max(state["step"] for state in states if state)}
        for key, value in known.items():
            if layer is not None and isinstance(value, Tensor) and value.ndim:
                each = [None if state is None else state[key] for state in states]
                found[key] = _taken(parts, own, layer, each)
        moments[number] = found
    return network, {**optimizers[0], "state": moments}


def _taken(
    parts: Sequence[Mapping[str, Any]],
    own: Mapping[str, np.ndarray],
    layer: str,
    tensors: Sequence[Tensor | None],
) -> Tensor:
    """The rows of a tensor that this process owns, from the parts that hold them."""
    wanted = own[layer]
    like = next(tensor for tensor in tensors if tensor is not None)
    out, found = like.new_zeros(len(wanted), *like.shape[1:]), np.zeros(len(wanted), np.int64)
    for part, tensor in zip(parts, tensors, strict=True):
        if (rows := rows_in(part)) is None:
            positions, at = np.arange(len(wanted)), wanted
        else:
            _, positions, at = np.intersect1d(wanted, rows[layer], return_indices=True)
        found[positions] += 1
        if tensor is not None:
            out[torch.from_numpy(positions)] = tensor[torch.from_numpy(at)]
    if wrong := np.count_nonzero(found != 1):
        raise KeyError(f"{wrong} rows of the layer {layer}")
    return out


def _layer_of(name: str) -> str | None:
    """The layer whose rows a parameter has; None: it has others, which all processes have."""
    layer, _, rest = name.partition(".")
    return layer if rest in _OF_ROWS.get(layer, ()) else None
