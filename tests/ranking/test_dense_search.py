"""Nearest dense rows, against all cosines."""

import numpy as np
import pytest

import slide
from slide.ranking import dense_search
from slide.ranking.dense_search import DenseSearch, are_dense
from slide.ranking.neighbours import Neighbours
from slide.sparse import CSR, Pattern

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
    assert search.index.nlist / 5 > dense_search._VISITED


def test_a_row_is_not_its_own_neighbour():
    rows = clustered(3000)
    rows[1] = rows[0]
    search, begin = DenseSearch(sparse(rows), WIDTH, True), 0
    for near in search.own_nearest(5, block=700):
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
    assert search.grown(1) is search


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
    monkeypatch.setattr(dense_search, "WORK", 20)
    assert share_of(10, 2), "lists would be cut off"
    assert not share_of(100, 2)


def test_labels_of_near_dense_rows_vote():
    rows, labels = clustered(400), np.random.default_rng(9).integers(8, size=400)
    pattern = Pattern(np.arange(401), labels.astype(np.int32))
    model = Neighbours(5).fit(sparse(rows), pattern, WIDTH, 8)
    assert isinstance(model.fitted(), DenseSearch)
    queries = clustered(30, seed=1)
    best = np.argsort(-cosines(queries, rows, True), axis=1)[:, :5]
    found = model.votes(sparse(queries), 8)
    for own, ids in zip(best, found.ids, strict=True):
        assert {int(labels[row]) for row in own} == {int(n) for n in ids if n >= 0}
    assert len(model.own_candidates(3, block=150).indptr) == 401


@pytest.mark.not_as_python
def test_a_model_of_dense_rows_is_saved_with_what_finds_them(tmp_path):
    X = clustered(600)
    y = cosines(X, clustered(6, seed=5), True).argmax(1)
    model = slide.SlideClassifier(random_state=0).fit(X, y)
    assert model.model_.ranker is not None
    assert isinstance(model.model_.ranker.neighbours.fitted(), DenseSearch)
    model.save(tmp_path / "model")
    again = slide.load(tmp_path / "model")
    found, expected = (each.predict(X[:50], k=3) for each in (again, model.model_))
    np.testing.assert_array_equal(found.scores, expected.scores)
