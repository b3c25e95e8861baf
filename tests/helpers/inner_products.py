"""Inputs of a search for the largest inner products, and how much a search has found."""

import os

import numpy as np
import torch

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


# Rows of a large layer: those beside the longest are in lists.
ROWS = 20_000 if COMPILED else 3_000


def draw_clusters(rows=ROWS, width=16, seed=0):
    """Rows of about one length around some centres, too many to be all seen, and biases."""
    generator = torch.Generator().manual_seed(seed)
    owner = torch.randint(100, (rows,), generator=generator)
    centres = torch.randn(100, width, generator=generator)
    weight = centres[owner] + 0.3 * torch.randn(rows, width, generator=generator)
    return weight, 0.5 * torch.randn(rows, generator=generator)


def queries_for(weight, count=200 if COMPILED else 40):
    """Inputs that are near some rows, and not so."""
    generator = torch.Generator().manual_seed(1)
    near = weight[torch.randint(len(weight), (count,), generator=generator)]
    noise = torch.randn(count, weight.shape[1], dtype=weight.dtype, generator=generator)
    return torch.nn.functional.normalize(near, dim=1) + 0.1 * noise


def recall(found, wanted):
    pairs = zip(found.tolist(), wanted.tolist(), strict=True)
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in pairs])
