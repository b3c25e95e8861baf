"""Linear classifiers against the conditions of their minimum, at the limits of inputs."""

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, make_pattern, to_dense

from slide.ops import linear_classifiers as kernels
from slide.ops.linear_classifiers import DualScratch, Solver, TrainingRows
from slide.ops.ragged import RowRoom
from slide.sparse import Pattern

# Training rows of each classifier; among them none, and one.
LENGTHS, NUM_ROWS, NUM_COLUMNS = [9, 0, 1, 20, 14], 25, 7
EXACT = Solver(2.0, -0.5, 3000, 1e-5)


@pytest.fixture(params=[0, 1])
def problem(request):
    rng = np.random.default_rng(request.param)
    x = make_csr(rng, rng.integers(0, 6, NUM_ROWS), NUM_COLUMNS)
    pattern = make_pattern(rng, LENGTHS, NUM_ROWS)
    signs = rng.choice([-1, 1], len(pattern.indices)).astype(np.float32)
    return x, to_dense(x, NUM_COLUMNS).double(), TrainingRows(*pattern, signs)


def fit(x, lists, solver, threads=1, costs=(), threshold=0.0, entries=200):
    """``(5, D)`` weights of the classifiers; rows with at most ``entries`` are copied."""
    count, each = len(LENGTHS), NUM_COLUMNS + 1
    scratch = DualScratch.of(threads, max(LENGTHS), NUM_COLUMNS, entries)
    for part in scratch[3:]:  # What was there before does not count.
        part[:] = -1
    starts, counts = np.arange(count) * each, np.full(count, -1)
    room = RowRoom(starts, counts, np.full(count * each, -1, "i4"), np.full(count * each, 9, "f4"))
    order = np.random.default_rng(threads).permutation(count)
    costs = np.array(costs, np.float64)
    kernels.fit_classifiers(x, costs, lists, order, solver, threshold, scratch, room)
    assert not scratch.weights.any()
    assert (scratch.numbers == -1).all()
    weights = torch.zeros(count, NUM_COLUMNS, dtype=torch.float64)
    for n, (start, size) in enumerate(zip(starts, counts, strict=True)):
        columns, values = (part[start : start + size] for part in room[2:])
        assert (np.diff(columns) > 0).all()
        assert (np.abs(values) >= threshold).all()
        assert (room.columns[start + size : start + each] == -1).all(), "beyond its weights"
        weights[n, torch.from_numpy(columns).long()] = torch.from_numpy(values).double()
    return weights


def assert_minimal(weights, dense, lists, costs=None):
    """At the minimum of the squared hinge loss its gradient is zero."""
    for n, weight in enumerate(weights):
        own = slice(lists.indptr[n], lists.indptr[n + 1])
        rows, y = dense[lists.rows[own]], torch.from_numpy(lists.signs[own]).double()
        slack = (1 - y * (rows @ weight + EXACT.bias)).clamp(min=0)
        factors = 1 if costs is None else torch.from_numpy(costs[lists.rows[own]])
        expected = 2 * EXACT.C * rows.T @ (y * slack * factors)
        torch.testing.assert_close(weight, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("entries", [0, 20, 200])
@pytest.mark.parametrize("threads", [1, 2])
def test_fit_classifiers(problem, threads, entries):
    x, dense, lists = problem
    weights = fit(x, lists, EXACT, threads, entries=entries)
    assert_minimal(weights, dense, lists)
    large = fit(x, lists, EXACT, threads, threshold=0.3, entries=entries)
    torch.testing.assert_close(large, weights * (weights.abs() >= 0.3))
    costs = np.random.default_rng(9).uniform(0.1, 5, NUM_ROWS)
    assert_minimal(fit(x, lists, EXACT, threads, costs, entries=entries), dense, lists, costs)


def test_few_passes_leave_the_minimum_unreached(problem):
    x, dense, lists = problem
    few = fit(x, lists, EXACT._replace(max_iter=1))
    with pytest.raises(AssertionError):
        assert_minimal(few, dense, lists)


@pytest.mark.parametrize("entries", [0, 200])
def test_repeated_columns_add_up(problem, entries):
    """As in a dense row; each entry stands twice, with parts of its value."""
    x, dense, lists = problem
    parts = np.repeat(x.values, 2) * np.tile(np.array([1.5, -0.5], np.float32), len(x.values))
    twice = x._replace(indptr=2 * x.indptr, indices=np.repeat(x.indices, 2), values=parts)
    assert_minimal(fit(twice, lists, EXACT, entries=entries), dense, lists)


def test_list_training_rows():
    """Ids may repeat in a row, and be labels and candidates of the same row."""
    labels = Pattern.from_lists([[2, 2], [], [0, 1]])
    candidates = Pattern.from_lists([[0, 2, 0], [1, 1], [1]])
    marks, cursors = np.full(3, 3, np.int32), np.zeros(3, np.int64)
    nothing = np.empty(0, np.int32), np.empty(0, np.float32)
    kernels.list_training_rows(labels, candidates, marks, cursors, *nothing)
    assert cursors.tolist() == [2, 2, 1]
    rows, signs, cursors = np.empty(5, np.int32), np.empty(5, np.float32), np.array([0, 2, 4])
    kernels.list_training_rows(labels, candidates, marks, cursors, rows, signs)
    assert cursors.tolist() == [2, 4, 5]
    assert rows.tolist() == [0, 2, 1, 2, 0]
    assert signs.tolist() == [-1, 1, -1, 1, 1]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("lengths", [[0, 3, 4, 1, 2, 4], [50, 49, 48, 50, 3, 33]])
def test_score_labels(lengths, threads):
    """In a row with many more weights than a sample has features, the features are looked up."""
    rng = np.random.default_rng(threads)
    x = make_csr(rng, rng.integers(0, 4, NUM_ROWS), 50)
    classifiers = make_csr(rng, lengths, 50)
    for a, b in zip(classifiers.indptr[:-1], classifiers.indptr[1:], strict=True):
        classifiers.indices[a:b].sort()
    ids, scratch = rng.integers(-1, 6, (NUM_ROWS, 4)), np.zeros((threads, 50), np.float32)
    out = np.full(ids.shape, np.nan, np.float32)
    kernels.score_labels(x, classifiers, -0.7, ids, scratch, out)
    scores = (to_dense(x, 50) @ to_dense(classifiers, 50).T).numpy() - 0.7
    expected = np.where(ids < 0, -np.inf, np.take_along_axis(scores, ids.clip(0), 1))
    np.testing.assert_allclose(out, expected, atol=1e-5)
    assert not scratch.any()
