"""The state that Adam keeps for a parameter: moments, and the last step of each row."""

from collections.abc import Iterable
from typing import Any

import torch

from slide.row_gradients import num_rows


def prepare(state: dict[str, Any], p: torch.Tensor, group: dict[str, Any]) -> None:
    """Fit the state of a parameter to the options of its group, which may have changed.

    Args:
        state: ``step``, ``exp_avg_sq`` and, where the options ask for them, ``exp_avg`` and
            ``last_step``; empty before the first step.
        p: the parameter.
        group: has ``betas``, ``rowwise`` and ``correct_skipped``.

    Raises:
        ValueError: for the state of a parameter of another shape; kernels do not check that.
    """
    try:
        _check_shapes(state, p)
    except ValueError as error:
        raise ValueError(
            f"{error}: give the optimizer to what adds or removes rows, as in "
            "add_outputs(layer, count, optimizer), so that its state follows"
        ) from None
    if not state:
        state["step"] = 0
        shape = (num_rows(p), 1) if group["rowwise"] else p.shape
        state["exp_avg_sq"] = torch.zeros(shape, dtype=moment_type(p), device=p.device)
    _keep_first_moment(state, p if group["betas"][0] else None)
    _note_last_steps(state, num_rows(p) if group["correct_skipped"] else None)


def moment_type(p: torch.Tensor) -> torch.dtype:
    """The type of a parameter's moments."""
    return torch.float32 if p.dtype == torch.bfloat16 else p.dtype


def _keep_first_moment(state: dict[str, Any], p: torch.Tensor | None) -> None:
    """Keep a first moment for a parameter, or none."""
    if p is None:
        state.pop("exp_avg", None)
    elif "exp_avg" not in state:
        state["exp_avg"] = torch.zeros_like(p, dtype=moment_type(p))


def _note_last_steps(state: dict[str, Any], rows: int | None) -> None:
    """Keep last steps for so many rows, or none. Steps without them do not count as skipped."""
    if rows is None:
        state.pop("last_step", None)
    elif "last_step" not in state:
        moments: torch.Tensor = state["exp_avg_sq"]
        state["last_step"] = moments.new_full((rows,), state["step"], dtype=torch.int32)


def check_names(what: str, names: Iterable[str], found: dict[str, Any]) -> None:
    """Raise ValueError unless all names are in a saved state."""
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"this is no state of a RowSparseAdam: {what} {', '.join(missing)}")


def check_state(state: dict[str, Any] | None, p: torch.Tensor, with_first: bool) -> None:
    """Raise ValueError unless a saved state fits a parameter."""
    if not state:
        return
    names = ("step", *(["exp_avg"] if with_first else []), "exp_avg_sq")
    check_names("that of a parameter lacks", names, state)
    _check_shapes(state, p)


def _check_shapes(state: dict[str, Any], p: torch.Tensor) -> None:
    """Raise ValueError unless the moments and last steps in a state have the rows of a parameter.

    State that is not there is not looked at.
    """
    rows, shape = num_rows(p), tuple(p.shape)
    fits = {"exp_avg": [shape], "exp_avg_sq": [shape, (rows, 1)], "last_step": [(rows,)]}
    for name, shapes in fits.items():
        if name in state and tuple(state[name].shape) not in shapes:
            raise ValueError(f"{name} {tuple(state[name].shape)} does not fit a parameter {shape}")
