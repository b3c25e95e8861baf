"""Linear classifiers, against looped twins."""

import numpy as np
import pytest
from helpers import naive_ranking
from helpers.matrices import make_csr, make_pattern, to_dense

from slide.ops.kernels import linear_classifiers as kernels
from slide.ops.kernels.linear_classifiers import DualScratch, Solver, TrainingRows, score_labels
from slide.ops.kernels.ragged import RowRoom
from slide.sparse import Pattern

# Training rows of each classifier; among them none, and one.
LENGTHS, NUM_ROWS, NUM_COLUMNS = [9, 0, 1, 20, 14], 25, 7


@pytest.fixture(params=[0, 1, 2])
def problem(request):
    rng = np.random.default_rng(request.param)
    x = make_csr(rng, rng.integers(0, 6, NUM_ROWS), NUM_COLUMNS)
    pattern = make_pattern(rng, LENGTHS, NUM_ROWS)
    signs = rng.choice([-1, 1], len(pattern.indices)).astype(np.float32)
    return x, to_dense(x, NUM_COLUMNS).numpy(), TrainingRows(*pattern, signs)


def fit(x, lists, solver, threads, costs=(), threshold=0.0, entries=200):
    """``{column: weight}`` of each classifier; rows with at most ``entries`` are copied."""
    count = len(LENGTHS)
    scratch = DualScratch.of(threads, max(LENGTHS), NUM_COLUMNS, entries)
    for each in scratch[3:]:  # What was there before does not count.
        each[:] = -1
    starts = np.arange(count) * (NUM_COLUMNS + 1)
    room = count * (NUM_COLUMNS + 1)
    counts = np.full(count, -1)
    found = RowRoom(starts, counts, np.full(room, -1, np.int32), np.full(room, 9, np.float32))
    order = np.random.default_rng(threads).permutation(count)
    costs = np.array(costs, np.float64)
    kernels.fit_classifiers(x, costs, lists, order, solver, threshold, scratch, found)
    assert not scratch.weights.any()
    assert (scratch.numbers == -1).all()
    weights = []
    for start, size in zip(starts, counts, strict=True):
        own = slice(start, start + size)
        assert (np.diff(found.columns[own]) > 0).all()
        assert size <= NUM_COLUMNS
        assert (found.columns[own.stop : start + NUM_COLUMNS + 1] == -1).all(), "beyond its weights"
        weights.append(dict(zip(found.columns[own].tolist(), found.values[own], strict=True)))
    return weights


def expected_weights(dense, lists, solver, costs=None, threshold=0.0):
    weights = []
    for a, b in zip(lists.indptr[:-1], lists.indptr[1:], strict=True):
        rows, signs = lists.rows[a:b], lists.signs[a:b]
        own = None if costs is None else costs[rows]
        alphas = naive_ranking.fit_duals(dense[rows], signs, solver, own)
        weights.append(naive_ranking.collect_weights(dense[rows], signs, alphas, threshold))
    return weights


def assert_weights_equal(found, expected):
    """Sums that are zero in exact numbers may leave a rounding error where nothing is dropped."""
    for own, wanted in zip(found, expected, strict=True):
        for column in own.keys() | wanted.keys():
            assert own.get(column, 0) == pytest.approx(wanted.get(column, 0), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("entries", [0, 20, 200])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("threshold", [0.0, 0.3])
@pytest.mark.parametrize(
    "solver", [Solver(1.0, -1.0, 20, 0.1), Solver(0.3, -0.5, 3, 1e-3), Solver(2.0, 0.0, 200, 1e-4)]
)
def test_fit_classifiers(problem, solver, threads, threshold, entries):
    x, dense, lists = problem
    found = fit(x, lists, solver, threads, threshold=threshold, entries=entries)
    expected = expected_weights(dense, lists, solver, threshold=threshold)
    assert_weights_equal(found, expected)


@pytest.mark.parametrize("solver", [Solver(1.0, -1.0, 20, 0.1), Solver(2.0, 0.0, 200, 1e-4)])
def test_fit_classifiers_with_weights_of_rows(problem, solver):
    x, dense, lists = problem
    costs = np.random.default_rng(9).uniform(0.1, 5, NUM_ROWS)
    found = fit(x, lists, solver, 1, costs)
    assert found != fit(x, lists, solver, 1)
    assert_weights_equal(found, expected_weights(dense, lists, solver, costs))


@pytest.mark.parametrize("entries", [0, 200])
def test_repeated_columns_add_up(problem, entries):
    """As in a dense row; each entry stands twice, with parts of its value."""
    x, dense, lists = problem
    twice = x._replace(
        indptr=2 * x.indptr, indices=np.repeat(x.indices, 2), values=np.repeat(x.values, 2)
    )
    twice.values[0::2] *= np.float32(1.5)
    twice.values[1::2] *= np.float32(-0.5)
    solver = Solver(1.0, -1.0, 20, 0.1)
    found = fit(twice, lists, solver, 1, entries=entries)
    assert_weights_equal(found, expected_weights(dense, lists, solver))


@pytest.mark.parametrize("seed", [0, 1])
def test_list_training_rows(seed):
    """Ids may repeat in a row, and be labels and candidates of the same row."""
    rng = np.random.default_rng(seed)
    labels, candidates = (
        [rng.integers(0, 6, rng.integers(0, 5)).tolist() for _ in range(9)] for _ in range(2)
    )
    patterns = Pattern.from_lists(labels), Pattern.from_lists(candidates)
    expected = naive_ranking.list_training_rows(labels, candidates, 6)
    marks, places = np.full(6, 3, np.int32), np.zeros(6, np.int64)
    nothing = np.empty(0, np.int32), np.empty(0, np.float32)
    kernels.list_training_rows(*patterns, marks, places, *nothing)
    assert places.tolist() == list(map(len, expected))
    ends = np.cumsum(places)
    rows, signs = np.full(ends[-1], -1, np.int32), np.zeros(ends[-1], np.float32)
    places = ends - places
    kernels.list_training_rows(*patterns, marks, places, rows, signs)
    assert places.tolist() == ends.tolist()
    pairs = list(zip(rows.tolist(), signs.tolist(), strict=True))
    assert pairs == [pair for own in expected for pair in own]


SCORED_ROWS, SCORED_COLUMNS = 25, 7


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_score_labels(seed, threads):
    rng = np.random.default_rng(seed)
    x = make_csr(rng, rng.integers(0, 6, SCORED_ROWS), SCORED_COLUMNS)
    classifiers = make_csr(rng, rng.integers(0, 5, 6), SCORED_COLUMNS)
    ids = rng.integers(-1, 6, (SCORED_ROWS, 3))
    scratch = np.zeros((threads, SCORED_COLUMNS), np.float32)
    out = np.full(ids.shape, np.nan, np.float32)
    score_labels(x, classifiers, -0.7, ids, scratch, out)
    dense = [to_dense(each, SCORED_COLUMNS).numpy() for each in (x, classifiers)]
    expected = naive_ranking.score_labels(*dense, -0.7, ids)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    assert not scratch.any()


@pytest.mark.parametrize("lengths", [[50, 49, 48, 50, 3], [1, 2, 50, 33, 17]])
def test_score_labels_with_long_rows(lengths):
    """In a row with many more weights than a sample has features, the features are looked up."""
    rng = np.random.default_rng(6)
    x = make_csr(rng, rng.integers(0, 3, SCORED_ROWS), 50)
    rows = make_csr(rng, lengths, 50)
    for n in range(len(lengths)):
        rows.indices[rows.indptr[n] : rows.indptr[n + 1]].sort()
    ids = rng.integers(0, len(lengths), (SCORED_ROWS, 4))
    out = np.full(ids.shape, np.nan, np.float32)
    score_labels(x, rows, -0.7, ids, np.zeros((1, 50), np.float32), out)
    dense = [to_dense(each, 50).numpy() for each in (x, rows)]
    expected = naive_ranking.score_labels(*dense, -0.7, ids)
    np.testing.assert_allclose(out, expected, atol=1e-5)
