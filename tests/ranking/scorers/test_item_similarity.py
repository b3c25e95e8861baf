"""Similarity of items, against the matrix of all products."""

import numpy as np
import pytest
from helpers.matrices import ones_of, to_dense

from slide.ranking import row_blocks
from slide.ranking.base_scorer import Candidates, Queries
from slide.ranking.scorers.item_similarity import ItemSimilarity
from slide.sparse import Pattern, row_bounds

ITEMS = 30
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def baskets():
    rng = np.random.default_rng(0)
    rows = [np.flatnonzero(rng.random(ITEMS) < 0.15).tolist() for _ in range(200)]
    return Pattern.from_lists(rows)


def dense(items):
    return to_dense(ones_of(items), ITEMS).double().numpy()


def naive_similarities(baskets, shrink):
    """Cosines and numbers of shared rows of all pairs of items."""
    shared = dense(baskets).T @ dense(baskets)
    counts = np.diag(shared).copy()
    np.fill_diagonal(shared, 0)
    return shared / (np.sqrt(np.outer(counts, counts)) + shrink), shared


@pytest.mark.parametrize("shrink", [0, 10.0])
def test_scores_are_sums_of_similarities(baskets, shrink):
    model = ItemSimilarity(shrink).fit(row_blocks.count_pairs(baskets, ITEMS), ITEMS)
    rows = ones_of(baskets, 0.3)  # Values do not count.
    ids = np.tile(np.arange(ITEMS), (200, 1))
    ids[3, 4] = -1
    found = model.scores(rows, ids)
    for own, expected in zip(found, naive_similarities(baskets, shrink), strict=True):
        assert own[3, 4] == -np.inf
        every = dense(baskets) @ expected
        np.testing.assert_allclose(own[ids >= 0], every[ids >= 0], rtol=1e-4, atol=1e-5)


def test_the_most_similar_items_are_candidates(baskets):
    model = ItemSimilarity(proposed=4).fit(row_blocks.count_pairs(baskets, ITEMS), ITEMS)
    rows = ones_of(baskets)
    seen = Pattern(baskets.indptr, baskets.indices)
    queries = Queries(rows, seen, None, "exact", 1, ITEMS)
    ids = np.where((named := model.propose(queries).ids) < 0, -1, named).astype(np.int64)
    every = dense(baskets) @ naive_similarities(baskets, 10.0)[0] - 1e9 * dense(baskets)
    asked = np.flatnonzero(np.diff(baskets.indptr))
    best = -np.sort(-every[asked], axis=1)[:, :4]
    found = np.take_along_axis(every[asked], ids[asked], 1)
    np.testing.assert_allclose(-np.sort(-found, axis=1), best, rtol=1e-4)
    ids = -np.sort(-ids, axis=1)
    candidates = Candidates(ids, row_bounds((ids >= 0).sum(1)))
    scores = model.score(queries, candidates, None)
    assert scores.keys() == {"cosine", "shared_rows"}
    assert all(len(numbers) == (ids >= 0).sum() for numbers in scores.values())


def test_many_items_keep_those_that_share_the_most_rows(baskets, monkeypatch):
    monkeypatch.setattr(row_blocks, "_MOST_SHARING", 5)
    monkeypatch.setattr(row_blocks, "_MOST_PAIRS", 0)
    model = ItemSimilarity().fit(row_blocks.count_pairs(baskets, ITEMS), ITEMS)
    assert np.diff(model.cosines.indptr).max() <= 5


def test_items_beyond_the_features_have_no_similarity(baskets):
    model = ItemSimilarity().fit(row_blocks.count_pairs(baskets, ITEMS), 20)
    assert model.cosines.indices.max() == 19
    assert (np.diff(model.cosines.indptr)[20:] > 0).all()


def test_impossible_inputs_are_refused(baskets):
    with pytest.raises(ValueError, match=r"items must lie in \[0, 20\)"):
        row_blocks.count_pairs(baskets, 20)
    rows = ones_of(baskets)
    with pytest.raises(RuntimeError, match="call fit first"):
        ItemSimilarity().scores(rows, np.zeros((200, 1), int))
