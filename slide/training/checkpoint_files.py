"""Folders of checkpoints: how they are called, written by one or several processes, and read.

Of several processes each writes a file: the rows of the weights that it owns, and what all of them
have in common. Any number of processes reads them: each takes its rows from the parts that hold
them. What belongs to one process alone, the index of its sampler, is only of use to a process that
owns the same rows.
"""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from slide.distributed import Group
from slide.distributed.sharded_network import single_name
from slide.nn import SlideNetwork
from slide.nn.sampled_linear import SampledLayer
from slide.runtime import versions
from slide.utils.progress_bar import log
from slide.utils.run_folders import comes_in_sight
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
CHECKPOINT = FolderKind("checkpoint", "checkpoint.json", format=1)
# Numbers rise with each checkpoint; steps need not, if a folder is used again.
_NAME, _UNFINISHED = re.compile(r"(\d+)-step-\d+"), ".tmp"
# What a state raises that is none of this run.
FAULTS = (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError)
# What slide wrote before there were folders of checkpoints.
_OLD = "checkpoint.pt"
_FILE = "rank-{}"
# The layers whose rows are shared, and which of their parameters have a row for each of them.
_OF_ROWS = {"first": ("weight",), "output": ("weight", "bias")}
_EXTRA = "output._extra_state"
# What only a network of several processes has: the number of its draws for dropout.
_DRAWS = "draws"


def find_checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints in the folder of a run, the newest one last."""
    found = [path for path in (run / CHECKPOINTS).glob("*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_number)


def last_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint in the folder of a run; None: there is none."""
    found = find_checkpoints(run)
    return found[-1] if found else None


def step_of(folder: Path) -> int:
    """The number of steps after which a checkpoint was written, as its name says."""
    return int(folder.name.rpartition("-")[2])


def next_checkpoint(run: Path, step: int) -> Path:
    """Where the next checkpoint belongs, which is one after ``step`` steps."""
    last = last_checkpoint(run)
    return run / CHECKPOINTS / f"{_number(last) + 1 if last else 1}-step-{step}"


def unfinished(folder: Path) -> Path:
    """Where a checkpoint is written before it gets its name ``folder``."""
    return folder.with_name(folder.name + _UNFINISHED)


def clear_unfinished(run: Path) -> None:
    """Remove what killed processes have left."""
    for path in (run / CHECKPOINTS).glob(f"*{_UNFINISHED}"):
        shutil.rmtree(path, ignore_errors=True)


def remove_older(run: Path, keep: int) -> None:
    """Remove all checkpoints but the newest ``keep``."""
    for path in find_checkpoints(run)[:-keep]:
        # Under another name first: what a crash leaves is no checkpoint without its files.
        path.rename(unfinished(path))
        shutil.rmtree(unfinished(path), ignore_errors=True)


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


class StatePart(NamedTuple):
    """The states of the network and optimizer of one process, and its rows by layer; None: all."""

    rows: dict[str, np.ndarray] | None
    network: dict[str, Any]
    optimizer: dict[str, Any]


def write_state(
    kind: FolderKind,
    group: Group,
    folder: Path,
    content: Mapping[str, Any],
    values: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Tensor]],
) -> None:
    """Write a state; of several processes each its values and tensors, the first one the list.

    If one process cannot write, all raise OSError. ``content`` are JSON values beside the state.
    """
    if group.size == 1:
        write_folder(kind, folder, {**content, "state": values}, files)
        return
    group = group.patient  # One may write much longer than another.
    tensors = {name: each for part in files.values() for name, each in part.items()}
    _raise_together(group, _tried(lambda: folder.mkdir(parents=True, exist_ok=True)))
    own: list[Written] = []
    said = _tried(lambda: own.append(write_file(folder, _FILE.format(group.rank), tensors)))
    _raise_together(group, said)
    written = [Written(*each) for each in group.gather(list(own[0]))]
    parts = group.gather(dict(values))
    if group.is_main_process:
        said = _tried(lambda: write_list(kind, folder, {**content, "parts": parts}, written))
    _raise_together(group, said)


def _tried(work: Callable[[], object]) -> str:
    """Do something; returns the system's error, or an empty text."""
    try:
        work()
    except OSError as error:
        return str(error)
    return ""


def _raise_together(group: Group, said: str) -> None:
    for rank, each in enumerate(group.gather(said)):
        if each:
            raise OSError(f"rank {rank}: {each}")


def newest_of_first(run: Path, group: Group) -> Path | None:
    """The newest checkpoint that the first process sees, on all; None: there is none.

    Network file systems may show the others an older list of the folder. They wait for this one.
    All raise ValueError if there is only a checkpoint of an earlier format, or one never sees it.
    """
    last = last_checkpoint(run) if group.is_main_process else None
    old = group.is_main_process and last is None and (run / _OLD).exists()
    name, old = group.broadcast(["" if last is None else last.name, old])
    if old:
        raise ValueError(
            f"{run / _OLD} is a checkpoint of an earlier slide, which this one does not read: go "
            "on with that one, or start a new run"
        )
    if not name:
        return None
    folder = run / CHECKPOINTS / name
    seen = group.gather(comes_in_sight(folder / CHECKPOINT.list_file) if group.rank else True)
    if not all(seen):
        raise ValueError(
            f"rank {seen.index(False)} cannot see {folder}, from which rank 0 goes on: the folder "
            "of a run must be on a disk that all machines share"
        )
    return folder


def read_states(
    folder: Path, facts: Mapping[str, Any] | None = None, group: Group | None = None
) -> list[dict[str, Any]]:
    """The states in a checkpoint, one of each process that wrote it; tensors are memory maps.

    What is not looked at is not read, but for its hash, and each file is hashed by one process.
    Raises ValueError if a file is not the one that was written, or a fact differs from the run's.
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
            raise ValueError(f"{folder} is of another run: its {name} is {found[name]}, not {own}")
    if facts is not None:
        _warn_of_versions(folder, content.get("versions", {}))
    return states


def _warn_of_versions(folder: Path, wrote: Mapping[str, str]) -> None:
    others = [
        f"{name} {wrote[name]}, and not {own}"
        for name, own in versions().items()
        if wrote.get(name, own) != own
    ]
    if others:
        log(
            f"warning: {folder} was written by {'; '.join(others)}: the run goes on, but numbers "
            "may be rounded in another way than in a run without a break"
        )


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
    if "parts" in content:
        return [
            join_state(part, read_tensors(folder, _FILE.format(rank)))
            for rank, part in enumerate(content["parts"])
        ]
    names = [Path(name).stem for name in content["files"]]
    tensors = {n: each for name in names for n, each in read_tensors(folder, name).items()}
    return [join_state(content["state"], tensors)]


def state_for(
    states: list[dict[str, Any]],
    network: SlideNetwork,
    optimizer: torch.optim.Optimizer | None = None,
) -> dict[str, Any]:
    """The state of the process that had the rows of this one; else it is put together.

    Raises KeyError if a row or a parameter is in none of the states from `joined_parts`.
    """
    parts, rows = [part_of(state) for state in states], own_rows(network)
    for state, part in zip(states, parts, strict=True):
        if same_rows(part, rows):
            return state
    sizes = {"first": network.first.in_features, "output": network.output.out_features}
    names = [] if optimizer is None else parameter_names(network, optimizer)
    own_network, own_optimizer = assembled(parts, rows, sizes, names)
    return {**states[0], "network": own_network, "optimizer": own_optimizer}


def part_of(state: Mapping[str, Any]) -> StatePart:
    """The rows in the state of one process, and the states of its network and optimizer."""
    rows = state.get("rows")
    if rows is not None:
        rows = {name: ids.numpy() for name, ids in rows.items()}
    return StatePart(rows, state["network"], state.get("optimizer", {"state": {}}))


def own_rows(network: Any) -> dict[str, np.ndarray] | None:
    """The ids of the rows that this process owns, by layer; None: all of them."""
    if not hasattr(network.output, "shares"):
        return None
    return {name: getattr(network, name).shares.ids.astype(np.int64) for name in _OF_ROWS}


def network_state(network: nn.Module) -> dict[str, Any]:
    """Weights and samplers (``<layer>._extra_state``), with names for any number of processes."""
    return {single_name(name): value for name, value in _named_state(network).items()}


def _named_state(network: nn.Module) -> dict[str, Any]:
    samplers = {
        f"{name}._extra_state": layer.sampler_state()
        for name, layer in network.named_modules()
        if isinstance(layer, SampledLayer)
    }
    return {**network.state_dict(), **samplers}


def network_files(network: Any) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """`network_state` and the rows of this process, as values and as tensors by file.

    The file ``network`` is as in the folder of a model.
    """
    values, tensors = split_state(network_state(network), "")
    found = {"network": values}
    weights = {single_name(name) for name, _ in network.named_parameters()}
    files: dict[str, dict[str, Tensor]] = {"network": {}, "samplers": {}}
    for name, tensor in tensors.items():
        files["network" if name in weights else "samplers"][name] = tensor
    if (rows := own_rows(network)) is not None:
        ids = {name: torch.from_numpy(each) for name, each in rows.items()}
        found["rows"], files["rows"] = split_state(ids, "rows")
    return found, {name: part for name, part in files.items() if part}


def load_network_state(network: nn.Module, state: Mapping[str, Any]) -> None:
    """Load what `network_state` gave on any number of processes, for the rows of this one."""
    found, own = dict(state), _named_state(network)
    if _DRAWS in own:
        found.setdefault(_DRAWS, own[_DRAWS])
    elif _DRAWS in found:
        del found[_DRAWS]
    names = {single_name(name): name for name in own}
    network.load_state_dict({names.get(name, name): value for name, value in found.items()})


def parameter_names(network: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of the parameters of a network, in the order of its optimizer."""
    names = {id(each): single_name(name) for name, each in network.named_parameters()}
    return [names[id(each)] for group in optimizer.param_groups for each in group["params"]]


def same_rows(one: StatePart, rows: Mapping[str, np.ndarray] | None) -> bool:
    """Whether a part is of a process that owned these rows."""
    if one.rows is None or rows is None:
        return one.rows is None and rows is None
    return all(np.array_equal(one.rows[name], rows[name]) for name in _OF_ROWS)


def assembled(
    parts: Sequence[StatePart],
    rows: Mapping[str, np.ndarray] | None,
    sizes: Mapping[str, int],
    parameters: Sequence[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of a network and its optimizer for a process that owns these rows.

    ``rows`` are ids by layer (None: all), ``sizes`` the numbers of all rows by layer, and
    ``parameters`` the names in the order of the optimizers. A missing row raises KeyError.
    """
    own = rows or {name: np.arange(size) for name, size in sizes.items()}
    network: dict[str, Any] = {}
    for name, value in parts[0].network.items():
        layer = _layer_of(name)
        if layer is not None:
            network[name] = _taken(parts, own, layer, [part.network[name] for part in parts])
        elif name == _EXTRA:  # The index of a sampler is over rows that have other owners now.
            network[name] = {**value, "proposer": {}} if "proposer" in value else value
        elif name != "first._extra_state":  # A layer of shared rows has none, and needs none.
            network[name] = value
    optimizer = dict(parts[0].optimizer)
    optimizer["state"] = {}
    for number, name in enumerate(parameters):
        states = [part.optimizer["state"].get(number) for part in parts]
        if any(states):
            optimizer["state"][number] = _moments(parts, own, _layer_of(name), states)
    return network, optimizer


def _moments(
    parts: Sequence[StatePart],
    own: Mapping[str, np.ndarray],
    layer: str | None,
    states: Sequence[dict[str, Any] | None],
) -> dict[str, Any]:
    """The state of one parameter; a part without one has had no gradient yet."""
    known = next(state for state in states if state)
    found = dict(known)
    found["step"] = max(state["step"] for state in states if state)
    if layer is not None:
        for name, value in known.items():
            if isinstance(value, Tensor) and value.ndim:
                each = [None if state is None else state[name] for state in states]
                found[name] = _taken(parts, own, layer, each)
    return found


def _taken(
    parts: Sequence[StatePart],
    own: Mapping[str, np.ndarray],
    layer: str,
    tensors: Sequence[Tensor | None],
) -> Tensor:
    """The rows of a tensor that this process owns, from the parts that hold them."""
    wanted = own[layer]
    like = next(tensor for tensor in tensors if tensor is not None)
    out, missing = like.new_zeros(len(wanted), *like.shape[1:]), len(wanted)
    for part, tensor in zip(parts, tensors, strict=True):
        if part.rows is None:
            positions, at = np.arange(len(wanted)), wanted
        else:
            _, positions, at = np.intersect1d(
                wanted, part.rows[layer], assume_unique=True, return_indices=True
            )
        missing -= len(positions)
        if tensor is not None:
            out[torch.from_numpy(positions)] = tensor[torch.from_numpy(at)]
    if missing:
        raise KeyError(f"{missing} rows of the layer {layer}")
    return out


def _layer_of(name: str) -> str | None:
    """The layer whose rows a parameter has; None: it has others, which all processes have."""
    layer, _, rest = name.partition(".")
    return layer if rest in _OF_ROWS.get(layer, ()) else None
