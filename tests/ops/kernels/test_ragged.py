"""Operations on rows of a ragged array."""

import numpy as np
from helpers.grids import pairs

from slide.ops import ragged as kernels
from slide.ops.ragged import STRIDE
from slide.sparse import CSR, row_bounds


@pairs(lengths=[[3, 0, 5, 1, STRIDE + 2], [0, 0], []], dtype=[np.int32, np.float32])
def test_rows_are_copied_cleared_and_marked(lengths, dtype):
    rng, indptr = np.random.default_rng(0), row_bounds(lengths)
    values = (rng.integers(-9, 9, indptr[-1]) * rng.integers(0, 2, indptr[-1])).astype(dtype)
    parts = np.split(values, indptr[1:-1]) if lengths else []
    rows = rng.permutation(len(lengths))[: len(lengths) // 2 + 1]
    rows = np.concatenate([rows, rows[-1:]])  # The last one twice.
    expected = np.concatenate([*(parts[row] for row in rows), values[:0]])
    bounds = row_bounds(np.diff(indptr)[rows])
    out = np.full(bounds[-1], -77, dtype)
    kernels.gather_ragged(indptr, values, rows, bounds, out)
    np.testing.assert_array_equal(out, expected)
    found = kernels.select_rows(indptr, rows, values, np.arange(len(values), dtype=np.int32))
    assert found[0].tolist() == bounds.tolist()
    np.testing.assert_array_equal(found[1], expected)
    np.testing.assert_array_equal(values[found[2]], expected)
    assert [each.dtype for each in found] == [np.int64, dtype, np.int32]
    marks = np.empty(len(lengths), np.bool_)
    kernels.mark_nonzero_rows(indptr, values, marks)
    assert marks.tolist() == [bool(part.any()) for part in parts]
    kernels.clear_rows(indptr, np.unique(rows), values)
    assert not np.concatenate([*(values[indptr[r] : indptr[r + 1]] for r in rows), [0]]).any()
    kernels.mark_nonzero_rows(indptr, values, marks)
    assert not marks[rows].any()


@pairs(position=[0, STRIDE - 1, STRIDE, 3 * STRIDE], value=[1e-45, -1.0, np.nan])
def test_one_entry_is_enough(position, value):
    values, marks = np.zeros(2 * (3 * STRIDE + 1), np.float32), np.empty(2, np.bool_)
    values[position] = value
    kernels.mark_nonzero_rows(np.arange(3) * (3 * STRIDE + 1), values, marks)
    assert marks.tolist() == [True, False]


@pairs(num_tasks=[1, 2, 9], longest=[1, 4, 50])
def test_shorten_rows(longest, num_tasks):
    """Of equal values entries from all parts of a row stay; NaN is the smallest."""
    rng, indptr = np.random.default_rng(longest), row_bounds([3, 0, 9, 4, 1, 40])
    values = rng.integers(-4, 5, indptr[-1]).astype(np.float32)
    values[[1, 14, 30, 31]] = np.nan, -np.inf, np.inf, np.nan
    rows = CSR(indptr, rng.permutation(indptr[-1]).astype(np.int32), values)
    bounds = row_bounds(np.minimum(np.diff(indptr), longest))
    out = CSR(bounds, np.full(bounds[-1], -1, np.int32), np.zeros(bounds[-1], np.float32))
    kernels.shorten_rows(rows, out, num_tasks)
    at = np.argsort(rows.indices)[out.indices]  # Where each entry was.
    np.testing.assert_array_equal(out.values, values[at])
    sizes = np.where(np.isnan(values), -1, np.abs(values))
    for b in range(6):
        own, every = at[bounds[b] : bounds[b + 1]], sizes[indptr[b] : indptr[b + 1]]
        assert (np.diff(own) > 0).all()
        assert sorted(sizes[own]) == sorted(every)[max(0, len(every) - longest) :]


def test_of_equal_values_evenly_many_stay():
    rows = CSR(row_bounds([9]), np.arange(9, dtype=np.int32), np.ones(9, np.float32))
    out = CSR(row_bounds([3]), np.empty(3, np.int32), np.empty(3, np.float32))
    kernels.shorten_rows(rows, out, 1)
    assert out.indices.tolist() == [2, 5, 8]


@pairs(shape=[(6, 9), (0, 3), (4, 0)], dtype=[np.float32, np.float64])
def test_nonzeros(shape, dtype):
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal(shape).astype(dtype) * (rng.random(shape) < 0.4)
    if matrix.size:
        matrix[0, 0] = np.nan
    indptr = np.zeros(len(matrix) + 1, np.int64)
    kernels.count_nonzeros(matrix, indptr[1:])
    assert indptr[1:].tolist() == (matrix != 0).sum(1).tolist()
    np.cumsum(indptr, out=indptr)
    columns, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], dtype)
    kernels.take_nonzeros(matrix, indptr, columns, values)
    np.testing.assert_array_equal(columns, np.nonzero(matrix)[1])
    np.testing.assert_array_equal(values, matrix[matrix != 0])
