"""Hash families: vectors to codes. They know nothing of tables.

A family draws ``num_tables`` (L) functions, each made of ``hashes_per_table`` (K) elementary ones,
and gives codes ``(L, n)`` int32 in ``[0, num_buckets)``.
"""

import math
from typing import Protocol

import numpy as np
import torch

from slide import checks
from slide.sparse import CSR


class HashFamily(Protocol):
    """What a hash family offers; any object with these members serves.

    `slide.LSHProposer` makes one by ``family(D + 2, num_vectors=N, seed=s)``.
    `slide.testing.check_hash_family` tells whether one keeps to what is said here.
    """

    in_features: int
    num_tables: int
    num_buckets: int

    def redraw(self, seed: int) -> None:
        """Draw new hash functions: from the same seed the same ones."""
        ...

    def codes(self, vectors: torch.Tensor) -> np.ndarray:
        """Codes ``(L, n)`` int32 in ``[0, num_buckets)`` of the rows of ``(n, in_features)``.

        ``vectors`` are float32 or float64. A row's code depends on that row alone.
        """
        ...

    def sparse_codes(self, vectors: CSR) -> np.ndarray:
        """Codes ``(L, n)`` int32 of the rows of a CSR matrix with ``in_features`` columns."""
        ...


def check_shape(in_features: int, hashes_per_table: int, num_tables: int, bits: int) -> None:
    checks.whole("in_features", in_features, 1)
    checks.whole("hashes_per_table", hashes_per_table, 1)
    checks.whole("num_tables", num_tables, 1)
    if (bits := hashes_per_table * bits) > 24:
        raise ValueError(
            f"hashes_per_table = {hashes_per_table} makes codes of {bits} bits; tables of more "
            "than 2^24 buckets are not supported: lower hashes_per_table"
        )


def check_width(vectors: torch.Tensor, in_features: int) -> None:
    if vectors.ndim != 2 or vectors.shape[1] != in_features:
        raise ValueError(f"vectors must be (n, {in_features}), not {tuple(vectors.shape)}")


def choose_hashes(num_vectors: int, per_bucket: int, bits: int) -> int:
    """K such that tables have about one bucket for ``per_bucket`` vectors."""
    return max(1, round(math.log2(max(1, num_vectors / per_bucket)) / bits))
