"""Inverted lists, and the largest products that they give."""

import numpy as np
import pytest
from helpers.matrices import make_csr, to_dense

from slide.search import column_lists, sparse_top_k
from slide.search.sparse_top_k import shortened, top_votes
from slide.sparse import CSR, Pattern


def test_lists_are_the_transpose():
    x = make_csr(np.random.default_rng(0), [3, 0, 5, 1], 6)
    lists = column_lists(x, 6)
    np.testing.assert_array_equal(to_dense(lists, 4), to_dense(x, 6).T)
    assert [array.dtype for array in lists] == ["i8", "i4", "f4"]


def test_only_lists_that_are_too_long_are_shortened():
    rng = np.random.default_rng(0)
    lists = make_csr(rng, [3, 9, 0, 4, 12], 20)
    cut = shortened(lists, 4)
    assert np.diff(cut.indptr).tolist() == [3, 4, 0, 4, 4]
    for row in range(5):
        a, b = lists.indptr[row : row + 2]
        best = a + np.sort(np.argsort(-abs(lists.values[a:b]), kind="stable")[:4])
        c, d = cut.indptr[row : row + 2]
        assert cut.indices[c:d].tolist() == lists.indices[best].tolist(), "the order stays"
        assert cut.values[c:d].tolist() == lists.values[best].tolist()
    assert shortened(lists, 12) is lists


def test_lists_whose_bounds_do_not_fit_are_refused():
    lists = make_csr(np.random.default_rng(0), [3, 9], 20)
    for wrong in ([0, 3, 13], [1, 3, 12], [0, 13, 12]):
        with pytest.raises(ValueError, match="bounds of the lists"):
            shortened(lists._replace(indptr=np.array(wrong)), 2)
    with pytest.raises(ValueError, match="bounds of the lists"):
        shortened(lists._replace(values=lists.values[1:]), 2)


def test_top_k_is_that_of_the_dense_product():
    rng = np.random.default_rng(1)
    x, lists = make_csr(rng, [4] * 10, 8), make_csr(rng, [6] * 8, 15)
    scores, ids = sparse_top_k(x, lists, 15, k=4)
    dense = (to_dense(x, 8) @ to_dense(lists, 15)).numpy()
    for own, found, every in zip(scores, ids, dense, strict=True):
        best = np.sort(every[every > 0])[::-1][:4]
        np.testing.assert_allclose(own[: len(best)], best, rtol=1e-5)
        np.testing.assert_allclose(every[found[: len(best)]], best, rtol=1e-5)
        assert (found[len(best) :] == -1).all()
        assert (own[len(best) :] == 0).all()


def test_sums_that_pass_zero_on_the_way_count_once():
    """Zero is the mark of an output that was not seen yet."""
    lists = CSR(np.array([0, 12]), np.arange(12, dtype=np.int32), np.zeros(12, np.float32))
    lists.values[3] = 2
    x = CSR(np.array([0, 60]), np.zeros(60, np.int32), np.ones(60, np.float32))
    scores, ids = sparse_top_k(x, lists, 12, k=2)
    assert (ids.tolist(), scores.tolist()) == ([[3, -1]], [[120, 0]])
    x.values[1::2], x.values[0] = -1, 4
    assert sparse_top_k(x, lists, 12, k=2)[0].tolist() == [[6, 0]]


def test_sums_below_all_numbers_are_no_answers():
    """A sum that was minus infinity stays it."""
    most = np.float32(3e38)
    x = CSR(np.array([0, 3]), np.arange(3, dtype=np.int32), np.array([2, 1, 1], np.float32))
    values = np.array([-most, most, most], np.float32)
    scores, ids = sparse_top_k(x, CSR(np.arange(4), np.zeros(3, np.int32), values), 12, k=2)
    assert ids.tolist() == [[-1, -1]]
    assert not scores.any()


def test_outputs_of_each_row_are_left_out():
    rng = np.random.default_rng(1)
    x, lists = make_csr(rng, [7] * 10, 8), make_csr(rng, [14] * 8, 15)
    _, every = sparse_top_k(x, lists, 15, k=3)
    without = Pattern.from_lists(every[:, :1].tolist())
    _, found = sparse_top_k(x, lists, 15, k=2, left_out=without)
    assert (every[:, 2] >= 0).all()
    np.testing.assert_array_equal(found, every[:, 1:])


def test_no_rows():
    rng = np.random.default_rng(1)
    scores, ids = sparse_top_k(make_csr(rng, [], 8), make_csr(rng, [6] * 8, 15), 15, k=4)
    assert scores.shape == ids.shape == (0, 4)
    assert shortened(column_lists(make_csr(rng, [], 8), 8), 3).num_rows == 8


def test_impossible_inputs_are_refused():
    rng = np.random.default_rng(1)
    x, lists = make_csr(rng, [4] * 10, 8), make_csr(rng, [6] * 8, 15)
    with pytest.raises(ValueError, match="k must be a whole number of at least 1, not 0"):
        sparse_top_k(x, lists, 15, k=0)
    with pytest.raises(ValueError, match=r"lists must lie in \[0, 10\)"):
        sparse_top_k(x, lists, 10, k=1)
    with pytest.raises(ValueError, match=r"columns must lie in \[0, 6\)"):
        sparse_top_k(x, column_lists(make_csr(rng, [2] * 9, 6), 6), 9, k=1)
    with pytest.raises(ValueError, match="1 rows of left_out do not fit 10"):
        sparse_top_k(x, lists, 15, k=1, left_out=Pattern.from_lists([[0]]))
    with pytest.raises(ValueError, match=r"left_out must lie in \[0, 15\)"):
        sparse_top_k(x, lists, 15, k=1, left_out=Pattern.from_lists([[15]] * 10))
    with pytest.raises(ValueError, match="longest must be a whole number of at least 1, not 0"):
        shortened(lists, 0)


def test_lists_are_checked_once():
    rng = np.random.default_rng(3)
    lists, x = (make_csr(rng, rng.integers(0, 6, 9), 9) for _ in range(2))
    first = sparse_top_k(x, lists, 9, 3)
    for outputs in (9, 10, 9):
        for one, other in zip(first, sparse_top_k(x, lists, outputs, 3), strict=True):
            np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="must rise from 0 to their number"):
        sparse_top_k(x, lists._replace(indptr=lists.indptr + 1), 9, 3)
    with pytest.raises(ValueError, match="values do not fit"):
        sparse_top_k(x, lists._replace(values=lists.values[1:]), 9, 3)
    other = lists._replace(indices=lists.indices + 5)
    with pytest.raises(ValueError, match=r"lists must lie in \[0, 9\)"):
        sparse_top_k(x, other, 9, 3)


def test_votes_of_wrong_rows_are_refused():
    labels = Pattern.from_lists([[4], [1, 2]])
    near, weights = np.array([[1, -1]], np.int32), np.ones((1, 2), np.float32)
    assert top_votes(near, weights, labels, 5, 3)[0].tolist() == [[1, 2, -1]]
    without = Pattern.from_lists([[2]])
    assert top_votes(near, weights, labels, 5, 3, without)[0].tolist() == [[1, -1, -1]]
    with pytest.raises(ValueError, match="numbers of rows must be below 2, not 2"):
        top_votes(near + 1, weights, labels, 5, 3)
    with pytest.raises(ValueError, match=r"weights of shape \(1, 1\) do not fit rows of shape"):
        top_votes(near, weights[:, :1], labels, 5, 3)
    with pytest.raises(ValueError, match="k must be a whole number of at least 1, not 0"):
        top_votes(near, weights, labels, 5, 0)
    with pytest.raises(ValueError, match=r"lists must lie in \[0, 4\)"):
        top_votes(near, weights, labels, 4, 3)
