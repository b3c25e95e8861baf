"""A label that a sample has twice: it would count twice in the loss."""

import time

import numpy as np
import pytest
import torch
from helpers.layers import D, N
from helpers.samplers import full_sampler, lsh_sampler, uniform_sampler

from slide import ActiveLoss, Pattern, SampledLinear
from slide.sparse import check_labels

SAMPLERS = {
    "full": full_sampler,
    "uniform": lambda d, n: uniform_sampler(d, n, active=20),
    "lsh": lambda d, n: lsh_sampler(d, n, active=20),
    "per sample": lambda d, n: lsh_sampler(d, n, active=20, mode="per_sample"),
}
REPEATED = [[[3], [5, 9, 5]], [[7, 7], []], [[], [1, 2, 2]], [[*range(N), 0], [1]]]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("lists", REPEATED)
def test_layers_refuse_it(sampler, lists):
    layer = SampledLinear(D, N, SAMPLERS[sampler](D, N))
    labels = Pattern.from_lists(lists)
    with pytest.raises(ValueError, match=r"labels of a row must be distinct; row \d has \d twice"):
        layer.loss(torch.randn(2, D), labels, ActiveLoss("bce"))


def test_against_sets():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        lists = [rng.integers(0, 12, rng.integers(0, 5)).tolist() for _ in range(4)]
        distinct = all(len(set(row)) == len(row) for row in lists)
        try:
            check_labels("labels", Pattern.from_lists(lists), 4, 12)
            found.append(distinct)
        except ValueError:
            found.append(not distinct)
    assert all(found)


def test_it_takes_little_of_a_step():
    rng = np.random.default_rng(0)
    ids = np.stack([rng.choice(100_000, 8, replace=False) for _ in range(512)]).astype(np.int32)
    labels = Pattern(8 * np.arange(513), ids.ravel())
    seconds = []
    for _ in range(50):
        begin = time.perf_counter()
        check_labels("labels", labels, 512, 100_000)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 2e-3
