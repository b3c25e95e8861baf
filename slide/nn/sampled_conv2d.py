"""A convolution with sampled output channels."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from slide import functional as F
from slide.active_set import ActiveSet
from slide.backend import KERNEL_DTYPES, on_device, on_host
from slide.functional.autograd import in_eval, outside_autocast
from slide.functional.convolution import (
    Channels,
    IntPair,
    as_pair,
    check_convolution,
    input_ids,
)
from slide.nn.sampled_linear import Activation, EveryOutput, SampledLayer, check_dtype, learns
from slide.runtime import generator
from slide.sampling import Sampler
from slide.utils import checks
from slide.utils.profiling import untraced

# The fractional parts of its first n multiples are spread evenly over [0, 1), for each n.
_GOLDEN = (math.sqrt(5) - 1) / 2


class SampledConv2d(SampledLayer):
    """``nn.Conv2d`` that computes only the output channels which its sampler chooses.

    The sampler sees a filter as a row of ``I * kh * kw`` numbers, and an image as one patch of the
    same length; the patches of a batch lie at output positions that are spread evenly. (A mean over
    patches would be flat, and the filter of an edge gives zero on it.) The batch shares one set.

    Args:
        in_channels, out_channels: I and O.
        kernel_size, stride, padding, dilation: one number, or two, for height and width.
        groups: as in ``nn.Conv2d``.
        sampler: chooses among O outputs for inputs of ``I * kh * kw`` numbers, one set for a batch,
            such as ``ActiveSampler(I * kh * kw, O, LSHProposer, active=A)``; None computes all.
        sparse_grad: whether gradients of weight and bias are sparse tensors in their ``grad``.
        device: as in PyTorch.
        dtype: float32 or float64.

    Raises:
        ValueError: for a number out of range, channels that do not divide into the groups, a
            sampler with another number of outputs, or a sampler together with several groups.
        TypeError: for another dtype.

    Attributes:
        weight: ``(O, I / groups, kh, kw)`` float32. It begins uniform in
            +-1/sqrt(I / groups * kh * kw), as in ``nn.Conv2d``.
        bias: ``(O,)`` float32, or None. It begins at zero.

    Example:
        >>> import slide, torch
        >>> sampler = slide.ActiveSampler(3 * 3 * 3, 64, slide.LSHProposer, active=16)
        >>> layer = slide.SampledConv2d(3, 64, 3, padding=1, sampler=sampler)
        >>> layer(torch.randn(2, 3, 8, 8)).values.shape
        torch.Size([2, 16, 8, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntPair,
        stride: IntPair = 1,
        padding: IntPair = 0,
        dilation: IntPair = 1,
        groups: int = 1,
        bias: bool = True,
        sampler: Sampler | None = None,
        sparse_grad: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        self.kernel_size = as_pair("kernel_size", kernel_size, 1)
        checks.whole("in_channels", in_channels, 1)
        checks.whole("out_channels", out_channels, 1)
        checks.whole("groups", groups, 1)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{in_channels} and {out_channels} channels do not divide into {groups} groups"
            )
        if sampler is not None and groups > 1:
            raise ValueError(f"a sampler needs groups=1, not {groups}")
        per_output = in_channels // groups * math.prod(self.kernel_size)
        super().__init__(per_output, out_channels, sampler, sparse_grad)
        check_dtype(dtype, KERNEL_DTYPES)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.stride = as_pair("stride", stride, 1)
        self.padding = as_pair("padding", padding, 0)
        self.dilation = as_pair("dilation", dilation, 1)
        self.groups = groups
        bound = 1 / math.sqrt(per_output)
        options = {"device": device, "dtype": dtype}
        weight = torch.empty(out_channels, in_channels // groups, *self.kernel_size, **options)
        self.weight = nn.Parameter(
            weight.uniform_(-bound, bound, generator=generator(weight.device))
        )
        self.bias = nn.Parameter(torch.zeros(out_channels, **options)) if bias else None

    def _apply(self, fn: Callable, recurse: bool = True) -> "SampledConv2d":
        """Convert the module, but keep the numbers of a kernel side by side in memory."""
        super()._apply(fn, recurse)
        self.weight.data = self.weight.data.contiguous()
        return self

    @untraced
    def forward(self, x: Tensor, in_channels: Channels = None) -> Activation | EveryOutput:
        """The chosen output channels, in ascending order; in ``eval()``, all O.

        Args:
            x: ``(B, I, H, W)``; or ``(B, A_in, H, W)`` if ``in_channels`` names these channels.
            in_channels: the used inputs; see `slide.active_conv2d`.

        Returns:
            ``values`` ``(B, A, H', W')`` and the active set, with the weights of its sampler.
            A second such layer is called as ``second(torch.relu(out.values), out.active.ids)``.

        Errors: see `slide.active_conv2d`; ValueError also for a set for each sample.
        """
        x, _, outside = outside_autocast(x, self.weight)
        check_convolution(x, self.weight, self.bias, self.groups)
        with outside:
            active = self._choose(self._patches(x, in_channels), self.weight.flatten(1), None)
        if not active.shared:
            raise ValueError(
                "a convolution needs one set for the batch, from a sampler of mode='shared'"
            )
        active = _ascending(active)  # Here the host waits for ids that another device drew.
        with in_eval(not learns(self)):
            values = F.active_conv2d(
                x,
                self.weight,
                self.bias,
                in_channels=in_channels,
                out_channels=None if active.complete else active.ids,
                stride=self.stride,
                padding=self.padding,
                dilation=self.dilation,
                groups=self.groups,
                sparse_grad=self.sparse_grad,
            )
        return self._activation(values, active, (len(x),))

    @torch.no_grad()
    def _patches(self, x: Tensor, in_channels: Channels) -> Tensor:
        """One patch of each image, as the filters see it, ``(B, I * kh * kw)``."""
        known = input_ids(in_channels, self.in_channels)
        ids = on_device(known, x.device).long()
        if x.shape[1] not in (self.in_channels, len(ids)):
            raise ValueError(
                f"x {tuple(x.shape)} must have {self.in_channels} channels or the {len(ids)} used"
            )
        axes = zip(
            x.shape[2:], self.kernel_size, self.stride, self.padding, self.dilation, strict=True
        )
        lines = [_Lines(*axis) for axis in axes]
        shares = torch.arange(len(x), dtype=torch.float64, device=x.device) * _GOLDEN % 1
        positions = (shares * lines[0].positions * lines[1].positions).long()
        rows, row_inside = lines[0].seen_from(positions // lines[1].positions)
        columns, column_inside = lines[1].seen_from(positions % lines[1].positions)
        samples = torch.arange(len(x), device=x.device)[:, None, None]
        seen = x[samples, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        seen = seen * (row_inside[:, :, None] & column_inside[:, None, :])[:, None]
        patches = x.new_zeros(len(x), self.in_channels, *self.kernel_size)
        packed = x.shape[1] != self.in_channels
        return patches.index_copy_(1, ids, seen if packed else seen[:, ids]).flatten(1)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"groups={self.groups}, sampler={self.sampler!r}"
        )


def _ascending(active: ActiveSet) -> ActiveSet:
    """A shared set without targets, its ids in order."""
    ids, weights = on_host(active.ids), active.log_weights
    order = np.argsort(ids)
    weights = None if weights is None else on_host(weights)[order]
    return replace(active, ids=ids[order], log_weights=weights)


class _Lines(NamedTuple):
    """The rows of an image, or its columns, under a kernel."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def positions(self) -> int:
        """Positions of the kernel."""
        reach = self.dilation * (self.kernel - 1)
        return max(1, (self.size + 2 * self.padding - reach - 1) // self.stride + 1)

    def seen_from(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The lines ``(B, kernel)`` under kernels, and whether the image has them."""
        steps = torch.arange(self.kernel, device=positions.device) * self.dilation
        lines = positions[:, None] * self.stride - self.padding + steps
        return lines.clamp(0, self.size - 1), (lines >= 0) & (lines < self.size)
