"""Sums of decision trees over rows of numbers."""

from typing import NamedTuple

import numpy as np

from slide.kernels.compile import parallel, prange


class Trees(NamedTuple):
    """Binary trees as arrays of their nodes.

    Attributes:
        roots: ``(T,)`` int32, the node at which each tree begins.
        columns: ``(nodes,)`` int32, the column that a node looks at; -1 for a leaf.
        thresholds: ``(nodes,)`` float64; a row goes left if its value is at most this number.
        left, right: ``(nodes,)`` int32, the next nodes.
        values: ``(nodes,)`` float32, what a leaf adds to the sum.
    """

    roots: np.ndarray
    columns: np.ndarray
    thresholds: np.ndarray
    left: np.ndarray
    right: np.ndarray
    values: np.ndarray


@parallel
def sum_trees(rows, trees, base, out):
    """``base`` plus the values of the leaves that a row reaches.

    Args:
        rows: ``(R, C)`` float32 without NaN.
        trees: see `Trees`.
        base: a number.
        out: ``(R,)`` float32 output.
    """
    roots, columns, thresholds, left, right, values = trees
    for r in prange(len(rows)):
        total = base
        for t in range(len(roots)):
            node = roots[t]
            while columns[node] >= 0:
                smaller = rows[r, columns[node]] <= thresholds[node]
                node = left[node] if smaller else right[node]
            total += values[node]
        out[r] = total
