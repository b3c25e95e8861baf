"""The manual gradients against numerical ones and against autograd on dense twins."""

import numpy as np
import pytest
import torch
from helpers.active_sets import B, D, N, draw, every_bias, every_kind, make_active, pick

from slide.active_set import ActiveSet
from slide.backend import plain
from slide.functional.linear import active_linear, scatter_active
from slide.nn import ActiveLoss
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient
from slide.sparse import Pattern


class TestActiveLinear:
    @every_kind
    @every_bias
    def test_forward_and_backward(self, kind, has_bias):
        x, weight, bias = draw(B, D), draw(N, D, seed=1), draw(N, seed=2)
        active = make_active(kind)
        out = active_linear(x, weight, bias if has_bias else None, active)
        expected = pick(x @ weight.T + (bias if has_bias else 0), active)
        torch.testing.assert_close(out, expected)
        upstream = torch.randn_like(out)
        wanted = torch.autograd.grad(
            expected, [x, weight, *([bias] if has_bias else [])], upstream, allow_unused=True
        )
        out.backward(upstream)
        assert weight.grad is None
        torch.testing.assert_close(x.grad, wanted[0])
        torch.testing.assert_close(dense_gradient(weight), wanted[1])
        if has_bias:
            assert bias.grad is None
            torch.testing.assert_close(dense_gradient(bias), wanted[2])
        else:
            assert not hasattr(bias, "row_gradients")

    @every_kind
    @every_bias
    def test_rounded_products(self, kind, has_bias):
        shape, found = (64, 48), []
        for precision in ("float32", "bfloat16"):
            x, weight = draw(B, 48, dtype=torch.float32), draw(*shape, seed=1, dtype=torch.float32)
            bias = draw(64, seed=2, dtype=torch.float32) if has_bias else None
            out = active_linear(x, weight, bias, make_active(kind, 64), precision)
            out.backward(draw(*out.shape, seed=3, dtype=torch.float32, grad=False))
            gradients = [dense_gradient(p) for p in (weight, bias) if p is not None]
            found.append([out.detach(), x.grad, *gradients])
        for exact, rounded in zip(*found, strict=True):
            assert exact.dtype == rounded.dtype == torch.float32
            # Eight bits, in factors and result.
            assert (rounded - exact).norm() <= 0.01 * exact.norm()
            if not make_active(kind, 64).shared:
                assert torch.equal(rounded, exact)
        if make_active(kind, 64).shared:
            assert not torch.equal(*(values[0] for values in found))

    @every_kind
    def test_bfloat16_weights(self, kind):
        x, weight = (draw(n, D, seed=n, dtype=torch.float32) for n in (B, N))
        x, weight = (each.detach().bfloat16() for each in (x, weight))
        got = active_linear(x, weight, None, make_active(kind))
        expected = pick(x.float() @ weight.float().T, make_active(kind))
        torch.testing.assert_close(got.float(), expected, rtol=2**-7, atol=2**-7)

    def test_unknown_precision(self):
        with pytest.raises(
            ValueError, match="precision must be one of float32, bfloat16, auto, not 'h"
        ):
            active_linear(draw(B, D), draw(N, D), None, make_active("shared"), "half")

    @every_kind
    @every_bias
    def test_gradcheck(self, kind, has_bias):
        x, weight, bias = draw(B, D), draw(N, D, seed=1), draw(N, seed=2)
        active = make_active(kind)
        if len(active.ids) == 0:
            assert active_linear(x, weight, None, active).shape == (0,)
            return
        assert torch.autograd.gradcheck(
            lambda x: active_linear(x, weight, bias if has_bias else None, active), x
        )

    @pytest.mark.parametrize("kind", ["per_sample", "shared"])
    def test_numerical_gradient_of_weight_and_bias(self, kind):
        x, weight, bias = draw(B, D, grad=False), draw(N, D, seed=1), draw(N, seed=2)
        active = make_active(kind)

        def value():
            return torch.sin(active_linear(x, weight, bias, active)).sum()

        value().backward()
        for parameter in (weight, bias):
            gradient = dense_gradient(parameter).view(-1)
            flat = parameter.detach().view(-1)
            for i in range(len(flat)):
                flat[i] += 1e-5
                above = value().item()
                flat[i] -= 2e-5
                below = value().item()
                flat[i] += 1e-5
                assert gradient[i].item() == pytest.approx((above - below) / 2e-5, abs=1e-8)

    @every_kind
    def test_single_precision(self, kind):
        x, weight, bias = (
            draw(*shape, dtype=torch.float32, seed=i)
            for i, shape in enumerate([(B, D), (N, D), (N,)])
        )
        active = make_active(kind)
        out = active_linear(x, weight, bias, active)
        torch.testing.assert_close(out, pick(x @ weight.T + bias, active))
        out.sum().backward()
        assert x.grad.dtype == dense_gradient(weight).dtype == torch.float32

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

    @pytest.mark.parametrize("kind", ["per_sample", "shared"])
    def test_second_derivatives_raise(self, kind):
        x, weight = draw(B, D), draw(N, D, seed=1)
        out = active_linear(x, weight, None, make_active(kind)).square().sum()
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        with pytest.raises(RuntimeError, match=r"(Shared|PerSample)Linear has first"):
            grad.sum().backward()

    @pytest.mark.parametrize("kind", ["per_sample", "shared"])
    def test_touched_rows_are_those_of_the_set(self, kind):
        active = make_active(kind)
        weight = draw(N, D, seed=1)
        active_linear(draw(B, D), weight, None, active).sum().backward()
        (gradient,) = weight.row_gradients
        assert set(gradient.ids.tolist()) == set(active.ids.tolist())
        assert plain() or len(gradient.ids) == len(set(gradient.ids.tolist()))

    @pytest.mark.parametrize(
        ("x", "weight", "bias", "error", "message"),
        [
            (draw(B, D + 1), draw(N, D), None, ValueError, "does not fit weight"),
            (draw(B), draw(N, D), None, ValueError, "does not fit weight"),
            (draw(B, D), draw(N, D), draw(N - 1), ValueError, r"bias \(6,\) does not fit"),
            (draw(B, D), draw(N + 1, D), None, ValueError, "set of 7 outputs does not fit 8 rows"),
            (draw(B + 1, D), draw(N, D), None, ValueError, "4 active sets do not fit 5 samples"),
            (draw(B, D).float(), draw(N, D), None, TypeError, "input is torch.float32 but weight"),
            (draw(B, D), draw(N, D), draw(N).float(), TypeError, "convert one of them"),
            (draw(B, D), draw(N, D), draw(N + 1), ValueError, "does not fit weight"),
        ],
    )
    def test_errors(self, x, weight, bias, error, message):
        with pytest.raises(error, match=message):
            active_linear(x, weight, bias, make_active("per_sample"))


class TestAllNeuronsActive:
    """Then the layer is ``nn.Linear``."""

    @pytest.mark.parametrize("kind", ["complete", "all by sample", "permuted"])
    def test_equals_nn_linear(self, kind):
        linear = torch.nn.Linear(D, N, dtype=torch.float64)
        weight, bias = (torch.nn.Parameter(p.detach().clone()) for p in linear.parameters())
        ids = np.arange(N, dtype=np.int32)
        if kind == "permuted":
            ids = np.random.default_rng(0).permutation(N).astype(np.int32)
        active = ActiveSet(N, ids)
        if kind == "all by sample":
            active = ActiveSet(N, np.tile(ids, B), N * np.arange(B + 1))
        ours = RowSparseAdam([weight, bias], lr=0.1, weight_decay=0.2)
        theirs = torch.optim.AdamW(linear.parameters(), lr=0.1, weight_decay=0.2)
        for step in range(3):
            x = draw(B, D, seed=step)
            ours.zero_grad()
            theirs.zero_grad()
            out, expected = active_linear(x, weight, bias, active), pick(linear(x), active)
            torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
            grads = [
                torch.autograd.grad((v**2).sum(), x, retain_graph=True)[0] for v in (out, expected)
            ]
            weight.row_gradients, bias.row_gradients = [], []
            torch.testing.assert_close(*grads, atol=1e-12, rtol=1e-12)
            (out**2).sum().backward()
            (expected**2).sum().backward()
            ours.step()
            theirs.step()
            torch.testing.assert_close(weight, linear.weight, atol=1e-12, rtol=1e-12)
            torch.testing.assert_close(bias, linear.bias, atol=1e-12, rtol=1e-12)


class TestChains:
    """The set of the second layer needs no gradient through the first one's choice."""

    @pytest.mark.parametrize("first", ["per_sample", "shared"])
    @pytest.mark.parametrize("second", ["per_sample", "shared"])
    def test_two_sampled_layers(self, first, second):
        hidden = 9
        x = draw(B, D)
        w1, b1 = draw(hidden, D, seed=1), draw(hidden, seed=2)
        w2, b2 = draw(N, hidden, seed=3), draw(N, seed=4)
        counts = [1, 0, 2, 1] if second == "per_sample" else [2, 1, 0, 1]
        targets = Pattern(
            np.concatenate([[0], np.cumsum(counts)]), np.array([0, 0, 1, 0], np.int32)
        )
        chosen, outputs = make_active(first, hidden), make_active(second, N, targets)
        loss = ActiveLoss("bce")
        values = torch.relu(active_linear(x, w1, b1, chosen))
        dense = scatter_active(values, chosen, B)
        loss(active_linear(dense, w2, b2, outputs), outputs).backward()
        mask = scatter_active(torch.ones_like(values), chosen, B)
        twin = torch.relu(x @ w1.T + b1) * mask
        expected = loss(pick(twin @ w2.T + b2, outputs), outputs)
        wanted = torch.autograd.grad(expected, [x, w1, b1, w2, b2])
        torch.testing.assert_close(x.grad, wanted[0])
        for parameter, gradient in zip((w1, b1, w2, b2), wanted[1:], strict=True):
            torch.testing.assert_close(dense_gradient(parameter), gradient)
