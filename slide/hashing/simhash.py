"""SimHash: signs of sparse random projections."""

import numpy as np
import torch

from slide.hashing.family import check_shape, check_width, choose_hashes
from slide.kernels import hash_codes as kernels
from slide.runtime import array_view, has_bfloat16
from slide.sparse import CSR, check_pattern


class SimHash:
    """Signs of sparse random projections.

    Two vectors at angle t agree in one sign with probability about ``1 - t / pi`` (Charikar 2002,
    section 3) and in a code with that to the power K. Directions have entries +1, -1 and 0 with
    probabilities 1/6, 1/6, 2/3 (Achlioptas 2003, "Database-friendly random projections").

    Args:
        in_features: D, length of the vectors.
        hashes_per_table: K, signs in a code; None: about 256 vectors a bucket.
        num_tables: L, number of codes.
        seed: of the random directions.
        num_vectors: how many there will be to find; only for the choice of K.

    Raises:
        ValueError: for a number below 1 or more than 24 bits a code.
    """

    def __init__(
        self,
        in_features: int,
        hashes_per_table: int | None = None,
        num_tables: int = 16,
        seed: int = 0,
        num_vectors: int = 2**16,
    ):
        if hashes_per_table is None:
            hashes_per_table = choose_hashes(num_vectors, per_bucket=256, bits=1)
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
        # 0 -> +1, 1 -> -1, the rest -> 0; kept as bytes, since D may be the number of features.
        self.directions = np.where(draws == 0, 1, np.where(draws == 1, -1, 0)).astype(np.int8)

    def codes(self, vectors: torch.Tensor) -> np.ndarray:
        """Codes ``(L, n)`` int32 of the rows of ``vectors`` ``(n, D)``.

        float32 is rounded to bfloat16 where the processor multiplies that faster: rows' angles
        change by a fraction of a degree, and a row and its equal still have equal codes.
        """
        check_width(vectors, self.in_features)
        vectors = vectors.detach()
        if vectors.dtype == torch.float32 and has_bfloat16():
            vectors = vectors.bfloat16()
        projections = vectors @ torch.from_numpy(self.directions).to(vectors.dtype)
        if projections.dtype == torch.bfloat16:
            # Taken for an integer it has the same sign.
            projections = projections.view(torch.int16)
        return self._pack(array_view(projections))

    def sparse_codes(self, vectors: CSR) -> np.ndarray:
        """Codes ``(L, n)`` int32 of the rows of a CSR matrix with D columns."""
        check_pattern("coordinates", vectors, None, self.in_features)
        projections = np.empty((vectors.num_rows, self.directions.shape[1]), vectors.values.dtype)
        kernels.project_sparse(*vectors, self.directions, projections)
        return self._pack(projections)

    def _pack(self, projections: np.ndarray) -> np.ndarray:
        out = np.empty((self.num_tables, len(projections)), np.int32)
        kernels.pack_signs(projections, self.hashes_per_table, out)
        return out
