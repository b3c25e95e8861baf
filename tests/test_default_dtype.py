"""PyTorch's default type is the program's: a network computes in float32 whatever it is."""

import numpy as np
import pytest
import torch
from helpers import job

from slide import (
    ActiveLoss,
    ActiveSampler,
    FaissProposer,
    LSHProposer,
    RecentProposer,
    RowSparseAdam,
    SampledLinear,
    SketchProposer,
    SlideClassifier,
    runtime,
)
from slide.distributed.shares import normal_rows, uniform_rows
from slide.functional import drop_features
from slide.sampling import PublishedLSHProposer
from slide.sparse import as_csr


def under_both(compute):
    """What a function returns under each default type."""
    found = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            with job.global_state_put_back():
                runtime.set_deterministic(True, 0)
                found.append(compute())
        finally:
            torch.set_default_dtype(torch.float32)
    return found


def test_a_fit_gives_the_same_model():
    def answers():
        return SlideClassifier(random_state=0, epochs=2).fit(x, x.argmax(1)).predict_proba(x)

    x = np.random.default_rng(0).random((96, 12), np.float32)
    one, other = under_both(answers)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "proposer",
    [LSHProposer, SketchProposer, RecentProposer, FaissProposer, PublishedLSHProposer],
)
def test_a_layer_of_float32_learns_the_same(proposer):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    labels = [[i, i + 40] for i in range(16)]

    def weight():
        sampler = ActiveSampler(8, 300, proposer, active=24, mode="per_sample")
        layer = SampledLinear(8, 300, sampler, dtype=torch.float32)
        optimizer = RowSparseAdam(layer.parameters(), lr=0.01)
        for _ in range(2):
            found = layer(x, labels)
            ActiveLoss("softmax")(found.values, found.active).backward()
            optimizer.step()
        return layer.weight

    job.assert_same(*under_both(weight))


def test_what_is_drawn_is_the_same():
    ids, rows = np.arange(3), as_csr(np.ones((4, 50), np.float32), 50)

    def draws():
        kept = drop_features(rows, 0.5, torch.Generator().manual_seed(0)).indices
        return [torch.from_numpy(kept), uniform_rows(1, ids, 5, 1.0), normal_rows(1, ids, 5, 1.0)]

    job.assert_same(*under_both(draws))
