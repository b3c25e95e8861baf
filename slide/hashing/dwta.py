"""DWTA: places of the maxima of random bins."""

import numpy as np
import torch

from slide import checks
from slide.hashing.family import check_shape, check_width, choose_hashes
from slide.kernels import hash_codes as kernels
from slide.runtime import array_view, random_key
from slide.sparse import CSR, check_pattern


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
            hashes_per_table = choose_hashes(num_vectors, per_bucket=64, bits=self.bits)
        check_shape(in_features, hashes_per_table, num_tables, self.bits)
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
        check_width(vectors, self.in_features)
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
