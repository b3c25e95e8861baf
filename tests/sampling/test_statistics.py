"""What samplers say for the log."""

from functools import partial

import numpy as np
import pytest
from helpers.layers import D, N, draw_layer, draw_queries
from helpers.matrices import make_pattern
from helpers.samplers import (
    faiss_sampler,
    index_sampler,
    neighbour_sampler,
    published_sampler,
    recent_sampler,
)

TABLES = ("non_empty_share", "largest_bucket", "full_share")


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (
            partial(published_sampler, mode="per_sample", hashes_per_table=1),
            {f"tables/{name}" for name in TABLES} | {"look_up/rows_seen"},
        ),
        (index_sampler, {"index/lists", "look_up/rows_seen"}),
        (neighbour_sampler, {"look_up/rows_seen"}),
        (recent_sampler, {"look_up/rows_seen"}),
        (faiss_sampler, set()),
    ],
)
def test_numbers_for_the_log(make, names):
    sampler, labels = make(D, N, active=40), make_pattern(np.random.default_rng(0), [2] * 5, N)
    for seed in range(2):
        queries = draw_queries(5, seed=seed)
        sampler.update(*draw_layer(), queries)
        sampler.select(queries, labels)
    found = sampler.statistics()
    assert set(found) == names | {"selection/candidates"}
    distinct = len(np.unique(labels.indices))
    assert 0 <= found.pop("selection/candidates") <= 40 - distinct
    assert 0 <= found.pop("tables/full_share", 0) <= 1
    assert all(value > 0 for value in found.values())
    assert found.get("look_up/rows_seen", 1) <= N
    if make is recent_sampler:
        assert found["look_up/rows_seen"] == distinct
