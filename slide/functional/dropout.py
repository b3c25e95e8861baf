"""Dropout: of hidden values, in one pass with ReLU, and of the features of sparse inputs."""

from typing import Any

import torch
from torch import Tensor

from slide import ops, runtime
from slide.backend import KERNEL_DTYPES, array_view
from slide.functional.autograd import FirstDerivatives
from slide.sparse import CSR
from slide.utils import checks
from slide.utils.profiling import untraced
from slide.utils.random_keys import random_key


@untraced
def relu_dropout(x: Tensor, p: float, generator: torch.Generator | None = None) -> Tensor:
    """``dropout(relu(x), p)`` in training mode, in one pass over the values, of any shape.

    Values are set to 0 with probability ``p`` in [0, 1) (else ValueError), others are divided by
    ``1 - p``. PyTorch draws random numbers on one core, which takes as long as a matrix product of
    the layer. Here all cores draw them, by a counter-based generator, and other devices draw the
    same. Its key comes from ``generator``, or that of torch, so ``torch.manual_seed`` determines
    the draws.

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
    draws = runtime.generator() if generator is None else generator
    key = int(torch.randint(2**62, (), generator=draws, device="cpu"))
    return _ReluDropout.apply(x, p, key)  # type: ignore[return-value]


class _ReluDropout(FirstDerivatives):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, key: int):
        ctx.p = p
        out = ops.relu_dropout_forward(x.detach().contiguous(), int(random_key(key)), p)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        (out,) = ctx.saved_tensors
        return ops.relu_dropout_backward(out, grads[0], ctx.p), None, None


@untraced
def drop_features(x: CSR, p: float, generator: torch.Generator | None = None) -> CSR:
    """A matrix ``(B, D)`` without a random share of its non-zeros; itself for p = 0.

    Non-zeros are left out with probability ``p`` in [0, 1) (else ValueError), others are divided by
    ``1 - p``. A network that learns from such samples cannot rely on single features, and learns
    them by heart more slowly (Vincent et al. 2008, "Extracting and composing robust features with
    denoising autoencoders", section 2.3; for recommenders Liang et al. 2018, "Variational
    autoencoders for collaborative filtering", section 2). ``generator`` draws, or that of torch.

    Example:
        >>> import slide, torch
        >>> from slide.functional import drop_features
        >>> left = drop_features(slide.as_csr(torch.ones(1, 1000)), p=0.5)
        >>> 400 < len(left.indices) < 600, set(left.values.tolist())
        (True, {2.0})
    """
    checks.share("p", p)
    if not p:
        return x
    draws = runtime.generator() if generator is None else generator
    draw = torch.rand(len(x.indices), generator=draws, dtype=torch.float32, device="cpu")
    kept = array_view(draw) >= p
    left = x.keep(kept)
    return left._replace(values=left.values * x.values.dtype.type(1 / (1 - p)))
