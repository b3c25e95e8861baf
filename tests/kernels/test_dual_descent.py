"""Kernels of the linear classifiers, against their looped twins."""

import numpy as np
import pytest
from helpers import naive_ranking
from helpers.matrices import make_csr, make_pattern, to_dense

from slide.kernels import dual_descent as kernels
from slide.kernels.dual_descent import Solver, TrainingRows

# Training rows of each classifier; among them none, and one.
LENGTHS, NUM_ROWS, NUM_COLUMNS = [9, 0, 1, 20, 14], 25, 7


@pytest.fixture(params=[0, 1, 2])
def problem(request):
    rng = np.random.default_rng(request.param)
    x = make_csr(rng, rng.integers(0, 6, NUM_ROWS), NUM_COLUMNS)
    pattern = make_pattern(rng, LENGTHS, NUM_ROWS)
    signs = rng.choice([-1, 1], len(pattern.indices)).astype(np.float32)
    return x, to_dense(x, NUM_COLUMNS).numpy(), TrainingRows(*pattern, signs)


def fit(x, dense, lists, solver, threads, costs=()):
    squares = (dense**2).sum(1)
    weights = np.zeros((threads, NUM_COLUMNS), np.float32)
    orders = np.zeros((threads, max(LENGTHS)), np.int64)
    alphas = np.zeros(len(lists.rows), np.float32)
    kernels.fit_duals(
        x, squares, np.array(costs, np.float64), lists, solver, weights, orders, alphas
    )
    assert not weights.any()
    return alphas


def lists_of(lists):
    """The places of each classifier's entries."""
    return [slice(a, b) for a, b in zip(lists.indptr[:-1], lists.indptr[1:], strict=True)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "solver", [Solver(1.0, -1.0, 20, 0.1), Solver(0.3, -0.5, 3, 1e-3), Solver(2.0, 0.0, 200, 1e-4)]
)
def test_fit_duals(problem, solver, threads):
    x, dense, lists = problem
    alphas = fit(x, dense, lists, solver, threads)
    for own in lists_of(lists):
        expected = naive_ranking.fit_duals(dense[lists.rows[own]], lists.signs[own], solver)
        np.testing.assert_allclose(alphas[own], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("solver", [Solver(1.0, -1.0, 20, 0.1), Solver(2.0, 0.0, 200, 1e-4)])
def test_fit_duals_with_weights_of_rows(problem, solver):
    x, dense, lists = problem
    costs = np.random.default_rng(9).uniform(0.1, 5, NUM_ROWS)
    alphas = fit(x, dense, lists, solver, 1, costs)
    assert not np.allclose(alphas, fit(x, dense, lists, solver, 1))
    for own in lists_of(lists):
        rows = lists.rows[own]
        expected = naive_ranking.fit_duals(dense[rows], lists.signs[own], solver, costs[rows])
        np.testing.assert_allclose(alphas[own], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_collect_weights(problem, threshold, threads):
    x, dense, lists = problem
    alphas = fit(x, dense, lists, Solver(1.0, -1.0, 20, 0.1), 1)
    weights = np.zeros((threads, NUM_COLUMNS), np.float32)
    indptr = np.zeros(len(LENGTHS) + 1, np.int64)
    arguments = x, lists, alphas, threshold, weights, indptr
    kernels.collect_weights(*arguments, np.empty(0, np.int32), np.empty(0, np.float32))
    np.cumsum(indptr, out=indptr)
    indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    kernels.collect_weights(*arguments, indices, values)
    assert not weights.any()
    for n, own in enumerate(lists_of(lists)):
        expected = naive_ranking.collect_weights(
            dense[lists.rows[own]], lists.signs[own], alphas[own], threshold
        )
        at = slice(indptr[n], indptr[n + 1])
        found = dict(zip(indices[at].tolist(), values[at].tolist(), strict=True))
        # Sums that are zero in exact numbers may leave a rounding error where nothing is dropped.
        for column in found.keys() | expected.keys():
            assert found.get(column, 0) == pytest.approx(expected.get(column, 0), abs=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_score_labels(problem, threads):
    x, dense, _ = problem
    rng = np.random.default_rng(5)
    classifiers = make_csr(rng, rng.integers(0, 5, 6), NUM_COLUMNS)
    ids = rng.integers(-1, 6, (NUM_ROWS, 3))
    scratch = np.zeros((threads, NUM_COLUMNS), np.float32)
    out = np.full(ids.shape, np.nan, np.float32)
    kernels.score_labels(x, classifiers, -0.7, ids, scratch, out)
    weights = to_dense(classifiers, NUM_COLUMNS).numpy()
    expected = naive_ranking.score_labels(dense, weights, -0.7, ids)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    assert not scratch.any()


@pytest.mark.parametrize("lengths", [[50, 49, 48, 50, 3], [1, 2, 50, 33, 17]])
def test_score_labels_with_long_rows(lengths):
    """In a row with many more weights than a sample has features, the features are looked up."""
    rng = np.random.default_rng(6)
    x = make_csr(rng, rng.integers(0, 3, NUM_ROWS), 50)
    rows = make_csr(rng, lengths, 50)
    for n in range(len(lengths)):
        rows.indices[rows.indptr[n] : rows.indptr[n + 1]].sort()
    ids = rng.integers(0, len(lengths), (NUM_ROWS, 4))
    out = np.full(ids.shape, np.nan, np.float32)
    kernels.score_labels(x, rows, -0.7, ids, np.zeros((1, 50), np.float32), out)
    dense = [to_dense(each, 50).numpy() for each in (x, rows)]
    expected = naive_ranking.score_labels(*dense, -0.7, ids)
    np.testing.assert_allclose(out, expected, atol=1e-5)
