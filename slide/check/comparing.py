"""Comparing what a kernel computes with what it should."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from slide.sparse import CSR, Pattern

# It raises an error if what it tests is wrong.
Test = Callable[[np.random.Generator], None]


def near(what: str, found: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    """Raise ValueError unless two tensors agree up to rounding."""
    if found.shape != expected.shape:
        raise ValueError(f"{what} is {tuple(found.shape)}, not {tuple(expected.shape)}")
    found, expected = found.detach(), expected.detach()
    error = float((found - expected).abs().max()) if found.numel() else 0.0
    # Not "error > ...", because of NaN.
    if not error <= tolerance * (1 + float(expected.abs().max() if expected.numel() else 0)):
        raise ValueError(f"{what} is off by {error:.2g}")


def equal(what: str, found: object, expected: object) -> None:
    """Raise ValueError unless two values are equal."""
    if found != expected:
        raise ValueError(f"{what} is {found}, not {expected}"[:300])


def gradient(x: Tensor) -> Tensor:
    """The gradient of a leaf.

    Raises:
        ValueError: if there is none.
    """
    if x.grad is None:
        raise ValueError("there is no gradient")
    return x.grad


def random_csr(rng: np.random.Generator, rows: int, columns: int) -> tuple[CSR, Tensor]:
    """A sparse matrix, and the same one dense."""
    dense = rng.standard_normal((rows, columns)).astype(np.float32)
    dense[rng.random(dense.shape) < 0.7] = 0
    lists = [np.flatnonzero(row).tolist() for row in dense]
    indptr, indices = Pattern.from_lists(lists)
    return CSR(indptr, indices, dense[dense != 0]), torch.from_numpy(dense)
