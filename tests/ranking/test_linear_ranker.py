"""The linear re-ranker: against naive twins, its optimality, and its ranking."""

import numpy as np
import pytest

from slide import files, runtime
from slide.kernels import dual_descent as kernels
from slide.ranking import linear_ranker
from slide.ranking.linear_ranker import LinearRanker, _training_lists
from slide.sparse import CSR, Pattern


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


def to_dense(csr, columns):
    out = np.zeros((csr.num_rows, columns))
    for row in range(csr.num_rows):
        part = slice(csr.indptr[row], csr.indptr[row + 1])
        out[row, csr.indices[part]] = csr.values[part]
    return out


def test_lists_equal_the_naive_ones(problem):
    _, _, labels, candidates = problem
    lists = _training_lists(labels, candidates, 6)
    for label, expected in naive_lists(labels, candidates, 6).items():
        part = slice(lists.indptr[label], lists.indptr[label + 1])
        own = zip(lists.rows[part].tolist(), lists.signs[part].tolist(), strict=True)
        assert dict(own) == expected


@pytest.mark.parametrize(("cost", "offset"), [(1.0, -1.0), (0.3, -0.5), (3.0, 0.0)])
def test_fit_finds_the_minimum(problem, cost, offset):
    dense, features, labels, candidates = problem
    ranker = LinearRanker(cost, bias=offset, threshold=0.0, max_iter=1000, tol=1e-5)
    ranker.fit(features, labels, candidates, 12, 6)
    assert ranker.weights is not None
    found = to_dense(ranker.weights, 12)
    for label, own in naive_lists(labels, candidates, 6).items():
        expected = naive_weights(dense[list(own)], list(own.values()), cost, offset)
        np.testing.assert_allclose(found[label], expected, atol=1e-3)


def test_fit_and_scores_do_not_depend_on_threads(problem, ids):
    _, features, labels, candidates = problem
    before, found = runtime.num_threads(), []
    for threads in (1, 0):  # 0: all
        runtime.set_threads(threads)
        ranker = LinearRanker().fit(features, labels, candidates, 12, 6)
        found.append(ranker.scores(features, ids))
    runtime.set_threads(before)
    np.testing.assert_array_equal(*found)


def test_fit_hands_its_scratch_back_clean(problem):
    _, features, labels, candidates = problem
    lists = _training_lists(labels, candidates, 6)
    weights, orders = np.zeros((2, 12), np.float32), np.zeros((2, 40), np.int64)
    alphas = np.zeros(len(lists.rows), np.float32)
    solver = LinearRanker().solver
    kernels.fit_duals(features, np.ones(40), lists, solver, weights, orders, alphas)
    assert (alphas >= 0).all()
    assert alphas.any()
    assert not weights.any()


def test_scores_are_products(problem, ids):
    dense, features, labels, candidates = problem
    ranker = LinearRanker(threshold=0.1).fit(features, labels, candidates, 12, 6)
    assert ranker.weights is not None
    assert np.abs(ranker.weights.values).min() >= 0.1
    every = dense @ to_dense(ranker.weights, 12).T - 1
    expected = np.where(ids < 0, -np.inf, np.take_along_axis(every, ids, 1))
    np.testing.assert_allclose(ranker.scores(features, ids), expected, atol=1e-5)


@pytest.mark.parametrize("mix", [0.3, 1.0])
def test_rerank_orders_by_the_mixed_score(problem, ids, mix):
    _, features, labels, candidates = problem
    ranker = LinearRanker(share=mix).fit(features, labels, candidates, 12, 6)
    theirs = np.random.default_rng(1).standard_normal(ids.shape).astype(np.float32)
    theirs[ids < 0] = -np.inf  # As a search in hash tables gives it.
    scores, found = ranker.rerank(features, ids, theirs, 2)
    own = ranker.scores(features, ids)
    for b in range(40):
        mixed = [
            ((1 - mix) * theirs[b, j] + mix * own[b, j] if ids[b, j] >= 0 else -np.inf)
            for j in range(3)
        ]
        np.testing.assert_allclose(scores[b], sorted(mixed, reverse=True)[:2], atol=1e-5)
        best = np.argsort(-np.array(mixed), kind="stable")[:2]
        np.testing.assert_array_equal(found[b], ids[b, best])


def test_share_follows_from_the_labels_of_a_row(problem):
    _, features, labels, candidates = problem
    ranker = LinearRanker()
    with pytest.raises(RuntimeError, match="call fit first"):
        ranker.rerank(features, np.zeros((40, 2), np.int64), np.zeros((40, 2)), 1)
    ranker.fit(features, labels, candidates, 12, 6)
    assert ranker.fitted_share == linear_ranker.linear_share(len(labels.indices) / 40)
    many = Pattern.from_lists([range(6)] * 40)
    assert ranker.fit(features, many, candidates, 12, 6).fitted_share == pytest.approx(2 / 6)
    (again := LinearRanker(share=0.9)).load_state_dict(ranker.state_dict())
    assert again.fitted_share == ranker.fitted_share
    assert LinearRanker(share=0.9).fit(features, labels, candidates, 12, 6).fitted_share == 0.9


def test_share_0_keeps_the_order_of_the_network(problem):
    _, features, labels, candidates = problem
    ids = np.tile(np.arange(6), (40, 1))
    ranker = LinearRanker(share=0).fit(features, labels, candidates, 12, 6)
    _, found = ranker.rerank(features, ids, -ids.astype(np.float32), 6)
    np.testing.assert_array_equal(found, ids)


def test_its_state_comes_back_from_a_file(problem, ids, tmp_path):
    _, features, labels, candidates = problem
    ranker = LinearRanker().fit(features, labels, candidates, 12, 6)
    files.write_tensors(tmp_path / "ranker.pt", ranker.state_dict())
    other = LinearRanker()
    other.load_state_dict(files.read_tensors(tmp_path / "ranker.pt"))
    expected, found = ranker.scores(features, ids), other.scores(features, ids)
    assert np.isfinite(expected[ids >= 0]).all()
    assert len(np.unique(expected)) > 10
    np.testing.assert_array_equal(found, expected)


def test_nothing_to_train_on():
    ranker = LinearRanker()
    features = CSR(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    ranker.fit(features, Pattern.from_lists([]), Pattern.from_lists([]), 12, 6)
    row = CSR(np.array([0, 1]), np.array([3], np.int32), np.ones(1, np.float32))
    np.testing.assert_array_equal(ranker.scores(row, np.arange(6)[None]), np.full((1, 6), -1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"C": 0}, "C must be a number above 0, not 0"),
        ({"bias": 1}, r"bias must be in \[-1.0, 0.0\], not 1"),
        ({"threshold": -1}, "threshold must be a number of at least 0, not -1"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1, not 0"),
        ({"tol": 0}, "tol must be a number above 0, not 0"),
        ({"share": 1.5}, r"share must be in \[0, 1\], not 1.5"),
        ({"depth": 0}, "depth must be a whole number of at least 1, not 0"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LinearRanker(**options)


def test_impossible_inputs_are_refused(problem, ids):
    _, features, labels, candidates = problem
    with pytest.raises(RuntimeError, match="call fit first"):
        LinearRanker().scores(features, ids)
    with pytest.raises(RuntimeError, match="call fit first"):
        LinearRanker().state_dict()
    with pytest.raises(ValueError, match=r"candidates.* 5"):
        LinearRanker().fit(features, Pattern.from_lists([[]] * 40), candidates, 12, 5)
    with pytest.raises(ValueError, match="3 rows of candidates do not fit 40 inputs"):
        LinearRanker().fit(features, labels, Pattern.from_lists([[1]] * 3), 12, 6)
    ranker = LinearRanker().fit(features, labels, candidates, 12, 6)
    with pytest.raises(ValueError, match=r"k must be in \[1, 3\], not 4"):
        ranker.rerank(features, ids, np.zeros((40, 3), np.float32), 4)
    with pytest.raises(ValueError, match="ids must be below 6, not 6"):
        ranker.scores(features, np.full((40, 1), 6))
    with pytest.raises(ValueError, match=r"ids of shape \(2, 3\) do not fit 40 rows"):
        ranker.scores(features, ids[:2])
