"""Operations of hidden layers: ReLU with dropout, and some channels of images."""

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view
from slide.ops.kernels import layers as kernels
from slide.ops.reference import layers as reference
from slide.ops.table import operation


def _flat(x: Tensor) -> np.ndarray:
    return array_view(x).reshape(-1)


@operation(reference.relu_dropout_forward)
def relu_dropout_forward(x: Tensor, key: int, p: float) -> Tensor:
    """``x / (1 - p)`` where x is above 0 and its draw is at least p, else 0; NaN stays."""
    out, least = torch.empty_like(x), np.uint64(round(p * 2**32))
    kernels.relu_dropout_forward(_flat(x), np.uint64(key), least, 1 / (1 - p), _flat(out))
    return out


@operation(reference.relu_dropout_backward)
def relu_dropout_backward(out: Tensor, grad: Tensor, p: float) -> Tensor:
    """``grad / (1 - p)`` where the output of `relu_dropout_forward` is not zero, else 0."""
    grad_x = torch.empty_like(out)
    kernels.relu_dropout_backward(_flat(out), _flat(grad.contiguous()), 1 / (1 - p), _flat(grad_x))
    return grad_x


def is_channels_last(x: Tensor) -> bool:
    """Whether the channels of a pixel of images are side by side in memory."""
    return x.is_contiguous(memory_format=torch.channels_last)


def _as_pixels(x: Tensor) -> np.ndarray:
    """The memory of a channels-last ``(B, C, H, W)`` as ``(B * H * W, C)``."""
    return array_view(x.permute(0, 2, 3, 1)).reshape(-1, x.shape[1])


@operation(reference.put_channels)
def put_channels(x: Tensor, channels: Tensor, shape: torch.Size, pixels_first: bool) -> Tensor:
    """Images with ``x`` at some channels, else zeros; ``pixels_first``: channels-last."""
    pixels = _as_pixels(x.contiguous(memory_format=torch.channels_last))
    if pixels_first:
        out = x.new_empty(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
        kernels.put_pixels(pixels, array_view(channels), _as_pixels(out))
        return out
    out = x.new_empty(shape)
    planes = array_view(out).reshape(*shape[:2], -1)
    kernels.put_planes(pixels.reshape(len(x), -1, len(channels)), array_view(channels), planes)
    return out
