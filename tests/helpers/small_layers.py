"""A small layer with LSH tables, and labels for it."""

import numpy as np
import torch

from helpers.matrices import make_pattern
from helpers.samplers import lsh_sampler
from helpers.sparse_layers import MODES
from slide.functional.losses import ActiveLoss
from slide.nn.sampled_linear import SampledLinear
from slide.optim.row_sparse_adam import RowSparseAdam

B, D, N = 5, 8, 60


def make_layer(mode="shared", in_features=D, out_features=N, **options):
    sampler = lsh_sampler(in_features, out_features, active=12, mode=mode, **options)
    return SampledLinear(in_features, out_features, sampler)


def draw_labels(num_samples=B):
    rng = np.random.default_rng(0)
    return make_pattern(rng, rng.integers(0, 4, num_samples), N)


def train_briefly():
    """Five steps of a layer of either mode; a number that any changed bit of a weight changes."""
    found = []
    for mode in MODES:
        torch.manual_seed(0)
        layer, x = make_layer(mode, 64, 2000), torch.randn(32, 64)
        optimizer, loss = RowSparseAdam(layer.parameters()), ActiveLoss("bce")
        for _ in range(5):
            layer.loss(x, draw_labels(32), loss)[0].backward()
            optimizer.step()
        found.append(layer.weight.double().abs().sum().item())
    return found
