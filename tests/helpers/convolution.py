"""Images and weights for tests of convolutions: I input and O output channels."""

import torch

I, O = 6, 8
ORDERS = [torch.contiguous_format, torch.channels_last]


def draw(*shape, seed=0, dtype=torch.float64):
    values = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return values.requires_grad_()
