"""DWTA: the positions of the maxima in random bins of coordinates."""

import math
from typing import Any

import numpy as np
import torch

from slide.backend import CPU, array_view, native, on_device, plain
from slide.hashing import probing
from slide.hashing.family import check_shape, check_width
from slide.kernels import hash_codes as kernels
from slide.kernels import probes as probe_kernels
from slide.plain import hash_codes as plain_codes
from slide.plain import probes as plain_probes
from slide.sparse import CSR, check_pattern
from slide.utils import checks
from slide.utils.random_keys import random_key

PACKINGS = ("exact", "released")


class DWTA:
    """A hash family, densified winner-take-all: positions of the maxima in random bins.

    A digit of a code is the position of the largest coordinate in a bin, so codes depend only on
    the order of the coordinates (Yagnik et al. 2011, "The power of comparative reasoning"). In a
    sparse vector, an empty bin copies the digit of a filled bin that it draws at random (Chen and
    Shrivastava 2018, "Densified winner take all hashing for sparse datasets"). If the bin draws
    only empty bins, its digit is 0. Each random permutation of the coordinates is cut into
    ``D // bin_size`` bins, so that one pass over a sparse vector fills all bins.

    Args:
        in_features: D, length of the vectors, at least ``bin_size``.
        hashes_per_table: K, number of digits in a code, each of ``log2(bin_size)`` bits.
        num_tables: L, number of codes of a vector.
        bin_size: number of coordinates in a bin, a power of two.
        seed: seed of the permutations.
        packing: how digits make a code. ``"exact"``: one beside the other. ``"released"``: as the
            C++ program released with Chen et al. 2020, which leaves ``floor(ln(bin_size))`` bits
            to a digit and adds digits up where they overlap, so there are fewer codes (9,556
            in place of 2^18 for K = 6), and middle ones are the most frequent.

    Raises:
        ValueError: for a number or name out of range, or for codes of more than 31 bits.

    Example:
        >>> import slide, torch
        >>> family = slide.DWTA(in_features=16, hashes_per_table=2, num_tables=3)
        >>> x = torch.rand(5, 16)
        >>> family.codes(x).shape
        (3, 5)
        >>> bool((family.codes(x) == family.codes(x.exp())).all())  # The order is the same.
        True
    """

    def __init__(
        self,
        in_features: int,
        hashes_per_table: int,
        num_tables: int,
        bin_size: int = 8,
        seed: int = 0,
        packing: str = "exact",
    ):
        checks.one_of("packing", packing, PACKINGS)
        checks.whole("bin_size", bin_size, 2)
        if bin_size & (bin_size - 1):
            raise ValueError(f"bin_size must be a power of two of at least 2, not {bin_size}")
        self.bits = bin_size.bit_length() - 1
        check_shape(in_features, hashes_per_table, num_tables, self.bits)
        if in_features < bin_size:
            raise ValueError(f"DWTA needs in_features >= bin_size = {bin_size}, not {in_features}")
        self.in_features = in_features
        self.hashes_per_table = hashes_per_table
        self.num_tables = num_tables
        self.bin_size = bin_size
        self.packing = packing
        self._shift = self.bits if packing == "exact" else int(math.log(bin_size))
        largest = sum((bin_size - 1) << self._shift * k for k in range(hashes_per_table))
        self.num_buckets = largest + 1
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
        # (number of bins, bin_size): the coordinates of each bin.
        # (D, permutations): the bin and position of each coordinate.
        self.coordinates = np.ascontiguousarray(coordinates[:num_bins])
        self.places = places
        self.key = random_key(0xD7A, seed)

    def codes(self, vectors: torch.Tensor) -> Any:
        """Codes ``(L, n)`` int32 of the rows of ``vectors`` ``(n, D)``; zeros count as coordinates.

        Raises:
            ValueError: for vectors of another length.
        """
        check_width(vectors, self.in_features)
        if plain(vectors):
            coordinates = on_device(self.coordinates, vectors.device)
            shape = self.hashes_per_table, self._shift
            return native(plain_codes.dwta_dense(vectors.detach(), coordinates, *shape))
        out = np.empty((self.num_tables, len(vectors)), np.int32)
        kernels.dwta_dense(
            array_view(vectors.contiguous()),
            self.coordinates,
            self.hashes_per_table,
            self._shift,
            out,
        )
        return out

    def probe_codes(self, vectors: torch.Tensor, probes: int) -> Any:
        """`codes`, and those of the buckets behind the second-largest coordinates of bins.

        See `HashFamily`. A set of changed digits costs the sum of the squares of what
        the largest coordinates of these bins are larger by.

        Raises:
            ValueError: with ``packing="released"``, whose digits cannot be changed one by one.
        """
        if self.packing != "exact":
            raise ValueError("probes need packing='exact': digits of released codes overlap")
        codes, vectors = self.codes(vectors), vectors.detach()
        shape = self.hashes_per_table, self.bits
        if plain(vectors):
            coordinates = on_device(self.coordinates, vectors.device)
            costs, flips = plain_probes.dwta_runners(vectors, coordinates, *shape)
            return probing.codes_of_probes(codes, costs, flips, probes)
        costs = vectors.new_empty(len(vectors), len(self.coordinates))
        flips = np.empty(costs.shape, np.int32)
        arrays = array_view(vectors.contiguous()), self.coordinates
        probe_kernels.dwta_runners(*arrays, *shape, array_view(costs), flips)
        return probing.codes_of_probes(codes, costs, flips, probes)

    def sparse_codes(self, vectors: CSR) -> Any:
        """Codes ``(L, n)`` int32 of the rows of a CSR matrix; only stored entries count.

        Args:
            vectors: ``(n, D)``.

        Raises:
            ValueError: for a malformed matrix, or columns out of range.
        """
        check_pattern("coordinates", vectors, None, self.in_features)
        if plain(CPU):
            indptr, indices, values, places = (
                on_device(each, CPU) for each in (*vectors, self.places)
            )
            shape = self.hashes_per_table, self.bits, self._shift, int(self.key), self.num_tables
            return native(plain_codes.dwta_sparse((indptr, indices, values), places, *shape))
        out = np.empty((self.num_tables, vectors.num_rows), np.int32)
        shape = self.hashes_per_table, self.bits, self._shift
        kernels.dwta_sparse(*vectors, self.places, *shape, self.key, out)
        return out
