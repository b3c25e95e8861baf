"""Sums of decision trees: the kernel against its naive twin."""

import numpy as np
from helpers.naive_ranking import sum_trees as naive

from slide.kernels.trees import Trees, sum_trees


def random_trees(rng, count, columns, depth):
    """Complete trees of random splits."""
    roots, nodes = [], []

    def grow(level):
        at = len(nodes)
        nodes.append(None)
        if level == 0:
            nodes[at] = (-1, 0.0, 0, 0, rng.standard_normal())
            return at
        left, right = grow(level - 1), grow(level - 1)
        threshold = float(np.float32(rng.standard_normal()))  # Equal to a value of a row.
        nodes[at] = (rng.integers(columns), threshold, left, right, 0.0)
        return at

    for _ in range(count):
        roots.append(grow(depth))
    column, threshold, left, right, value = zip(*nodes, strict=True)
    whole = [np.array(part, np.int32) for part in (roots, column, left, right)]
    return Trees(whole[0], whole[1], np.array(threshold), *whole[2:], np.array(value, np.float32))


def test_it_adds_the_leaves_that_a_row_reaches():
    rng = np.random.default_rng(0)
    trees = random_trees(rng, 5, 3, 4)
    rows = rng.standard_normal((40, 3)).astype(np.float32)
    rows[0, :] = np.float32(trees.thresholds[0])  # Equal values go left.
    out = np.empty(40, np.float32)
    sum_trees(rows, trees, -1.5, out)
    np.testing.assert_allclose(out, naive(rows, trees, -1.5), rtol=1e-5)
    assert len(np.unique(out)) > 10


def test_without_trees_the_base_is_left():
    out = np.empty(3, np.float32)
    empty = Trees(*(np.empty(0, np.int32) for _ in Trees._fields))
    sum_trees(np.zeros((3, 2), np.float32), empty, 0.25, out)
    np.testing.assert_array_equal(out, np.full(3, 0.25))
