"""Rows of a pattern side by side in a matrix."""

import numpy as np
from helpers.grids import pairs
from helpers.matrices import make_pattern, rows_of

from slide.sparse import Pattern


@pairs(lengths=[[3, 0, 5, 1], [0, 0], [], [4]], more=[None, 0, 2])
def test_rows_of_a_matrix_are_those_of_the_pattern(lengths, more):
    pattern, longest = make_pattern(np.random.default_rng(0), lengths, 9), max(lengths, default=0)
    out = pattern.padded() if more is None else pattern.padded(longest + more)
    width = longest + (more or 0)
    assert (out.shape, out.dtype) == ((len(lengths), width), np.int32)
    assert out.tolist() == [row + [-1] * (width - len(row)) for row in rows_of(pattern)]
    back = Pattern.from_padded(out)
    assert [each.tolist() for each in back] == [each.tolist() for each in pattern]
