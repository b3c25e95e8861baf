"""Whether weights are still those that an index was made of, or follows."""

import torch
from torch import Tensor

from slide.utils.quantized import QuantizedRows, weight_rows

# Integers of the sizes of floats.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Rows that are compared, and numbers of each: they are read anew in each call.
_WITNESSES, _NUMBERS = 64, 16


def tensors_of(weight: Tensor | QuantizedRows, bias: Tensor | None) -> tuple[Tensor, ...]:
    """What weight and bias are stored in."""
    return (*weight_rows(weight).tensors, *(() if bias is None else (bias.detach(),)))


def state(weight: Tensor | QuantizedRows, bias: Tensor | None) -> tuple[list[tuple], list[Tensor]]:
    """Marks of two tensors, and views of some of their rows, which change when the tensors do."""
    marks, rows = [], []
    for tensor in tensors_of(weight, bias):
        version = None if tensor.is_inference() else tensor._version
        marks.append((tensor.data_ptr(), version, tensor.shape, tensor.dtype))
        # As integers, since a NaN does not equal itself.
        some = tensor[:: max(1, len(tensor) // _WITNESSES)]
        if some.ndim > 1:
            some = some[:, :: -(-some.shape[1] // _NUMBERS)]
        rows.append(some.view(_BITS[tensor.element_size()]))
    return marks, rows


def kept_state(
    weight: Tensor | QuantizedRows, bias: Tensor | None
) -> tuple[list[tuple], list[Tensor]]:
    """The same, with copies of the rows."""
    marks, rows = state(weight, bias)
    return marks, [each.clone() for each in rows]


def unchanged(
    kept: tuple[list[tuple], list[Tensor]], weight: Tensor | QuantizedRows, bias: Tensor | None
) -> bool:
    """Whether weight and bias are as they were when this was their `kept_state`."""
    marks, rows = state(weight, bias)
    return marks == kept[0] and all(map(torch.equal, rows, kept[1]))
