"""Similarity of items, against the matrix of all products."""

import numpy as np
import pytest
from helpers.matrices import dense_of, ones_of

from slide.data import Split
from slide.data.row_transform import keep_labels
from slide.ranking.base_scorer import Candidates, Queries, Training
from slide.ranking.scorers.item_similarity import ItemSimilarity
from slide.search import row_blocks
from slide.sparse import Pattern, hits, row_bounds
from slide.utils.array_checks import Stored

ITEMS = 30
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def baskets():
    rng = np.random.default_rng(0)
    rows = [np.flatnonzero(rng.random(ITEMS) < 0.15).tolist() for _ in range(200)]
    return Pattern.from_lists(rows)


def dense(items):
    return dense_of(items, ITEMS)


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
    queries = Queries(rows, seen, None, "exact", 1, np.zeros(ITEMS))
    named = model.propose(queries)
    ids = np.where(named.ids < 0, -1, named.ids).astype(np.int64)
    every = dense(baskets) @ naive_similarities(baskets, 10.0)[0] - 1e9 * dense(baskets)
    asked = np.flatnonzero(np.diff(baskets.indptr))
    best = -np.sort(-every[asked], axis=1)[:, :4]
    found = np.take_along_axis(every[asked], ids[asked], 1)
    np.testing.assert_allclose(-np.sort(-found, axis=1), best, rtol=1e-4)
    ids = -np.sort(-ids, axis=1)
    candidates = Candidates(ids, row_bounds((ids >= 0).sum(1)))
    scores = model.score(queries, candidates, named.more)
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


def test_in_a_graph_the_items_of_a_row_are_its_seen_labels(baskets):
    """Each row has a feature that no other row has: only its known links say anything."""
    rows = ones_of(Pattern(np.arange(201), np.arange(200, dtype=np.int32)))
    model, again = ItemSimilarity(proposed=4), ItemSimilarity()
    training = Training(
        Split(rows, baskets, 200, ITEMS), "graph", None, None, {"item_similarity": model}, []
    )
    training.learnt("item_similarity")
    again.restore(Stored(*model.state()), ITEMS, 200)
    every, few = np.arange(ITEMS), np.arange(0, ITEMS, 2)
    cases = [(model, every), (again, every), (model.grown(3, 1), every)]
    for each, kept in [*cases, (model.selected(few, ITEMS), few)]:
        seen = keep_labels(baskets, kept, ITEMS)
        queries = Queries(rows, seen, None, "exact", 1, np.zeros(each.num_features))
        named, ids = each.propose(queries), np.tile(np.arange(len(kept))[::-1], (200, 1))
        some = Candidates(ids, np.arange(201) * len(kept))
        found = each.score(queries, some, named.more)["cosine"].reshape(ids.shape)[:, ::-1]
        own = naive_similarities(baskets, 10.0)[0][np.ix_(kept, kept)]
        np.testing.assert_allclose(found, dense(baskets)[:, kept] @ own, rtol=1e-4, atol=1e-5)
        assert (named.ids >= 0).any()
        assert not hits(named.ids.astype(np.int64), seen).any()
    assert (each.propose(queries._replace(seen=None)).ids < 0).all()  # ranker.known=keep
