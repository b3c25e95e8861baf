"""Hash families turn vectors into codes ``(L, n)`` int32 in ``[0, num_buckets)``.

A family draws L = ``num_tables`` hash functions, each of K = ``hashes_per_table`` elementary
hashes.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from slide import ops
from slide.backend import CPU, device_of, has_bfloat16, native, on_device, uses_reference
from slide.sparse import CSR, Pattern, check_pattern
from slide.utils import checks
from slide.utils.random_keys import random_key

PACKINGS = ("exact", "released")
MOST_BITS = 31  # Codes are int32 of at least 0.
MOST_PROBES = 64  # More probed buckets would cost more than more tables.
MOST_TABLES = 1024  # An input reads a bucket of each, and a rebuild writes each output into each.


class HashFamily(Protocol):
    """The interface of a hash family: any object with these members is one.

    `slide.LSHProposer` makes a family by
    ``family(in_features, hashes_per_table=K, num_tables=L, seed=s)``, once with K = L = 1 to learn
    how many buckets a hash tells apart. `slide.testing.check_hash_family` tests whether a class
    follows this interface.

    A family may also have a method ``probe_codes(vectors, probes)``: codes ``((1 + probes) L, n)``
    int32, first those of `codes`, then of the distinct buckets that the row would be in if its
    least certain elementary hashes were others; fewer where a table has no more of them.

    Attributes:
        in_features: D, length of the vectors.
        num_tables: L, number of codes of a vector.
        num_buckets: codes lie in ``[0, num_buckets)``.

    Example:
        A family that hashes a vector by the position of its largest coordinate, with random signs:

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

    def codes(self, vectors: Tensor) -> Any:
        """Codes ``(L, n)`` int32 in ``[0, num_buckets)`` of the rows of ``(n, in_features)``.

        ``vectors`` are float32 or float64. The code of a row depends only on that row. The codes
        are an array; for vectors on another device than the CPU, a tensor there.
        """
        ...

    def sparse_codes(self, vectors: CSR) -> Any:
        """Codes ``(L, n)`` int32 of the rows of a CSR matrix with ``in_features`` columns."""
        ...


def new_family(
    make: Callable[..., HashFamily],
    in_features: int,
    hashes_per_table: int,
    num_tables: int,
    seed: int,
) -> HashFamily:
    """The hash family that a class or function makes; TypeError or ValueError if it is none."""
    sizes = {"hashes_per_table": hashes_per_table, "num_tables": num_tables, "seed": seed}
    check_maker(make)
    with suppress(ValueError):  # Some builtins have no signature.
        arguments = inspect.signature(make)
        try:
            arguments.bind(in_features, **sizes)
        except TypeError as error:
            raise TypeError(
                "a hash family is made by family(in_features, hashes_per_table=K, num_tables=L, "
                f"seed=seed), and {make!r} does not take these arguments: {error}"
            ) from error
    family = make(in_features, **sizes)
    check_family(family)
    if family.num_tables != num_tables:
        raise ValueError(
            f"num_tables of a {type(family).__name__} must be {num_tables}, which it was made "
            f"with, not {family.num_tables}"
        )
    return family


def check_maker(make: Any) -> None:
    """Raise TypeError unless a value is a class or function, as one that makes a family is."""
    if not callable(make):
        raise TypeError(f"family must be a class or function such as slide.SimHash, not {make!r}")


def check_family(family: Any) -> None:
    """Raise TypeError or ValueError unless an object has the members of a `HashFamily`."""
    name = type(family).__name__
    for member in ("num_tables", "num_buckets", "redraw", "codes"):
        found = getattr(family, member, None)
        if found is None or (member in ("redraw", "codes") and not callable(found)):
            raise TypeError(f"a {name} is no slide.HashFamily: it has no {member}")
    checks.whole_within(f"num_buckets of a {name}", family.num_buckets, 2, 2**MOST_BITS)


def codes_of(family: HashFamily, vectors: Tensor | CSR, probes: int = 0) -> Any:
    """The codes of inputs, and with ``probes`` those of further buckets, if the family has them.

    Their shape and type are checked; `slide.hashing.HashTables` checks their range.
    """
    rows = [family.num_tables]
    if isinstance(vectors, CSR):
        codes, count = family.sparse_codes(vectors), vectors.num_rows
    elif probes and hasattr(family, "probe_codes"):
        codes, count = family.probe_codes(vectors, probes), len(vectors)  # type: ignore[attr-defined]
        rows = [family.num_tables * (1 + more) for more in range(1 + probes)]
    else:
        codes, count = family.codes(vectors), len(vectors)
    check_codes(codes, rows, count)
    return codes


def check_codes(
    codes: Any, rows: Sequence[int], count: int | None = None, num_buckets: int | None = None
) -> None:
    """Raise TypeError or ValueError unless codes are int32 of one of some numbers of rows.

    count: their columns, one for each vector; num_buckets: they lie in ``[0, num_buckets)``, which
    is not looked at on other devices than the CPU. None: any.
    """
    if not isinstance(codes, np.ndarray | Tensor):
        raise TypeError(f"codes must be an array or a tensor, not {type(codes).__name__}")
    shape, columns = tuple(codes.shape), "n" if count is None else count
    fits = len(shape) == 2 and shape[0] in rows and count in (None, shape[1])
    if not fits or codes.dtype not in (np.int32, torch.int32):
        raise ValueError(f"codes must be ({rows[-1]}, {columns}) int32, not {shape} {codes.dtype}")
    if num_buckets is None or 0 in shape or device_of(codes).type != "cpu":
        return
    least, most = (int(each) for each in (codes.min(), codes.max()))
    if least < 0 or most >= num_buckets:
        raise ValueError(f"codes must lie in [0, {num_buckets}), not in [{least}, {most}]")


class _Sized:
    """What the families have in common: sizes, and the checks of them and of vectors."""

    def __init__(self, in_features: int, hashes_per_table: int, num_tables: int, bits: int):
        self.in_features = checks.whole("in_features", in_features, 1)
        self.hashes_per_table = checks.whole("hashes_per_table", hashes_per_table, 1)
        self.num_tables = checks.whole("num_tables", num_tables, 1)
        if (needed := hashes_per_table * bits) > MOST_BITS:
            raise ValueError(
                f"hashes_per_table = {hashes_per_table} makes codes of {needed} bits, and codes "
                f"have at most {MOST_BITS}: it must be at most {MOST_BITS // bits}"
            )

    def _check_width(self, vectors: Tensor) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != self.in_features:
            raise ValueError(f"vectors must be (n, {self.in_features}), not {tuple(vectors.shape)}")


class SimHash(_Sized):
    """A hash family: signs of sparse random projections.

    Two vectors at angle t have the same sign with probability about ``1 - t / pi`` (Charikar 2002,
    "Similarity estimation techniques from rounding algorithms", section 3), and the same code with
    that probability to the power K. The entries of the directions are +1, -1 and 0 with
    probabilities 1/6, 1/6 and 2/3 (Achlioptas 2003, "Database-friendly random projections").

    Args:
        in_features: D.
        hashes_per_table: K, number of signs in a code, at most 31.
        num_tables: L.

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

    def __init__(self, in_features: int, hashes_per_table: int, num_tables: int, seed: int = 0):
        super().__init__(in_features, hashes_per_table, num_tables, bits=1)
        self.num_buckets = 2**hashes_per_table
        self.redraw(seed)

    def redraw(self, seed: int) -> None:
        """Draw new directions from the seed."""
        generator = np.random.default_rng([0x51, seed])
        shape = (self.in_features, self.num_tables * self.hashes_per_table)
        draws = generator.integers(0, 6, size=shape, dtype=np.int8)
        # 0 -> +1, 1 -> -1, others -> 0. One byte for each, because D may be the number of features.
        self._placed: Tensor | None = None
        self.directions = (draws == 0).view(np.int8) - (draws == 1).view(np.int8)

    def codes(self, vectors: Tensor) -> Any:
        """Codes ``(L, n)`` int32 of the rows of ``vectors`` ``(n, D)``.

        Where bfloat16 is multiplied faster, float32 vectors are rounded to it, which changes angles
        by a fraction of a degree.
        """
        return self._pack(self._project(vectors))

    def probe_codes(self, vectors: Tensor, probes: int) -> Any:
        """`codes`, and the codes of the buckets behind the signs of the smallest projections.

        See `HashFamily`. A set of changed signs costs the sum of the squares of their
        projections (Lv et al. 2007, "Multi-probe LSH", section 4.3).
        """
        projections, hashes = self._project(vectors), self.hashes_per_table
        bits = 1 << torch.arange(hashes, dtype=torch.int32, device=projections.device)
        flips = bits.repeat(len(vectors), self.num_tables)  # The bit of each sign in its code.
        costs = projections.abs()
        costs = costs.float() if costs.dtype == torch.bfloat16 else costs
        return _codes_of_probes(self._pack(projections), costs, flips, probes)

    def _project(self, vectors: Tensor) -> Tensor:
        """Projections ``(n, L * K)`` of the rows of ``vectors``, perhaps rounded to bfloat16."""
        self._check_width(vectors)
        vectors = vectors.detach()
        if uses_reference(vectors):
            return vectors @ self._directions(vectors.device).to(vectors.dtype)
        if vectors.dtype == torch.float32 and has_bfloat16():
            vectors = vectors.bfloat16()
        return vectors @ torch.from_numpy(self.directions).to(vectors.dtype)

    def sparse_codes(self, vectors: CSR) -> Any:
        """Codes ``(L, n)`` int32 of the rows of a CSR matrix with D columns."""
        check_pattern("coordinates", vectors, None, self.in_features)
        return self._pack(ops.project_sparse(*vectors, self._directions(CPU)))

    def _directions(self, device: torch.device) -> Tensor:
        """The directions on a device; they are copied once."""
        if self._placed is None or self._placed.device != device:
            self._placed = on_device(self.directions, device)
        return self._placed

    def _pack(self, projections: Tensor) -> Any:
        """Codes ``(L, n)`` int32 from the signs of projections."""
        return native(ops.pack_signs(projections, self.hashes_per_table))


class DWTA(_Sized):
    """A hash family, densified winner-take-all: positions of the maxima in random bins.

    A digit of a code is the position of the largest coordinate in a bin, so codes depend only on
    the order of the coordinates (Yagnik et al. 2011, "The power of comparative reasoning"). In a
    sparse vector, an empty bin copies the digit of a filled bin that it draws at random (Chen and
    Shrivastava 2018, "Densified winner take all hashing for sparse datasets"). If the bin draws
    only empty bins, its digit is 0. Each random permutation of the coordinates is cut into
    ``D // bin_size`` bins, so that one pass over a sparse vector fills all bins.

    Args:
        in_features: D, at least ``bin_size``.
        hashes_per_table: K, digits in a code, each of ``log2(bin_size)`` bits.
        num_tables: L.
        bin_size: number of coordinates in a bin, a power of two.
        packing: how digits make a code. ``"exact"``: one beside the other. ``"released"``: as the
            C++ program released with Chen et al. 2020, which leaves ``floor(ln(bin_size))`` bits
            to a digit and adds digits up where they overlap, so there are fewer codes (9,556
            instead of 2^18 for K = 6), and middle ones are the most frequent.

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
        super().__init__(in_features, hashes_per_table, num_tables, self.bits)
        if in_features < bin_size:
            raise ValueError(f"DWTA needs in_features >= bin_size = {bin_size}, not {in_features}")
        self.bin_size, self.packing = bin_size, packing
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
        positions = np.full((self.in_features, num_permutations), -1, np.int32)
        coordinates = np.empty((num_permutations * bins_each, self.bin_size), np.int32)
        for p in range(num_permutations):
            members = generator.permutation(self.in_features)[: bins_each * self.bin_size]
            coordinates[p * bins_each : (p + 1) * bins_each] = members.reshape(bins_each, -1)
            positions[members, p] = np.arange(len(members)) + p * len(members)
        positions[positions >= num_bins * self.bin_size] = -1
        # (number of bins, bin_size): the coordinates of each bin.
        # (D, permutations): the bin and position of each coordinate.
        self.coordinates = np.ascontiguousarray(coordinates[:num_bins])
        self.positions = positions
        self.key = random_key(0xD7A, seed)

    def codes(self, vectors: Tensor) -> Any:
        """Codes ``(L, n)`` int32 of rows ``(n, D)``; zeros count as coordinates."""
        self._check_width(vectors)
        shape = self.hashes_per_table, self._shift
        return native(ops.dwta_dense(vectors.detach(), self.coordinates, *shape))

    def probe_codes(self, vectors: Tensor, probes: int) -> Any:
        """`codes`, and the codes of the buckets behind the second-largest coordinates of bins.

        See `HashFamily`. A set of changed digits costs the sum of the squares of what
        the largest coordinates of their bins are larger by.
        """
        if self.packing != "exact":
            raise ValueError("probes need packing='exact': digits of released codes overlap")
        codes, vectors = self.codes(vectors), vectors.detach()
        runners = ops.dwta_runners(vectors, self.coordinates, self.hashes_per_table, self.bits)
        return _codes_of_probes(codes, *runners, probes)

    def sparse_codes(self, vectors: CSR) -> Any:
        """Codes ``(L, n)`` int32 of the rows of a CSR matrix; only stored entries count."""
        check_pattern("coordinates", vectors, None, self.in_features)
        shape = self.hashes_per_table, self.bits, self._shift
        return native(ops.dwta_sparse(*vectors, self.positions, *shape, self.key, self.num_tables))


@cache
def flip_sets(hashes_per_table: int, probes: int) -> Pattern:
    """All sets of changes, as ascending rows, that can be among the ``probes`` cheapest.

    Changes are numbered from the cheapest on, so a set costs no less than one with a change less,
    or with a cheaper change: with ``probes`` such sets it is not needed (Lv et al. 2007,
    "Multi-probe LSH", section 4.4).
    """
    below: dict[frozenset[int], set[frozenset[int]]] = {}
    ahead = [frozenset([0])]
    while ahead:
        one = ahead.pop(0)
        if one in below:
            continue
        cheaper = [one - {j} | {j - 1} for j in one if j and j - 1 not in one]
        cheaper += [one - {0}] if 0 in one and len(one) > 1 else []
        if not all(other in below for other in cheaper):
            continue  # A cheaper one is not needed, or it comes first and adds this one.
        known = {one}.union(*(below[other] for other in cheaper))
        if len(known) > probes:
            continue
        below[one] = known
        dearer = [one - {j} | {j + 1} for j in one if j + 1 not in one and j + 1 < hashes_per_table]
        ahead += [*dearer, one | {0}]
    sets = sorted(sorted(one) for one in below)
    return Pattern.from_lists(sorted(sets, key=lambda one: sum((1 + j) ** 2 for j in one)))


def _codes_of_probes(codes: Any, costs: Tensor, flips: Any, probes: int) -> Any:
    """Codes ``((1 + probes) L, n)`` of the inputs, then of the cheapest further buckets."""
    hashes = costs.shape[1] // len(codes)
    probes = min(probes, 2**hashes - 1)
    return native(ops.probe_codes(codes, costs, flips, flip_sets(hashes, probes), probes))
