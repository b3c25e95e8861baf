"""`slide.ops.kernels.layers` in torch, with the same draws; autograd goes backward."""

import torch
from torch import Tensor

from slide.ops.reference.random import random_bits, shifted


def relu_dropout_forward(x: Tensor, key: int, p: float) -> Tensor:
    """``x / (1 - p)`` where x is above 0 and its draw is at least p, else 0; NaN stays.

    Args:
        x: floats of any shape.
        key: in [0, 2^64); with the position it determines the draw of a value.
        p: probability that a value is set to 0.
    """
    places = torch.arange(x.numel(), device=x.device)
    draws = shifted(random_bits(key, places), 32).view(x.shape)
    kept = ((draws >= round(p * 2**32)) & (x > 0)) | x.isnan()
    return torch.where(kept, x, 0) / (1 - p)
