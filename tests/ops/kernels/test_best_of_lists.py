"""The best ids of lists, against the looped twin."""

import numpy as np
import pytest
from helpers import naive_ranking

from slide.ops.kernels.active_sets import RankedIds, best_of_lists
from slide.sparse import Pattern


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("best", [1, 4, 20])
def test_best_of_lists(best, has_bias, dtype):
    rng = np.random.default_rng(best)
    # Few different values, so that scores are equal now and then.
    vectors, rows = (rng.integers(-2, 3, (n, 3)).astype(dtype) for n in (6, 30))
    rows[4] = np.nan
    bias = rng.integers(-2, 3, 30 if has_bias else 0).astype(dtype)
    counts = np.array([0, 12, 1, 12, 7, 3])
    ids = np.stack([rng.permutation(30)[:12] for _ in counts]).astype(np.int32)
    lists = [row[:count].tolist() for row, count in zip(ids, counts, strict=True)]
    labels = [row[:3] for row in lists]
    out = np.empty((6, best), np.int32)
    ranked, own = RankedIds(ids, counts), Pattern.from_lists(labels)
    best_of_lists(ranked, own, vectors, rows, bias, out)
    wanted = naive_ranking.best_of_lists(lists, labels, vectors, rows, bias, best)
    assert [row[row >= 0].tolist() for row in out] == wanted
    assert all((row[len(w) :] == -1).all() for row, w in zip(out, wanted, strict=True))
