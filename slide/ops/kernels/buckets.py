"""Hash tables as flat arrays: counting-sort build, insert, look-up.

Each of L tables has one row of every array, so threads fill tables at the same time without locks.
A bucket is a range of its table's pool. A build gives each bucket the room that it needs. A bucket
that needs more moves to the end of the pool and gets twice the room, up to its capacity.
"""

from typing import NamedTuple

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.ops.kernels.random import random_below

FIFO, RESERVOIR = 0, 1
# Of the draws' counters: random odd factors (int64, products wrap).
TABLE_FACTOR, CODE_FACTOR = 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D
ID_FACTOR = 0x369DEA0F31A53F85
# Shifts and factors of the mixing of codes.
FOLDING = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))


class Buckets(NamedTuple):
    """L tables of C buckets.

    Attributes:
        starts: ``(L, C)`` int32, where a bucket begins in its table's pool.
        rooms: ``(L, C)`` int32, number of ids that fit there.
        seen: ``(L, C)`` int32, number of ids offered since the last build or clear; the bucket
            holds ``min(seen, capacity)`` of them.
        used: ``(L,)`` int64, length of the part of each pool that belongs to buckets.
        pool: ``(L, P)`` int32 ids.
    """

    starts: np.ndarray
    rooms: np.ndarray
    seen: np.ndarray
    used: np.ndarray
    pool: np.ndarray


@serial
def _keep_position(offered, capacity, policy, key, counter):
    """The position in a full bucket of the id that comes after ``offered`` others; -1: dropped.

    `FIFO` overwrites the oldest id. `RESERVOIR` keeps each offered id with probability
    ``capacity / offered`` (Vitter 1985, "Random sampling with a reservoir", algorithm R).
    """
    if policy == FIFO:
        return offered % capacity
    r = random_below(key, counter, offered + 1)
    return r if r < capacity else -1


@serial
def _counter(table, code, offered, own):
    """A counter of the draw for id ``own`` in a bucket that was offered so many before it.

    The number alone would not do: where ids are removed, it falls, and comes again.
    """
    bucket = np.int64(table) * TABLE_FACTOR + np.int64(code) * CODE_FACTOR
    return bucket + np.int64(own) * ID_FACTOR + np.int64(offered)


@parallel
def fold(codes, num_buckets, out):
    """Write a bucket for each code ``(n,)`` int32 to ``out``: some bits of a mix of all its bits.

    The mix is that of MurmurHash3 for 32 bits, whose result, as a fraction of 2^32, is multiplied
    by the number of buckets.
    """
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

    Args:
        buckets: `Buckets`, written; the pools have room for N ids.
        codes: ``(L, N)`` int32, each in ``[0, C)``.
        capacity: maximum number of ids in a bucket.
        policy: `FIFO` or `RESERVOIR`.
        key: uint64 key of the reservoir's draws.
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
                counter = _counter(l, c, offered, i)
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
                counter = _counter(l, c, offered, ids[i])
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

    The last id of the bucket moves to the free place. If the bucket did not keep the id, only its
    count falls. A full bucket that loses an id no longer counts the ids that it did not keep, and
    loses the order in which its ids came.
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

    Args:
        codes: ``(P * L, B)`` int32: of P buckets in each table.
        indptr: ``(B + 1,)`` int64, from `bucket_lengths`.
        out: ``(indptr[-1],)`` int32 ids.
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
