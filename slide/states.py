"""Nested states, such as ``state_dict`` returns, as JSON values and tensors."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

# Marks in JSON objects: what stands for a tensor, a tuple, and a dict with keys that are no text.
_TENSOR, _TUPLE, _ITEMS = "tensor:", "tuple:", "items:"
_MARKS = (_TENSOR, _TUPLE, _ITEMS)


def split_state(state: Any, name: str = "state") -> tuple[Any, dict[str, Tensor]]:
    """Split a state into JSON values and tensors.

    Args:
        state: nested dicts, lists and tuples of tensors, numbers, texts, bools and None.
        name: what tensors are called; a tensor within is called ``<name>.<place>``.

    Returns:
        The JSON values, in which names stand for tensors, and the tensors by name.

    Raises:
        TypeError: for another object; the message says where it is.

    Example:
        >>> import torch
        >>> from slide.states import split_state, join_state
        >>> values, tensors = split_state({"step": 3, "weight": {0: torch.ones(2)}})
        >>> sorted(tensors)
        ['state.weight.0']
        >>> join_state(values, tensors)
        {'step': 3, 'weight': {0: tensor([1., 1.])}}
    """
    tensors: dict[str, Tensor] = {}
    return _packed(state, name, tensors), tensors


def join_state(values: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `split_state` divided.

    Raises:
        KeyError: if a tensor is missing.
    """
    if isinstance(values, list):
        return [join_state(value, tensors) for value in values]
    if not isinstance(values, dict):
        return values
    if _TENSOR in values:
        return tensors[values[_TENSOR]]
    if _TUPLE in values:
        return tuple(join_state(value, tensors) for value in values[_TUPLE])
    if _ITEMS in values:
        return {
            join_state(key, tensors): join_state(value, tensors) for key, value in values[_ITEMS]
        }
    return {key: join_state(value, tensors) for key, value in values.items()}


def _packed(state: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(state, Tensor):
        while name in tensors:  # {"a.b": ..., "a": {"b": ...}} has one name twice.
            name += "'"
        tensors[name] = state
        return {_TENSOR: name}
    if isinstance(state, Mapping):
        pairs = [(key, _packed(value, f"{name}.{key}", tensors)) for key, value in state.items()]
        if all(isinstance(key, str) and key not in _MARKS for key, _ in pairs):
            return dict(pairs)
        return {_ITEMS: [[_packed(key, name, tensors), value] for key, value in pairs]}
    if isinstance(state, list | tuple):
        found = [_packed(value, f"{name}.{i}", tensors) for i, value in enumerate(state)]
        return found if isinstance(state, list) else {_TUPLE: found}
    if state is None or isinstance(state, str | bool | int | float):
        return state
    raise TypeError(f"{name} is a {type(state).__name__}, which a checkpoint cannot hold")


def check_same_settings(state: Mapping[str, Any], own: Mapping[str, Any], kind: str) -> None:
    """Raise ValueError unless ``state["settings"]`` has the settings that an object has, ``own``.

    Args:
        state: of an object of some kind, or of another.
        own: the settings that must agree.
        kind: what the object is, such as "an LSHProposer".

    Example:
        >>> from slide.states import check_same_settings
        >>> check_same_settings({"settings": {"seed": 1}}, {"seed": 2}, "a proposer")
        Traceback (most recent call last):
        ValueError: seed was 1 where this state was saved, and is 2 here; they must agree
    """
    saved = state.get("settings", {})
    for name, value in own.items():
        if name not in saved:
            raise ValueError(f"this is no state of {kind}: its settings lack {name}")
        if saved[name] != value:
            raise ValueError(
                f"{name} was {saved[name]} where this state was saved, and is {value} here; "
                "they must agree"
            )
