"""Device and type of the weights of a new layer: the keywords that PyTorch's layers have."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def check_dtype(dtype: Any, dtypes: Sequence[torch.dtype]) -> None:
    """Raise TypeError for a type that a layer does not compute with.

    Args:
        dtype: a type of torch, or None: PyTorch's default.
        dtypes: what the layer computes with.
    """
    if dtype is not None and dtype not in dtypes:
        raise TypeError(f"dtype must be one of {', '.join(map(str, dtypes))}, not {dtype}")


def new_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """An ``nn.Linear`` with copies of a weight ``(N, D)`` and a bias ``(N,)``."""
    linear = nn.Linear(1, 1, bias is not None)  # Drawing N x D first weights would take seconds.
    linear.out_features, linear.in_features = weight.shape
    for name, values in (("weight", weight), ("bias", bias)):
        if values is not None:
            setattr(linear, name, nn.Parameter(values.detach().clone().contiguous()))
    return linear


def check_module(module: Any, kind: type[nn.Module], dtypes: Sequence[torch.dtype]) -> None:
    """Raise unless a layer can take the weights of a module of PyTorch.

    Raises:
        TypeError: for another kind of module, or weights of a type that the layer does not have.
    """
    if not isinstance(module, kind):
        raise TypeError(f"weights come from an nn.{kind.__name__}, not {type(module).__name__}")
    for parameter in module.parameters():
        check_dtype(parameter.dtype, dtypes)
