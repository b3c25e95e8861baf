"""Arrays that come from a file, against what they must be before a kernel reads them.

Kernels trust their arguments: a number of a row that is too large is memory outside of an array. So
whatever a state or a folder holds is described once, by shape, type and range, and compared when it
is opened.

Example:
    >>> import numpy as np
    >>> from slide.utils.array_checks import Expected, check_arrays
    >>> expected = {"ids": Expected((None,), "int64", 0, 5)}
    >>> check_arrays("the state", {"ids": np.array([3, 9])}, expected)
    Traceback (most recent call last):
    ...
    ValueError: the state is damaged: ids must lie in [0, 5], not in [3, 9]
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch


class Expected(NamedTuple):
    """What an array must be.

    Attributes:
        shape: a number for each dimension; None for any.
        dtype: its name, such as ``"int32"``.
        least: the smallest value; None for any.
        most: the largest value; None for any.
        finite: whether floats must be finite.
    """

    shape: tuple[int | None, ...]
    dtype: str
    least: float | None = None
    most: float | None = None
    finite: bool = True


def check_arrays(what: str, found: Mapping[str, Any], expected: Mapping[str, Expected]) -> None:
    """Raise ValueError, which names the array, unless all arrays are as expected.

    Args:
        what: where the arrays are from, such as a file.
        found: arrays or tensors by name; others than those expected are not looked at.
        expected: by the same names.
    """
    for name, wanted in expected.items():
        if name not in found:
            raise ValueError(f"{what} is damaged: it lacks {name}")
        fault = _fault(found[name], wanted)
        if fault:
            raise ValueError(f"{what} is damaged: {name} must {fault}")


def check_offsets(what: str, name: str, offsets: np.ndarray, end: int) -> None:
    """Raise ValueError unless offsets begin with 0, never fall, and end with ``end``."""
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
        raise ValueError(f"{what} is damaged: {name} must rise from 0 to {end}")


def check_counter(what: str, name: str, value: Any) -> int:
    """The value as an integer; raise ValueError unless it is a whole number of at least 0."""
    number = value.item() if isinstance(value, (np.ndarray, torch.Tensor)) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < 2**63:
        raise ValueError(f"{what} is damaged: {name} must be a number of at least 0, not {value!r}")
    if number != int(number):
        raise ValueError(f"{what} is damaged: {name} must be a whole number, not {value!r}")
    return int(number)


def _fault(array: Any, wanted: Expected) -> str:
    """What an array must do, and does not; empty if it is as expected."""
    if not isinstance(array, (np.ndarray, torch.Tensor)):
        return f"be an array, not {type(array).__name__}"
    shape, dtype = tuple(array.shape), str(array.dtype).removeprefix("torch.")
    fits = len(shape) == len(wanted.shape) and all(
        size is None or size == own for size, own in zip(wanted.shape, shape, strict=True)
    )
    if not fits or dtype != wanted.dtype:
        sizes = ", ".join("any" if size is None else str(size) for size in wanted.shape)
        return f"be ({sizes}) {wanted.dtype}, not {shape} {dtype}"
    floats = "float" in dtype and wanted.finite
    if 0 in shape or not (floats or wanted.least is not None or wanted.most is not None):
        return ""
    least, most = array.min().item(), array.max().item()
    # A NaN is the least and the largest number of its array.
    if floats and not (-np.inf < least <= most < np.inf):
        return "hold finite numbers only"
    bounds = (
        -np.inf if wanted.least is None else wanted.least,
        np.inf if wanted.most is None else wanted.most,
    )
    if not bounds[0] <= least <= most <= bounds[1]:
        return f"lie in [{bounds[0]}, {bounds[1]}], not in [{least}, {most}]"
    return ""
