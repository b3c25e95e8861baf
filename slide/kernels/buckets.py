"""Hash tables as flat arrays: counting-sort build, insert, look-up.

Each of L tables owns one row of every array, so tables are filled side by side without locks.
A bucket is a run of its table's pool: built buckets get the room that they need; a bucket that
outgrows its room moves to the end of the pool with twice as much, up to its capacity.
"""

from typing import NamedTuple

import numpy as np

from slide.kernels.compile import parallel, prange, serial
from slide.kernels.random import random_below

FIFO, RESERVOIR = 0, 1


class Buckets(NamedTuple):
    """L tables of C buckets.

    Attributes:
        starts: ``(L, C)`` int32, a bucket's place in its table's pool.
        rooms: ``(L, C)`` int32, how many ids fit there.
        seen: ``(L, C)`` int32, ids offered since the last clear; ``min(seen, capacity)`` are kept.
        used: ``(L,)`` int64, how much of each pool is given away.
        pool: ``(L, P)`` int32 ids.
    """

    starts: np.ndarray
    rooms: np.ndarray
    seen: np.ndarray
    used: np.ndarray
    pool: np.ndarray


@serial
def _keep_position(offered, capacity, policy, key, counter):
    """Where in a full bucket the id goes that comes after ``offered`` others; -1: dropped.

    `FIFO` overwrites the oldest. `RESERVOIR` keeps each id offered with probability
    capacity / offered (Vitter 1985, algorithm R).
    """
    if policy == FIFO:
        return offered % capacity
    r = random_below(key, counter, offered + 1)
    return r if r < capacity else -1


@serial
def _counter(table, code, offered):
    """A counter of its own for each (table, bucket, arrival)."""
    return (np.int64(table) << 56) ^ (np.int64(code) << 32) ^ np.int64(offered)


@parallel
def build(buckets, codes, capacity, policy, key):
    """Clear all tables and put id ``i`` into bucket ``codes[l, i]`` of each table l.

    Args:
        buckets: to be filled; pools hold at least N ids.
        codes: ``(L, N)`` int32, each in ``[0, C)``.
        capacity: most ids a bucket keeps.
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
                position = _keep_position(offered, capacity, policy, key, _counter(l, c, offered))
            if position >= 0:
                pool[starts[c] + position] = i


@parallel
def insert(buckets, ids, codes, capacity, policy, key, done):
    """Put ``ids[i]`` into bucket ``codes[l, i]`` of each table l, from ``i = done[l]`` on.

    A negative code is skipped. A table whose pool is full stops early: ``done`` ``(L,)`` int64 says
    how far each one came, and the caller goes on from there with a larger pool.
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
                position = _keep_position(offered, capacity, policy, key, _counter(l, c, offered))
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
def remove(buckets, ids, codes, capacity):
    """Take ``ids[i]`` out of bucket ``codes[l, i]`` of each table l; a negative code is skipped.

    The last id of the bucket takes the free place. An id that the bucket did not keep is only no
    longer counted; a full bucket that loses one forgets how many it did not keep, and which of its
    ids is the oldest.
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
    """Copy the buckets that each of B queries falls into, table after table, duplicates and all.

    Args:
        codes: ``(L, B)`` int32.
        indptr: ``(B + 1,)`` int64, from `bucket_lengths`.
        out: ``(indptr[-1],)`` int32 ids.
    """
    for b in prange(codes.shape[1]):
        p = indptr[b]
        for l in range(codes.shape[0]):
            c = codes[l, b]
            start = buckets.starts[l, c]
            for j in range(min(buckets.seen[l, c], capacity)):
                out[p] = buckets.pool[l, start + j]
                p += 1


@parallel
def bucket_lengths(buckets, codes, capacity, out):
    """Write the number of ids (int64, ``(B,)``) in the L buckets of each query together."""
    for b in prange(codes.shape[1]):
        total = 0
        for l in range(codes.shape[0]):
            total += min(buckets.seen[l, codes[l, b]], capacity)
        out[b] = total
