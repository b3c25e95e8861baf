"""Operations of hidden layers: ReLU with dropout, and some channels of images."""

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view
from slide.ops.compile import parallel, prange
from slide.ops.dispatch import operation
from slide.ops.random import random_bits, shifted, torch_random_bits

_SHIFT = np.uint64(32)


def _flat(x: Tensor) -> np.ndarray:
    return array_view(x).reshape(-1)


@parallel
def relu_dropout_forward_kernel(x, key, least, scale, out):
    """Write ``scale * x`` where x is above 0 and its draw at least ``least``, else 0; NaN stays."""
    zero, factor = x.dtype.type(0), x.dtype.type(scale)
    for i in prange(len(x)):
        kept = random_bits(key, i) >> _SHIFT >= least or x[i] != x[i]
        out[i] = x[i] * factor if kept and not x[i] <= 0 else zero


def torch_relu_dropout_forward(x: Tensor, key: int, p: float) -> Tensor:
    counters = torch.arange(x.numel(), device=x.device)
    draws = shifted(torch_random_bits(int(key), counters), 32).view(x.shape)
    kept = ((draws >= round(p * 2**32)) & (x > 0)) | x.isnan()
    return torch.where(kept, x, 0) / (1 - p)


@operation(torch_relu_dropout_forward)
def relu_dropout_forward(x: Tensor, key: int, p: float) -> Tensor:
    """``x / (1 - p)`` where x is above 0 and its draw is at least p, else 0; NaN stays."""
    out, least = torch.empty_like(x), np.uint64(round(p * 2**32))
    relu_dropout_forward_kernel(_flat(x), np.uint64(key), least, 1 / (1 - p), _flat(out))
    return out


@parallel
def relu_dropout_backward_kernel(out, grad, scale, grad_x):
    """Write ``scale * grad`` where ``out`` of `relu_dropout_forward` is not zero, else 0."""
    zero, factor = out.dtype.type(0), out.dtype.type(scale)
    for i in prange(len(out)):
        grad_x[i] = grad[i] * factor if out[i] != 0 else zero


def torch_relu_dropout_backward(out: Tensor, grad: Tensor, p: float) -> Tensor:
    return torch.where(out != 0, grad, 0) / (1 - p)


@operation(torch_relu_dropout_backward)
def relu_dropout_backward(out: Tensor, grad: Tensor, p: float) -> Tensor:
    """``grad / (1 - p)`` where the output of `relu_dropout_forward` is not zero, else 0."""
    grad_x = torch.empty_like(out)
    relu_dropout_backward_kernel(_flat(out), _flat(grad.contiguous()), 1 / (1 - p), _flat(grad_x))
    return grad_x


def is_channels_last(x: Tensor) -> bool:
    """Whether the channels of a pixel of images are side by side in memory."""
    return x.is_contiguous(memory_format=torch.channels_last)


def _as_pixels(x: Tensor) -> np.ndarray:
    """The memory of a channels-last ``(B, C, H, W)`` as ``(B * H * W, C)``."""
    return array_view(x.permute(0, 2, 3, 1)).reshape(-1, x.shape[1])


@parallel
def put_pixels(values, positions, out):
    """Write ``values`` ``(P, A)`` to the used channels of ``out`` ``(P, C)``, zeros elsewhere."""
    for p in prange(len(out)):
        for c in range(out.shape[1]):
            out[p, c] = 0
        for a in range(len(positions)):
            out[p, positions[a]] = values[p, a]


@parallel
def put_planes(values, positions, out):
    """Write ``values`` ``(B, P, A)`` to the used planes of ``out`` ``(B, C, P)``, else zeros."""
    for b in prange(len(out)):
        planes, pixels = out[b], values[b]
        planes[:] = 0
        for a in range(len(positions)):
            plane = planes[positions[a]]
            for p in range(len(plane)):
                plane[p] = pixels[p, a]


def torch_put_channels(
    x: Tensor, channels: Tensor, shape: torch.Size, pixels_first: bool
) -> Tensor:
    last = torch.channels_last if pixels_first else torch.contiguous_format
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=last)
    return out.zero_().index_copy_(1, channels, x)


@operation(torch_put_channels)
def put_channels(x: Tensor, channels: Tensor, shape: torch.Size, pixels_first: bool) -> Tensor:
    """Images with ``x`` at some channels, else zeros; ``pixels_first``: channels-last."""
    pixels = _as_pixels(x.contiguous(memory_format=torch.channels_last))
    if pixels_first:
        out = x.new_empty(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
        put_pixels(pixels, array_view(channels), _as_pixels(out))
        return out
    out = x.new_empty(shape)
    planes = array_view(out).reshape(*shape[:2], -1)
    put_planes(pixels.reshape(len(x), -1, len(channels)), array_view(channels), planes)
    return out
