"""Convolution on some input and output channels, which are copied for that of PyTorch.

Images are channels-last in memory: oneDNN reorders others, which took as long as the convolution.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from slide import ops
from slide.backend import KERNEL_DTYPES, check_together, on_device
from slide.functional.autograd import (
    FirstDerivatives,
    check_drawn,
    check_takes_rows,
    drawn_ids,
    outside_autocast,
)
from slide.row_gradients import RowGradient, hand_over
from slide.utils import checks
from slide.utils.profiling import untraced

Channels = np.ndarray | Tensor | None
IntPair = int | tuple[int, int]
# Stride, padding and dilation.
_Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
_LANES = 16  # Floats in a vector register of processors with AVX-512.


class ChannelSelection(NamedTuple):
    """What a convolution on some channels computes."""

    positions: Tensor | None  # (A_in,) int64, positions of the used inputs in x; None: all.
    out_ids: np.ndarray  # (A_out,) int32, the computed outputs.
    rows: np.ndarray  # (A_out, J) int64, the weight row (output, input) of each used kernel.
    linked: np.ndarray | None  # (A_out, J) bools, whether both are in one group; None: all are.
    groups: int


def channel_ids(name: str, channels: Channels, total: int) -> np.ndarray:
    """Channel numbers ``(A,)`` int32 from numbers, a mask ``(total,)``, or None for all."""
    if channels is None:
        return np.arange(total, dtype=np.int32)
    ids = np.asarray(channels.detach() if isinstance(channels, Tensor) else channels)
    if ids.dtype == bool:
        if ids.shape != (total,):
            raise ValueError(f"a mask of {name} must be ({total},), not {ids.shape}")
        ids = np.flatnonzero(ids)
    if not np.issubdtype(ids.dtype, np.integer) or ids.ndim != 1:
        raise TypeError(
            f"{name} must be a list of channel numbers or a mask, not {ids.dtype} {ids.shape}"
        )
    if not ids.size:
        raise ValueError(f"{name} must name at least one of {total} channels")
    if ids.min() < 0 or ids.max() >= total:
        raise ValueError(f"{name} must lie in [0, {total}), not in [{ids.min()}, {ids.max()}]")
    if np.bincount(ids).max() > 1:
        raise ValueError(f"{name} must be distinct; {np.bincount(ids).argmax()} occurs repeatedly")
    return ids.astype(np.int32)


def input_ids(channels: Channels, total: int) -> np.ndarray:
    """`channel_ids` of the used inputs, of which all must be in order."""
    ids = channel_ids("in_channels", channels, total)
    if len(ids) == total and (np.diff(ids) < 0).any():
        raise ValueError(
            f"in_channels names all {total} channels, and not in ascending order: bring x into the "
            "order of the channels, and leave in_channels out"
        )
    return ids


def as_pair(name: str, value: Any, least: int) -> tuple[int, int]:
    """A pair of whole numbers, from one number (used twice) or two."""
    pair = value if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"{name} must be one number or two, not {value!r}")
    for number in pair:
        checks.whole(name, number, least)
    return pair[0], pair[1]


def check_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    """Raise unless images, weight and bias fit each other and have types that kernels support."""
    checks.whole("groups", groups, 1)
    if not isinstance(x, Tensor):
        hint = (
            "; give its values, and its active.ids as in_channels" if hasattr(x, "active") else ""
        )
        raise TypeError(f"the input must be a tensor, not {type(x).__name__}{hint}")
    check_together(x, weight, bias)
    if weight.dtype not in KERNEL_DTYPES:
        raise TypeError(f"weights of convolutions must be float32 or float64, not {weight.dtype}")
    if x.ndim != 4 or weight.ndim != 4:
        raise ValueError(
            f"x and weight must have 4 dimensions, not {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if 0 in x.shape[2:]:
        raise ValueError(f"images must have a height and width of at least 1, not {tuple(x.shape)}")
    if len(weight) % groups:
        raise ValueError(f"{len(weight)} output channels do not divide into {groups} groups")
    if bias is not None and bias.shape != (len(weight),):
        raise ValueError(f"bias {tuple(bias.shape)} does not fit weight {tuple(weight.shape)}")
    if x.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise TypeError(f"x is {x.dtype} but weight is {weight.dtype}; convert one of them")


def select_kernels(
    x: Tensor, weight: Tensor, groups: int, in_channels: Channels, out_channels: Channels
) -> ChannelSelection:
    """The kernels that link used inputs with used outputs, for one convolution."""
    per_group_in, per_group_out = weight.shape[1], len(weight) // groups
    num_in, num_channels = per_group_in * groups, x.shape[1]
    in_ids = input_ids(in_channels, num_in)
    out_ids = channel_ids("out_channels", out_channels, len(weight))
    if num_channels not in (num_in, len(in_ids)):
        raise ValueError(
            f"x has {num_channels} channels, neither all {num_in} nor the {len(in_ids)} used ones"
        )
    whole = num_channels == num_in
    positions = in_ids.astype(np.int64) if whole else np.arange(len(in_ids))
    rows = out_ids[:, None].astype(np.int64) * per_group_in + in_ids % per_group_in
    linked = None
    if groups > 1:
        in_group, out_group = in_ids // per_group_in, out_ids // per_group_out
        linked = out_group[:, None] == in_group
        used, outs = np.unique(out_group, return_counts=True)
        ins = np.bincount(in_group, minlength=groups)[used]
        ordered = (np.diff(in_group) >= 0).all() and (np.diff(out_group) >= 0).all()
        groups = 1
        if ordered and ins[0] and len({*ins}) == len({*outs}) == 1:
            positions = positions[np.isin(in_group, used)]
            rows, linked, groups = rows[linked].reshape(len(out_ids), ins[0]), None, len(used)
    everything = np.array_equal(positions, np.arange(num_channels))
    return ChannelSelection(
        None if everything else on_device(positions, x.device),
        out_ids,
        rows,
        None if linked is None or linked.all() else linked,
        groups,
    )


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
        ValueError: for shapes or channels that do not fit, or tensors on different devices.
        TypeError: if types differ, or are neither float32 nor float64.

    Example:
        >>> import torch, slide
        >>> x, weight = torch.randn(2, 6, 8, 8), torch.randn(16, 6, 3, 3)
        >>> slide.active_conv2d(x, weight, out_channels=torch.tensor([3, 0, 9])).shape
        torch.Size([2, 3, 6, 6])
    """
    x, _, outside = outside_autocast(x, weight)
    check_convolution(x, weight, bias, groups)
    check_takes_rows(weight, bias)
    sides = as_pair("stride", stride, 1), as_pair("padding", padding, 0)
    geometry = *sides, as_pair("dilation", dilation, 1)
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
        ctx.shape, ctx.pixels_first = x.shape, not x.is_contiguous() and ops.is_channels_last(x)
        if selection.positions is None:
            x = x.contiguous(memory_format=torch.channels_last)
        else:
            # By pixels: channels-last, and faster than a selection of planes.
            x = x.permute(0, 2, 3, 1).index_select(3, selection.positions).permute(0, 3, 1, 2)
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
        return torch.conv2d(x, kernels, some, *geometry, selection.groups)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, kernels, drawn = ctx.saved_tensors
        check_drawn(ctx, drawn)
        selection, geometry = ctx.selection, ctx.geometry
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        needed = list(ctx.needs_input_grad[:3])
        in_pairs = needed[0] and _fills_vectors_in_pairs(x, kernels, geometry)
        needed[0] = needed[0] and not in_pairs
        stride, padding, dilation = geometry
        grad_x, grad_kernels, grad_bias = torch.ops.aten.convolution_backward(
            grad,
            x,
            kernels,
            bias_sizes=[len(kernels)],
            stride=stride,
            padding=padding,
            dilation=dilation,
            transposed=False,
            output_padding=[0, 0],
            groups=selection.groups,
            output_mask=needed,
        )
        if in_pairs:
            grad_x = _input_gradient_in_pairs(grad, kernels, geometry[1])
        if grad_x is not None and selection.positions is not None:
            grad_x = ops.put_channels(grad_x, selection.positions, ctx.shape, ctx.pixels_first)
        grad_weight = grad_some = None
        if ctx.needs_input_grad[1]:
            ids, rows = selection.rows.ravel(), grad_kernels.flatten(2).flatten(0, 1)
            if selection.linked is not None:
                linked = np.flatnonzero(selection.linked)
                ids, rows = ids[linked], rows[on_device(linked, rows.device)]
            gradient = RowGradient(ids.astype(np.int32), rows.contiguous())
            grad_weight = hand_over(ctx, ctx.weight, gradient)
        if ctx.needs_input_grad[2]:
            gradient = RowGradient(selection.out_ids, grad_bias[:, None])
            grad_some = hand_over(ctx, ctx.bias, gradient)
        return grad_x, grad_weight, grad_some, None, None, None


def _fills_vectors_in_pairs(x: Tensor, kernels: Tensor, geometry: _Geometry) -> bool:
    """Whether `_input_gradient_in_pairs` applies, and is faster."""
    stride, padding, dilation = geometry
    dense = stride == dilation == (1, 1) and x.shape[1] == kernels.shape[1]
    fits = all(p < k for p, k in zip(padding, kernels.shape[2:], strict=True))
    on_cpu = x.device.type == "cpu"
    return on_cpu and dense and fits and 2 * x.shape[1] <= _LANES and x.shape[3] % 2 == 0


def _input_gradient_in_pairs(grad: Tensor, kernels: Tensor, padding: tuple[int, int]) -> Tensor:
    """The input's gradient, channels-last, for two pixels at a time, which fill a register."""
    flipped = kernels.flip(2, 3).transpose(0, 1)
    both = torch.cat([pad(flipped, (0, 1)), pad(flipped, (1, 0))])
    (above, left), (height, width) = padding, kernels.shape[2:]
    around = height - 1 - above, width - 1 - left
    both = both.contiguous(memory_format=torch.channels_last)
    pairs = torch.conv2d(grad, both, None, (1, 2), around).permute(0, 2, 3, 1)
    shape = *pairs.shape[:2], 2 * pairs.shape[2], len(flipped)
    return pairs.contiguous().view(shape).permute(0, 3, 1, 2)
