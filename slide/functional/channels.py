"""The choice of channels and kernels for `slide.functional.convolution`.

This file checks the arguments, finds the kernels that link the used channels, and copies channels
out of images and back.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.backend import KERNEL_DTYPES, array_view, check_together, on_device, plain
from slide.kernels import channels as kernels
from slide.utils import checks

Channels = np.ndarray | Tensor | None
IntPair = int | tuple[int, int]


class ChannelSelection(NamedTuple):
    """What a convolution on some channels computes.

    Attributes:
        places: ``(A_in,)`` int64 positions of the used input channels in ``x``, on its device;
            None: all of them.
        out_ids: ``(A_out,)`` int32 numbers of the computed output channels.
        rows: ``(A_out, J)`` int64 array, the weight's row (output, input) of each used kernel.
        linked: ``(A_out, J)`` bool array: False if output and input are in different groups; such a
            kernel counts as zero. None: all are in the same group.
        groups: number of groups in the convolution of the used channels.
    """

    places: Tensor | None
    out_ids: np.ndarray
    rows: np.ndarray
    linked: np.ndarray | None
    groups: int


def channel_ids(name: str, channels: Channels, total: int) -> np.ndarray:
    """Channel numbers ``(A,)`` int32 from numbers, a mask ``(total,)``, or None for all.

    Raises:
        ValueError: for a mask of another length, a number that is out of range or repeated, or an
            empty choice.
        TypeError: for anything but whole numbers and bools.
    """
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
    """The numbers of the used input channels, see `channel_ids`.

    Raises:
        ValueError: also for all channels in another order than that of their numbers: an image of
            all channels may be in either order, and nothing would tell.
    """
    ids = channel_ids("in_channels", channels, total)
    if len(ids) == total and (np.diff(ids) < 0).any():
        raise ValueError(
            f"in_channels names all {total} channels, and not in ascending order: bring x into the "
            "order of the channels, and leave in_channels out"
        )
    return ids


def as_pair(name: str, value: Any, least: int) -> tuple[int, int]:
    """A pair of whole numbers, from one number (used twice) or two.

    Raises:
        ValueError: unless the numbers are whole and at least ``least``.
    """
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
    """The kernels that link used inputs with used outputs, for one convolution.

    Raises:
        ValueError: for channels that do not fit ``x`` or the weight.
    """
    per_group_in, per_group_out = weight.shape[1], len(weight) // groups
    num_in, num_channels = per_group_in * groups, x.shape[1]
    in_ids = input_ids(in_channels, num_in)
    out_ids = channel_ids("out_channels", out_channels, len(weight))
    if num_channels not in (num_in, len(in_ids)):
        raise ValueError(
            f"x has {num_channels} channels, neither all {num_in} nor the {len(in_ids)} used ones"
        )
    whole = num_channels == num_in
    places = in_ids.astype(np.int64) if whole else np.arange(len(in_ids))
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
            places = places[np.isin(in_group, used)]
            rows, linked, groups = rows[linked].reshape(len(out_ids), ins[0]), None, len(used)
    everything = np.array_equal(places, np.arange(num_channels))
    return ChannelSelection(
        None if everything else on_device(places, x.device),
        out_ids,
        rows,
        None if linked is None or linked.all() else linked,
        groups,
    )


def is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


def _as_pixels(x: Tensor) -> np.ndarray:
    """The memory of a channels-last ``(B, C, H, W)`` as ``(B * H * W, C)``."""
    return array_view(x.permute(0, 2, 3, 1)).reshape(-1, x.shape[1])


def take_channels(x: Tensor, places: Tensor | None) -> Tensor:
    """The channels ``places`` of ``x``, channels-last in memory."""
    last = torch.channels_last
    if places is None:
        return x.contiguous(memory_format=last)
    if plain(x) or not is_channels_last(x):
        return x.index_select(1, places).contiguous(memory_format=last)
    out = x.new_empty(len(x), *x.shape[2:], len(places)).permute(0, 3, 1, 2)
    kernels.take_pixels(_as_pixels(x), places.numpy(), _as_pixels(out))
    return out


def put_channels(x: Tensor, places: Tensor, shape: torch.Size, pixels_first: bool) -> Tensor:
    """Zeros of ``shape`` with ``x`` at the channels ``places``.

    The result is channels-last in memory if ``pixels_first`` is true.
    """
    if plain(x):
        last = torch.channels_last if pixels_first else torch.contiguous_format
        out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=last)
        return out.zero_().index_copy_(1, places, x)
    pixels = _as_pixels(x.contiguous(memory_format=torch.channels_last))
    if pixels_first:
        out = x.new_empty(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
        kernels.put_pixels(pixels, places.numpy(), _as_pixels(out))
        return out
    out = x.new_empty(shape)
    planes = array_view(out).reshape(*shape[:2], -1)
    kernels.put_planes(pixels.reshape(len(x), -1, len(places)), places.numpy(), planes)
    return out
