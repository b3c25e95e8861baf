"""A small layer with LSH tables, and labels for it."""

from functools import partial

import numpy as np
import pytest

from helpers.matrices import make_pattern
from helpers.samplers import lsh_sampler
from slide.hashing.simhash import SimHash
from slide.nn.sampled_linear import SampledLinear

B, D, N = 5, 8, 60
MODES = ["per_sample", "shared"]
every_mode = pytest.mark.parametrize("mode", MODES)


def make_layer(mode="shared", in_features=D, out_features=N, **options):
    family = partial(SimHash, hashes_per_table=3, num_tables=4)
    sampler = lsh_sampler(in_features, out_features, family=family, active=12, mode=mode, **options)
    return SampledLinear(in_features, out_features, sampler)


def draw_labels(num_samples=B):
    rng = np.random.default_rng(0)
    return make_pattern(rng, rng.integers(0, 4, num_samples), N)
