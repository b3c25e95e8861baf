"""ReLU and dropout in one pass over the values."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import KERNEL_DTYPES, array_view, plain
from slide.functional.first_derivatives import FirstDerivatives
from slide.kernels import relu_dropout as kernels
from slide.plain.relu_dropout import relu_dropout_forward
from slide.utils import checks
from slide.utils.profiling import untraced
from slide.utils.random_keys import random_key


@untraced
def relu_dropout(x: Tensor, p: float, generator: torch.Generator | None = None) -> Tensor:
    """``dropout(relu(x), p)`` in training mode, in one pass over the values.

    PyTorch draws random numbers on one core, which takes as long as a matrix product of the layer.
    Here all cores draw them, by a counter-based generator, and other
    devices draw the same. Its key comes from the generator of
    torch, so ``torch.manual_seed`` determines the draws.

    Args:
        x: floats of any shape.
        p: probability that a value is set to 0, in [0, 1); others are divided by ``1 - p``.
        generator: what the key comes from, on the CPU; None: the generator of torch.

    Returns:
        A tensor of the shape and type of ``x``.

    Raises:
        ValueError: for a share out of range.

    Example:
        >>> import torch
        >>> from slide.functional import relu_dropout
        >>> out = relu_dropout(torch.ones(1000), p=0.5)
        >>> sorted(set(out.tolist()))
        [0.0, 2.0]
    """
    checks.share("p", p)
    if not p:
        return torch.relu(x)
    if x.dtype not in KERNEL_DTYPES:  # Kernels do not read other types.
        return relu_dropout(x.float(), p, generator).to(x.dtype)
    key = int(torch.randint(2**62, (), generator=generator, device="cpu"))
    if plain(x):
        return relu_dropout_forward(x, int(random_key(key)), p)
    return _ReluDropout.apply(x, p, key)  # type: ignore[return-value]


class _ReluDropout(FirstDerivatives):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, key: int):
        x, ctx.scale = x.detach().contiguous(), 1 / (1 - p)
        out, least = torch.empty_like(x), np.uint64(round(p * 2**32))
        kernels.relu_dropout_forward(_flat(x), random_key(key), least, ctx.scale, _flat(out))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        (out,) = ctx.saved_tensors
        grad_x = torch.empty_like(out)
        kernels.relu_dropout_backward(
            _flat(out), _flat(grads[0].contiguous()), ctx.scale, _flat(grad_x)
        )
        return grad_x, None, None


def _flat(x: Tensor) -> np.ndarray:
    return array_view(x).reshape(-1)
