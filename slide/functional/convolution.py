"""Convolution on some input and output channels, with manual gradients.

The used channels are copied into one array, and the convolution of PyTorch (oneDNN) computes on it.
The backward pass makes no array of the size of the weight. The gradient of the weight has one row
for each pair of a used output and a used input channel (`slide.row_gradients.as_rows`).

All images are channels-last in memory, because oneDNN has its fastest kernels for this format. On
two cores a forward pass in the default format took twice as long, because oneDNN first reordered
the values.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from slide.backend import on_device
from slide.functional.autocast import outside_autocast
from slide.functional.averaged_weights import check_not_averaged
from slide.functional.channels import (
    Channels,
    ChannelSelection,
    IntPair,
    as_pair,
    check_convolution,
    is_channels_last,
    put_channels,
    select_kernels,
    take_channels,
)
from slide.functional.drawn_ids import check_drawn, drawn_ids
from slide.functional.first_derivatives import FirstDerivatives
from slide.row_gradients import RowGradient, check_leaves, hand_over
from slide.utils.profiling import untraced

# Number of floats in a vector register of processors with AVX-512.
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

    The result equals the convolution of ``x`` with its unused channels set to zero, at the chosen
    output channels. The gradients of ``weight`` and ``bias`` have rows (see `slide.functional`).

    Args:
        x: ``(B, I, H, W)`` float32 or float64, or ``(B, A_in, H, W)``: only the used channels.
        weight: ``(O, I / groups, kh, kw)``, the type of ``x``.
        bias: ``(O,)`` or None.
        in_channels: the used inputs: ``(A_in,)`` distinct numbers, a mask ``(I,)``, or None: all.
            All numbers must be in ascending order, as the channels of ``x`` then are.
        out_channels: the computed outputs, in the same forms.
        stride, padding, dilation: one number, or one each for height and width.
        groups: as in ``conv2d``; fastest if all used groups have the same number of used channels.
        sparse_grad: whether gradients of weight and bias go through autograd as sparse tensors.

    Returns:
        ``(B, A_out, H', W')`` in the order of ``out_channels``, channels-last in memory.

    Raises:
        ValueError: for shapes or channels that do not fit, tensors on different devices, or a
            parameter that is not a leaf while ``sparse_grad`` is false.
        TypeError: if types differ, or are neither float32 nor float64.

    Example:
        >>> import torch, slide
        >>> x, weight = torch.randn(2, 6, 8, 8), torch.randn(16, 6, 3, 3)
        >>> slide.active_conv2d(x, weight, out_channels=torch.tensor([3, 0, 9])).shape
        torch.Size([2, 3, 6, 6])
    """
    x, _, outside = outside_autocast(x, weight)
    check_convolution(x, weight, bias, groups)
    check_not_averaged(weight, bias)
    if not sparse_grad:
        check_leaves(weight, bias)
    sides = as_pair("stride", stride, 1), as_pair("padding", padding, 0)
    geometry = _Geometry(*sides, as_pair("dilation", dilation, 1), groups)
    selection = select_kernels(x, weight, groups, in_channels, out_channels)
    with outside:
        return _ActiveConv2d.apply(x, weight, bias, selection, geometry, sparse_grad)  # type: ignore[return-value]


class _ActiveConv2d(FirstDerivatives):
    @staticmethod
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
        device = weight.device
        rows = on_device(selection.rows, device)
        kernels = weight.detach().flatten(0, 1)[rows]
        if selection.linked is not None:
            kernels.mul_(on_device(selection.linked, device)[:, :, None, None])
        kernels = kernels.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, kernels, drawn_ids(ctx, rows))
        ctx.weight, ctx.bias, ctx.sparse_grad = weight, bias, sparse_grad
        ctx.selection, ctx.geometry = selection, geometry
        some = None if bias is None else bias.detach()[on_device(selection.out_ids, device)]
        return torch.conv2d(
            x, kernels, some, geometry.stride, geometry.padding, geometry.dilation, selection.groups
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, kernels, drawn = ctx.saved_tensors
        check_drawn(ctx, drawn)
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
            ids, rows = selection.rows.ravel(), grad_kernels.flatten(2).flatten(0, 1)
            if selection.linked is not None:
                linked = np.flatnonzero(selection.linked)
                ids, rows = ids[linked], rows[on_device(linked, rows.device)]
            gradient = RowGradient(ids.astype(np.int32), rows.contiguous())
            grad_weight = hand_over(ctx, ctx.weight, gradient, ctx.sparse_grad)
        if ctx.needs_input_grad[2]:
            gradient = RowGradient(selection.out_ids, grad_bias[:, None])
            grad_some = hand_over(ctx, ctx.bias, gradient, ctx.sparse_grad)
        return grad_x, grad_weight, grad_some, None, None, None


def _fills_vectors_in_pairs(x: Tensor, kernels: Tensor, geometry: _Geometry) -> bool:
    """Whether `_input_gradient_in_pairs` applies, and is faster."""
    plain = geometry.stride == geometry.dilation == (1, 1) and x.shape[1] == kernels.shape[1]
    fits = all(p < k for p, k in zip(geometry.padding, kernels.shape[2:], strict=True))
    on_cpu = x.device.type == "cpu"
    return on_cpu and plain and fits and 2 * x.shape[1] <= _LANES and x.shape[3] % 2 == 0


def _input_gradient_in_pairs(grad: Tensor, kernels: Tensor, padding: tuple[int, int]) -> Tensor:
    """The gradient of the input, computed for two neighbouring pixels at a time.

    The gradient is the convolution of ``grad`` with flipped kernels. The channels of one pixel
    would leave half of a vector register empty. The channels of two pixels fill it, and their order
    is that of a channels-last image.
    """
    flipped = kernels.flip(2, 3).transpose(0, 1)
    both = torch.cat([pad(flipped, (0, 1)), pad(flipped, (1, 0))])
    (above, left), (height, width) = padding, kernels.shape[2:]
    around = height - 1 - above, width - 1 - left
    both = both.contiguous(memory_format=torch.channels_last)
    pairs = torch.conv2d(grad, both, None, (1, 2), around).permute(0, 2, 3, 1)
    shape = *pairs.shape[:2], 2 * pairs.shape[2], len(flipped)
    pairs = pairs.contiguous().view(shape)
    return pairs.permute(0, 3, 1, 2)
