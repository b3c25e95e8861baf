"""Nearest training rows by cosine, and their votes, against loops over dense rows."""

import numpy as np
import pytest
from helpers.matrices import make_csr, make_pattern, to_dense

from slide.ranking.scorers import neighbours
from slide.ranking.scorers.neighbours import DenseSearch, Neighbours, are_dense, longest_list
from slide.sparse import CSR, Pattern
from slide.utils.array_checks import Stored

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
def test_votes_are_those_of_the_nearest_rows(rows, idf, monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", 7)
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


def test_an_answer_takes_no_more_than_the_largest_count_of_a_saved_model(rows):
    model = Neighbours(10**9).fit(*rows, FEATURES, LABELS)
    assert model.count == neighbours._MOST_NEAR
    np.testing.assert_array_equal(
        model.votes(rows[0], 4).ids,
        Neighbours(ROWS).fit(*rows, FEATURES, LABELS).votes(rows[0], 4).ids,
    )


def test_a_row_is_not_its_own_neighbour(rows, monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", 7)
    x, labels = rows
    model = Neighbours(5, weighted=False).fit(x, labels, FEATURES, LABELS)
    found = model.own_candidates(LABELS)
    others, several = naive_rows(x, False), 0
    for b in range(ROWS):
        without = others.copy()
        without[b] = 0
        votes, _ = naive_votes(others[b], without, labels, 5, 1)
        own = found.indices[found.indptr[b] : found.indptr[b + 1]]
        assert set(own.tolist()) == set(votes)
        several += len(own) > 1
    assert several > ROWS / 2


def test_lists_are_as_long_as_the_work_allows():
    few = np.full(10, 50)
    assert longest_list(few, 100, 16_384) >= 50, "short lists are whole"
    many = np.full(20, 100_000)  # 20 features that each of 100,000 rows has.
    longest = longest_list(many, 100_000, 16_384)
    assert 20 * longest <= 16_384 < 20 * 2 * longest


def test_labels_that_are_left_out_give_their_places_to_others(rows, monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", 7)
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
    own = model.own_candidates(LABELS, lambda begin, end: without.slice(begin, end))
    assert len(own.indices) < len(model.own_candidates(LABELS).indices)
    pairs = [each.entry_rows() * LABELS + each.indices for each in (own, without)]
    assert not np.isin(*pairs).any()


WIDTH = 12


def sparse(dense):
    """All entries of a matrix, zeros included."""
    rows, width = dense.shape
    columns = np.tile(np.arange(width, dtype=np.int32), rows)
    return CSR(np.arange(rows + 1) * width, columns, dense.ravel().astype(np.float32))


def clustered(rows, seed=0):
    """Rows around some centres that are far from 0, with features of different scales."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(size=(8, WIDTH))
    found = centres[rng.integers(8, size=rows)] + 0.3 * rng.normal(size=(rows, WIDTH))
    return (found + 2) * np.linspace(1, 30, WIDTH)


def cosines(queries, rows, weighted):
    if weighted:
        queries, rows = ((each - rows.mean(0)) / rows.std(0) for each in (queries, rows))
    queries, rows = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, rows))
    return queries @ rows.T


@pytest.mark.parametrize("weighted", [False, True])
def test_few_rows_are_found_exactly(weighted):
    rows, queries = clustered(500), clustered(40, seed=1)
    near = DenseSearch(sparse(rows), WIDTH, weighted).nearest(sparse(queries), 5)
    every = cosines(queries, rows, weighted)
    np.testing.assert_allclose(near.scores, -np.sort(-every, axis=1)[:, :5], rtol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(every, near.ids, 1), near.scores, rtol=1e-4)


def test_of_many_rows_nearly_all_of_the_nearest_are_found():
    rng = np.random.default_rng(2)
    rows, queries = rng.normal(size=(20_000, WIDTH)), rng.normal(size=(200, WIDTH))
    search = DenseSearch(sparse(rows), WIDTH, False)
    found = search.nearest(sparse(queries), 10).ids
    best = np.argsort(-cosines(queries, rows, False), axis=1)[:, :10]
    recall = np.mean([np.isin(own, true).mean() for own, true in zip(found, best, strict=True)])
    assert recall > 0.9
    # A visit of lists at random would find as many as it sees.
    assert search.index.nlist / 5 > neighbours._VISITED


def test_a_dense_row_is_not_its_own_neighbour(monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", 700)
    rows = clustered(3000)
    rows[1] = rows[0]
    search, begin = DenseSearch(sparse(rows), WIDTH, True), 0
    for near in search.own_nearest(5):
        numbers = np.arange(begin, begin + len(near.ids))
        assert not (near.ids == numbers[:, None]).any()
        assert (np.diff(near.scores) <= 0).all()
        if begin == 0:
            assert near.ids[0, 0] == 1
            assert near.ids[1, 0] == 0
        begin += len(near.ids)
    assert begin == len(rows)


def test_negative_cosines_and_rows_of_zeros_are_not_near():
    rows = np.array([[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]])
    queries = np.array([[2.0, 2.0], [0.0, 0.0]])
    near = DenseSearch(sparse(rows), 2, False).nearest(sparse(queries), 3)
    assert near.ids.tolist() == [[0, -1, -1], [-1, -1, -1]]
    assert near.scores[0].tolist() == pytest.approx([1, 0, 0])
    assert DenseSearch(sparse(rows), 2, False).nearest(sparse(queries[:0]), 3).ids.shape == (0, 3)


def test_features_that_never_vary_or_that_no_row_has_do_not_count():
    rows = clustered(300)
    rows[:, 3] = 0.1
    search = DenseSearch(sparse(rows), WIDTH, True)
    assert search.weights[3] == 0
    queries = clustered(5, seed=1)
    other = queries.copy()
    other[:, 3] = 50
    more = np.hstack([other, np.full((5, 1), 9.0)])
    near, same = (search.nearest(sparse(each), 4).ids for each in (queries, more))
    np.testing.assert_array_equal(near, same)
    assert search.grown(1, weighted=True) is search


def test_small_deviations_count_and_those_of_rounding_do_not():
    rng = np.random.default_rng(0)
    far = np.column_stack([738_000 + 30 * rng.normal(size=400), np.full(400, 0.1), rng.random(400)])
    weights = DenseSearch(sparse(far), 3, True).weights
    np.testing.assert_allclose(weights[[0, 2]], 1 / far.std(0)[[0, 2]], rtol=1e-2)
    assert weights[1] == 0


def test_values_that_are_not_finite_are_refused():
    rows = clustered(100)
    rows[3, 4] = np.nan
    labels = Pattern(np.arange(101), np.zeros(100, np.int32))
    with pytest.raises(ValueError, match="features hold NaN or infinite values"):
        Neighbours().fit(sparse(rows), labels, WIDTH, 1)


def test_what_is_dense(monkeypatch):
    def share_of(width, count, rows=100):
        rng = np.random.default_rng(0)
        own = [rng.choice(width, count, replace=False) for _ in range(rows)]
        features = CSR(*Pattern.from_lists(own), np.ones(rows * count, np.float32))
        return are_dense(features, width)

    assert share_of(10, 8)
    assert not share_of(10, 2), "lists hold all"
    monkeypatch.setattr(neighbours, "WORK", 20)
    assert share_of(10, 2), "lists would be cut off"
    assert not share_of(100, 2)


def test_labels_of_near_dense_rows_vote(monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", 150)
    rows, labels = clustered(400), np.random.default_rng(9).integers(8, size=400)
    pattern = Pattern(np.arange(401), labels.astype(np.int32))
    model = Neighbours(5).fit(sparse(rows), pattern, WIDTH, 8)
    assert isinstance(model.fitted(), DenseSearch)
    queries = clustered(30, seed=1)
    best = np.argsort(-cosines(queries, rows, True), axis=1)[:, :5]
    found = model.votes(sparse(queries), 8)
    for own, ids in zip(best, found.ids, strict=True):
        assert {int(labels[row]) for row in own} == {int(n) for n in ids if n >= 0}
    assert len(model.own_candidates(3).indptr) == 401


def test_dense_rows_are_kept_with_what_finds_them():
    rows, labels = sparse(clustered(600)), make_pattern(np.random.default_rng(0), [2] * 600, 6)
    model, again = Neighbours(5).fit(rows, labels, WIDTH, 6), Neighbours()
    again.restore(Stored(*model.state()), 6, WIDTH)
    assert isinstance(again.fitted(), DenseSearch)
    queries = sparse(clustered(50, seed=1))
    for found, expected in zip(again.votes(queries, 3), model.votes(queries, 3), strict=True):
        np.testing.assert_array_equal(found, expected)
