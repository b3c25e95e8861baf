"""Hash codes, the codes of further buckets, and hash tables.

Codes are ``(L, n)`` int32, one row for each table, because tables are built and read one by one.

Tables are flat arrays. Each of L tables has one row of every array, so threads fill tables at the
same time without locks. A bucket is a range of its table's pool. A build gives each bucket the room
that it needs. A bucket that needs more moves to the end of the pool and gets twice the room, up to
its capacity.
"""

from typing import NamedTuple

import numpy as np

from slide.ops.kernels.compile import helper, parallel, prange
from slide.ops.kernels.random import random_below

# A bin that draws no filled bin in this many attempts gets digit 0.
MAX_DENSIFY_ATTEMPTS = 100


@parallel
def pack_signs(projections, hashes_per_table, out):
    """Bit k of ``out[l, i]`` is set where ``projections[i, l * K + k] > 0``."""
    num_tables = out.shape[0]
    for i in prange(projections.shape[0]):
        for l in range(num_tables):
            code = 0
            for k in range(hashes_per_table):
                if projections[i, l * hashes_per_table + k] > 0:
                    code |= 1 << k
            out[l, i] = code


@parallel
def dwta_dense(vectors, coordinates, hashes_per_table, shift, out):
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
def dwta_sparse(indptr, indices, values, positions, hashes_per_table, bits, shift, key, out):
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


@parallel
def dwta_runners(vectors, coordinates, hashes_per_table, bits, costs, flips):
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
def probe_codes(codes, costs, flips, sets, out):
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


FIFO, RESERVOIR = 0, 1
# Of the draws' counters: random odd factors (int64, products wrap).
TABLE_FACTOR, CODE_FACTOR = 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D
ID_FACTOR = 0x369DEA0F31A53F85
# Shifts and factors of the mixing of codes.
FOLDING = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))


class Buckets(NamedTuple):
    """L tables of C buckets.

    starts (L, C) int32, where a bucket begins in its table's pool; rooms (L, C) int32, number of
    ids that fit there; seen (L, C) int32, number of ids offered since the last build or clear; used
    (L,) int64, length of the part of each pool that belongs to buckets; pool (L, P) int32 ids.
    """

    starts: np.ndarray
    rooms: np.ndarray
    seen: np.ndarray
    used: np.ndarray
    pool: np.ndarray


@helper
def _keep_position(offered, capacity, policy, key, counter):
    """The position in a full bucket of the id that comes after ``offered`` others; -1: dropped.

    `FIFO` overwrites the oldest id. `RESERVOIR` keeps each offered id with probability
    ``capacity / offered`` (Vitter 1985, "Random sampling with a reservoir", algorithm R).
    """
    if policy == FIFO:
        return offered % capacity
    r = random_below(key, counter, offered + 1)
    return r if r < capacity else -1


@helper
def _counter(table, code, offered, own):
    """A counter of the draw for id ``own`` in a bucket that was offered a number of ids before it.

    The number alone would not do: where ids are removed, it falls, and comes again.
    """
    bucket = table * TABLE_FACTOR + np.int64(code) * CODE_FACTOR
    return bucket + own * ID_FACTOR + np.int64(offered)


@parallel
def fold(codes, num_buckets, out):
    """Write ``MurmurHash3(code) / 2^32 * num_buckets`` for each code ``(n,)`` int32 to ``out``."""
    for i in prange(len(codes)):
        mixed = np.int64(codes[i])
        for shift, factor in FOLDING:
            mixed ^= mixed >> shift
            mixed = (mixed * factor) & 0xFFFFFFFF
        mixed ^= mixed >> 16
        out[i] = (mixed * num_buckets) >> 32


@parallel
def build(buckets, codes, capacity, policy, key):
    """Clear all tables and put id ``i`` into bucket ``codes[l, i]`` of each table l.

    buckets `Buckets`, written; codes (L, N) int32, each in [0, C); capacity: maximum number of ids
    in a bucket; policy `FIFO` or `RESERVOIR`; key uint64 key of the reservoir's draws.
    """
    num_buckets = buckets.starts.shape[1]
    num_ids = codes.shape[1]
    # Unpacked here: numba loses writes to the fields of a tuple inside a parallel loop.
    used = buckets.used
    for l in prange(codes.shape[0]):
        starts, rooms, seen = buckets.starts[l], buckets.rooms[l], buckets.seen[l]
        pool, table_codes = buckets.pool[l], codes[l]
        for c in range(num_buckets):
            rooms[c] = 0
            seen[c] = 0
        for i in range(num_ids):
            rooms[table_codes[i]] += 1
        end = 0
        for c in range(num_buckets):
            starts[c] = end
            rooms[c] = min(rooms[c], capacity)
            end += rooms[c]
        used[l] = end
        for i in range(num_ids):
            c = table_codes[i]
            offered = seen[c]
            seen[c] = offered + 1
            position = np.int64(offered)
            if offered >= capacity:
                counter = _counter(np.int64(l), c, offered, np.int64(i))
                position = _keep_position(offered, capacity, policy, key, counter)
            if position >= 0:
                pool[starts[c] + position] = i


@parallel
def insert(buckets, ids, codes, capacity, policy, key, done):
    """Put ``ids[i]`` into bucket ``codes[l, i]`` of each table l, from ``i = done[l]`` on.

    A negative code is skipped. A table stops when its pool is full: ``done`` ``(L,)`` int64 holds
    the number of ids that each table has taken, and the caller continues with a larger pool.
    """
    pool_size = buckets.pool.shape[1]
    used = buckets.used
    for l in prange(codes.shape[0]):
        starts, rooms, seen = buckets.starts[l], buckets.rooms[l], buckets.seen[l]
        pool, table_codes = buckets.pool[l], codes[l]
        for i in range(done[l], len(ids)):
            c = table_codes[i]
            if c < 0:
                done[l] = i + 1
                continue
            offered = seen[c]
            position = np.int64(offered)
            if offered >= capacity:
                counter = _counter(np.int64(l), c, offered, np.int64(ids[i]))
                position = _keep_position(offered, capacity, policy, key, counter)
            elif offered == rooms[c]:
                room = min(capacity, max(4, 2 * rooms[c]))
                if used[l] + room > pool_size:
                    break
                for j in range(offered):
                    pool[used[l] + j] = pool[starts[c] + j]
                starts[c] = used[l]
                rooms[c] = room
                used[l] += room
            seen[c] = offered + 1
            if position >= 0:
                pool[starts[c] + position] = ids[i]
            done[l] = i + 1


@parallel
def compact(buckets, pool):
    """Move all buckets to a new pool ``(L, P)``, one after the other, without room to grow."""
    used, old = buckets.used, buckets.pool
    for l in prange(old.shape[0]):
        starts, rooms, seen = buckets.starts[l], buckets.rooms[l], buckets.seen[l]
        end = 0
        for c in range(len(starts)):
            held = min(seen[c], rooms[c])
            for j in range(held):
                pool[l, end + j] = old[l, starts[c] + j]
            starts[c] = end
            rooms[c] = held
            end += held
        used[l] = end


@parallel
def remove(buckets, ids, codes, capacity):
    """Remove ``ids[i]`` from bucket ``codes[l, i]`` of each table l; a negative code is skipped.

    The last id of the bucket moves to the free position. If the bucket did not keep the id, only
    its count falls. A full bucket that loses an id no longer counts the ids that it did not keep,
    and loses the order in which its ids came.
    """
    for l in prange(codes.shape[0]):
        starts, seen, pool = buckets.starts[l], buckets.seen[l], buckets.pool[l]
        for i in range(len(ids)):
            c = codes[l, i]
            if c < 0:
                continue
            kept = min(seen[c], capacity)
            last = starts[c] + kept - 1
            p = starts[c]
            while p <= last and pool[p] != ids[i]:
                p += 1
            if p <= last:
                pool[p] = pool[last]
                seen[c] = kept - 1
            elif seen[c] > capacity:
                seen[c] -= 1


@parallel
def look_up(buckets, codes, capacity, indptr, out):
    """Copy the buckets of each of B queries, table after table; an id may occur several times.

    codes (P * L, B) int32; indptr (B + 1,) int64, from `bucket_lengths`; out (indptr[-1],) int32
    ids.
    """
    num_tables = buckets.starts.shape[0]
    for b in prange(codes.shape[1]):
        p = indptr[b]
        for i in range(codes.shape[0]):
            l, c = i % num_tables, codes[i, b]
            start = buckets.starts[l, c]
            for j in range(min(buckets.seen[l, c], capacity)):
                out[p] = buckets.pool[l, start + j]
                p += 1


@parallel
def bucket_lengths(buckets, codes, capacity, out):
    """Write the total number of ids in the buckets of each query to ``out`` ``(B,)`` int64."""
    num_tables = buckets.starts.shape[0]
    for b in prange(codes.shape[1]):
        total = 0
        for i in range(codes.shape[0]):
            total += min(buckets.seen[i % num_tables, codes[i, b]], capacity)
        out[b] = total
