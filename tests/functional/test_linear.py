"""Manual gradients of products against numerical ones and against autograd on dense twins."""

import numpy as np
import pytest
import torch
from helpers.active_sets import LENGTHS, B, D, N, draw, every_kind, make_active, pick
from helpers.grids import pairs
from helpers.matrices import make_csr, to_dense

from slide.backend import backend
from slide.functional.linear import active_linear, gather_active, scatter_active
from slide.functional.sparse_linear import sparse_linear
from slide.row_gradients import dense_gradient


class TestActiveLinear:
    @pairs(kind=LENGTHS, has_bias=[False, True], way=["kernels", "torch"])
    def test_forward_and_backward(self, kind, has_bias, way):
        x, weight, bias = draw(B, D), draw(N, D, seed=1), draw(N, seed=2)
        active = make_active(kind)
        with backend(way):
            out = active_linear(x, weight, bias if has_bias else None, active)
        expected = pick(x @ weight.T + (bias if has_bias else 0), active)
        torch.testing.assert_close(out, expected)
        upstream = torch.randn_like(out)
        wanted = torch.autograd.grad(
            expected, [x, weight, *([bias] if has_bias else [])], upstream, allow_unused=True
        )
        with backend(way):
            out.backward(upstream)
        assert weight.grad is None
        torch.testing.assert_close(x.grad, wanted[0])
        torch.testing.assert_close(dense_gradient(weight), wanted[1])
        if has_bias:
            assert bias.grad is None
            torch.testing.assert_close(dense_gradient(bias), wanted[2])
        else:
            assert not hasattr(bias, "row_gradients")

    @pytest.mark.parametrize("kind", ["per_sample", "shared", "complete"])
    def test_rounded_products(self, kind):
        active, found = make_active(kind, 64), []
        shapes = (B, 48), (64, 48), (64,)
        for precision in ("float32", "bfloat16"):
            x, weight, bias = (draw(*shape, dtype=torch.float32) for shape in shapes)
            out = active_linear(x, weight, bias, active, precision)
            out.backward(draw(*out.shape, seed=3, dtype=torch.float32, grad=False))
            found.append([out.detach(), x.grad, dense_gradient(weight), dense_gradient(bias)])
        for exact, rounded in zip(*found, strict=True):
            assert exact.dtype == rounded.dtype == torch.float32
            # Eight bits, in factors and result.
            assert (rounded - exact).norm() <= 0.01 * exact.norm()
            assert active.shared or torch.equal(rounded, exact)
        assert torch.equal(*(values[0] for values in found)) != active.shared

    @pytest.mark.usefixtures("one_thread")
    @every_kind
    def test_gradcheck(self, kind):
        x, weight, bias = draw(B, D), draw(N, D, seed=1), draw(N, seed=2)
        active = make_active(kind)
        if len(active.ids) == 0:
            assert active_linear(x, weight, None, active).shape == (0,)
            return
        assert torch.autograd.gradcheck(lambda x: active_linear(x, weight, bias, active), x)

    @pytest.mark.parametrize("kind", ["per_sample", "shared"])
    def test_only_what_needs_a_gradient_gets_one(self, kind):
        active = make_active(kind)
        for needed in range(3):
            inputs = draw(B, D), draw(N, D, seed=1), draw(N, seed=2)
            for i, tensor in enumerate(inputs):
                tensor.requires_grad_(i == needed)
            active_linear(*inputs, active).sum().backward()
            got = [inputs[0].grad is not None, *(hasattr(p, "row_gradients") for p in inputs[1:])]
            assert got == [i == needed for i in range(3)]

    @pytest.mark.parametrize("kind", ["per_sample", "shared"])
    def test_strided_inputs_and_gradients(self, kind):
        active = make_active(kind)
        x, weight, bias = draw(D, B), draw(N, D, seed=1), draw(N, seed=2)
        out = active_linear(x.T, weight, bias, active)
        expected = pick(x.T @ weight.T + bias, active)
        torch.testing.assert_close(out, expected)
        # The gradient of a sum is one number, expanded.
        wanted = torch.autograd.grad(expected.sum(), [x, weight])
        out.sum().backward()
        torch.testing.assert_close(x.grad, wanted[0])
        torch.testing.assert_close(dense_gradient(weight), wanted[1])

    @pytest.mark.parametrize(
        ("x", "weight", "bias", "error", "message"),
        [
            (draw(B, D + 1), draw(N, D), None, ValueError, "does not fit weight"),
            (draw(B, D), draw(N, D), draw(N - 1), ValueError, r"bias \(6,\) does not fit"),
            (draw(B, D), draw(N + 1, D), None, ValueError, "set of 7 outputs does not fit 8 rows"),
            (draw(B + 1, D), draw(N, D), None, ValueError, "4 active sets do not fit 5 samples"),
            (draw(B, D).float(), draw(N, D), None, TypeError, "input is torch.float32 but weight"),
            (draw(B, D), draw(N, D), draw(N).float(), TypeError, "convert one of them"),
        ],
    )
    def test_errors(self, x, weight, bias, error, message):
        with pytest.raises(error, match=message):
            active_linear(x, weight, bias, make_active("per_sample"))

    def test_unknown_precision(self):
        message = "precision must be one of float32, bfloat16, auto, not 'half'"
        with pytest.raises(ValueError, match=message):
            active_linear(draw(B, D), draw(N, D), None, make_active("shared"), "half")


class TestScatterAndGather:
    @every_kind
    def test_are_inverse(self, kind):
        active = make_active(kind)
        dense = draw(B, N)
        values = gather_active(dense, active)
        torch.testing.assert_close(values, pick(dense, active))
        scattered = scatter_active(values, active, B)
        mask = scatter_active(torch.ones_like(values), active, B)
        torch.testing.assert_close(scattered, dense * mask)
        assert mask.sum() == values.numel()

    @pytest.mark.parametrize("kind", ["per_sample", "shared", "complete"])
    def test_gradcheck(self, kind):
        active = make_active(kind)
        values = gather_active(draw(B, N), active).detach().requires_grad_()
        assert torch.autograd.gradcheck(lambda v: scatter_active(v, active, B), values)
        assert torch.autograd.gradcheck(lambda d: gather_active(d, active), draw(B, N))


class TestSparseLinear:
    @pairs(lengths=[[3, 0, 5, 1], [], [0, 0]], has_bias=[False, True])
    def test_forward_and_backward(self, lengths, has_bias):
        x = make_csr(np.random.default_rng(0), lengths, N, np.float64)
        weight, bias = draw(N, D, seed=1), draw(D, seed=2)
        out = sparse_linear(x, weight, bias if has_bias else None)
        expected = to_dense(x, N) @ weight + (bias if has_bias else 0)
        torch.testing.assert_close(out, expected)
        upstream = torch.randn_like(out)
        wanted = torch.autograd.grad(expected, [weight, *([bias] if has_bias else [])], upstream)
        out.backward(upstream)
        assert weight.grad is None
        torch.testing.assert_close(dense_gradient(weight), wanted[0])
        if has_bias:
            torch.testing.assert_close(bias.grad, wanted[1])

    def test_a_loader_may_use_the_memory_of_a_batch_again(self):
        """The gradient of the first batch waits for the step of the optimizer."""
        x = make_csr(np.random.default_rng(0), [3, 0, 5, 1], N, np.float64)
        weight, upstream = draw(N, D, seed=1), draw(4, D, seed=2, grad=False)
        sparse_linear(x, weight, None).backward(upstream)
        wanted = dense_gradient(weight)
        x.values[:] = 7
        x.indices[:] = 0
        upstream.zero_()
        torch.testing.assert_close(dense_gradient(weight), wanted)

    def test_gradcheck_of_the_bias(self):
        x = make_csr(np.random.default_rng(0), [3, 0, 5], N, np.float64)
        weight = draw(N, D, grad=False)
        assert torch.autograd.gradcheck(lambda b: sparse_linear(x, weight, b), draw(D, seed=2))

    def test_malformed_inputs(self):
        x = make_csr(np.random.default_rng(0), [3, 2], N)
        weight = draw(N, D, dtype=torch.float32)
        with pytest.raises(ValueError, match=rf"features must lie in \[0, {N - 3}\)"):
            sparse_linear(x._replace(indices=x.indices * 0 + N - 1), weight[: N - 3].detach(), None)
        with pytest.raises(ValueError, match=r"\(4,\) values do not fit \(5,\) column numbers"):
            sparse_linear(x._replace(values=x.values[:4]), weight, None)
