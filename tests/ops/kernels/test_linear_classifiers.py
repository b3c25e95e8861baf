"""Which rows train linear classifiers, and their scores."""

import numpy as np
import pytest
from helpers.matrices import make_csr, to_dense

from slide.ops import linear_classifiers as kernels
from slide.sparse import Pattern

NUM_ROWS = 25


def test_list_training_rows():
    """Ids may repeat in a row, and be labels and candidates of the same row."""
    labels = Pattern.from_lists([[2, 2], [], [0, 1]])
    candidates = Pattern.from_lists([[0, 2, 0], [1, 1], [1]])
    marks, cursors = np.full(3, 3, np.int32), np.zeros(3, np.int64)
    nothing = np.empty(0, np.int32), np.empty(0, np.float32)
    kernels.list_training_rows(labels, candidates, marks, cursors, *nothing)
    assert cursors.tolist() == [2, 2, 1]
    rows, signs, cursors = np.empty(5, np.int32), np.empty(5, np.float32), np.array([0, 2, 4])
    kernels.list_training_rows(labels, candidates, marks, cursors, rows, signs)
    assert cursors.tolist() == [2, 4, 5]
    assert rows.tolist() == [0, 2, 1, 2, 0]
    assert signs.tolist() == [-1, 1, -1, 1, 1]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("lengths", [[0, 3, 4, 1, 2, 4], [50, 49, 48, 50, 3, 33]])
def test_score_labels(lengths, threads):
    """In a row with many more weights than a sample has features, the features are looked up."""
    rng = np.random.default_rng(threads)
    x = make_csr(rng, rng.integers(0, 4, NUM_ROWS), 50)
    classifiers = make_csr(rng, lengths, 50)
    for a, b in zip(classifiers.indptr[:-1], classifiers.indptr[1:], strict=True):
        classifiers.indices[a:b].sort()
    ids, scratch = rng.integers(-1, 6, (NUM_ROWS, 4)), np.zeros((threads, 50), np.float32)
    out = np.full(ids.shape, np.nan, np.float32)
    kernels.score_labels(x, classifiers, -0.7, ids, scratch, out)
    scores = (to_dense(x, 50) @ to_dense(classifiers, 50).T).numpy() - 0.7
    expected = np.where(ids < 0, -np.inf, np.take_along_axis(scores, ids.clip(0), 1))
    np.testing.assert_allclose(out, expected, atol=1e-5)
    assert not scratch.any()
