"""bfloat16: weights of that type, and autocast."""

import copy

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr
from helpers.samplers import uniform_sampler
from helpers.sparse_layers import (
    OPTIMIZERS,
    B,
    D,
    N,
    draw_labels,
    every_mode,
    every_output,
    make_layer,
)
from torch import nn

from slide.active_set import ActiveSet
from slide.functional.csr_product import CSRMatrix
from slide.functional.linear import active_linear
from slide.nn import ActiveLoss
from slide.nn.sampled_conv2d import SampledConv2d
from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_input_linear import SparseInputLinear
from slide.nn.sparse_weight_linear import SparseWeightLinear
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.row_gradients import dense_gradient


def outputs_of(out):
    return out if isinstance(out, torch.Tensor) else out.values


class TestMixedPrecision:
    """Autocast without GradScaler: bfloat16 has the range of float32."""

    @every_mode
    @pytest.mark.parametrize("sparse", [False, True])
    def test_autocast(self, mode, sparse):
        encoder, layer = nn.Linear(16, D), make_layer(mode, sparse)
        exact = copy.deepcopy(encoder), copy.deepcopy(layer)
        x, loss = torch.randn(B, 16), ActiveLoss("squared_hinge")
        with torch.autocast("cpu", torch.bfloat16):
            hidden = encoder(x)
            assert hidden.dtype == torch.bfloat16
            out = layer(hidden, draw_labels())
            assert out.values.dtype == torch.float32
            rounded = loss(out.values, out.active)
        rounded.backward()
        again = exact[1](exact[0](x), draw_labels())
        wanted = loss(again.values, again.active)
        wanted.backward()
        assert rounded.item() == pytest.approx(wanted.item(), rel=0.05)
        assert encoder.weight.grad.dtype == torch.float32
        gradients = [
            one.weight.grad.to_dense() if sparse else dense_gradient(one.weight)
            for one in (layer, exact[1])
        ]
        same = np.array_equal(np.sort(out.active.ids), np.sort(again.active.ids))
        if same:
            assert (gradients[0] - gradients[1]).norm() <= 0.05 * gradients[1].norm()
        with torch.autocast("cpu", torch.bfloat16):
            inside, _ = layer.loss(encoder(x), draw_labels(), loss)
            scores, ids = layer.top_k(encoder(x), 3)
        inside.backward()
        assert inside.dtype == scores.dtype == torch.float32
        assert ids.shape == (B, 3)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("inside", [False, True], ids=["after", "inside"])
    @pytest.mark.parametrize("name", ["conv", "csr", "linear"])
    def test_layers_that_autocast_does_not_round(self, name, dtype, inside):
        """What they compute is that of the input, as it came, in float32; forward and backward."""
        if name == "conv":
            layer, x = (
                SampledConv2d(2, 8, 3, sampler=uniform_sampler(18, 8, active=4)),
                (B, 2, 6, 6),
            )
        elif name == "linear":
            layer, x = SampledLinear(D, N), (B, D)
        else:
            matrix = CSRMatrix(make_csr(np.random.default_rng(0), [3] * N, D), D)
            layer, x = SparseWeightLinear(matrix), (B, D)
        twin, x = copy.deepcopy(layer), torch.randn(x).to(dtype).requires_grad_()
        exact = x.detach().float().requires_grad_()
        # To bfloat16, a sampled linear layer is rounded.
        with torch.autocast("cpu", torch.float16 if name == "linear" else torch.bfloat16):
            out = outputs_of(layer(x))
            loss = out.square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        wanted = outputs_of(twin(exact))
        wanted.square().sum().backward()
        torch.testing.assert_close(out, wanted)
        torch.testing.assert_close(x.grad, exact.grad.to(dtype))
        if name != "csr":
            torch.testing.assert_close(dense_gradient(layer.weight), dense_gradient(twin.weight))
        else:
            torch.testing.assert_close(layer.values.grad, twin.values.grad)

    @pytest.mark.parametrize("autocast", [False, True])
    def test_inputs_of_no_use(self, autocast):
        linear, conv = make_layer("shared"), SampledConv2d(2, 8, 3)
        images, loss = torch.randn(B, 2, 6, 6), ActiveLoss("bce")
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            hidden, pictures, whole = (
                linear(torch.randn(B, D)),
                conv(images),
                torch.ones(B, D).int(),
            )
            for call in (linear, lambda x: linear.loss(x, draw_labels(), loss)):
                with pytest.raises(TypeError, match=r"put a ToDense\(\) before this layer"):
                    call(hidden)
                with pytest.raises(TypeError, match=r"input is torch.int32 but weight is"):
                    call(whole)
            with pytest.raises(TypeError, match="not Activation; give its values, and its active"):
                conv(pictures)
            with pytest.raises(TypeError, match=r"x is torch.int32 but weight is torch.float32"):
                conv(images.int())

    @every_mode
    @pytest.mark.parametrize("has_bias", [False, True])
    def test_bfloat16_weights(self, mode, has_bias):
        """Forward and backward, beside float32 with the same numbers."""
        active, found = every_output(mode), []
        exact = [torch.randn(B, D), torch.randn(N, D), torch.randn(N)]
        for dtype in (torch.bfloat16, torch.float32):
            x, weight, bias = (t.bfloat16().to(dtype).requires_grad_() for t in exact)
            out = active_linear(x, weight, bias if has_bias else None, active, sparse_grad=True)
            assert out.dtype == dtype
            (out.float() ** 2).sum().backward()
            grads = [weight.grad.to_dense(), *([bias.grad.to_dense()] if has_bias else [])]
            assert all(g.dtype == dtype for g in [x.grad, *grads])
            found.append([out.detach().float(), x.grad.float(), *(g.float() for g in grads)])
        for rounded, wanted in zip(*found, strict=True):
            assert (rounded - wanted).norm() <= 0.02 * wanted.norm()

    @every_mode
    @pytest.mark.parametrize("optimizer", ["SparseAdam", "RowSparseAdam", "SGD"])
    @pytest.mark.usefixtures("one_thread")
    def test_bfloat16_training(self, mode, optimizer):
        layer = make_layer(mode, optimizer != "RowSparseAdam").bfloat16()
        step = OPTIMIZERS[optimizer][0](layer.parameters(), lr=0.05)
        x, labels, losses = torch.randn(B, D).bfloat16(), draw_labels(), []
        for _ in range(30):
            step.zero_grad()
            loss, _ = layer.loss(x, labels, ActiveLoss("squared_hinge"))
            loss.backward()
            step.step()
            losses.append(loss.item())
        assert layer.weight.dtype == torch.bfloat16
        assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
        layer.eval()
        assert layer(x).values.shape == (B, N)
        for search in ("index", "sampler"):
            assert layer.top_k(x, 2, search)[1].shape == (B, 2)

    @pytest.mark.parametrize(
        "options", [{}, {"correct_skipped": True}, {"rowwise": True}, {"betas": (0.0, 0.9)}]
    )
    def test_bfloat16_adam_is_float32_adam_rounded(self, options):
        found = []
        for dtype in (torch.bfloat16, torch.float32):
            weight = nn.Parameter(torch.ones(N, D, dtype=dtype))
            optimizer = RowSparseAdam([weight], lr=0.125, **options)
            generator = torch.Generator().manual_seed(0)
            for i in range(4):
                active = ActiveSet(N, np.arange(i, i + 20, dtype=np.int32))
                x = torch.randn(B, D, generator=generator).bfloat16().to(dtype)
                active_linear(x, weight, None, active).float().sum().backward()
                optimizer.step()
                if i == 1:
                    state = copy.deepcopy(optimizer.state_dict())
                    optimizer = RowSparseAdam([weight], lr=0.125, **options)
                    optimizer.load_state_dict(state)
            state = optimizer.state[weight]
            moments = [state[name] for name in ("exp_avg", "exp_avg_sq") if name in state]
            assert len(moments) == (1 if "betas" in options else 2)
            assert all(moment.dtype == torch.float32 for moment in moments)
            found.append(weight.detach().float())
        assert (found[0] - found[1]).abs().max() < 0.03
        assert not torch.equal(found[0], found[1])

    def test_sparse_inputs_need_more(self):
        x = make_csr(np.random.default_rng(0), [3], N)
        with pytest.raises(TypeError, match=r"must be float32 or float64, not torch.bfloat16"):
            SparseInputLinear(N, D).bfloat16()(x)
