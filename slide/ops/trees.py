"""Sums of decision trees over rows of numbers.

All splits of one column are read in ascending order for many rows: where a row goes right, the
leaves to the left drop out, as bits of a number, and the first that remains is reached (Lucchese et
al. 2015, "QuickScorer: a fast algorithm to rank documents with additive ensembles of regression
trees", section 3).
"""

from typing import NamedTuple

import numpy as np

from slide.ops.compile import parallel, prange

# Rows at a time, whose numbers stay in the first-level cache.
_BLOCK = 64
# Leaves of a tree at most, a bit each.
LEAVES = 32


class Trees(NamedTuple):
    """Binary trees as arrays of their nodes.

    roots (T,) int32, the node at which each tree begins; columns (nodes,) int32, -1 for a leaf;
    thresholds (nodes,) float64, a row goes left if its value is at most this; left, right (nodes,)
    int32, the next nodes; values (nodes,) float32, what a leaf adds to the sum.
    """

    roots: np.ndarray
    columns: np.ndarray
    thresholds: np.ndarray
    left: np.ndarray
    right: np.ndarray
    values: np.ndarray


class Splits(NamedTuple):
    """Trees as lists of their splits, a list for each column.

    starts (C + 1,) int64, where the splits of each column begin; thresholds (splits,) float32,
    ascending in a list; trees (splits,) int32, the tree of each split; masks (splits,) uint32, the
    leaves that remain if a row goes right, bit 0 the leftmost; values (T, LEAVES) float32, what
    each leaf adds to the sum.
    """

    starts: np.ndarray
    thresholds: np.ndarray
    trees: np.ndarray
    masks: np.ndarray
    values: np.ndarray


def splits_of(trees: Trees, num_columns: int) -> Splits:
    """The splits of trees, for `sum_trees`."""
    values = np.zeros((len(trees.roots), LEAVES), np.float32)
    nodes, owners, masks = [], [], []

    def leaves_below(node: int, tree: int, first: int) -> int:
        """The number of leaves below a node, which are numbered from ``first`` on."""
        if trees.columns[node] < 0:
            if first == LEAVES:
                raise ValueError(f"tree {tree} has more than {LEAVES} leaves")
            values[tree, first] = trees.values[node]
            return 1
        left = leaves_below(trees.left[node], tree, first)
        nodes.append(node)
        owners.append(tree)
        masks.append(2**LEAVES - 1 - ((2**left - 1) << first))
        return left + leaves_below(trees.right[node], tree, first + left)

    for tree, root in enumerate(trees.roots):
        leaves_below(root, tree, 0)
    found = np.array(nodes, np.int64)
    columns, exact = trees.columns[found], trees.thresholds[found]
    # Rows are float32: the largest such number that is not above a threshold decides the same.
    near = exact.astype(np.float32)
    near = np.where(near > exact, np.nextafter(near, np.float32(-np.inf)), near)
    order = np.lexsort((near, columns))
    return Splits(
        np.searchsorted(columns[order], np.arange(num_columns + 1)).astype(np.int64),
        near[order],
        np.array(owners, np.int32)[order],
        np.array(masks, np.uint32)[order],
        values,
    )


@parallel
def sum_trees(rows, splits, base, out):
    """``out`` ``(R,)`` is ``base`` plus the leaves that rows ``(R, C)`` reach; no NaN."""
    starts, thresholds, trees, masks, values = splits
    every = np.uint32(0xFFFFFFFF)
    for block in prange((len(rows) + _BLOCK - 1) // _BLOCK):
        begin = block * _BLOCK
        size = min(_BLOCK, len(rows) - begin)
        leaves = np.full((len(values), _BLOCK), every)
        # Loops over whole blocks are compiled to vector instructions.
        column, total = np.full(_BLOCK, np.float32(-np.inf)), np.full(_BLOCK, base)
        for c in range(len(starts) - 1):
            largest = np.float32(-np.inf)
            for r in range(size):
                column[r] = rows[begin + r, c]
                largest = max(largest, column[r])
            for split in range(starts[c], starts[c + 1]):
                threshold = thresholds[split]
                if largest <= threshold:
                    break  # All rows go left here, and at all later ones.
                mask, own = masks[split], leaves[trees[split]]
                for r in range(_BLOCK):
                    own[r] &= mask if column[r] > threshold else every
        for tree in range(len(values)):
            for r in range(_BLOCK):
                remaining = leaves[tree, r]
                first = remaining & (~remaining + np.uint32(1))  # The lowest bit alone.
                # A power of two: its exponent as a float32 is the number of the bit.
                position = (np.float32(first).view(np.int32) >> np.int32(23)) - np.int32(127)
                total[r] += values[tree, position]
        for r in range(size):
            out[begin + r] = total[r]
