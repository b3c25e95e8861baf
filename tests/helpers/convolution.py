"""Images and weights for tests of convolutions: I input and O output channels."""

import torch

I, O = 6, 8
ORDERS = [torch.contiguous_format, torch.channels_last]
