"""The linear classifiers: against naive twins, and their optimality."""

import numpy as np
import pytest
from helpers.matrices import dense_of, ones_of, to_dense
from sklearn.svm import LinearSVC

from slide.ranking.scorers import linear
from slide.ranking.scorers.linear import LinearClassifiers, item_regressions
from slide.search import row_blocks
from slide.search.row_blocks import ItemPairs, count_pairs
from slide.sparse import CSR, Pattern, row_bounds
from slide.utils.array_checks import Stored


def random_rows(rng, rows, columns, share=0.4):
    dense = np.where(rng.random((rows, columns)) < share, rng.random((rows, columns)), 0)
    dense = dense.astype(np.float32)
    indptr = np.concatenate([[0], np.cumsum((dense != 0).sum(1))]).astype(np.int64)
    return dense, CSR(indptr, np.nonzero(dense)[1].astype(np.int32), dense[dense != 0])


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    dense, features = random_rows(rng, 40, 12)

    def random_lists():
        return [rng.choice(6, rng.integers(0, 4), replace=False) for _ in range(40)]

    return dense, features, Pattern.from_lists(random_lists()), Pattern.from_lists(random_lists())


@pytest.fixture
def ids():
    """Three labels to score for each of the rows; -1: none."""
    return np.random.default_rng(2).integers(-1, 6, (40, 3))


def naive_lists(labels, candidates, num_labels):
    """``{label: {row: sign}}``."""
    found = {label: {} for label in range(num_labels)}
    for b in range(labels.num_rows):
        for label in candidates.indices[candidates.indptr[b] : candidates.indptr[b + 1]]:
            found[int(label)][b] = -1
        for label in labels.indices[labels.indptr[b] : labels.indptr[b + 1]]:
            found[int(label)][b] = 1
    return found


def naive_weights(dense, signs, cost, offset):
    """The minimum by plain gradient descent, in float64."""
    x, y = dense.astype(np.float64), np.asarray(signs, np.float64)
    w = np.zeros(x.shape[1])
    rate = 1 / (1 + 2 * cost * np.linalg.norm(x, 2) ** 2)
    for _ in range(3000):
        slack = np.maximum(0, 1 - y * (x @ w + offset))
        w -= rate * (w - 2 * cost * x.T @ (y * slack))
    return w


@pytest.mark.parametrize(("cost", "offset"), [(1.0, -1.0), (0.3, -0.5), (3.0, 0.0)])
def test_fit_finds_the_minimum(problem, cost, offset):
    dense, features, labels, candidates = problem
    model = LinearClassifiers(cost, bias=offset, threshold=0.0, max_iter=1000, tol=1e-5)
    model.fit(features, labels, candidates, 12, 6)
    assert model.weights is not None
    found = to_dense(model.weights, 12)
    for label, own in naive_lists(labels, candidates, 6).items():
        expected = naive_weights(dense[list(own)], list(own.values()), cost, offset)
        np.testing.assert_allclose(found[label], expected, atol=1e-3)


def test_blocks_change_nothing(problem, monkeypatch):
    """Room for the weights of a label or two at a time, or of all."""
    _, features, labels, candidates = problem
    rows = features, labels, candidates, 12, 6
    expected = LinearClassifiers().fit(*rows).weights
    for room in (1, 20, 1 << 20):
        monkeypatch.setattr(row_blocks, "MOST_ROOM", room)
        found = LinearClassifiers().fit(*rows).weights
        for each, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(each, other)


@pytest.mark.parametrize("copied", [0, 1 << 20])
def test_values_of_repeated_columns_add_up(problem, monkeypatch, copied):
    """As in a dense row; each entry stands twice, with parts of its value."""
    monkeypatch.setattr(linear, "MOST_COPIED", copied)
    _, features, *others = problem
    parts = np.repeat(features.values, 2) * np.tile([1.5, -0.5], len(features.values))
    twice = CSR(2 * features.indptr, np.repeat(features.indices, 2), parts.astype(np.float32))
    found, expected = (
        LinearClassifiers(threshold=0.0, tol=1e-5, max_iter=1000).fit(x, *others, 12, 6).weights
        for x in (twice, features)
    )
    np.testing.assert_allclose(to_dense(found, 12), to_dense(expected, 12), atol=1e-3)


def test_scores_are_products(problem, ids):
    dense, features, labels, candidates = problem
    model = LinearClassifiers(threshold=0.1).fit(features, labels, candidates, 12, 6)
    assert model.weights is not None
    assert np.abs(model.weights.values).min() >= 0.1
    every = dense @ to_dense(model.weights, 12).numpy().T - 1
    expected = np.where(ids < 0, -np.inf, np.take_along_axis(every, ids, 1))
    np.testing.assert_allclose(model.scores(features, ids), expected, atol=1e-5)


def test_a_row_of_weight_zero_teaches_nothing(problem):
    _, *rows = problem
    weights = np.ones(40)
    weights[0] = 0
    found, expected = (LinearClassifiers(threshold=0.0, tol=1e-5, max_iter=1000) for _ in range(2))
    found.fit(*rows, 12, 6, weights)
    expected.fit(*(each.slice(1, 40) for each in rows), 12, 6)
    found, expected = (to_dense(model.weights, 12) for model in (found, expected))
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_nothing_to_train_on():
    model = LinearClassifiers()
    features = CSR(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    model.fit(features, Pattern.from_lists([]), Pattern.from_lists([]), 12, 6)
    row = CSR(np.array([0, 1]), np.array([3], np.int32), np.ones(1, np.float32))
    np.testing.assert_array_equal(model.scores(row, np.arange(6)[None]), np.full((1, 6), -1))


def test_impossible_inputs_are_refused(problem, ids):
    _, features, labels, candidates = problem
    with pytest.raises(RuntimeError, match="call fit first"):
        LinearClassifiers().scores(features, ids)
    short = features._replace(values=features.values[:-1])
    with pytest.raises(ValueError, match=r"values do not fit .* column numbers"):
        LinearClassifiers().fit(short, labels, candidates, 12, 6)
    with pytest.raises(ValueError, match=r"candidates.* 5"):
        LinearClassifiers().fit(features, Pattern.from_lists([[]] * 40), candidates, 12, 5)
    with pytest.raises(ValueError, match="3 rows of candidates do not fit 40 inputs"):
        LinearClassifiers().fit(features, labels, Pattern.from_lists([[1]] * 3), 12, 6)
    model = LinearClassifiers().fit(features, labels, candidates, 12, 6)
    with pytest.raises(ValueError, match=r"ids of shape \(2, 3\) do not fit 40 rows"):
        model.scores(features, ids[:2])


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


@pytest.mark.parametrize("most", [4, 64])
def test_the_closest_items_have_weights_of_ridge_regressions(monkeypatch, most):
    """Items most often with one, for their number of rows; items from 20 on are no features."""
    monkeypatch.setattr(linear, "WEIGHTS", most)
    monkeypatch.setattr(row_blocks, "MOST_ROOM", 9)
    rng = np.random.default_rng(0)
    rows = (rng.random((200, 30)) < rng.uniform(0.01, 0.5, 30)) & (np.arange(30) != 3)
    items = Pattern.from_lists([np.flatnonzero(row).tolist() for row in rows])
    indptr, columns, values = item_regressions(count_pairs(items, 30), 20)
    products = rows.T.astype(float) @ rows
    closeness = products / np.sqrt(products.diagonal() + 5)
    for item in range(30):
        own = slice(indptr[item], indptr[item + 1])
        others = [n for n in np.flatnonzero(products[item]) if n != item and n < 20]
        near, best = columns[own], np.sort(closeness[item, others])[-most:]
        assert set(near) <= set(others)
        assert (np.diff(near) > 0).all()
        np.testing.assert_allclose(np.sort(closeness[item, near]), best, rtol=1e-6)
        matrix = products[np.ix_(near, near)] + 30 * np.eye(len(near))
        expected = np.linalg.solve(matrix, products[near, item])
        np.testing.assert_allclose(values[own], expected, rtol=1e-3, atol=1e-5)


def test_a_product_that_one_of_two_lists_lacks_is_that_of_the_other(baskets):
    counts, lists = count_pairs(baskets, 30)
    rows = lists.entry_rows()
    kept = (rows != 5) | (lists.indices != 7)
    bounds = row_bounds(np.bincount(rows[kept], minlength=30))
    short = CSR(bounds, lists.indices[kept], lists.values[kept])
    found, expected = (
        to_dense(item_regressions(ItemPairs(counts, each), 30), 30) for each in (short, lists)
    )
    others = np.arange(30) != 5
    np.testing.assert_allclose(found[others], expected[others], rtol=1e-3, atol=1e-5)


@pytest.mark.not_as_python
def test_shortened_lists_of_many_equal_items_give_no_large_weights(monkeypatch):
    """Most of the products are missing, so that no rows could have them."""
    rows = np.random.default_rng(0).random((800, 200)) < 0.5
    items = Pattern.from_lists([np.flatnonzero(row).tolist() for row in rows])
    exact = item_regressions(count_pairs(items, 200), 200)
    assert np.abs(exact.values).max() < 0.2
    monkeypatch.setattr(row_blocks, "_MOST_SHARING", 80)
    monkeypatch.setattr(row_blocks, "_MOST_PAIRS", 0)
    found = item_regressions(count_pairs(items, 200), 200)
    assert np.abs(found.values).max() < 0.2


def test_there_may_be_no_rows_and_no_items():
    assert not len(item_regressions(count_pairs(Pattern.from_lists([]), 4), 3).indices)
    assert not len(item_regressions(count_pairs(Pattern.from_lists([[], []]), 4), 3).indices)
    one = item_regressions(count_pairs(Pattern.from_lists([[0, 2], [2]]), 4), 9)
    assert one.indices.tolist() == [2, 0]


def test_classifiers_score_by_them_whatever_the_values(baskets):
    model = LinearClassifiers().fit_items(count_pairs(baskets, 30), 30)
    assert model.counts_items
    ids = np.tile(np.arange(30), (400, 1))
    rows = [ones_of(baskets, value) for value in (1.0, 0.2)]
    one, other = (model.scores(row, ids) for row in rows)
    np.testing.assert_array_equal(one, other)
    weights = to_dense(model.weights, 30).double().numpy()
    np.testing.assert_allclose(one, dense_of(baskets, 30) @ weights.T - 1, rtol=1e-4, atol=1e-5)
    again = LinearClassifiers()
    again.restore(Stored(*model.state()), 30, 30)
    np.testing.assert_array_equal(again.scores(rows[1], ids), one)
    few = again.selected(np.arange(1, 30, 2), 30)
    np.testing.assert_array_equal(few.scores(rows[1], ids[:, :15]), one[:, 1::2])
    model.fit(rows[1], baskets, baskets, 30, 30)
    assert not model.counts_items


@pytest.mark.parametrize("cost", [0.1, pytest.param(10.0, marks=pytest.mark.not_as_python)])
def test_fit_is_that_of_linear_svc(problem, cost):
    """With its intercept, which there is where all labels are negatives."""
    dense, features, labels, _ = problem
    model = LinearClassifiers(cost, bias=0.0, threshold=0.0, max_iter=3000, tol=1e-6)
    model.fit(features, labels, None, 12, 6)
    assert model.intercepts is not None
    found, scores = to_dense(model.weights, 12), model.scores(features, np.array([range(6)] * 40))
    every = Pattern.from_lists([range(6)] * 40)
    for label, own in naive_lists(labels, every, 6).items():
        theirs = LinearSVC(C=cost, dual=True, tol=1e-6, max_iter=100_000)
        theirs.fit(dense[list(own)].astype(np.float64), list(own.values()))
        np.testing.assert_allclose(found[label], theirs.coef_[0], atol=1e-3)
        np.testing.assert_allclose(scores[:, label], theirs.decision_function(dense), atol=2e-3)


def test_new_labels_have_the_bias_alone(problem):
    """And only where all labels are negatives, there are intercepts."""
    _, features, *lists = problem
    model = LinearClassifiers().fit(features, lists[0], None, 12, 6)
    none = CSR(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    found = model.grown(2, 3).scores(none, np.array([[6, 7, -1]]))
    np.testing.assert_array_equal(found, [[-1, -1, -np.inf]])
    assert model.fit(features, *lists, 12, 6).intercepts is None
