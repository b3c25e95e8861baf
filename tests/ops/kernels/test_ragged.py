"""Operations on rows of a ragged array, against looped twins."""

import numpy as np
import pytest
from helpers import naive_arrays

from slide.ops.kernels import ragged as kernels
from slide.ops.kernels.ragged import (
    STRIDE,
    clear_rows,
    gather_entries,
    gather_ragged,
    mark_nonzero_rows,
    select_rows,
    shorten_rows,
)
from slide.sparse import CSR, row_bounds


class TestRows:
    @pytest.mark.parametrize("lengths", [[3, 0, 2, 1], [], [STRIDE, 2 * STRIDE + 7, 0, 1]])
    def test_mark_and_clear(self, lengths):
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = np.ones(indptr[-1])
        rows = np.arange(0, len(lengths), 2)
        clear_rows(indptr, rows, values)
        marks = np.empty(len(lengths), np.bool_)
        mark_nonzero_rows(indptr, values, marks)
        for b, length in enumerate(lengths):
            own = values[indptr[b] : indptr[b + 1]]
            assert (own == (b % 2)).all()
            assert marks[b] == (b % 2 == 1 and length > 0)

    @pytest.mark.parametrize("place", [0, 1, STRIDE - 1, STRIDE, 3 * STRIDE])
    @pytest.mark.parametrize("value", [1e-45, -1.0, np.nan, np.inf])
    def test_one_entry_is_enough(self, place, value):
        values = np.zeros(2 * (3 * STRIDE + 1), np.float32)
        values[place] = value
        marks = np.empty(2, np.bool_)
        mark_nonzero_rows(np.arange(3) * (3 * STRIDE + 1), values, marks)
        assert marks.tolist() == [True, False]

    def test_gather_entries(self):
        values, places = np.arange(5.0), np.array([4, 0, 0, 3], np.int32)
        out = np.empty(4)
        gather_entries(values, places, out)
        assert out.tolist() == [4, 0, 0, 3]


@pytest.mark.parametrize("num_tasks", [1, 2, 9])
@pytest.mark.parametrize("longest", [1, 3, 4, 50])
def test_shorten_rows(longest, num_tasks):
    """Among the values are equal ones, and such that are not finite."""
    rng = np.random.default_rng(longest)
    indptr = row_bounds([3, 0, 9, 4, 1, 40])
    values = rng.integers(-4, 5, indptr[-1]).astype(np.float32)
    values[[1, 14, 30, 31]] = np.nan, -np.inf, np.inf, np.nan
    rows = CSR(indptr, rng.permutation(indptr[-1]).astype(np.int32), values)
    bounds = row_bounds(np.minimum(np.diff(indptr), longest))
    out = CSR(bounds, np.full(bounds[-1], -1, np.int32), np.zeros(bounds[-1], np.float32))
    shorten_rows(rows, out, num_tasks)
    expected = [pair for own in naive_arrays.shorten_rows(rows, longest) for pair in own]
    assert out.indices.tolist() == [index for index, _ in expected]
    np.testing.assert_array_equal(out.values, [value for _, value in expected])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float64])
@pytest.mark.parametrize("lengths", [[3, 0, 5, 1, STRIDE + 2], [0, 0], []])
class TestAgainstTwins:
    @staticmethod
    def draw(lengths, dtype, seed):
        """Bounds, entries of which half are zero, and some rows, the last one twice."""
        rng = np.random.default_rng(seed)
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = (rng.integers(-9, 9, indptr[-1]) * rng.integers(0, 2, indptr[-1])).astype(dtype)
        rows = rng.permutation(len(lengths))[: len(lengths) // 2 + 1]
        return indptr, values, np.concatenate([rows, rows[-1:]])

    def test_gather_ragged(self, lengths, dtype, seed):
        indptr, values, rows = self.draw(lengths, dtype, seed)
        bounds = np.concatenate([[0], np.cumsum(np.diff(indptr)[rows])]).astype(np.int64)
        out = np.full(bounds[-1], -77, dtype)
        gather_ragged(indptr, values, rows, bounds, out)
        assert out.tolist() == naive_arrays.gather_ragged(indptr, values, rows)

    def test_select_rows(self, lengths, dtype, seed):
        indptr, values, rows = self.draw(lengths, dtype, seed)
        more = np.arange(len(values), dtype=np.int32)
        bounds, *parts = select_rows(indptr, rows, values, more)
        assert bounds.dtype == np.int64
        assert [part.dtype for part in parts] == [values.dtype, np.int32]
        expected = naive_arrays.select_rows(indptr, rows, values, more)
        assert [part.tolist() for part in (bounds, *parts)] == expected

    def test_gather_entries(self, lengths, dtype, seed):
        _, values, _ = self.draw(lengths, dtype, seed)
        size = 9 if len(values) else 0
        places = np.random.default_rng(seed).integers(0, max(1, len(values)), size, np.int32)
        out = np.full(size, -77, dtype)
        gather_entries(values, places, out)
        assert out.tolist() == naive_arrays.gather_entries(values, places)

    def test_clear_rows(self, lengths, dtype, seed):
        indptr, values, rows = self.draw(lengths, dtype, seed)
        expected = naive_arrays.clear_rows(indptr, rows, values)
        clear_rows(indptr, np.unique(rows), values)
        assert values.tolist() == expected

    def test_mark_nonzero_rows(self, lengths, dtype, seed):
        indptr, values, _ = self.draw(lengths, dtype, seed)
        marks = np.empty(len(lengths), np.bool_)
        mark_nonzero_rows(indptr, values, marks)
        assert marks.tolist() == naive_arrays.mark_nonzero_rows(indptr, values)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(6, 9), (1, 1), (0, 3), (4, 0)])
def test_nonzeros(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal(shape).astype(dtype) * (rng.random(shape) < 0.4)
    if matrix.size:
        matrix[0, 0] = np.nan
    indptr = np.zeros(len(matrix) + 1, np.int64)
    kernels.count_nonzeros(matrix, indptr[1:])
    assert indptr[1:].tolist() == naive_arrays.count_nonzeros(matrix)
    np.cumsum(indptr, out=indptr)
    columns, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], dtype)
    kernels.take_nonzeros(matrix, indptr, columns, values)
    expected = naive_arrays.take_nonzeros(matrix)
    assert columns.tolist() == expected[0]
    np.testing.assert_array_equal(values, expected[1])
