"""Codes of further buckets: those that the least certain elementary hashes of a code lead to.

Codes are ``(L, n)`` int32, one row for each table, as in `slide.kernels.hash_codes`.
"""

import numpy as np

from slide.kernels.compile import parallel, prange


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
                elif value > vector[members[second]] or (
                    value == vector[members[second]] and j < second
                ):
                    second = j
            costs[i, h] = vector[members[digit]] - vector[members[second]]
            shift = bits * (hashes_per_table - 1 - h % hashes_per_table)
            flips[i, h] = (digit ^ second) << shift


@parallel
def probe_codes(codes, costs, flips, sets, out):
    """Codes of the buckets that are reached at the least cost.

    Args:
        codes: ``(L, n)`` int32.
        costs: ``(n, L * K)`` floats of at least 0: how certain each elementary hash is.
        flips: ``(n, L * K)`` int32: what a change of an elementary hash does to the code, by xor.
        sets: ``(S, m)`` bool: which of a code's m least certain elementary hashes a set changes;
            a set costs the sum of their squared costs.
        out: ``((1 + P) * L, n)`` int32, with P at most S: the codes, then those of the cheapest set
            of each table, then those of the second, and so on.
    """
    num_tables, num_vectors = codes.shape
    hashes_per_table = costs.shape[1] // num_tables
    num_sets, depth = sets.shape
    probes = out.shape[0] // num_tables - 1
    for i in prange(num_vectors):
        order = np.empty(depth, np.int64)
        totals = np.empty(num_sets, np.float64)
        free = np.empty(max(hashes_per_table, num_sets), np.bool_)
        for l in range(num_tables):
            first = l * hashes_per_table
            free[:] = True
            for j in range(depth):
                best = -1
                for k in range(hashes_per_table):
                    if free[k] and (best < 0 or costs[i, first + k] < costs[i, first + best]):
                        best = k
                order[j] = first + best
                free[best] = False
            for s in range(num_sets):
                total = 0.0
                for j in range(depth):
                    if sets[s, j]:
                        total += np.float64(costs[i, order[j]]) ** 2
                totals[s] = total
            out[l, i] = codes[l, i]
            free[:] = True
            for p in range(probes):
                best = -1
                for s in range(num_sets):
                    if free[s] and (best < 0 or totals[s] < totals[best]):
                        best = s
                free[best] = False
                code = codes[l, i]
                for j in range(depth):
                    if sets[best, j]:
                        code ^= flips[i, order[j]]
                out[(1 + p) * num_tables + l, i] = code
