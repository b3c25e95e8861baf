"""Dropout of sparse inputs: some of the features of each row are left out."""

import torch

from slide.backend import array_view
from slide.sparse import CSR
from slide.utils import checks
from slide.utils.profiling import untraced


@untraced
def drop_features(x: CSR, p: float, generator: torch.Generator | None = None) -> CSR:
    """A matrix without a random share of its non-zeros.

    A network that learns from such rows cannot rely on single features, and learns rows by heart
    more slowly (Vincent et al. 2008, "Extracting and composing robust features with denoising
    autoencoders", section 2.3; for recommenders Liang et al. 2018, "Variational autoencoders for
    collaborative filtering", section 2). The draws come from the generator of torch, so
    ``torch.manual_seed`` determines them.

    Args:
        x: CSR ``(B, D)``.
        p: probability that a non-zero is left out, in [0, 1); others are divided by ``1 - p``.
        generator: what draws, on the CPU; None: the generator of torch.

    Returns:
        ``x`` itself for p = 0; else a CSR matrix ``(B, D)`` with fewer non-zeros, in their order.

    Raises:
        ValueError: for a share out of range.

    Example:
        >>> import numpy as np, slide
        >>> from slide.functional import drop_features
        >>> one = np.ones(1000, np.float32)
        >>> row = slide.CSR(np.array([0, 1000]), np.arange(1000, dtype=np.int32), one)
        >>> left = drop_features(row, p=0.5)
        >>> 400 < len(left.indices) < 600, set(left.values.tolist())
        (True, {2.0})
    """
    checks.share("p", p)
    if not p:
        return x
    kept = array_view(torch.rand(len(x.indices), generator=generator, device="cpu")) >= p
    left = x.keep(kept)
    return left._replace(values=left.values * x.values.dtype.type(1 / (1 - p)))
