"""Random matrices and active sets of all kinds, for tests of the manual gradients."""

import numpy as np
import pytest
import torch

from helpers.matrices import make_pattern
from slide.active_set import ActiveSet

B, D, N = 4, 3, 7
LENGTHS = {
    "per_sample": [3, 0, 7, 1],
    "shared": None,
    "one for all": [1, 1, 1, 1],
    "no outputs": [0, 0, 0, 0],
    "complete": None,
}
every_kind = pytest.mark.parametrize("kind", LENGTHS)


def draw(*shape, seed=0, dtype=torch.float64, grad=True):
    values = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return values.requires_grad_(grad)


def make_active(kind, num_rows=N, targets=None):
    rng = np.random.default_rng(1)
    if kind == "complete":
        return ActiveSet(num_rows, np.arange(num_rows, dtype=np.int32), None, targets)
    if kind == "shared":
        return ActiveSet(num_rows, rng.permutation(num_rows)[:4].astype(np.int32), None, targets)
    if kind == "one for all":
        return ActiveSet(num_rows, np.full(B, 5, np.int32), np.arange(B + 1), targets)
    pattern = make_pattern(rng, LENGTHS[kind], num_rows)
    return ActiveSet(num_rows, pattern.indices, pattern.indptr, targets)


def pick(dense, active):
    """The entries of a dense ``(B, N)`` on an active set, differentiably."""
    ids = torch.from_numpy(active.ids).long()
    if active.shared:
        return dense[:, ids]
    samples = np.repeat(np.arange(len(dense)), np.diff(active.indptr))
    return dense[torch.from_numpy(samples), ids]
