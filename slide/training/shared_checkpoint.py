"""Checkpoints that several processes write together, a file each, and that any number reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slide.distributed import Group
from slide.nn import SlideNetwork
from slide.runtime import versions
from slide.training.checkpoint_folders import (
    CHECKPOINT,
    CHECKPOINTS,
    check_old_checkpoint,
    find_checkpoints,
    last_checkpoint,
)
from slide.training.shared_state import (
    StatePart,
    assembled,
    own_rows,
    parameter_names,
    same_rows,
)
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
    write_list,
)

_FILE = "rank-{}"


def write_parts(
    kind: FolderKind,
    group: Group,
    folder: Path,
    content: Mapping[str, Any],
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Write a folder together: each process its file, and the first one the list.

    Args:
        kind: what the folder holds, such as a checkpoint.
        group: the processes; all of them call this.
        folder: where it is written; all of them see it.
        content: JSON values of the list, beside the parts.
        values: JSON values of this process.
        tensors: of this process, by name.

    Raises:
        OSError: if one of them could not write, on all of them.
    """
    group = group.patient  # One may write much longer than another.
    _raise_together(group, _tried(lambda: folder.mkdir(parents=True, exist_ok=True)))
    own: list[Written] = []
    said = _tried(lambda: own.append(write_file(folder, _FILE.format(group.rank), tensors)))
    _raise_together(group, said)
    files = [Written(*each) for each in group.gather(list(own[0]))]
    parts = group.gather(dict(values))
    if group.rank == 0:
        said = _tried(lambda: write_list(kind, folder, {**content, "parts": parts}, files))
    _raise_together(group, said)


def _tried(work: Any) -> str:
    """Do something; returns what the system said against it."""
    try:
        work()
    except OSError as error:
        return str(error)
    return ""


def _raise_together(group: Group, said: str) -> None:
    """Raise OSError on all processes if one of them has something to say."""
    for rank, each in enumerate(group.gather(said)):
        if each:
            raise OSError(f"rank {rank}: {each}")


def newest_of_first(run: Path, group: Group) -> Path | None:
    """The newest checkpoint that the first process sees, on all; None: there is none.

    Network file systems may show the others an older list of the folder. They wait for this one.

    Args:
        run: folder of the run.
        group: the processes that read it; all of them call this.

    Raises:
        ValueError: on all processes, if there is only a checkpoint of an earlier format, or if one
            of them does not come to see it.
    """
    name, wrong = "", ""
    if group.rank == 0:
        try:
            check_old_checkpoint(run)
            last = last_checkpoint(run)
            name = "" if last is None else last.name
        except ValueError as error:
            wrong = str(error)
    name, wrong = group.broadcast([name, wrong])
    if wrong:
        raise ValueError(wrong)
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

    Args:
        folder: folder of the checkpoint.
        facts: what it must agree on with the present run; None: nothing.
        group: the processes that read it; all of them call this. None: this one alone.

    Raises:
        ValueError: if a file is not the one that was written, or a fact differs.
    """
    try:
        content = read_checked(CHECKPOINT, folder, group or Group.alone())
        found, states = content["run"], joined_parts(folder, content)
    except (ValueError, KeyError, OSError) as error:
        before = [path for path in find_checkpoints(folder.parents[1]) if path != folder]
        advice = f"; without {folder} the run goes on from {before[-1]}" if before else ""
        raise ValueError(f"{error}{advice}") from error
    for name, own in (facts or {}).items():
        if name not in found:
            raise ValueError(
                f"{folder} is of an older version of slide, which did not note its {name}: go on "
                "with that version, or begin a new run"
            )
        if found[name] != own:
            raise ValueError(f"{folder} is of another run: its {name} is {found[name]}, not {own}")
    if facts is not None:
        _tell_versions(folder, content.get("versions", {}))
    return states


def _tell_versions(folder: Path, wrote: Mapping[str, str]) -> None:
    """Say which versions differ from those that wrote a checkpoint."""
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
    """The list of a folder, whose files the processes of a group check together.

    Raises:
        ValueError: if a file is missing or is not the one that was written, on all of them.
    """
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

    Args:
        states: from `joined_parts`.
        network: of this process.
        optimizer: of this process; None: the states have none.

    Raises:
        KeyError: if a row or a parameter is in none of the states.
    """
    parts, rows = [part_of(state) for state in states], own_rows(network)
    for state, part in zip(states, parts, strict=True):
        if same_rows(part, rows):
            return state
    sizes = {"first": network.first.in_features, "output": network.output.out_features}
    names = [] if optimizer is None else parameter_names(network, optimizer)
    found = dict(zip(("network", "optimizer"), assembled(parts, rows, sizes, names), strict=True))
    return {**states[0], **found}


def packed_rows(network: SlideNetwork) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Which rows this process owns, for `write_parts`: values and tensors; empty: it has all."""
    rows = own_rows(network)
    if rows is None:
        return {}, {}
    values, tensors = split_state({n: torch.from_numpy(ids) for n, ids in rows.items()}, "rows")
    return {"rows": values}, tensors


def part_of(state: Mapping[str, Any]) -> StatePart:
    """The rows in the state of one process, and the states of its network and optimizer."""
    rows = state.get("rows")
    if rows is not None:
        rows = {name: ids.numpy() for name, ids in rows.items()}
    return StatePart(rows, state["network"], state.get("optimizer", {"state": {}}))
