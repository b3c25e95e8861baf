"""SimHash: signs of sparse random projections."""

from typing import Any

import numpy as np
import torch

from slide.backend import CPU, array_view, has_bfloat16, native, on_device, plain
from slide.hashing import probing
from slide.hashing.family import check_shape, check_width
from slide.kernels import hash_codes as kernels
from slide.plain import hash_codes as plain_codes
from slide.sparse import CSR, check_pattern


class SimHash:
    """A hash family: signs of sparse random projections.

    Two vectors at angle t have the same sign with probability about ``1 - t / pi`` (Charikar 2002,
    "Similarity estimation techniques from rounding algorithms", section 3), and the same code with
    that probability to the power K. The entries of the directions are +1, -1 and 0 with
    probabilities 1/6, 1/6 and 2/3 (Achlioptas 2003, "Database-friendly random projections").

    Args:
        in_features: D, length of the vectors.
        hashes_per_table: K, number of signs in a code, at most 31.
        num_tables: L, number of codes of a vector.
        seed: seed of the random directions.

    Raises:
        ValueError: for a number below 1, or for codes of more than 31 bits.

    Example:
        >>> import slide, torch
        >>> family = slide.SimHash(in_features=3, hashes_per_table=4, num_tables=2)
        >>> x = torch.tensor([[1.0, -2.0, 0.5]])
        >>> family.codes(x).shape  # One code for each table and vector.
        (2, 1)
        >>> bool((family.codes(x) == family.codes(10 * x)).all())
        True
    """

    def __init__(
        self,
        in_features: int,
        hashes_per_table: int,
        num_tables: int,
        seed: int = 0,
    ):
        check_shape(in_features, hashes_per_table, num_tables, bits=1)
        self.in_features = in_features
        self.hashes_per_table = hashes_per_table
        self.num_tables = num_tables
        self.num_buckets = 2**hashes_per_table
        self.redraw(seed)

    def redraw(self, seed: int) -> None:
        """Draw new directions from the seed."""
        generator = np.random.default_rng([0x51, seed])
        shape = (self.in_features, self.num_tables * self.hashes_per_table)
        draws = generator.integers(0, 6, size=shape, dtype=np.int8)
        # 0 -> +1, 1 -> -1, others -> 0. One byte for each, because D may be the number of features.
        self._placed: torch.Tensor | None = None
        self.directions = (draws == 0).view(np.int8) - (draws == 1).view(np.int8)

    def codes(self, vectors: torch.Tensor) -> Any:
        """Codes ``(L, n)`` int32 of the rows of ``vectors`` ``(n, D)``.

        If the processor multiplies bfloat16 faster, float32 vectors are rounded to bfloat16. Their
        angles change by a fraction of a degree. Equal rows still have equal codes.

        Raises:
            ValueError: for vectors of another length.
        """
        return self._signs(self._project(vectors))

    def probe_codes(self, vectors: torch.Tensor, probes: int) -> Any:
        """`codes`, and those of the buckets behind the signs of the smallest projections.

        See `HashFamily`. A set of changed signs costs the sum of the squares of their
        projections (Lv et al. 2007, "Multi-probe LSH", section 4.3).
        """
        projections = self._project(vectors)
        shape = self.hashes_per_table, self.num_tables, len(vectors)
        flips = probing.sign_flips(*shape, projections.device)
        costs = projections.abs()
        costs = costs.float() if costs.dtype == torch.bfloat16 else costs
        return probing.codes_of_probes(self._signs(projections), costs, flips, probes)

    def _project(self, vectors: torch.Tensor) -> torch.Tensor:
        """Projections ``(n, L * K)`` of the rows of ``vectors``, perhaps rounded to bfloat16."""
        check_width(vectors, self.in_features)
        vectors = vectors.detach()
        if plain(vectors):
            return vectors @ self._directions(vectors.device).to(vectors.dtype)
        if vectors.dtype == torch.float32 and has_bfloat16():
            vectors = vectors.bfloat16()
        return vectors @ torch.from_numpy(self.directions).to(vectors.dtype)

    def _signs(self, projections: torch.Tensor) -> Any:
        """Codes ``(L, n)`` int32 from projections."""
        if plain(projections):
            return native(plain_codes.pack_signs(projections, self.hashes_per_table))
        if projections.dtype == torch.bfloat16:
            # The bytes of a bfloat16 number, read as an integer, have the same sign.
            projections = projections.view(torch.int16)
        return self._pack(array_view(projections))

    def sparse_codes(self, vectors: CSR) -> Any:
        """Codes ``(L, n)`` int32 of the rows of a CSR matrix with D columns.

        Raises:
            ValueError: for a malformed matrix, or columns out of range.
        """
        check_pattern("coordinates", vectors, None, self.in_features)
        if plain(CPU):
            indptr, indices, values = (on_device(each, CPU) for each in vectors)
            directions = self._directions(CPU)
            projections = plain_codes.project_sparse(indptr, indices, values, directions)
            return native(plain_codes.pack_signs(projections, self.hashes_per_table))
        projections = np.empty((vectors.num_rows, self.directions.shape[1]), vectors.values.dtype)
        kernels.project_sparse(*vectors, self.directions, projections)
        return self._pack(projections)

    def _directions(self, device: torch.device) -> torch.Tensor:
        """The directions on a device; they are copied once."""
        if self._placed is None or self._placed.device != device:
            self._placed = on_device(self.directions, device)
        return self._placed

    def _pack(self, projections: np.ndarray) -> np.ndarray:
        out = np.empty((self.num_tables, len(projections)), np.int32)
        kernels.pack_signs(projections, self.hashes_per_table, out)
        return out
