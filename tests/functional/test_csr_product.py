"""Products of sparse matrices against dense ones, and the layer around them."""

import copy
import io
import os

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, to_dense
from scipy import sparse

from slide.functional import csr_product
from slide.functional.csr_product import CSRMatrix, csr_matmul
from slide.nn.sparse_weight_linear import SparseWeightLinear
from slide.sparse import CSR

N, D = 23, 9
LENGTHS = [3, 0, 9, 1, 0, *[2] * 17, 4]
SHAPES = {
    "usual": (LENGTHS, D),
    "no entries": ([0, 0, 0], D),
    "no rows": ([], D),
    "one entry": ([1], 1),
}

every_shape = pytest.mark.parametrize("shape", SHAPES)
every_width = pytest.mark.parametrize("width", [None, 1, 4])
every_block = pytest.mark.parametrize("block_rows", [5, 1 << 18])


def make(lengths=LENGTHS, num_columns=D, dtype=np.float64, seed=0):
    return make_csr(np.random.default_rng(seed), lengths, num_columns, dtype)


def draw(rows, width, dtype=torch.float64):
    x = torch.randn(rows, *([] if width is None else [width]), dtype=dtype)
    return x.requires_grad_()


@every_shape
@every_width
@every_block
class TestAgainstDense:
    def test_product_and_gradient_of_x(self, shape, width, block_rows, monkeypatch):
        monkeypatch.setattr(csr_product, "TRANSPOSE_BLOCK_ROWS", block_rows)
        csr = make(*SHAPES[shape])
        matrix, dense = CSRMatrix(csr, SHAPES[shape][1]), to_dense(csr, SHAPES[shape][1])
        x = draw(SHAPES[shape][1], width)
        y = csr_matmul(matrix, x)
        torch.testing.assert_close(y, dense @ x)
        upstream = torch.randn_like(y)
        for gradient in (upstream, upstream.sum().expand_as(y)):
            (got,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
            torch.testing.assert_close(got, dense.T @ gradient)

    def test_gradient_of_values(self, shape, width, block_rows, monkeypatch):
        monkeypatch.setattr(csr_product, "TRANSPOSE_BLOCK_ROWS", block_rows)
        lengths, num_columns = SHAPES[shape]
        csr, matrix = make(lengths, num_columns), CSRMatrix(make(lengths, num_columns), num_columns)
        x, values = draw(num_columns, width), draw(len(csr.values), None)
        # Twice: the order is kept, the values change.
        for _ in range(2):
            dense = torch.zeros(len(lengths), num_columns, dtype=x.dtype)
            rows = np.repeat(np.arange(len(lengths)), lengths)
            dense = dense.index_put((torch.from_numpy(rows), torch.from_numpy(csr.indices)), values)
            y, expected = csr_matmul(matrix, x, values), dense @ x
            torch.testing.assert_close(y, expected)
            upstream = torch.randn_like(y)
            got = torch.autograd.grad(y, [x, values], upstream)
            wanted = torch.autograd.grad(expected, [x, values], upstream)
            torch.testing.assert_close(got, wanted)
            values = (values.detach() + 1).requires_grad_()


@every_width
def test_gradcheck(width):
    matrix, x = CSRMatrix(make(), D), draw(D, width)
    values = matrix.values.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: csr_matmul(matrix, x), x)
    assert torch.autograd.gradcheck(lambda x, v: csr_matmul(matrix, x, v), (x, values))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
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
        torch.testing.assert_close(csr_matmul(kind, x), expected)
    mask = torch.rand(N, 2) < 0.5
    ours, theirs = csr_matmul(tensor, x), torch.sparse.mm(tensor, x)
    wanted, got = (torch.autograd.grad((mask * (y - 1) ** 2).sum(), x)[0] for y in (ours, theirs))
    torch.testing.assert_close(got, wanted)


def test_entries_that_occur_twice_add_up():
    csr = CSR(np.array([0, 3]), np.array([1, 1, 0], np.int32), np.array([1.0, 2.0, 5.0]))
    x = torch.tensor([1.0, 10.0], dtype=torch.float64, requires_grad=True)
    y = csr_matmul(CSRMatrix(csr, 2), x)
    y.sum().backward()
    assert y.tolist() == [35]
    assert x.grad.tolist() == [5, 3]


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
    assert np.shares_memory(matrix.indices.numpy(), csr.indices)
    assert np.shares_memory(matrix.values.numpy(), csr.values)
    other = matrix.with_values(2 * matrix.values)
    assert np.shares_memory(other.indices.numpy(), csr.indices)
    x = draw(D, None)
    torch.testing.assert_close(csr_matmul(other, x), 2 * csr_matmul(matrix, x))


def test_too_many_entries(monkeypatch):
    monkeypatch.setattr(csr_product, "MAX_ENTRIES", 50)
    with pytest.raises(ValueError, match="at most 50 entries fit, not 51"):
        CSRMatrix(make(), D)


def test_a_second_derivative_is_refused():
    x = draw(D, None)
    (gradient,) = torch.autograd.grad(
        csr_matmul(CSRMatrix(make(), D), x).square().sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: CSRMatrix(make()), ValueError, "needs num_columns"),
        (lambda: CSRMatrix(make(), D - 1), ValueError, r"columns must lie in \[0, 8\)"),
        (lambda: CSRMatrix(np.eye(3)), TypeError, "a CSR, torch.sparse_csr or SciPy matrix"),
        (lambda: CSRMatrix(torch.eye(3)), TypeError, "2-d and sparse_csr, not torch.strided"),
        (lambda: CSRMatrix(sparse.eye_array(3), 4), ValueError, "num_columns=4 does not fit"),
        (lambda: CSRMatrix(sparse.eye_array(3, dtype=int)), TypeError, "float64, not int64"),
        (lambda: CSRMatrix(make()._replace(values=np.ones(2)), D), ValueError, "2 values do not"),
        (lambda: csr_matmul(CSRMatrix(make(), D), draw(D + 1, 2)), ValueError, r"x \(10, 2\) does"),
        (lambda: csr_matmul(CSRMatrix(make(), D), draw(D, 2).float()), TypeError, "x is torch.flo"),
        (
            lambda: csr_matmul(CSRMatrix(make(), D), draw(D, 2), draw(3, None)),
            ValueError,
            r"values \(3,\) do not fit 51 entries",
        ),
        (
            lambda: csr_matmul(CSRMatrix(make(), D), torch.ones(D, device="meta").double()),
            ValueError,
            "computes on the CPU; got a tensor on meta",
        ),
        (
            lambda: CSRMatrix(torch.eye(2).to_sparse_csr().requires_grad_()),
            ValueError,
            "pass these as `values`",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def make_layer(trainable=True, seed=0, dtype=np.float32):
    return SparseWeightLinear(CSRMatrix(make(dtype=dtype, seed=seed), D), trainable=trainable)


@pytest.mark.parametrize("trainable", [False, True])
class TestCSRLinear:
    @pytest.mark.parametrize("lead", [(), (5,), (2, 3), (0,)])
    def test_equals_nn_linear(self, trainable, lead):
        layer, linear = make_layer(trainable), torch.nn.Linear(D, N)
        dense = to_dense(make(dtype=np.float32), D)
        layer.bias.data.normal_()
        linear.load_state_dict({"weight": dense, "bias": layer.bias})
        x = torch.randn(*lead, D, requires_grad=True)
        y, expected = layer(x), linear(x)
        torch.testing.assert_close(y, expected)
        upstream = torch.randn_like(y)
        (wanted,) = torch.autograd.grad(expected, x, upstream, retain_graph=True)
        expected.backward(upstream)
        x.grad = None
        y.backward(upstream)
        torch.testing.assert_close(x.grad, wanted)
        torch.testing.assert_close(layer.bias.grad, linear.bias.grad)
        if trainable:
            own = linear.weight.grad[tuple(np.nonzero(to_dense(make(), D).numpy()))]
            order = np.lexsort((layer.matrix.indices, np.repeat(np.arange(N), LENGTHS)))
            torch.testing.assert_close(layer.values.grad[order], own)

    def test_trains_in_a_model(self, trainable):
        model = torch.nn.Sequential(torch.nn.Linear(4, D), make_layer(trainable), torch.nn.ReLU())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        x, wanted = torch.randn(32, 4), torch.rand(32, N)
        losses = []
        for _ in range(40):
            optimizer.zero_grad()
            losses.append(torch.nn.functional.mse_loss(model(x), wanted))
            losses[-1].backward()
            optimizer.step()
        assert losses[-1] < 0.7 * losses[0]
        same = torch.equal(model[1].values.detach(), torch.from_numpy(make(dtype=np.float32)[2]))
        assert same is not trainable

    def test_state_and_copies(self, trainable):
        layer, x = make_layer(trainable), torch.randn(5, D)
        y = layer(x)
        y.sum().backward()
        buffer = io.BytesIO()
        torch.save(layer.state_dict(), buffer)
        buffer.seek(0)
        other = make_layer(trainable, seed=1)
        before = other(x.requires_grad_())
        before.sum().backward()
        other.load_state_dict(torch.load(buffer))
        assert not torch.equal(before, y)
        for twin in (other, copy.deepcopy(layer)):
            assert torch.equal(twin(x), y)
            gradients = [torch.autograd.grad(m(x).sum(), x)[0] for m in (twin, layer)]
            assert torch.equal(*gradients)
        smaller = SparseWeightLinear(
            CSRMatrix(make([1, 2, 48], 50, np.float32), 50), trainable=trainable
        )
        with pytest.raises((RuntimeError, ValueError), match=r"bias|pattern of 23 rows"):
            smaller.load_state_dict(layer.state_dict())

    def test_double_precision(self, trainable):
        layer, x = make_layer(trainable), torch.randn(5, D, dtype=torch.float64, requires_grad=True)
        single = layer(x.float())
        layer.double()
        for _ in range(2):
            torch.testing.assert_close(layer(x).float(), single)
            layer(x).sum().backward()
            assert trainable or layer.matrix.values is layer.values
        assert torch.autograd.gradcheck(layer, x)
        with pytest.raises(TypeError, match=r"x is torch.float32 but values are torch.float64"):
            layer(x.float())

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
    @pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
    def test_after_fork(self, trainable):
        layer, x = make_layer(trainable), torch.randn(5, D)
        layer(x).sum().backward()
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # As in a worker of a data loader.
            layer(x).sum()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    def test_shape_error(self, trainable):
        with pytest.raises(ValueError, match=r"input \(5, 10\) does not fit a matrix \(23, 9\)"):
            make_layer(trainable)(torch.randn(5, D + 1))
        assert "9, 23, entries=51" in repr(make_layer(trainable))
        assert "entries=51" in repr(make_layer(trainable).matrix)


def test_a_state_does_not_get_into_a_matrix_that_others_use():
    matrix = make_layer(trainable=False).matrix
    one, other = (
        SparseWeightLinear(matrix, trainable=False),
        SparseWeightLinear(matrix, trainable=False),
    )
    x = torch.randn(3, matrix.shape[1], requires_grad=True)
    before = other(x)
    state = one.state_dict()
    one.load_state_dict(state | {"values": 2 * state["values"]})
    torch.testing.assert_close(one(x), 2 * before)
    torch.testing.assert_close(other(x), before)
