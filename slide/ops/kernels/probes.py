"""Codes of further buckets: those that the least certain elementary hashes of a code lead to.

Codes are ``(L, n)`` int32, one row for each table, as in `slide.ops.kernels.hash_codes`.
"""

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial


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
