"""Rows of ragged arrays: copied, cleared, looked at."""

import numpy as np
import pytest

from slide.kernels.ragged import STRIDE, clear_rows, gather_entries, mark_nonzero_rows


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
