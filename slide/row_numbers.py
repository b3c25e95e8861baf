"""Which numbers the rows of a parameter have: they change when rows are added or removed.

A backward pass that ran with the numbers of before would give rows the gradients of others, or
write outside of the weight. So operations note the numbering in the forward pass, and compare.
"""

from torch import Tensor


def renumber_rows(parameter: Tensor) -> None:
    """Note that the rows of a parameter have other numbers from now on.

    Example:
        >>> import torch
        >>> from slide.row_numbers import numbering, renumber_rows
        >>> weight = torch.nn.Parameter(torch.zeros(3, 2))
        >>> before = numbering(weight)
        >>> renumber_rows(weight)
        >>> numbering(weight) == before
        False
    """
    parameter.times_renumbered = numbering(parameter)[0] + 1  # type: ignore[attr-defined]


def numbering(parameter: Tensor) -> tuple[int, int]:
    """A mark of the present row numbers, which is another one after they change."""
    count = len(parameter) if parameter.ndim else 1
    return getattr(parameter, "times_renumbered", 0), count
