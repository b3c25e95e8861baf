"""A small sampled layer, its labels and active sets, and the optimizers of sparse gradients."""

import numpy as np
import pytest
import torch

from helpers.matrices import make_pattern
from helpers.samplers import lsh_sampler
from slide.active_set import ActiveSet
from slide.nn.sampled_linear import SampledLinear
from slide.optim.row_sparse_adam import RowSparseAdam

B, D, N = 5, 6, 40
MODES = ["per_sample", "shared"]
every_mode = pytest.mark.parametrize("mode", MODES)
OPTIMIZERS = {
    # SparseAdam adds eps elsewhere: before the bias correction.
    "SparseAdam": (torch.optim.SparseAdam, torch.optim.Adam, {"lr": 0.1, "eps": 1e-16}),
    "SGD": (torch.optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, torch.optim.Adagrad, {"lr": 0.1}),
    "RowSparseAdam": (RowSparseAdam, torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}),
}


def every_output(mode):
    """All outputs, in another order, as a set of either kind."""
    rng = np.random.default_rng(0)
    if mode == "shared":
        return ActiveSet(N, rng.permutation(N).astype(np.int32))
    ids = [rng.permutation(N).astype(np.int32) for _ in range(B)]
    return ActiveSet(N, np.concatenate(ids), N * np.arange(B + 1))


def draw_labels(seed=0):
    return make_pattern(np.random.default_rng(seed), [2, 1, 0, 3, 1], N)


def make_layer(mode="shared", sparse_grad=True, active=12):
    torch.manual_seed(1)
    sampler = lsh_sampler(D, N, active=active, mode=mode)
    return SampledLinear(D, N, sampler, sparse_grad=sparse_grad)
