"""Sums of decision trees: the kernel against walks from root to leaf."""

import numpy as np
import pytest
from helpers.grids import pairs

from slide.ops.trees import LEAVES, Trees, splits_of, sum_trees


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
