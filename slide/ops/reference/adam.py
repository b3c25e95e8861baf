"""`slide.ops.kernels.adam` in torch: Adam on the rows that a step touched."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from slide.ops.kernels.adam import AdamHyper


class AdamTensors(NamedTuple):
    """A weight and its optimizer state: `slide.ops.kernels.adam.AdamRows` as tensors.

    Attributes:
        weight: ``(N, D)`` floats; in bfloat16 it is computed with in float32.
        first: ``(N, D)`` floats, the first moment; None if ``beta1`` is 0.
        second: ``(N, D)`` floats; or ``(N, 1)``, one moment of the mean square for each row.
        last_step: ``(N,)`` int32, the last step that touched each row; None: not corrected.
    """

    weight: Tensor
    first: Tensor | None
    second: Tensor
    last_step: Tensor | None


def adam_rows(state: AdamTensors, hyper: AdamHyper, ids: Tensor | None, grads: Tensor) -> None:
    """Adam on the rows ``ids`` ``(R,)`` with gradients ``grads`` ``(R, D)``.

    Ids may repeat if equal ids have equal gradients: equal rows are then written more than once.
    None stands for all rows, in order.
    """
    grads = grads.to(state.second.dtype)
    w, v = (t if ids is None else t[ids] for t in (state.weight, state.second))
    decay1, decay2 = _decays(state.last_step, hyper, ids, v.dtype)
    square = grads.square()
    if v.shape[1] != w.shape[1]:
        square = square.mean(1, keepdim=True)
    m = (1 - hyper.beta1) * grads
    if state.first is not None:
        m = m + decay1 * (state.first if ids is None else state.first[ids])
        _write(state.first, ids, m)
    v = decay2 * v + (1 - hyper.beta2) * square
    rate = hyper.lr / (1 - hyper.beta1**hyper.step)
    scale = 1 / math.sqrt(1 - hyper.beta2**hyper.step)
    keep = 1 - hyper.lr * hyper.weight_decay
    w = keep * w.to(v.dtype) - rate * m / (v.sqrt() * scale + hyper.eps)
    _write(state.second, ids, v)
    _write(state.weight, ids, w.to(state.weight.dtype))


def _decays(
    last_step: Tensor | None, hyper: AdamHyper, ids: Tensor | None, dtype: torch.dtype
) -> tuple[float | Tensor, float | Tensor]:
    """The decay of both moments; with last steps, of each row, which are set to this step."""
    if last_step is None:
        return hyper.beta1, hyper.beta2
    last = last_step if ids is None else last_step[ids]
    missed = torch.where(last > 0, hyper.step - last, 1).to(dtype)[:, None]
    _write(last_step, ids, torch.full_like(last, hyper.step))
    return hyper.beta1**missed, hyper.beta2**missed


def _write(tensor: Tensor, ids: Tensor | None, values: Tensor) -> None:
    if ids is None:
        tensor.copy_(values)
    else:
        tensor.index_copy_(0, ids.long(), values)
