"""Bounds of rows, and parts of `Pattern` and `CSR`, against lists."""

import numpy as np
import pytest
from helpers.matrices import make_csr, make_pattern

from slide.sparse import CSR, Pattern, row_bounds

SIZES = [2, 0, 3, 1, 0, 4]


def lists(rows):
    """The entries of each row, in all arrays."""
    arrays = [array.tolist() for array in rows[1:]]
    bounds = zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    return [[array[begin:end] for array in arrays] for begin, end in bounds]


@pytest.mark.parametrize("make", [make_csr, make_pattern])
def test_parts_have_the_rows_and_are_views(make):
    rows = make(np.random.default_rng(0), SIZES, 9)
    for start in range(len(SIZES) + 1):
        for stop in range(start, len(SIZES) + 3):
            part = rows.slice(start, stop)
            assert type(part) is type(rows)
            assert lists(part) == lists(rows)[start:stop]
            assert part.indptr[0] == 0
            assert [array.dtype for array in part] == [array.dtype for array in rows]
    for whole, part in zip(rows[1:], rows.slice(2, 4)[1:], strict=True):
        assert np.shares_memory(whole, part)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (7, 9), (-3, -1)])
def test_parts_that_do_not_exist(start, stop):
    for make in (make_csr, make_pattern):
        rows = make(np.random.default_rng(0), SIZES, 9)
        with pytest.raises(IndexError, match="are none of 6 rows"):
            rows.slice(start, stop)


def test_parts_of_no_rows():
    empty = np.zeros(1, np.int64), np.empty(0, np.int32)
    assert Pattern(*empty).slice(0, 5).num_rows == 0
    assert CSR(*empty, np.empty(0, np.float32)).slice(0, 0).num_rows == 0


@pytest.mark.parametrize("kind", [list, np.int32, np.int64, np.uint8])
def test_bounds_of_rows(kind):
    for sizes in (SIZES, []):
        found = row_bounds(sizes if kind is list else np.array(sizes, kind))
        assert found.dtype == np.int64
        assert found.tolist() == [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    assert row_bounds(np.full(2, 200, np.uint8)).tolist() == [0, 200, 400], "sums do not overflow"
    ids = np.array([[3, -1, 5], [-1, -1, -1], [1, 2, 4]])
    assert row_bounds((ids >= 0).sum(1)).tolist() == [0, 2, 2, 5]
