"""What an item says of others, against the matrix of all products."""

import numpy as np
import pytest

from slide.ranking import LinearClassifiers, item_regressions
from slide.sparse import CSR, Pattern

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def baskets():
    """Each row has four items of one of three groups of ten, and one of all."""
    rng = np.random.default_rng(0)
    groups = rng.integers(3, size=400)
    rows = [
        sorted({*(10 * g + rng.permutation(10)[:4]).tolist(), int(rng.integers(30))})
        for g in groups
    ]
    return Pattern.from_lists(rows)


def dense(items, width=30):
    found = np.zeros((items.num_rows, width))
    found[items.entry_rows(), items.indices] = 1
    return found


def test_few_items_have_the_weights_of_ridge_regressions(baskets):
    indptr, columns, values = item_regressions.item_regressions(baskets, 30, 30)
    products = dense(baskets).T @ dense(baskets)
    for item in range(30):
        own = slice(indptr[item], indptr[item + 1])
        others = np.flatnonzero((products[item] > 0) & (np.arange(30) != item))
        assert columns[own].tolist() == others.tolist()
        matrix = products[np.ix_(others, others)] + 30 * np.eye(len(others))
        expected = np.linalg.solve(matrix, products[others, item])
        np.testing.assert_allclose(values[own], expected, rtol=1e-3, atol=1e-5)


def test_items_beyond_the_features_have_no_weights(baskets):
    weights = item_regressions.item_regressions(baskets, 20, 30)
    assert weights.num_rows == 30
    assert weights.indices.max() == 19
    assert (np.diff(weights.indptr)[20:] > 0).all()


@pytest.mark.not_as_python
def test_shortened_lists_of_many_equal_items_give_no_large_weights(monkeypatch):
    """Most of the products are missing, so that no rows could have them."""
    rows = np.random.default_rng(0).random((800, 200)) < 0.5
    items = Pattern.from_lists([np.flatnonzero(row).tolist() for row in rows])
    exact = item_regressions.item_regressions(items, 200, 200)
    assert np.abs(exact.values).max() < 0.2
    monkeypatch.setattr(item_regressions, "_MOST_SHARING", 80)
    monkeypatch.setattr(item_regressions, "_MOST_PAIRS", 0)
    found = item_regressions.item_regressions(items, 200, 200)
    assert np.abs(found.values).max() < 0.2


def test_there_may_be_no_rows_and_no_items():
    assert not len(item_regressions.item_regressions(Pattern.from_lists([]), 3, 4).indices)
    assert not len(item_regressions.item_regressions(Pattern.from_lists([[], []]), 3, 4).indices)
    one = item_regressions.item_regressions(Pattern.from_lists([[0, 2], [2]]), 9, 4)
    assert one.indices.tolist() == [2, 0]


def test_many_items_keep_the_closest(baskets, monkeypatch):
    monkeypatch.setattr(item_regressions, "WEIGHTS", 5)
    weights = item_regressions.item_regressions(baskets, 30, 30)
    assert (np.diff(weights.indptr) == 5).all()
    same = weights.indices // 10 == weights.entry_rows() // 10
    assert same.mean() > 0.95


def test_classifiers_score_by_them_whatever_the_values(baskets):
    model = LinearClassifiers().fit_items(baskets, 30, 30)
    assert model.counts_items
    ids = np.tile(np.arange(30), (400, 1))
    rows = [CSR(*baskets, np.full(len(baskets.indices), x, np.float32)) for x in (1.0, 0.2)]
    one, other = (model.scores(row, ids) for row in rows)
    np.testing.assert_array_equal(one, other)
    weights = np.zeros((30, 30))
    weights[model.weights.entry_rows(), model.weights.indices] = model.weights.values
    np.testing.assert_allclose(one, dense(baskets) @ weights.T - 1, rtol=1e-4, atol=1e-5)
    model.fit(rows[1], baskets, baskets, 30, 30)
    assert not model.counts_items


def test_impossible_items_are_refused(baskets):
    with pytest.raises(ValueError, match=r"items must lie in \[0, 20\)"):
        LinearClassifiers().fit_items(baskets, 20, 20)
