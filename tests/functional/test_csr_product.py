"""Products of sparse matrices against dense ones."""

import copy

import numpy as np
import pytest
import torch
from helpers.csr import LENGTHS, D, N, make
from helpers.grids import pairs
from helpers.matrices import to_dense
from scipy import sparse

from slide.functional.sparse_linear import csr_matmul
from slide.ops import csr as csr_product
from slide.ops.csr import CSRMatrix
from slide.sparse import CSR

META = torch.ones(D, dtype=torch.float64, device="meta")
SHAPES = {
    "usual": (LENGTHS, D),
    "no entries": ([0, 0, 0], D),
    "no rows": ([], D),
    "one entry": ([1], 1),
}


def draw(rows, width, dtype=torch.float64):
    x = torch.randn(rows, *([] if width is None else [width]), dtype=dtype)
    return x.requires_grad_()


@pairs(shape=SHAPES, width=[None, 1, 4], block_rows=[5, 1 << 18])
def test_product_and_gradients_against_dense(shape, width, block_rows, monkeypatch):
    monkeypatch.setattr(csr_product, "TRANSPOSE_BLOCK_ROWS", block_rows)
    lengths, num_columns = SHAPES[shape]
    csr = make(lengths, num_columns)
    matrix, places = CSRMatrix(csr, num_columns), to_dense(csr, num_columns) != 0
    x, values = draw(num_columns, width), draw(len(csr.values), None)
    for own in (None, values, values.detach() + 1):  # The order is kept, the values change.
        now = csr if own is None else csr._replace(values=own.detach().numpy())
        dense = to_dense(now, num_columns).requires_grad_(own is not None)
        own = None if own is None else own.detach().requires_grad_()
        y, expected = csr_matmul(matrix, x, own), dense @ x
        torch.testing.assert_close(y, expected)
        upstream = torch.randn_like(y)
        for gradient in (upstream, upstream.sum().expand_as(y)):
            given = [each for each in (x, own) if each is not None]
            found = torch.autograd.grad(y, given, gradient, retain_graph=True)
            torch.testing.assert_close(found[0], dense.T @ gradient)
            if own is not None:
                (wanted,) = torch.autograd.grad(expected, dense, gradient, retain_graph=True)
                grads = to_dense(csr._replace(values=found[1].numpy()), num_columns)
                torch.testing.assert_close(grads, wanted * places)


@pytest.mark.usefixtures("one_thread")
def test_gradcheck():
    matrix, x = CSRMatrix(make(), D), draw(D, 2)
    values = matrix.values.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: csr_matmul(matrix, x), x)
    assert torch.autograd.gradcheck(lambda x, v: csr_matmul(matrix, x, v), (x, values))


@pytest.mark.parametrize(("index", "dtype"), [(torch.int32, "f4"), (torch.int64, "f8")])
def test_kinds_of_matrix(index, dtype):
    csr = make(dtype=dtype)
    arrays = [torch.from_numpy(array) for array in csr]
    tensor = torch.sparse_csr_tensor(*(a.to(index) for a in arrays[:2]), arrays[2], (N, D))
    scipy_csr = sparse.csr_matrix(csr[::-1], shape=(N, D))
    x = draw(D, 2, arrays[2].dtype)
    expected = to_dense(csr, D) @ x
    for kind in (tensor, scipy_csr, scipy_csr.tocoo(), sparse.csc_array(scipy_csr), csr):
        matrix = CSRMatrix(kind, D)
        assert matrix.shape == (N, D)
        torch.testing.assert_close(csr_matmul(matrix, x), expected)
    torch.testing.assert_close(csr_matmul(tensor, x), expected)


def test_entries_that_occur_twice_add_up():
    csr = CSR(np.array([0, 3]), np.array([1, 1, 0], np.int32), np.array([1.0, 2.0, 5.0]))
    x = torch.tensor([1.0, 10.0], dtype=torch.float64, requires_grad=True)
    y = csr_matmul(CSRMatrix(csr, 2), x)
    y.sum().backward()
    assert y.tolist() == [35]
    assert x.grad.tolist() == [5, 3]


@pytest.mark.kernels_only  # The reference sorts on the device, once.
def test_the_index_is_built_once(monkeypatch):
    matrix, x = CSRMatrix(make(), D), draw(D, None)
    values = matrix.values.clone().requires_grad_()
    built = []
    whole = CSRMatrix._sort
    monkeypatch.setattr(
        CSRMatrix, "_sort", lambda self, values: built.append(1) or whole(self, values)
    )
    csr_matmul(matrix, x.detach())
    assert not built
    for _ in range(3):
        csr_matmul(matrix, x).sum().backward()
    assert len(built) == 1
    for _ in range(3):
        csr_matmul(matrix, x, values).sum().backward()
    assert len(built) == 2


def test_memory_is_shared():
    csr = make()
    matrix = CSRMatrix(csr, D)
    other = matrix.with_values(2 * matrix.values)
    assert np.shares_memory(matrix.values.numpy(), csr.values)
    assert np.shares_memory(other.indices.numpy(), csr.indices)


def test_a_copy_has_entries_of_its_own_and_its_index():
    matrix, x = CSRMatrix(make(), D), draw(D, 2)
    csr_matmul(matrix, x).sum().backward()
    twin = copy.deepcopy(matrix)
    assert repr(twin) == repr(matrix) == "CSRMatrix(shape=(23, 9), entries=51, torch.float64)"
    matrix.values.zero_()
    csr_matmul(twin, x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * to_dense(make(), D).sum(0)[:, None].expand(D, 2))


def test_the_gradient_of_entries_has_their_precision():
    """As in a layer that `double()` converted, whose matrix keeps its first type."""
    found, x = [], draw(D, None)
    for dtype in (np.float32, np.float64):
        values = draw(len(make().values), None)
        csr_matmul(CSRMatrix(make(dtype=dtype), D), x, values).sum().backward()
        found.append(values.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("given", [False, True])
def test_entries_that_change_before_the_backward_pass_are_noticed(given):
    matrix, x = CSRMatrix(make(), D), draw(D, 2)
    values = matrix.values.clone() if given else matrix.values
    y = csr_matmul(matrix, x, values if given else None)
    values.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.kernels_only
def test_a_matrix_of_inference_mode_has_gradients():
    with torch.inference_mode():
        matrix = CSRMatrix(make(), D)
    x = draw(D, 2)
    csr_matmul(matrix, x).sum().backward()
    torch.testing.assert_close(x.grad, to_dense(make(), D).sum(0)[:, None].expand(D, 2))


def test_too_many_entries(monkeypatch):
    monkeypatch.setattr(csr_product, "MAX_ENTRIES", 50)
    with pytest.raises(ValueError, match="at most 50 entries fit, not 51"):
        CSRMatrix(make(), D)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: CSRMatrix(make()), ValueError, "needs num_columns"),
        (lambda: CSRMatrix(make(), D - 1), ValueError, r"columns must lie in \[0, 8\)"),
        (lambda: CSRMatrix(np.eye(3)), TypeError, "must be CSR, torch.sparse_csr or SciPy"),
        (lambda: CSRMatrix(torch.eye(3)), TypeError, "2-d and sparse_csr, not torch.strided"),
        (lambda: CSRMatrix(sparse.eye_array(3), 4), ValueError, "num_columns=4 does not fit"),
        (lambda: CSRMatrix(sparse.csr_array((1, 1 << 40))), ValueError, "columns fit, not 10995"),
        (lambda: CSRMatrix(sparse.eye_array(3, dtype=int)), TypeError, "float64, not int64"),
        (
            lambda: CSRMatrix(make()._replace(values=np.ones(2)), D),
            ValueError,
            r"\(2,\) values do not",
        ),
        (lambda: csr_matmul(CSRMatrix(make(), D), draw(D + 1, 2)), ValueError, r"x \(10, 2\) does"),
        (lambda: csr_matmul(CSRMatrix(make(), D), draw(D, 2).float()), TypeError, "x is torch.flo"),
        (
            lambda: csr_matmul(CSRMatrix(make(), D), draw(D, 2), draw(3, None)),
            ValueError,
            r"values \(3,\) do not fit 51 entries",
        ),
        (
            lambda: csr_matmul(CSRMatrix(make(), D), META, draw(51, None)),
            ValueError,
            "is on meta but the weight is on cpu; move one of them",
        ),
        (
            lambda: CSRMatrix(torch.eye(2).to_sparse_csr().requires_grad_()),
            ValueError,
            "must not require a gradient; pass `values`",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
