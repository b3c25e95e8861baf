"""Hash families turn vectors into codes; they do not depend on hash tables.

A family draws L = ``num_tables`` hash functions. Each combines K = ``hashes_per_table`` elementary
hashes. The codes of n vectors are ``(L, n)`` int32 in ``[0, num_buckets)``.
"""

from typing import Any, Protocol

import torch

from slide.sparse import CSR
from slide.utils import checks

MOST_BITS = 31  # Codes are int32 of at least 0.


class HashFamily(Protocol):
    """The interface of a hash family: any object with these members is one.

    `slide.LSHProposer` makes a family by
    ``family(in_features, hashes_per_table=K, num_tables=L, seed=s)``, once with K = L = 1 to learn
    how many buckets a hash tells apart. `slide.testing.check_hash_family` tests whether a class
    follows this interface.

    A family may also have a method ``probe_codes(vectors, probes)``: codes ``((1 + probes) L, n)``
    int32, first those of `codes`, then those of the bucket of each table that the row would be in
    if its least certain elementary hash were another, then the next ones. The buckets of a row in a
    table are distinct; where a table has no more of them, there are fewer (`DWTA` has one other
    place for each digit).

    Attributes:
        in_features: D, length of the vectors.
        num_tables: L, number of codes of a vector.
        num_buckets: codes lie in ``[0, num_buckets)``.

    Example:
        A family that hashes a vector by the place of its largest coordinate, with random signs:

        >>> import numpy as np, torch
        >>> class Largest:
        ...     def __init__(self, in_features, hashes_per_table, num_tables, seed=0):
        ...         self.in_features = self.num_buckets = in_features
        ...         self.num_tables = num_tables
        ...         self.redraw(seed)
        ...     def redraw(self, seed):
        ...         signs = np.random.default_rng(seed).choice([-1, 1], (self.num_tables, 1, 1))
        ...         self.signs = torch.from_numpy(signs)
        ...     def codes(self, vectors):
        ...         return (vectors * self.signs).argmax(2).numpy().astype(np.int32)
        ...     def sparse_codes(self, vectors):
        ...         raise NotImplementedError
        >>> Largest(3, 1, 2).codes(torch.tensor([[0.0, 2.0, 1.0], [5.0, 2.0, 1.0]])).shape
        (2, 2)
    """

    in_features: int
    num_tables: int
    num_buckets: int

    def redraw(self, seed: int) -> None:
        """Draw new hash functions; the same seed gives the same functions."""
        ...

    def codes(self, vectors: torch.Tensor) -> Any:
        """Codes ``(L, n)`` int32 in ``[0, num_buckets)`` of the rows of ``(n, in_features)``.

        ``vectors`` are float32 or float64. The code of a row depends only on that row. The codes
        are an array; for vectors on another device than the CPU, a tensor there.
        """
        ...

    def sparse_codes(self, vectors: CSR) -> Any:
        """Codes ``(L, n)`` int32 of the rows of a CSR matrix with ``in_features`` columns."""
        ...


def check_shape(in_features: int, hashes_per_table: int, num_tables: int, bits: int) -> None:
    """Raise ValueError for a number below 1, or for codes that do not fit in int32.

    ``bits`` is the number of bits of one elementary hash.
    """
    checks.whole("in_features", in_features, 1)
    checks.whole("hashes_per_table", hashes_per_table, 1)
    checks.whole("num_tables", num_tables, 1)
    if (needed := hashes_per_table * bits) > MOST_BITS:
        raise ValueError(
            f"hashes_per_table = {hashes_per_table} makes codes of {needed} bits, and codes have "
            f"at most {MOST_BITS}: it must be at most {MOST_BITS // bits}"
        )


def check_width(vectors: torch.Tensor, in_features: int) -> None:
    """Raise ValueError unless ``vectors`` are ``(n, in_features)``."""
    if vectors.ndim != 2 or vectors.shape[1] != in_features:
        raise ValueError(f"vectors must be (n, {in_features}), not {tuple(vectors.shape)}")
