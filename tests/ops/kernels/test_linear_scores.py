"""Scores of linear classifiers, against a looped twin."""

import numpy as np
import pytest
from helpers import naive_ranking
from helpers.matrices import make_csr, to_dense

from slide.ops.kernels.linear_classifiers import score_labels

NUM_ROWS, NUM_COLUMNS = 25, 7


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_score_labels(seed, threads):
    rng = np.random.default_rng(seed)
    x = make_csr(rng, rng.integers(0, 6, NUM_ROWS), NUM_COLUMNS)
    classifiers = make_csr(rng, rng.integers(0, 5, 6), NUM_COLUMNS)
    ids = rng.integers(-1, 6, (NUM_ROWS, 3))
    scratch = np.zeros((threads, NUM_COLUMNS), np.float32)
    out = np.full(ids.shape, np.nan, np.float32)
    score_labels(x, classifiers, -0.7, ids, scratch, out)
    dense = [to_dense(each, NUM_COLUMNS).numpy() for each in (x, classifiers)]
    expected = naive_ranking.score_labels(*dense, -0.7, ids)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    assert not scratch.any()


@pytest.mark.parametrize("lengths", [[50, 49, 48, 50, 3], [1, 2, 50, 33, 17]])
def test_score_labels_with_long_rows(lengths):
    """In a row with many more weights than a sample has features, the features are looked up."""
    rng = np.random.default_rng(6)
    x = make_csr(rng, rng.integers(0, 3, NUM_ROWS), 50)
    rows = make_csr(rng, lengths, 50)
    for n in range(len(lengths)):
        rows.indices[rows.indptr[n] : rows.indptr[n + 1]].sort()
    ids = rng.integers(0, len(lengths), (NUM_ROWS, 4))
    out = np.full(ids.shape, np.nan, np.float32)
    score_labels(x, rows, -0.7, ids, np.zeros((1, 50), np.float32), out)
    dense = [to_dense(each, 50).numpy() for each in (x, rows)]
    expected = naive_ranking.score_labels(*dense, -0.7, ids)
    np.testing.assert_allclose(out, expected, atol=1e-5)
