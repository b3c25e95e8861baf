"""Hash families: vectors to codes. They know nothing of tables.

A family draws ``num_tables`` (L) functions, each made of ``hashes_per_table`` (K) elementary ones,
and gives codes ``(L, n)`` int32 in ``[0, num_buckets)``.
"""

import math
from typing import Protocol

import numpy as np
import torch

from slide import checks
from slide.kernels import codes as kernels
from slide.runtime import array_view, has_bfloat16, random_key
from slide.sparse import CSR, check_pattern


class HashFamily(Protocol):
    """What a hash family offers; any object with these members serves.

    `slide.indexed_sampling.LSHSampler` makes one by ``family(D + 2, num_vectors=N, seed=s)``.
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


def _check_shape(in_features: int, hashes_per_table: int, num_tables: int, bits: int) -> None:
    checks.whole("in_features", in_features, 1)
    checks.whole("hashes_per_table", hashes_per_table, 1)
    checks.whole("num_tables", num_tables, 1)
    if (bits := hashes_per_table * bits) > 24:
        raise ValueError(
            f"hashes_per_table = {hashes_per_table} makes codes of {bits} bits; tables of more "
            "than 2^24 buckets are not supported: lower hashes_per_table"
        )


def _check_width(vectors: torch.Tensor, in_features: int) -> None:
    if vectors.ndim != 2 or vectors.shape[1] != in_features:
        raise ValueError(f"vectors must be (n, {in_features}), not {tuple(vectors.shape)}")


def _choose_hashes(num_vectors: int, per_bucket: int, bits: int) -> int:
    """K such that tables have about one bucket for ``per_bucket`` vectors."""
    return max(1, round(math.log2(max(1, num_vectors / per_bucket)) / bits))


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
            hashes_per_table = _choose_hashes(num_vectors, per_bucket=256, bits=1)
        _check_shape(in_features, hashes_per_table, num_tables, bits=1)
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
        _check_width(vectors, self.in_features)
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


class DWTA:
    """Densified winner-take-all: places of the maxima of random bins of coordinates.

    Codes depend on the order of the coordinates alone (Yagnik et al. 2011, "The power of
    comparative reasoning"). A sparse vector's empty bins borrow the digit of a filled one (Chen and
    Shrivastava 2018, "Densified winner take all hashing for sparse datasets"); a bin that draws
    only empty donors keeps digit 0. Bins are cut from random permutations, ``D // bin_size`` from
    each, so one pass over a sparse vector fills them all. A digit takes ``log2(bin_size)`` bits.

    Args:
        in_features: D, at least ``bin_size``.
        hashes_per_table: K, digits in a code; None: about 64 vectors a bucket.
        num_tables: L, number of codes.
        bin_size: coordinates that compete in a bin, a power of two.
        seed: of the permutations.
        num_vectors: how many there will be to find; only for the choice of K.

    Raises:
        ValueError: for a number out of range or more than 24 bits a code.
    """

    def __init__(
        self,
        in_features: int,
        hashes_per_table: int | None = None,
        num_tables: int = 16,
        bin_size: int = 8,
        seed: int = 0,
        num_vectors: int = 2**16,
    ):
        checks.whole("bin_size", bin_size, 2)
        if bin_size & (bin_size - 1):
            raise ValueError(f"bin_size must be a power of two of at least 2, not {bin_size}")
        self.bits = bin_size.bit_length() - 1
        if hashes_per_table is None:
            hashes_per_table = _choose_hashes(num_vectors, per_bucket=64, bits=self.bits)
        _check_shape(in_features, hashes_per_table, num_tables, self.bits)
        if in_features < bin_size:
            raise ValueError(f"DWTA needs in_features >= bin_size = {bin_size}, not {in_features}")
        self.in_features = in_features
        self.hashes_per_table = hashes_per_table
        self.num_tables = num_tables
        self.bin_size = bin_size
        self.num_buckets = 2 ** (hashes_per_table * self.bits)
        self.redraw(seed)

    def redraw(self, seed: int) -> None:
        """Draw new permutations from the seed."""
        generator = np.random.default_rng([0xD7A, seed])
        num_bins = self.num_tables * self.hashes_per_table
        bins_each = self.in_features // self.bin_size
        num_permutations = -(-num_bins // bins_each)
        places = np.full((self.in_features, num_permutations), -1, np.int32)
        coordinates = np.empty((num_permutations * bins_each, self.bin_size), np.int32)
        for p in range(num_permutations):
            members = generator.permutation(self.in_features)[: bins_each * self.bin_size]
            coordinates[p * bins_each : (p + 1) * bins_each] = members.reshape(bins_each, -1)
            places[members, p] = np.arange(len(members)) + p * len(members)
        places[places >= num_bins * self.bin_size] = -1
        # (number of bins, bin_size): who competes; (D, permutations): where each one does.
        self.coordinates = np.ascontiguousarray(coordinates[:num_bins])
        self.places = places
        self.key = random_key(0xD7A, seed)

    def codes(self, vectors: torch.Tensor) -> np.ndarray:
        """Codes ``(L, n)`` int32 of the rows of ``vectors`` ``(n, D)``; zeros compete too."""
        _check_width(vectors, self.in_features)
        out = np.empty((self.num_tables, len(vectors)), np.int32)
        kernels.dwta_dense(
            array_view(vectors.contiguous()),
            self.coordinates,
            self.hashes_per_table,
            self.bits,
            out,
        )
        return out

    def sparse_codes(self, vectors: CSR) -> np.ndarray:
        """Codes ``(L, n)`` int32 of a CSR matrix's rows; only stored entries compete."""
        check_pattern("coordinates", vectors, None, self.in_features)
        out = np.empty((self.num_tables, vectors.num_rows), np.int32)
        kernels.dwta_sparse(*vectors, self.places, self.hashes_per_table, self.bits, self.key, out)
        return out
