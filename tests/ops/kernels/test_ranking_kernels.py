"""Kernels of the re-ranker: sums of trees, linear classifiers, what follows from scores."""

import numpy as np
import pytest
from helpers.grids import pairs
from helpers.matrices import make_csr, to_dense

from slide.ops import linear_classifiers as kernels
from slide.ops.base_scorers import look_up_lists, rank_scores
from slide.ops.trees import LEAVES, Trees, splits_of, sum_trees
from slide.sparse import Pattern


def random_trees(rng, count, columns, leaves, exact=False):
    """Trees of random splits and shapes; thresholds are values of rows, or between two of them."""
    roots, nodes = [], []

    def grow(leaves):
        at = len(nodes)
        nodes.append((-1, 0.0, 0, 0, rng.standard_normal()))
        if leaves > 1:
            first = int(rng.integers(1, leaves))
            left, right = grow(first), grow(leaves - first)
            threshold = rng.standard_normal()
            threshold = float(np.float32(threshold)) if exact else threshold
            nodes[at] = (rng.integers(columns), threshold, left, right, 0.0)
        return at

    for _ in range(count):
        roots.append(grow(leaves))
    column, threshold, left, right, value = zip(*nodes, strict=True)
    whole = [np.array(part, np.int32) for part in (roots, column, left, right)]
    return Trees(whole[0], whole[1], np.array(threshold), *whole[2:], np.array(value, np.float32))


def walked(row, trees, node):
    """The value of the leaf that a row reaches."""
    while trees.columns[node] >= 0:
        left = row[trees.columns[node]] <= trees.thresholds[node]
        node = trees.left[node] if left else trees.right[node]
    return float(trees.values[node])


def summed(rows, trees, base):
    out = np.empty(len(rows), np.float32)
    sum_trees(rows, splits_of(trees, rows.shape[1]), base, out)
    return out


# Rows of a whole block, one more, and one alone.
@pairs(count=[1, 64, 65, 150], leaves=[1, 2, 17, LEAVES], exact=[True, False])
def test_it_adds_the_leaves_that_a_row_reaches(count, leaves, exact):
    rng = np.random.default_rng(count)
    trees = random_trees(rng, 5, 3, leaves, exact)
    rows = rng.standard_normal((count, 3)).astype(np.float32)
    rows[0, :] = np.float32(trees.thresholds[0])  # Equal values go left.
    rows[count // 2, 1] = np.inf
    out = summed(rows, trees, -1.5)
    expected = [sum(walked(row, trees, root) for root in trees.roots) - 1.5 for row in rows]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    assert min(leaves, count) < 17 or len(np.unique(out)) > 10


def test_a_threshold_between_two_float32():
    """The next number above it goes right, the one below it left."""
    below = np.float32(0.1)
    above = np.nextafter(below, np.float32(1))
    middle = (float(below) + float(above)) / 2
    columns, children = np.array([0, -1, -1], np.int32), np.array([1, 0, 0], np.int32)
    for sign in (1, -1):
        thresholds, values = np.array([sign * middle, 0, 0]), np.array([0, 1, 2], np.float32)
        trees = Trees(np.zeros(1, np.int32), columns, thresholds, children, children + 1, values)
        rows = np.array([[sign * below], [sign * above]], np.float32)
        assert summed(rows, trees, 0.0).tolist() == [1, 2][::sign]


def test_too_many_leaves():
    trees = random_trees(np.random.default_rng(0), 2, 3, LEAVES + 1)
    with pytest.raises(ValueError, match="tree 0 has more than 32 leaves"):
        splits_of(trees, 3)


def test_without_trees_the_base_is_left():
    empty = Trees(*(np.empty(0, np.int32) for _ in Trees._fields))
    found = summed(np.zeros((3, 2), np.float32), empty, 0.25)
    np.testing.assert_array_equal(found, np.full(3, 0.25))


def test_what_follows_from_scores():
    """Equal scores keep their order; a best score that is not finite counts as 0."""
    starts, found = np.array([0, 3, 3, 4]), np.zeros((4, 5), np.float32)
    found[:, 1], found[:, 3] = [2, 5, 2, -np.inf], [1, 2, 3, 4]
    rank_scores(starts, np.array([[1, 0, 4, 2], [3, -1, -1, -1]]), found)
    assert found[:, [0, 4, 2]].tolist() == [[-3, 1, 5], [0, 0, 5], [-3, 2, 5], [-np.inf, 0, 0]]
    assert found[:, 3].tolist() == [1, 2, 3, 4]


def test_lists_are_looked_up():
    ids, starts = np.array([[7, 3, 1], [2, -1, -1], [-1, -1, -1]]), np.array([0, 3, 4, 4])
    listed = np.array([[1, -1, 7], [-1, 5, 6], [1, 2, 3]], np.int32)
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    found = np.full((4, 2), np.nan, np.float32)
    look_up_lists(ids, starts, listed, (values, -values), found)
    assert found.tolist() == [[2, -2], [0, 0], [0, 0], [0, 0]]


NUM_ROWS = 25


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
