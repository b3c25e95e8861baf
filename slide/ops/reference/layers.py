"""Operations of hidden layers: ReLU with dropout, and some channels of images."""

import torch
from torch import Tensor

from slide.ops.reference.random import random_bits, shifted


def relu_dropout_forward(x: Tensor, key: int, p: float) -> Tensor:
    counters = torch.arange(x.numel(), device=x.device)
    draws = shifted(random_bits(int(key), counters), 32).view(x.shape)
    kept = ((draws >= round(p * 2**32)) & (x > 0)) | x.isnan()
    return torch.where(kept, x, 0) / (1 - p)


def relu_dropout_backward(out: Tensor, grad: Tensor, p: float) -> Tensor:
    return torch.where(out != 0, grad, 0) / (1 - p)


def put_channels(x: Tensor, channels: Tensor, shape: torch.Size, pixels_first: bool) -> Tensor:
    last = torch.channels_last if pixels_first else torch.contiguous_format
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=last)
    return out.zero_().index_copy_(1, channels, x)
