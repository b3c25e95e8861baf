"""What samplers say for the log."""

import numpy as np
import pytest
from helpers.layers import D, N, draw_layer, draw_queries
from helpers.matrices import make_pattern
from helpers.samplers import (
    faiss_sampler,
    index_sampler,
    lsh_sampler,
    neighbour_sampler,
    recent_sampler,
)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lsh_sampler, {"tables/non_empty_share", "tables/largest_bucket"}),
        (index_sampler, {"index/lists", "index/rows_seen"}),
        (neighbour_sampler, {"neighbours/scored"}),
        (recent_sampler, {"recent/labels"}),
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
    assert all(value > 0 for value in found.values())
    assert found.get("recent/labels", distinct) == distinct
