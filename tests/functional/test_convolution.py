"""Convolution on some channels, against PyTorch's on all of them."""

from itertools import product

import numpy as np
import pytest
import torch
from helpers.active_sets import draw
from helpers.convolution import ORDERS, I, O
from helpers.cost import tensor_bytes
from helpers.grids import pairs
from torch.nn import functional as torch_F

from slide.functional.convolution import active_conv2d
from slide.row_gradients import dense_gradient

SHAPES = {
    "plain": {},
    "padded": {"padding": 1},
    "stride": {"stride": 2, "padding": (1, 0)},
    "wide padding": {"padding": 3},
    "dilation": {"dilation": (1, 2), "padding": 2},
}
META = torch.zeros(2, 6, 5, 5, device="meta")
CHOICES = {
    "all": (None, None),
    "some": ([4, 1, 5], [7, 0, 2]),
    "mask": (np.arange(I) % 2 == 0, torch.arange(O) % 3 == 0),
    "one": ([3], [5]),
}


def numbers(choice, total):
    if choice is None:
        return torch.arange(total)
    choice = torch.as_tensor(choice)
    return choice.nonzero().flatten() if choice.dtype == torch.bool else choice


def as_ids(choice):
    return np.array(choice) if isinstance(choice, list) else choice


def reference(x, weight, bias, ins, outs, **shape):
    """All channels, with those not used at zero."""
    mask = torch.zeros(I, dtype=x.dtype)
    mask[numbers(ins, I)] = 1
    full = torch_F.conv2d(x * mask[:, None, None], weight, bias, **shape)
    return full[:, numbers(outs, O)]


def parameters(groups=1, dtype=torch.float64):
    return draw(O, I // groups, 3, 3, seed=1, dtype=dtype), draw(O, seed=2, dtype=dtype)


class TestActiveConv2dFunction:
    @pairs(shape=SHAPES, choice=CHOICES, groups=[1, 2], order=ORDERS)
    def test_forward_and_backward(self, shape, choice, groups, order):
        (weight, bias), (ins, outs) = parameters(groups), CHOICES[choice]
        x = draw(2, I, 7, 6).detach().contiguous(memory_format=order).requires_grad_()
        shape = SHAPES[shape] | {"groups": groups}
        out = active_conv2d(x, weight, bias, as_ids(ins), as_ids(outs), **shape)
        expected = reference(x, weight, bias, ins, outs, **shape)
        torch.testing.assert_close(out, expected)
        upstream = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, [x, weight, bias], upstream)
        out.backward(upstream)
        assert weight.grad is None
        assert bias.grad is None
        found = x.grad, dense_gradient(weight), dense_gradient(bias)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)

    def test_gradient_is_of_used_channels_alone(self):
        (weight, bias), (ins, outs) = parameters(), CHOICES["some"]
        out = active_conv2d(draw(2, I, 5, 5), weight, bias, np.array(ins), np.array(outs))
        out.sum().backward()
        (found,) = weight.row_gradients
        assert found.rows.shape == (len(ins) * len(outs), 9)
        assert sorted(found.ids) == sorted(o * I + i for o, i in product(outs, ins))
        (found,) = bias.row_gradients
        assert found.ids.tolist() == outs

    @pytest.mark.usefixtures("one_thread")
    @pytest.mark.parametrize(
        ("shape", "choice", "groups"), [("padded", "some", 1), ("stride", "mask", 2)]
    )
    def test_gradcheck(self, shape, choice, groups):
        (weight, bias), (ins, outs) = parameters(groups), CHOICES[choice]
        weight, bias = weight.detach(), bias.detach()

        def apply(x):
            shapes = SHAPES[shape] | {"groups": groups}
            return active_conv2d(x, weight, bias, as_ids(ins), as_ids(outs), **shapes)

        assert torch.autograd.gradcheck(apply, draw(1, I, 3, 4))

    @pytest.mark.parametrize(("choice", "groups"), [("some", 1), ("mask", 2)])
    def test_sparse_gradients_are_those_of_rows(self, choice, groups):
        (weight, bias), (ins, outs) = parameters(groups), CHOICES[choice]
        channels, x = (as_ids(ins), as_ids(outs)), draw(2, I, 5, 5)
        active_conv2d(x, weight, bias, *channels, groups=groups).square().sum().backward()
        # As of a weight that is computed from others.
        some = weight * 1, bias * 1
        out = active_conv2d(x, *some, *channels, groups=groups, sparse_grad=True)
        out.square().sum().backward(inputs=[weight, bias])
        for parameter in (weight, bias):
            torch.testing.assert_close(parameter.grad.to_dense(), dense_gradient(parameter))

    @pytest.mark.parametrize("choice", ["some", "mask"])
    def test_x_may_hold_the_used_channels_alone(self, choice):
        (weight, bias), (ins, outs) = parameters(), CHOICES[choice]
        x = draw(2, I, 5, 5)
        full = active_conv2d(x, weight, bias, as_ids(ins), as_ids(outs))
        packed = x.detach()[:, numbers(ins, I)].requires_grad_()
        out = active_conv2d(packed, weight, bias, as_ids(ins), as_ids(outs))
        torch.testing.assert_close(out, full)
        upstream = torch.randn_like(out)
        full.backward(upstream)
        out.backward(upstream)
        torch.testing.assert_close(packed.grad, x.grad[:, numbers(ins, I)])

    @pytest.mark.parametrize(
        ("ins", "outs"), [(None, [1, 4, 6]), ([0, 3], None), ([1, 2, 5], [0, 4]), ([0], [7])]
    )
    def test_depthwise(self, ins, outs):
        """Each output has one input; in some cases this input is not used."""
        x, weight = draw(2, 8, 5, 5), draw(8, 1, 3, 3, seed=1)
        mask = torch.zeros(8, dtype=x.dtype)
        mask[numbers(ins, 8)] = 1
        expected = torch_F.conv2d(x * mask[:, None, None], weight, groups=8)[:, numbers(outs, 8)]
        out = active_conv2d(x, weight, None, as_ids(ins), as_ids(outs), groups=8)
        torch.testing.assert_close(out, expected)
        upstream = torch.randn_like(out)
        wanted = torch.autograd.grad(expected, [x, weight], upstream)
        out.backward(upstream)
        torch.testing.assert_close(x.grad, wanted[0])
        torch.testing.assert_close(dense_gradient(weight), wanted[1])

    @pytest.mark.parametrize(("stride", "width"), [(1, 6), (2, 5)])
    def test_an_empty_batch(self, stride, width):
        (weight, bias), x = parameters(), draw(0, I, 7, width)
        out = active_conv2d(x, weight, bias, stride=stride, padding=1)
        out.sum().backward()
        assert x.grad.shape == x.shape
        assert not dense_gradient(weight).any()
        assert not dense_gradient(bias).any()

    @pytest.mark.parametrize("order", ORDERS)
    def test_single_precision_keeps_the_order_of_x(self, order):
        weight, bias = parameters(dtype=torch.float32)
        x = draw(2, I, 7, 7, dtype=torch.float32).detach()
        x = x.contiguous(memory_format=order).requires_grad_()
        ins, outs = (np.array(ids) for ids in CHOICES["some"])
        out = active_conv2d(x, weight, bias, ins, outs, 1, 1)
        assert out.is_contiguous(memory_format=torch.channels_last)
        (grad,) = torch.autograd.grad(out.square().sum(), x)
        assert grad.is_contiguous(memory_format=order)
        assert not grad[:, [0, 2, 3]].any()

    def test_only_what_needs_a_gradient_gets_one(self):
        for needed in range(3):
            inputs = draw(2, I, 5, 5), *parameters()
            for i, tensor in enumerate(inputs):
                tensor.requires_grad_(i == needed)
            active_conv2d(*inputs, np.array([1, 2]), None).sum().backward()
            has = inputs[0].grad is not None, *(hasattr(t, "row_gradients") for t in inputs[1:])
            assert has == tuple(i == needed for i in range(3))

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"in_channels": np.array([6])}, ValueError, r"in_channels must lie in \[0, 6\)"),
            ({"in_channels": np.arange(6)[::-1]}, ValueError, "all 6 channels, and not in asc"),
            ({"out_channels": np.array([1, 1])}, ValueError, "must be distinct; 1 occurs"),
            ({"out_channels": np.zeros(O, bool)}, ValueError, "at least one of 8 channels"),
            ({"in_channels": np.zeros(5, bool)}, ValueError, r"mask of in_channels must be \(6,\)"),
            ({"in_channels": np.array([0.5])}, TypeError, "channel numbers or a mask, not float64"),
            ({"stride": 0}, ValueError, "stride must be a whole number of at least 1, not 0"),
            ({"x": np.zeros((2, 6, 5, 5))}, TypeError, "must be a tensor, not ndarray$"),
            ({"padding": (1, 1, 1)}, ValueError, "padding must be one number or two"),
            ({"groups": 3}, ValueError, "8 output channels do not divide into 3 groups"),
            ({"x": META}, ValueError, "is on meta but the weight is on cpu; move one of them"),
            ({"weight": draw(8, 6, 3, 3, dtype=torch.bfloat16)}, TypeError, "not torch.bfloat16"),
            ({"x": torch.zeros(2, 5, 5, 5)}, TypeError, "x is torch.float32 but weight is"),
            ({"x": draw(2, 5, 5, 5)}, ValueError, "x has 5 channels, neither all 6 nor the 6"),
            ({"x": draw(2, 6, 0, 5)}, ValueError, "a height and width of at least 1, not "),
            ({"x": draw(6, 5, 5)}, ValueError, "x and weight must have 4 dimensions"),
            ({"bias": draw(3)}, ValueError, r"bias \(3,\) does not fit weight"),
        ],
    )
    def test_errors(self, change, error, message):
        weight, bias = parameters()
        with pytest.raises(error, match=message):
            active_conv2d(**({"x": draw(2, I, 5, 5), "weight": weight, "bias": bias} | change))


def test_a_step_does_not_depend_on_the_number_of_channels():
    """Of what the step makes; the weight itself is made before."""

    def bytes_of(num_channels):
        weight = draw(num_channels, num_channels, 3, 3, dtype=torch.float32)
        x, ids = draw(2, 8, 9, 9, dtype=torch.float32), np.arange(8) * 3

        def step():
            weight.row_gradients = []
            active_conv2d(x, weight, None, ids, ids, 1, 1).sum().backward()

        step()
        return tensor_bytes(step)

    assert bytes_of(512) == bytes_of(64) > 0
