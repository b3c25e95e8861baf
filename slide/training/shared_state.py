"""The state of a network whose rows several processes share, from the parts that they wrote.

A part is what one process wrote: the rows that it owned, and everything that all processes have in
common. It can be read by any number of processes: each takes its rows from the parts that hold
them. What belongs to one process alone, the index of its sampler, is only of use to a process that
owns the same rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from slide.distributed.network import plain_name

# The layers whose rows are shared, and which of their parameters have a row for each of them.
_OF_ROWS = {"first": ("weight",), "output": ("weight", "bias")}
_EXTRA = "output._extra_state"
# What only a network of several processes has: the number of its draws for dropout.
_DRAWS = "draws"


class StatePart(NamedTuple):
    """What one process wrote, or what one that has all rows did.

    Attributes:
        rows: ids of its rows by layer, rising int64; None: all rows.
        network: the ``state_dict`` of its network.
        optimizer: the ``state_dict`` of its optimizer.
    """

    rows: dict[str, np.ndarray] | None
    network: dict[str, Any]
    optimizer: dict[str, Any]


def own_rows(network: Any) -> dict[str, np.ndarray] | None:
    """The ids of the rows that this process owns, by layer; None: all of them."""
    if not hasattr(network.output, "shares"):
        return None
    return {name: getattr(network, name).shares.ids.astype(np.int64) for name in _OF_ROWS}


def network_state(network: nn.Module) -> dict[str, Any]:
    """The ``state_dict`` of a network, with the names that it has on any number of processes."""
    return {plain_name(name): value for name, value in network.state_dict().items()}


def load_network_state(network: nn.Module, state: Mapping[str, Any]) -> None:
    """Load what `network_state` gave on any number of processes, for the rows of this one."""
    found, own = dict(state), network.state_dict()
    if _DRAWS in own:
        found.setdefault(_DRAWS, own[_DRAWS])
    elif _DRAWS in found:
        del found[_DRAWS]
    names = {plain_name(name): name for name in own}
    network.load_state_dict({names.get(name, name): value for name, value in found.items()})


def parameter_names(network: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of the parameters of a network, in the order of its optimizer."""
    names = {id(each): plain_name(name) for name, each in network.named_parameters()}
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

    Args:
        parts: of all processes that wrote the checkpoint.
        rows: ids of the rows, by layer; None: all.
        sizes: number of all rows, by layer.
        parameters: names of the parameters in the order of the optimizers, which is the same for
            all parts.

    Raises:
        KeyError: if a row or a parameter is in none of the parts.
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
            places, at = np.arange(len(wanted)), wanted
        else:
            _, places, at = np.intersect1d(
                wanted, part.rows[layer], assume_unique=True, return_indices=True
            )
        missing -= len(places)
        if tensor is not None:
            out[torch.from_numpy(places)] = tensor[torch.from_numpy(at)]
    if missing:
        raise KeyError(f"{missing} rows of the layer {layer}")
    return out


def _layer_of(name: str) -> str | None:
    """The layer whose rows a parameter has; None: it has others, which all processes have."""
    layer, _, rest = name.partition(".")
    return layer if rest in _OF_ROWS.get(layer, ()) else None
