"""Convolution on some input and output channels, with its gradients by hand.

Used channels are brought together, computed by PyTorch's own (oneDNN) convolutions, and nothing of
the weight's full size is made on the way back: its gradient comes as rows of single kernels, one
for each pair of a used output and a used input channel (`slide.row_gradients.as_rows`).

All is computed channels-last, where oneDNN has its fastest kernels: on two cores a batch in the
default format took twice as long forward, most of it to bring values into another order.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from slide.functional.channels import (
    Channels,
    ChannelSelection,
    IntPair,
    as_pair,
    channel_ids,
    check_convolution,
    is_channels_last,
    put_channels,
    select_kernels,
    take_channels,
)
from slide.row_gradients import RowGradient, check_leaves, hand_over
from slide.runtime import outside_autocast, untraced

# Floats that oneDNN computes at once, on processors with AVX-512.
_LANES = 16


class _Geometry(NamedTuple):
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


@untraced
def active_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    in_channels: Channels = None,
    out_channels: Channels = None,
    stride: IntPair = 1,
    padding: IntPair = 0,
    dilation: IntPair = 1,
    groups: int = 1,
    sparse_grad: bool = False,
) -> Tensor:
    """``torch.nn.functional.conv2d`` restricted to some input and output channels.

    Equals the convolution of ``x`` with its other channels set to zero, at the output channels
    asked for. The gradients of ``weight`` and ``bias`` come as rows (see `slide.functional`); that
    of ``weight`` has a row of ``kh * kw`` numbers for each pair of used channels.

    Args:
        x: ``(B, I, H, W)`` floats; or ``(B, A_in, H, W)``, the used input channels alone, in the
            order of ``in_channels``, such as the output of another such convolution.
        weight: ``(O, I / groups, kh, kw)``, the type of ``x``.
        bias: ``(O,)`` or None.
        in_channels: which of the I inputs to use: ``(A_in,)`` distinct channel numbers, or a mask
            ``(I,)`` of bools; None: all.
        out_channels: likewise, which of the O outputs to compute.
        stride, padding, dilation: a number, or one for each of height and width.
        groups: as in ``conv2d``. It is fastest where each group that is used has as many used
            channels as the others; otherwise all pairs of used channels are computed, with zeros
            for those of different groups.
        sparse_grad: whether gradients of weight and bias go through autograd as sparse tensors,
            that of ``weight`` with two sparse dimensions.

    Returns:
        ``(B, A_out, H', W')``, in the order of ``out_channels`` (of a mask: ascending), and in
        memory channels-last: ``reshape`` and ``flatten`` work on it, ``view`` may not.

    Raises:
        ValueError: where shapes do not fit, channels are out of range, repeated, or none, a tensor
            is not on the CPU, or weight or bias is no leaf and ``sparse_grad`` is false;
        TypeError: where types differ, or are neither float32 nor float64.
    """
    x, _, outside = outside_autocast(x, weight)
    check_convolution(x, weight, bias, groups)
    if not sparse_grad:
        check_leaves(weight, bias)
    geometry = _Geometry(
        as_pair("stride", stride, 1),
        as_pair("padding", padding, 0),
        as_pair("dilation", dilation, 1),
        groups,
    )
    num_in = weight.shape[1] * groups
    in_ids = channel_ids("in_channels", in_channels, num_in)
    out_ids = channel_ids("out_channels", out_channels, len(weight))
    if x.shape[1] not in (num_in, len(in_ids)):
        raise ValueError(
            f"x has {x.shape[1]} channels, neither all {num_in} nor the {len(in_ids)} used ones"
        )
    selection = select_kernels(in_ids, out_ids, weight, groups, x.shape[1])
    with outside:
        return _ActiveConv2d.apply(x, weight, bias, selection, geometry, sparse_grad)  # type: ignore[return-value]


class _ActiveConv2d(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        selection: ChannelSelection,
        geometry: _Geometry,
        sparse_grad: bool,
    ):
        ctx.shape, ctx.pixels_first = x.shape, not x.is_contiguous() and is_channels_last(x)
        x = take_channels(x, selection.places)
        kernels = weight.detach().flatten(0, 1)[selection.rows]
        if selection.linked is not None:
            kernels.mul_(selection.linked[:, :, None, None])
        kernels = kernels.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, kernels)
        ctx.weight, ctx.bias, ctx.sparse_grad = weight, bias, sparse_grad
        ctx.selection, ctx.geometry = selection, geometry
        some = None if bias is None else bias.detach()[torch.from_numpy(selection.out_ids)]
        return torch.conv2d(
            x, kernels, some, geometry.stride, geometry.padding, geometry.dilation, selection.groups
        )

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, kernels = ctx.saved_tensors
        selection, geometry = ctx.selection, ctx.geometry
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        needed = list(ctx.needs_input_grad[:3])
        in_pairs = needed[0] and _fills_vectors_in_pairs(x, kernels, geometry)
        grad_x, grad_kernels, grad_bias = torch.ops.aten.convolution_backward(
            grad,
            x,
            kernels,
            [len(kernels)],
            geometry.stride,
            geometry.padding,
            geometry.dilation,
            False,
            [0, 0],
            selection.groups,
            [needed[0] and not in_pairs, *needed[1:]],
        )
        if in_pairs:
            grad_x = _input_gradient_in_pairs(grad, kernels, geometry.padding)
        if grad_x is not None and selection.places is not None:
            grad_x = put_channels(grad_x, selection.places, ctx.shape, ctx.pixels_first)
        grad_weight = grad_some = None
        if ctx.needs_input_grad[1]:
            ids, rows = selection.rows.flatten(), grad_kernels.flatten(2).flatten(0, 1)
            if selection.linked is not None:
                linked = selection.linked.flatten()
                ids, rows = ids[linked], rows[linked]
            gradient = RowGradient(ids.int().numpy(), rows.contiguous())
            grad_weight = hand_over(ctx.weight, gradient, ctx.sparse_grad)
        if ctx.needs_input_grad[2]:
            gradient = RowGradient(selection.out_ids, grad_bias[:, None])
            grad_some = hand_over(ctx.bias, gradient, ctx.sparse_grad)
        return grad_x, grad_weight, grad_some, None, None, None


def _fills_vectors_in_pairs(x: Tensor, kernels: Tensor, geometry: _Geometry) -> bool:
    """Whether `_input_gradient_in_pairs` is right, and faster."""
    plain = geometry.stride == geometry.dilation == (1, 1) and x.shape[1] == kernels.shape[1]
    fits = all(p < k for p, k in zip(geometry.padding, kernels.shape[2:], strict=True))
    return plain and fits and 2 * x.shape[1] <= _LANES and x.shape[3] % 2 == 0


def _input_gradient_in_pairs(grad: Tensor, kernels: Tensor, padding: tuple[int, int]) -> Tensor:
    """The input's gradient, two pixels beside each other at a time.

    It is the convolution of ``grad`` with flipped kernels. Its few channels would leave half of a
    vector empty; those of two pixels fill it, and lie in memory as a channels-last image has them.
    """
    flipped = kernels.flip(2, 3).transpose(0, 1)
    both = torch.cat([pad(flipped, (0, 1)), pad(flipped, (1, 0))])
    (above, left), (height, width) = padding, kernels.shape[2:]
    around = height - 1 - above, width - 1 - left
    both = both.contiguous(memory_format=torch.channels_last)
    pairs = torch.conv2d(grad, both, None, (1, 2), around).permute(0, 2, 3, 1)
    pairs = pairs.contiguous().view(*pairs.shape[:2], -1, len(flipped))
    return pairs.permute(0, 3, 1, 2)
