"""The product of a sparse input against dense twins."""

import numpy as np
import pytest
import torch
from helpers.active_sets import D, N, draw, every_bias
from helpers.matrices import make_csr, to_dense

from slide.functional.sparse_linear import sparse_linear
from slide.row_gradients import dense_gradient


class TestSparseLinear:
    @pytest.mark.parametrize("lengths", [[3, 0, 5, 1], [], [0, 0], [1]])
    @every_bias
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

    @pytest.mark.parametrize("lengths", [[3, 0, 5, 1], [2]])
    def test_a_loader_may_use_the_memory_of_a_batch_again(self, lengths):
        """The gradient of the first batch waits for the step of the optimizer."""
        x = make_csr(np.random.default_rng(0), lengths, N, np.float64)
        weight, upstream = draw(N, D, seed=1), draw(len(lengths), D, seed=2, grad=False)
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
