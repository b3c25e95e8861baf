"""Parameters of which each process of a group has other rows.

Their layers mark them whenever they use them: a copy of a layer, or a layer on another device, has
new parameters, and these get a gradient only when they are used.
"""

from typing import Any

from torch import Tensor


def mark_shared(group: Any, *parameters: Tensor | None) -> None:
    """Note that the rows of parameters are shared out among the processes of a group.

    Example:
        >>> import torch
        >>> from slide.distributed import Group
        >>> from slide.shared_parameters import mark_shared, sharing_group
        >>> weight, group = torch.nn.Parameter(torch.zeros(2)), Group.alone()
        >>> mark_shared(group, weight, None)
        >>> sharing_group(weight) is group
        True
    """
    for parameter in parameters:
        if parameter is not None:
            parameter.shared_by = group  # type: ignore[attr-defined]


def sharing_group(parameter: Tensor) -> Any:
    """The group whose processes share out the rows of a parameter; None: this one has all."""
    return getattr(parameter, "shared_by", None)
