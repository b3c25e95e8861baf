"""The few directions in which hidden vectors vary: a projection of all units sees mostly noise.

(Weiss, Torralba, Fergus 2008, "Spectral hashing"; Gong et al. 2013, "Iterative quantization".)
"""

import math

import torch
from torch import Tensor

# Rounds of subspace iteration from a random start, and from directions of earlier inputs.
_COLD, _WARM = 4, 1


def random_directions(in_features: int, number: int, seed: int) -> Tensor:
    """Orthonormal columns ``(D, number)`` float32, for the time before the first inputs."""
    generator = torch.Generator().manual_seed(int(seed))
    drawn = torch.randn(in_features, number, generator=generator, dtype=torch.float32)
    # As a state has them: products of another layout differ in their last bits.
    return torch.linalg.qr(drawn).Q.contiguous()


def principal_directions(centered: Tensor, start: Tensor, warm: bool) -> Tensor:
    """The directions in which vectors vary most, by subspace iteration.

    A round takes ``4 n D k`` operations. centered (n, D), vectors without their mean; start (D, k)
    orthonormal columns, ``warm`` if of similar vectors. Returns ``(D, k)`` orthonormal columns, the
    largest variance first; the start if a vector is not finite. (Halko, Martinsson, Tropp 2011,
    "Finding structure with randomness", section 4.5.)
    """
    largest = centered.abs().amax()
    if not 0 < largest < math.inf:
        return start
    centered = centered / largest  # Products of large vectors would overflow.
    basis = start
    for _ in range(_WARM if warm else _COLD):
        basis = torch.linalg.qr(centered.T @ (centered @ basis)).Q
    found = centered @ basis
    variances, turned = torch.linalg.eigh(found.T @ found)
    return basis @ turned[:, variances.argsort(descending=True)]
