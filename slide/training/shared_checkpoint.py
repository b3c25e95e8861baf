"""Checkpoints that several processes write together, a file each, and that any number reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from slide.distributed import Group
from slide.states import join_state
from slide.tensor_folder import Written, read_folder, read_tensors, write_file, write_list
from slide.training.checkpoint_folders import CHECKPOINT, find_checkpoints
from slide.training.shared_state import StatePart

_FILE = "rank-{}"


def write_parts(
    group: Group,
    folder: Path,
    content: Mapping[str, Any],
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Write a checkpoint together: each process its file, and the first one the list.

    Args:
        group: the processes; all of them call this.
        folder: where it is written; all of them see it.
        content: JSON values of the list, beside the parts.
        values: JSON values of this process.
        tensors: of this process, by name.

    Raises:
        OSError: if one of them could not write, on all of them.
    """
    _raise_together(group, _tried(lambda: folder.mkdir(parents=True, exist_ok=True)))
    own: list[Written] = []
    said = _tried(lambda: own.append(write_file(folder, _FILE.format(group.rank), tensors)))
    _raise_together(group, said)
    files = [Written(*each) for each in group.gather(list(own[0]))]
    parts = group.gather(dict(values))
    if group.rank == 0:
        said = _tried(lambda: write_list(CHECKPOINT, folder, {**content, "parts": parts}, files))
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


def read_states(folder: Path, facts: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The states in a checkpoint, one of each process that wrote it; tensors are memory maps.

    Args:
        folder: folder of the checkpoint.
        facts: what it must agree on with the present run; None: nothing.

    Raises:
        ValueError: if a file is not the one that was written, or a fact differs.
    """
    try:
        content = read_folder(CHECKPOINT, folder, verify=True)
        found, states = content["run"], _joined(folder, content)
    except (ValueError, KeyError, OSError) as error:
        before = [path for path in find_checkpoints(folder.parents[1]) if path != folder]
        advice = f"; without {folder} the run goes on from {before[-1]}" if before else ""
        raise ValueError(f"{error}{advice}") from error
    for name, own in (facts or {}).items():
        if found.get(name) != own:
            raise ValueError(
                f"{folder} is of another run: its {name} is {found.get(name)}, not {own}"
            )
    return states


def _joined(folder: Path, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "parts" in content:
        return [
            join_state(part, read_tensors(folder, _FILE.format(rank)))
            for rank, part in enumerate(content["parts"])
        ]
    names = [Path(name).stem for name in content["files"]]
    tensors = {n: each for name in names for n, each in read_tensors(folder, name).items()}
    return [join_state(content["state"], tensors)]


def part_of(state: Mapping[str, Any]) -> StatePart:
    """The rows in the state of one process, and the states of its network and optimizer."""
    rows = state.get("rows")
    if rows is not None:
        rows = {name: ids.numpy() for name, ids in rows.items()}
    return StatePart(rows, state["network"], state["optimizer"])
