"""Hash codes: SimHash from projections, DWTA from vectors, and the codes of further buckets.

Codes are ``(L, n)`` int32, one row for each table, because tables are built and read one by one.
"""

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.ops.kernels.random import random_below

# A bin that draws no filled bin in this many attempts gets digit 0.
MAX_DENSIFY_ATTEMPTS = 100


@parallel
def pack_signs(projections, hashes_per_table, out):
    """Bit k of ``out[l, i]`` is set where ``projections[i, l * K + k] > 0``.

    Args:
        projections: ``(n, L * K)`` floats or integers.
        hashes_per_table: K, at most 31.
        out: ``(L, n)`` int32.
    """
    num_tables = out.shape[0]
    for i in prange(projections.shape[0]):
        for l in range(num_tables):
            code = 0
            for k in range(hashes_per_table):
                if projections[i, l * hashes_per_table + k] > 0:
                    code |= 1 << k
            out[l, i] = code


@parallel
def project_sparse(indptr, indices, values, directions, out):
    """Write ``out[b] = sum_j values[j] * directions[indices[j]]`` for a CSR matrix.

    Args:
        indptr, indices, values: ``(B, D)`` CSR matrix.
        directions: ``(D, L * K)`` int8.
        out: ``(B, L * K)`` floats.
    """
    width = directions.shape[1]
    for b in prange(len(indptr) - 1):
        total = out[b]
        for d in range(width):
            total[d] = 0
        for p in range(indptr[b], indptr[b + 1]):
            value = values[p]
            row = directions[indices[p]]
            for d in range(width):
                total[d] += value * row[d]


@parallel
def dwta_dense(vectors, coordinates, hashes_per_table, shift, out):
    """Winner-take-all codes of dense vectors: the digit of a bin is the position of its maximum.

    Args:
        vectors: ``(n, D)`` floats.
        coordinates: ``(L * K, M)`` int32: the coordinates of each bin.
        hashes_per_table: K digits a code.
        shift: bits by which a digit is moved for each one that follows it in a code.
        out: ``(L, n)`` int32.
    """
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


@serial
def _densify(digits, key, found):
    """Give each empty bin (digit -1) the digit of a filled bin, drawn by (bin, attempt).

    ``found`` ``(L * K,)`` int32 is scratch for a copy of the digits: only bins that were filled at
    the start pass their digit on.
    """
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
def dwta_sparse(indptr, indices, values, places, hashes_per_table, bits, shift, key, out):
    """Densified winner-take-all codes of sparse vectors; only stored coordinates take part.

    Args:
        indptr, indices, values: ``(B, D)`` CSR matrix.
        places: ``(D, P)`` int32: ``bin * M + position`` of each coordinate in each of the P
            permutations, -1 where the coordinate is in no bin.
        hashes_per_table: K digits a code.
        bits: bits a digit, log2 of M.
        shift: see `dwta_dense`.
        key: uint64 key of the densification's draws.
        out: ``(L, B)`` int32.
    """
    num_tables = out.shape[0]
    num_bins = num_tables * hashes_per_table
    mask = (1 << bits) - 1
    for b in prange(len(indptr) - 1):
        digits = np.full(num_bins, -1, np.int32)
        best = np.empty(num_bins, values.dtype)
        for p in range(indptr[b], indptr[b + 1]):
            value = values[p]
            for place in places[indices[p]]:
                if place < 0:
                    continue
                h = place >> bits
                digit = place & mask
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


@parallel
def dwta_runners(vectors, coordinates, hashes_per_table, bits, costs, flips):
    """What the second-largest coordinate of each bin would change.

    Args:
        vectors: ``(n, D)`` floats.
        coordinates: ``(L * K, M)`` int32: the coordinates of each bin.
        hashes_per_table: K digits a code.
        bits: bits a digit, log2 of M.
        costs: ``(n, L * K)`` floats, written: by how much the largest coordinate is larger.
        flips: ``(n, L * K)`` int32, written: the code, xor this, has the place of the
            second-largest coordinate as this digit.
    """
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


@serial
def _sort(values, order, count):
    """Order ``order[:count]`` by ``values``, which are sorted along; equal ones stay in order.

    Insertion: there are few, and sets come nearly in order.
    """
    for i in range(1, count):
        value, name, place = values[i], order[i], i
        while place > 0 and value < values[place - 1]:
            values[place], order[place] = values[place - 1], order[place - 1]
            place -= 1
        values[place], order[place] = value, name


@parallel
def probe_codes(codes, costs, flips, sets, out):
    """Codes of the buckets that are reached at the least cost.

    Args:
        codes: ``(L, n)`` int32.
        costs: ``(n, L * K)`` floats of at least 0: how certain each elementary hash is.
        flips: ``(n, L * K)`` int32: what a change of an elementary hash does to the code, by xor.
        sets: pattern of S rows: the elementary hashes that a set changes, the least certain of a
            code being number 0; a set costs the sum of their squared costs.
        out: ``((1 + P) * L, n)`` int32, with P at most S: the codes, then those of the cheapest set
            of each table, then those of the second, and so on.
    """
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
