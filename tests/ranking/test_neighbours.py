"""Nearest training rows by cosine, and their votes, against loops over dense rows."""

import numpy as np
import pytest
from helpers.matrices import make_csr, make_pattern, to_dense

from slide.ranking import list_search
from slide.ranking.list_search import longest_list
from slide.ranking.neighbours import Neighbours

ROWS, FEATURES, LABELS = 30, 12, 9


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = make_csr(rng, rng.integers(3, 7, ROWS), FEATURES)
    x = x._replace(values=np.abs(x.values) + np.float32(0.1))
    return x, make_pattern(rng, rng.integers(0, 4, ROWS), LABELS)


def naive_rows(x, idf):
    """Weighted rows of length 1."""
    dense = to_dense(x, FEATURES).numpy().astype(np.float64)
    if idf:
        dense *= np.log((1 + ROWS) / (1 + (dense != 0).sum(0)))
    return dense / np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-9)


def naive_votes(query, others, labels, count, power):
    """``{label: votes}`` of the nearest rows, and their similarities."""
    similar = others @ query
    near = [r for r in np.argsort(-similar)[:count] if similar[r] > 0]
    votes = {}
    for r in near:
        for label in labels.indices[labels.indptr[r] : labels.indptr[r + 1]]:
            votes[int(label)] = votes.get(int(label), 0) + similar[r] ** power
    return votes, similar[near]


@pytest.mark.parametrize("idf", [True, False])
def test_votes_are_those_of_the_nearest_rows(rows, idf):
    x, labels = rows
    model = Neighbours(5, idf).fit(x, labels, FEATURES, LABELS)
    queries = make_csr(np.random.default_rng(5), [3] * 8, FEATURES)
    queries = queries._replace(values=np.abs(queries.values))
    found, others = model.votes(queries, LABELS), naive_rows(x, idf)
    dense = to_dense(queries, FEATURES).numpy() * model.fitted().weights
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    for b, query in enumerate(dense):
        for power, shares in ((1, found.shares[b]), (4, found.sharp[b])):
            votes, similar = naive_votes(query, others, labels, 5, power)
            known = found.ids[b] >= 0
            assert set(found.ids[b][known].tolist()) == set(votes)
            expected = [votes[n] / (similar**power).sum() for n in found.ids[b][known]]
            np.testing.assert_allclose(shares[known], expected, rtol=1e-4)
        assert (np.diff(found.shares[b]) <= 1e-6).all()
        assert found.nearest[b] == pytest.approx(similar.max(), rel=1e-4)
        assert found.mean[b] == pytest.approx(similar.mean(), rel=1e-4)


def test_rows_are_weighted_block_by_block(rows, monkeypatch):
    features, labels = rows
    at_once = Neighbours().fit(features, labels, FEATURES, LABELS)
    monkeypatch.setattr(list_search, "BLOCK", 7)
    found = Neighbours().fit(features, labels, FEATURES, LABELS)
    np.testing.assert_array_equal(found.fitted().rows.values, at_once.fitted().rows.values)
    assert found.votes(features, 3).ids.tolist() == at_once.votes(features, 3).ids.tolist()


def test_a_row_is_not_its_own_neighbour(rows):
    x, labels = rows
    model = Neighbours(5, weighted=False).fit(x, labels, FEATURES, LABELS)
    found = model.own_candidates(LABELS, block=7)
    others, several = naive_rows(x, False), 0
    for b in range(ROWS):
        without = others.copy()
        without[b] = 0
        votes, _ = naive_votes(others[b], without, labels, 5, 1)
        own = found.indices[found.indptr[b] : found.indptr[b + 1]]
        assert set(own.tolist()) == set(votes)
        several += len(own) > 1
    assert several > ROWS / 2


def test_rows_without_features(rows):
    x, labels = rows
    model = Neighbours().fit(x, labels, FEATURES, LABELS)
    found = model.votes(make_csr(np.random.default_rng(0), [0, 0], FEATURES), 3)
    assert (found.ids == -1).all()
    assert not found.shares.any()
    assert not found.nearest.any()
    assert np.isfinite(found.mean).all()


def test_lists_are_as_long_as_the_work_allows():
    few = np.full(10, 50)
    assert longest_list(few, 100, 16_384) >= 50, "short lists are whole"
    many = np.full(20, 100_000)  # 20 features that each of 100,000 rows has.
    longest = longest_list(many, 100_000, 16_384)
    assert 20 * longest <= 16_384 < 20 * 2 * longest


def test_impossible_inputs_are_refused(rows):
    x, labels = rows
    with pytest.raises(ValueError, match="count must be a whole number of at least 1, not 0"):
        Neighbours(0)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 2\)"):
        Neighbours().fit(x, labels, FEATURES, 2)
    with pytest.raises(ValueError, match=r"features must lie in \[0, 3\)"):
        Neighbours().fit(x, labels, 3, LABELS)


def test_labels_that_are_left_out_give_their_places_to_others(rows):
    x, labels = rows
    model = Neighbours(5, weighted=False).fit(x, labels, FEATURES, LABELS)
    every = model.votes(x, LABELS)
    without = make_pattern(np.random.default_rng(1), [3] * ROWS, LABELS)
    found = model.votes(x, 2, without)
    for b in range(ROWS):
        out = without.indices[without.indptr[b] : without.indptr[b + 1]]
        kept = (every.ids[b] >= 0) & ~np.isin(every.ids[b], out)
        best = np.sort(every.shares[b][kept])[::-1][:2]
        np.testing.assert_allclose(found.shares[b][: len(best)], best, rtol=1e-6)
        assert not np.isin(found.ids[b], out).any()
    own = model.own_candidates(LABELS, lambda begin, end: without.slice(begin, end), block=7)
    assert len(own.indices) < len(model.own_candidates(LABELS).indices)
    pairs = [each.entry_rows() * LABELS + each.indices for each in (own, without)]
    assert not np.isin(*pairs).any()
