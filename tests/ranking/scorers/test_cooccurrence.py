"""Labels that go with features, against counting in loops."""

import numpy as np
import pytest
from helpers.matrices import make_csr, make_pattern, to_dense

from slide.ranking import Cooccurrence
from slide.search import row_blocks

FEATURES, LABELS, ROWS = 12, 9, 40


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return make_csr(rng, [4] * ROWS, FEATURES), make_pattern(rng, [2] * ROWS, LABELS)


def naive_shares(features, labels):
    """The share of the rows of each feature that have each label."""
    counts, pairs = np.zeros(FEATURES), np.zeros((FEATURES, LABELS))
    for b in range(ROWS):
        for d in features.indices[features.indptr[b] : features.indptr[b + 1]]:
            counts[d] += 1
            for n in labels.indices[labels.indptr[b] : labels.indptr[b + 1]]:
                pairs[d, n] += 1
    return pairs / (counts + 3)[:, None]


@pytest.mark.parametrize("negative", [False, True])
def test_scores_are_sums_of_shares(rows, negative):
    """Of which negative values subtract."""
    model = Cooccurrence().fit(*rows, FEATURES, LABELS)
    queries = make_csr(np.random.default_rng(3), [3] * 10, FEATURES)
    assert (queries.values < 0).any()
    if not negative:
        queries = queries._replace(values=np.abs(queries.values))
    scores, ids = model.best(queries, LABELS)
    every = np.maximum(to_dense(queries, FEATURES).numpy() @ naive_shares(*rows), 0)
    near = {"rtol": 1e-4, "atol": 1e-6} if negative else {"rtol": 1e-5}
    np.testing.assert_allclose(scores, -np.sort(-every, axis=1), **near)
    known = ids >= 0
    assert (known == (scores > 0)).all()
    assert negative or known.sum(1).min() > 3
    own = np.take_along_axis(every, np.maximum(ids, 0), 1)[known]
    np.testing.assert_allclose(scores[known], own, **near)


def test_a_feature_keeps_its_most_frequent_labels(rows, monkeypatch):
    monkeypatch.setattr(row_blocks, "MOST_LABELS", 3)
    model = Cooccurrence().fit(*rows, FEATURES, LABELS)
    kept, shares = to_dense(model.lists, LABELS).numpy(), naive_shares(*rows)
    for own, expected in zip(kept, shares, strict=True):
        assert (own > 0).sum() == 3
        np.testing.assert_allclose(own[own > 0], expected[own > 0], rtol=1e-6)
        assert own[own > 0].min() >= np.sort(expected)[-3] - 1e-6


@pytest.mark.parametrize("longest", [3, LABELS])
def test_what_features_say_of_candidates(rows, longest, monkeypatch):
    monkeypatch.setattr(row_blocks, "MOST_LABELS", longest)
    model = Cooccurrence().fit(*rows, FEATURES, LABELS)
    queries = make_csr(np.random.default_rng(3), [3] * 10, FEATURES)
    ids = np.tile(np.arange(LABELS), (10, 1))
    found = model.relate(queries, ids).reshape(10, LABELS, 3)
    shares, dense = naive_shares(*rows), to_dense(queries, FEATURES).numpy()
    if longest == 3:
        shares *= to_dense(model.lists, LABELS).numpy() > 0
    np.testing.assert_allclose(found[:, :, 0], dense @ shares, rtol=1e-4, atol=1e-6)
    each = queries.indices.reshape(10, 3)
    np.testing.assert_allclose(found[:, :, 1], shares[each].max(1), rtol=1e-5)
    # Three more rows of each feature have labels as all rows do.
    of_label = np.bincount(rows[1].indices, minlength=LABELS) / ROWS
    counts = np.bincount(rows[0].indices, minlength=FEATURES)
    posterior = shares + 3 * of_label / (counts[:, None] + 3)
    expected = np.log(of_label) + np.log(posterior / of_label)[each].sum(1)
    np.testing.assert_allclose(found[:, :, 2], expected, rtol=1e-4)
