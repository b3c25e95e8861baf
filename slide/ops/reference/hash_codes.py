"""`slide.ops.kernels.hash_codes` in torch: codes ``(L, n)`` int32 of SimHash and DWTA."""

import torch
from torch import Tensor

from slide.ops.kernels.hash_codes import MAX_DENSIFY_ATTEMPTS
from slide.ops.reference.pattern_products import samples_of, weighted_sum
from slide.ops.reference.random import random_below


def pack_signs(projections: Tensor, hashes_per_table: int) -> Tensor:
    """Bit k of ``out[l, i]`` is set where ``projections[i, l * K + k] > 0``."""
    num_tables = projections.shape[1] // hashes_per_table
    signs = (projections > 0).view(len(projections), num_tables, hashes_per_table)
    bits = 1 << torch.arange(hashes_per_table, device=signs.device)
    return (signs * bits).sum(2).T.int()


def project_sparse(indptr: Tensor, indices: Tensor, values: Tensor, directions: Tensor) -> Tensor:
    """``out[b] = sum_j values[j] * directions[indices[j]]``, ``(B, L * K)``."""
    return weighted_sum(indptr, indices, values, directions)


def dwta_dense(vectors: Tensor, coordinates: Tensor, hashes_per_table: int, shift: int) -> Tensor:
    """The digit of a bin is the position of its largest coordinate.

    Args:
        vectors: ``(n, D)`` floats.
        coordinates: ``(L * K, M)`` int32: the coordinates of each bin.
        hashes_per_table: K digits in a code.
        shift: bits by which a digit is moved for each one that follows it in a code.
    """
    return _pack(vectors[:, coordinates].argmax(2), hashes_per_table, shift)


def dwta_sparse(
    matrix: tuple[Tensor, Tensor, Tensor],
    places: Tensor,
    hashes_per_table: int,
    bits: int,
    shift: int,
    key: int,
    num_tables: int,
) -> Tensor:
    """Densified winner-take-all codes of sparse vectors; only stored coordinates take part.

    Args:
        matrix: indptr, indices, values of a CSR matrix ``(B, D)``.
        places: ``(D, P)`` int32: ``bin * M + position`` of each coordinate in each of the P
            permutations, -1 where the coordinate is in no bin.
        hashes_per_table: K digits in a code.
        bits: bits of a digit, log2 of M.
        shift: see `dwta_dense`.
        key: key of the densification's draws.
        num_tables: L.
    """
    indptr, indices, values = matrix
    count, num_bins = len(indptr) - 1, num_tables * hashes_per_table
    samples = samples_of(indptr.diff(), len(indices))
    own, room = places[indices].long(), num_bins << bits
    # Coordinates in no bin go to one more place at the end.
    at = torch.where(own >= 0, samples[:, None] * room + own, count * room)
    stored = torch.zeros(count * room + 1, dtype=torch.bool, device=values.device)
    stored[at] = True
    best = values.new_full((count * room + 1,), -torch.inf)
    best[at] = values[:, None].expand(at.shape)
    shape = count, num_bins, 1 << bits
    digits, filled = best[:-1].view(shape).argmax(2), stored[:-1].view(shape).any(2)
    return _pack(_densified(digits, filled, key), hashes_per_table, shift)


def _densified(digits: Tensor, filled: Tensor, key: int) -> Tensor:
    """Each empty bin gets the digit of a filled bin, drawn by (bin, attempt); else 0."""
    num_bins = digits.shape[1]
    counters = torch.arange(num_bins * MAX_DENSIFY_ATTEMPTS, device=digits.device)
    donors = random_below(key, counters, num_bins).view(num_bins, -1)
    usable = filled[:, donors]
    attempt = usable.byte().argmax(2)
    donor = donors.expand(len(digits), -1, -1).gather(2, attempt[:, :, None])[:, :, 0]
    given = torch.where(usable.any(2), digits.gather(1, donor), 0)
    return torch.where(filled, digits, given)


def _pack(digits: Tensor, hashes_per_table: int, shift: int) -> Tensor:
    """Digits ``(n, L * K)`` as codes, the first digit of a code in front."""
    shifts = shift * torch.arange(hashes_per_table - 1, -1, -1, device=digits.device)
    num_tables = digits.shape[1] // hashes_per_table
    codes = digits.view(len(digits), num_tables, hashes_per_table) << shifts
    return codes.sum(2).T.int()
