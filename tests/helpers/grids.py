"""Grids of parameters of which a test runs a part: each pair of values occurs."""

from itertools import combinations, product

import pytest


def pairs(**axes):
    """A mark with few cases among which each two values of different axes occur together.

    Most defects need one or two values (Kuhn et al. 2004, "Software fault interactions").
    """
    axis_pairs = [*combinations(range(len(axes)), 2)]
    grid = [*product(*(range(len(axis)) for axis in axes.values()))]
    left = {(a, b, case[a], case[b]) for case in grid for a, b in axis_pairs}
    chosen = []
    while left:
        new = [sum((a, b, case[a], case[b]) in left for a, b in axis_pairs) for case in grid]
        chosen.append(grid[new.index(max(new))])
        left -= {(a, b, chosen[-1][a], chosen[-1][b]) for a, b in axis_pairs}
    values = [[*axis] for axis in axes.values()]
    cases = [tuple(axis[n] for axis, n in zip(values, case, strict=True)) for case in chosen]
    return pytest.mark.parametrize(tuple(axes), cases)
