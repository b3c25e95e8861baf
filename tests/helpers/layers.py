"""A layer of random rows, and inputs, for tests of samplers with an index."""

from functools import partial

import numpy as np
import pytest
import torch

from slide.hashing import DWTA, SimHash

D, N = 16, 400
MODES = ["per_sample", "shared"]
FAMILIES = {"simhash": SimHash, "dwta": partial(DWTA, bin_size=4)}

every_mode = pytest.mark.parametrize("mode", MODES)


def draw_layer(seed=0):
    """Weight with rows of different lengths, and bias."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(N, D, generator=generator)
    weight *= torch.exp(0.2 * torch.randn(N, 1, generator=generator))
    return weight, 0.5 * torch.randn(N, generator=generator)


def draw_queries(num_samples, seed=1):
    return torch.randn(num_samples, D, generator=torch.Generator().manual_seed(seed))


def recall(active, wanted):
    """Share of each sample's ``wanted`` ids ``(B, k)`` that are in its set, on average."""
    return np.mean([np.isin(ids, active.row(b)).mean() for b, ids in enumerate(wanted)])
