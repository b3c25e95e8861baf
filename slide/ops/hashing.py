"""Hash codes ``(L, n)`` int32 of SimHash and DWTA, codes of further buckets, folded codes.

A code has one row for each table, because tables are built and read one by one.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import CPU, array_view, device_of, native, on_device, on_host
from slide.ops.compile import helper, parallel, prange
from slide.ops.dispatch import operation
from slide.ops.products import samples_on, torch_weighted_sum, weighted_sum_kernel
from slide.ops.random import random_below, torch_random_below
from slide.sparse import Pattern

# A bin that draws no filled bin in this many attempts gets digit 0.
MAX_DENSIFY_ATTEMPTS = 100
# Shifts and factors of the mixing of codes.
FOLDING = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))


@parallel
def pack_signs_kernel(projections, hashes_per_table, out):
    """Bit k of ``out[l, i]`` is set where ``projections[i, l * K + k] > 0``."""
    num_tables = out.shape[0]
    for i in prange(projections.shape[0]):
        for l in range(num_tables):
            code = 0
            for k in range(hashes_per_table):
                if projections[i, l * hashes_per_table + k] > 0:
                    code |= 1 << k
            out[l, i] = code


def torch_pack_signs(projections: Tensor, hashes_per_table: int) -> Tensor:
    num_tables = projections.shape[1] // hashes_per_table
    signs = (projections > 0).view(len(projections), num_tables, hashes_per_table)
    bits = 1 << torch.arange(hashes_per_table, device=signs.device)
    return (signs * bits).sum(2).T.int()


@operation(torch_pack_signs)
def pack_signs(projections: Tensor, hashes_per_table: int) -> Tensor:
    """Codes of SimHash: bit k of ``out[l, i]`` is set where ``projections[i, l * K + k] > 0``."""
    if projections.dtype == torch.bfloat16:
        # The bytes of a bfloat16 number, read as an integer, have the same sign.
        projections = projections.view(torch.int16)
    count, width = projections.shape
    out = np.empty((width // hashes_per_table, count), np.int32)
    pack_signs_kernel(array_view(projections), hashes_per_table, out)
    return torch.from_numpy(out)


def torch_project_sparse(
    indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, directions: Tensor
) -> Tensor:
    return torch_weighted_sum(indptr, indices, values, directions)


@operation(torch_project_sparse)
def project_sparse(
    indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, directions: Tensor
) -> Tensor:
    """``out[b] = sum_j values[j] * directions[indices[j]]``, of the type of the values."""
    out = np.zeros((len(indptr) - 1, directions.shape[1]), values.dtype)
    weighted_sum_kernel(indptr, indices, values, array_view(directions), out)
    return torch.from_numpy(out)


@parallel
def dwta_dense_kernel(vectors, coordinates, hashes_per_table, shift, out):
    """The digit of a bin is the position of its maximum; see `slide.ops.dwta_dense`."""
    bin_size = coordinates.shape[1]
    for i in prange(vectors.shape[0]):
        vector = vectors[i]
        for l in range(out.shape[0]):
            code = 0
            for k in range(hashes_per_table):
                members = coordinates[l * hashes_per_table + k]
                best = vector[members[0]]
                digit = 0
                for j in range(1, bin_size):
                    value = vector[members[j]]
                    if value > best:
                        best = value
                        digit = j
                code = (code << shift) + digit
            out[l, i] = code


def torch_dwta_dense(
    vectors: Tensor, coordinates: np.ndarray, hashes_per_table: int, shift: int
) -> Tensor:
    bins = on_device(coordinates, vectors.device)
    return _pack(vectors.detach()[:, bins].argmax(2), hashes_per_table, shift)


def _pack(digits: Tensor, hashes_per_table: int, shift: int) -> Tensor:
    """Digits ``(n, L * K)`` as codes, the first digit of a code in front."""
    shifts = shift * torch.arange(hashes_per_table - 1, -1, -1, device=digits.device)
    num_tables = digits.shape[1] // hashes_per_table
    codes = digits.view(len(digits), num_tables, hashes_per_table) << shifts
    return codes.sum(2).T.int()


@operation(torch_dwta_dense)
def dwta_dense(
    vectors: Tensor, coordinates: np.ndarray, hashes_per_table: int, shift: int
) -> Tensor:
    """Codes of DWTA: the digit of a bin is the position of its largest coordinate.

    vectors (n, D) floats; coordinates (L * K, M) int32; hashes_per_table: K digits in a code;
    shift: bits by which a digit is moved for each one that follows it in a code.
    """
    out = np.empty((len(coordinates) // hashes_per_table, len(vectors)), np.int32)
    dwta_dense_kernel(array_view(vectors.contiguous()), coordinates, hashes_per_table, shift, out)
    return torch.from_numpy(out)


@helper
def _densify(digits, key, found):
    """Give each empty bin (digit -1) the digit of a filled bin, drawn by (bin, attempt)."""
    num_bins = len(digits)
    for h in range(num_bins):
        found[h] = digits[h]
    for h in range(num_bins):
        if found[h] >= 0:
            continue
        digits[h] = 0
        for attempt in range(MAX_DENSIFY_ATTEMPTS):
            donor = random_below(key, h * MAX_DENSIFY_ATTEMPTS + attempt, num_bins)
            if found[donor] >= 0:
                digits[h] = found[donor]
                break


@parallel
def dwta_sparse_kernel(indptr, indices, values, positions, hashes_per_table, bits, shift, key, out):
    """Densified winner-take-all codes of stored coordinates; see `slide.ops.dwta_sparse`."""
    num_tables = out.shape[0]
    num_bins = num_tables * hashes_per_table
    mask = (1 << bits) - 1
    for b in prange(len(indptr) - 1):
        digits = np.full(num_bins, -1, np.int32)
        best = np.empty(num_bins, values.dtype)
        for p in range(indptr[b], indptr[b + 1]):
            value = values[p]
            for position in positions[indices[p]]:
                if position < 0:
                    continue
                h = position >> bits
                digit = position & mask
                # Among equal values the lower position wins, whatever the order of storage.
                if digits[h] < 0 or value > best[h] or (value == best[h] and digit < digits[h]):
                    best[h] = value
                    digits[h] = digit
        _densify(digits, key, np.empty(num_bins, np.int32))
        for l in range(num_tables):
            code = 0
            for k in range(hashes_per_table):
                code = (code << shift) + digits[l * hashes_per_table + k]
            out[l, b] = code


def torch_dwta_sparse(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    positions: np.ndarray,
    hashes_per_table: int,
    bits: int,
    shift: int,
    key: np.uint64,
    num_tables: int,
) -> Tensor:
    columns, numbers, table = (on_device(each, CPU) for each in (indices, values, positions))
    count, num_bins = len(indptr) - 1, num_tables * hashes_per_table
    samples = samples_on(indptr, CPU)
    own, room = table[columns].long(), num_bins << bits
    # Coordinates in no bin go to one more position at the end.
    at = torch.where(own >= 0, samples[:, None] * room + own, count * room)
    stored = torch.zeros(count * room + 1, dtype=torch.bool)
    stored[at] = True
    best = numbers.new_full((count * room + 1,), -torch.inf)
    best[at] = numbers[:, None].expand(at.shape)
    shape = count, num_bins, 1 << bits
    digits, filled = best[:-1].view(shape).argmax(2), stored[:-1].view(shape).any(2)
    return _pack(_densified(digits, filled, int(key)), hashes_per_table, shift)


def _densified(digits: Tensor, filled: Tensor, key: int) -> Tensor:
    """Each empty bin gets the digit of a filled bin, drawn by (bin, attempt); else 0."""
    num_bins = digits.shape[1]
    counters = torch.arange(num_bins * MAX_DENSIFY_ATTEMPTS, device=digits.device)
    donors = torch_random_below(key, counters, num_bins).view(num_bins, -1)
    usable = filled[:, donors]
    attempt = usable.byte().argmax(2)
    donor = donors.expand(len(digits), -1, -1).gather(2, attempt[:, :, None])[:, :, 0]
    given = torch.where(usable.any(2), digits.gather(1, donor), 0)
    return torch.where(filled, digits, given)


@operation(torch_dwta_sparse)
def dwta_sparse(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    positions: np.ndarray,
    hashes_per_table: int,
    bits: int,
    shift: int,
    key: np.uint64,
    num_tables: int,
) -> Tensor:
    """Densified codes of DWTA of sparse vectors; only stored coordinates take part.

    indptr, indices, values: a CSR matrix (n, D); positions (D, P) int32; bits: log2 of M; key: of
    the densification's draws; num_tables: L; others see `dwta_dense`.
    """
    out = np.empty((num_tables, len(indptr) - 1), np.int32)
    dwta_sparse_kernel(indptr, indices, values, positions, hashes_per_table, bits, shift, key, out)
    return torch.from_numpy(out)


@parallel
def dwta_runners_kernel(vectors, coordinates, hashes_per_table, bits, costs, flips):
    """What the second-largest coordinate of each bin would change; see `slide.ops.dwta_runners`."""
    num_bins, bin_size = coordinates.shape
    for i in prange(vectors.shape[0]):
        vector = vectors[i]
        for h in range(num_bins):
            members = coordinates[h]
            digit, second = 0, 1
            if vector[members[1]] > vector[members[0]]:
                digit, second = 1, 0
            for j in range(2, bin_size):
                value = vector[members[j]]
                if value > vector[members[digit]]:
                    digit, second = j, digit
                elif value > vector[members[second]]:
                    second = j
            costs[i, h] = vector[members[digit]] - vector[members[second]]
            shift = bits * (hashes_per_table - 1 - h % hashes_per_table)
            flips[i, h] = (digit ^ second) << shift


def torch_dwta_runners(
    vectors: Tensor, coordinates: np.ndarray, hashes_per_table: int, bits: int
) -> tuple[Tensor, Tensor]:
    bins = on_device(coordinates, vectors.device)
    values = vectors[:, bins]
    largest = values.max(2).values
    digits = values.argmax(2, keepdim=True)
    rest = values.scatter(2, digits, -torch.inf)
    seconds = rest.argmax(2, keepdim=True)
    costs = largest - rest.gather(2, seconds)[:, :, 0]
    k = torch.arange(coordinates.shape[0], device=vectors.device) % hashes_per_table
    flips = (digits ^ seconds)[:, :, 0] << (bits * (hashes_per_table - 1 - k))
    return costs, flips.int()


@operation(torch_dwta_runners)
def dwta_runners(
    vectors: Tensor, coordinates: np.ndarray, hashes_per_table: int, bits: int
) -> tuple[Tensor, Tensor]:
    """What the second-largest coordinate of each bin would change, ``(n, L * K)`` each.

    Returns floats, by how much the largest coordinate is larger, and int32, the change of the code
    by xor.
    """
    costs = vectors.new_empty(len(vectors), len(coordinates))
    flips = np.empty(costs.shape, np.int32)
    numbers = array_view(vectors.contiguous())
    dwta_runners_kernel(numbers, coordinates, hashes_per_table, bits, costs.numpy(), flips)
    return costs, torch.from_numpy(flips)


@helper
def _sort(values, order, count):
    """Sort ``order[:count]`` and its ``values`` by insertion, as they come nearly in order."""
    for i in range(1, count):
        value, name, position = values[i], order[i], i
        while position > 0 and value < values[position - 1]:
            values[position], order[position] = values[position - 1], order[position - 1]
            position -= 1
        values[position], order[position] = value, name


@parallel
def probe_codes_kernel(codes, costs, flips, sets, out):
    """Codes of the buckets that are reached at the least cost; see `slide.ops.probe_codes`."""
    num_tables, num_vectors = codes.shape
    hashes_per_table, num_sets = costs.shape[1] // num_tables, len(sets.indptr) - 1
    probes = out.shape[0] // num_tables - 1
    indptr, members = sets.indptr, sets.indices
    for i in prange(num_vectors):
        certain = np.empty(hashes_per_table, np.float64)
        order = np.empty(hashes_per_table, np.int64)
        totals = np.empty(num_sets, np.float64)
        best = np.empty(num_sets, np.int64)
        for l in range(num_tables):
            first = l * hashes_per_table
            for k in range(hashes_per_table):
                certain[k], order[k] = np.float64(costs[i, first + k]) ** 2, first + k
            _sort(certain, order, hashes_per_table)
            for s in range(num_sets):
                total = 0.0
                for j in range(indptr[s], indptr[s + 1]):
                    total += certain[members[j]]
                totals[s], best[s] = total, s
            _sort(totals, best, num_sets)
            out[l, i] = codes[l, i]
            for p in range(probes):
                code = codes[l, i]
                for j in range(indptr[best[p]], indptr[best[p] + 1]):
                    code ^= flips[i, order[members[j]]]
                out[(1 + p) * num_tables + l, i] = code


def torch_probe_codes(codes: Any, costs: Tensor, flips: Any, sets: Pattern, probes: int) -> Tensor:
    members = np.zeros((sets.num_rows, 1 + sets.indices.max()), bool)
    members[sets.entry_rows(), sets.indices] = True
    codes, flips, chosen = (on_device(each, costs.device) for each in (codes, flips, members))
    num_tables, count = codes.shape
    depth, shape = chosen.shape[1], (count, num_tables, costs.shape[1] // num_tables)
    certain, order = costs.double().square().view(shape).sort(dim=2, stable=True)
    flips = flips.view(shape).gather(2, order)
    # Where, and not a product: a cost may be infinite.
    totals = torch.where(chosen, certain[:, :, None, :depth], 0.0).sum(3)
    best = totals.sort(dim=2, stable=True).indices[:, :, :probes]
    # The changed bits of a set do not overlap, so their sum is their union.
    changes = torch.where(chosen, flips[:, :, None, :depth], 0).sum(3).gather(2, best)
    further = codes.T[:, :, None] ^ changes.int()
    return torch.cat([codes, further.permute(2, 1, 0).reshape(probes * num_tables, count)]).int()


@operation(torch_probe_codes)
def probe_codes(codes: Any, costs: Tensor, flips: Any, sets: Pattern, probes: int) -> Tensor:
    """Codes of the buckets that are reached at the least cost, ``((1 + probes) * L, n)`` int32.

    codes (L, n) int32, an array or a tensor; costs (n, L * K) floats; flips (n, L * K) int32; sets:
    S rows; probes: at most S.
    """
    num_tables, count = codes.shape
    out = np.empty(((1 + probes) * num_tables, count), np.int32)
    probe_codes_kernel(on_host(codes), array_view(costs), on_host(flips), sets, out)
    return torch.from_numpy(out)


@parallel
def fold_kernel(codes, num_buckets, out):
    """Write ``MurmurHash3(code) / 2^32 * num_buckets`` for each code ``(n,)`` int32 to ``out``."""
    for i in prange(len(codes)):
        mixed = np.int64(codes[i])
        for shift, factor in FOLDING:
            mixed ^= mixed >> shift
            mixed = (mixed * factor) & 0xFFFFFFFF
        mixed ^= mixed >> 16
        out[i] = (mixed * num_buckets) >> 32


def torch_fold(codes: Any, num_buckets: int) -> Any:
    codes = on_device(codes, device_of(codes))
    mixed = codes.long()
    for shift, factor in FOLDING:
        mixed = ((mixed ^ (mixed >> shift)) * factor) & 0xFFFFFFFF
    return native((((mixed ^ (mixed >> 16)) * num_buckets) >> 32).int())


@operation(torch_fold)
def fold(codes: Any, num_buckets: int) -> Any:
    """Buckets ``[0, num_buckets)`` of int32 codes: equal for equal codes, otherwise as if drawn."""
    codes = np.ascontiguousarray(on_host(codes))
    out = np.empty_like(codes)
    fold_kernel(codes.reshape(-1), num_buckets, out.reshape(-1))
    return out
