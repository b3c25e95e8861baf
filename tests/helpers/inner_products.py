"""Inputs of a search for the largest inner products, and how much a search has found."""

import os

import numpy as np
import torch

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


def queries_for(weight, count=200 if COMPILED else 40):
    """Inputs that are near some rows, and not so."""
    generator = torch.Generator().manual_seed(1)
    near = weight[torch.randint(len(weight), (count,), generator=generator)]
    noise = torch.randn(count, weight.shape[1], dtype=weight.dtype, generator=generator)
    return torch.nn.functional.normalize(near, dim=1) + 0.1 * noise


def recall(found, wanted):
    pairs = zip(found.tolist(), wanted.tolist(), strict=True)
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in pairs])
