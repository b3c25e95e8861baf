"""Convolution on half of the input channels: backward against forward, ours and PyTorch's.

A batch of 128 images of 16 channels, 28 x 28, of which 8 are used, to 32 channels by 3 x 3. Peers:
the sliced one takes channels out of input and weight in front of ``conv2d``, and autograd puts the
gradients back into full tensors; the masked one multiplies the input by a mask; ``torch.nn.grad``
is what one writes by hand with PyTorch's functions for single gradients. The ways take turns, as
times depend on which memory the allocator has at hand.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as torch_F

from slide.functional.convolution import active_conv2d

BATCH, INPUTS, OUTPUTS, SIDE = 128, 16, 32, 28
WARM_UP, STEPS = 5, 25
ORDERS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
Convolution = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, ids, stride):
        some, kernels = x[:, ids], weight[:, ids]
        ctx.save_for_backward(x, weight, ids, some, kernels)
        ctx.stride = stride
        return torch_F.conv2d(some, kernels, bias, stride, 1)

    @staticmethod
    def backward(ctx, grad):
        x, weight, ids, some, kernels = ctx.saved_tensors
        grad_x, grad_weight = torch.zeros_like(x), torch.zeros_like(weight)
        shape = ctx.stride, 1
        grad_x[:, ids] = torch.nn.grad.conv2d_input(some.shape, kernels, grad, *shape)
        grad_weight[:, ids] = torch.nn.grad.conv2d_weight(some, kernels.shape, grad, *shape)
        return grad_x, grad_weight, grad.sum((0, 2, 3)), None, None


def _masked(x: Tensor, weight: Tensor, bias: Tensor, ids: Tensor, stride: int) -> Tensor:
    mask = torch.zeros(INPUTS, 1, 1)
    mask[ids] = 1
    return torch_F.conv2d(x * mask, weight, bias, stride, 1)


WAYS: dict[str, Convolution] = {
    "active_conv2d": lambda x, w, b, ids, s: active_conv2d(x, w, b, ids, None, s, 1),
    "conv2d of slices": lambda x, w, b, ids, s: torch_F.conv2d(x[:, ids], w[:, ids], b, s, 1),
    "conv2d with a mask": _masked,
    "torch.nn.grad": _ByHand.apply,  # type: ignore[dict-item]
}


class _Timed:
    """One way, and the milliseconds that its steps took."""

    def __init__(self, way: Convolution, order: torch.memory_format, stride: int):
        torch.manual_seed(0)
        x = torch.randn(BATCH, INPUTS, SIDE, SIDE).contiguous(memory_format=order)
        self.tensors = x, torch.randn(OUTPUTS, INPUTS, 3, 3), torch.randn(OUTPUTS)
        for tensor in self.tensors:
            tensor.requires_grad_()
        self.way, self.stride = way, stride
        self.forward, self.backward = [], []

    def step(self) -> None:
        ids = torch.arange(0, INPUTS, 2)
        for tensor in self.tensors:
            tensor.grad, tensor.row_gradients = None, []  # type: ignore[attr-defined]
        start = time.perf_counter()
        out = self.way(*self.tensors, ids, self.stride)
        self.forward.append(1e3 * (time.perf_counter() - start))
        upstream = torch.ones_like(out)
        start = time.perf_counter()
        out.backward(upstream)
        self.backward.append(1e3 * (time.perf_counter() - start))


def rows(steps: int = STEPS) -> list[dict]:
    """One row for each way, stride and order of memory; medians of ``steps`` steps."""
    found = []
    for stride in (1, 2):
        for order, memory_format in ORDERS.items():
            timed = {name: _Timed(way, memory_format, stride) for name, way in WAYS.items()}
            for _ in range(WARM_UP + steps):
                for one in timed.values():
                    one.step()
            for name, one in timed.items():
                forward = statistics.median(one.forward[WARM_UP:])
                backward = statistics.median(one.backward[WARM_UP:])
                found.append(
                    {
                        "case": name,
                        "stride": stride,
                        "order": order,
                        "forward_ms": round(forward, 2),
                        "backward_ms": round(backward, 2),
                        "backward_to_forward": round(backward / forward, 2),
                    }
                )
    return found
