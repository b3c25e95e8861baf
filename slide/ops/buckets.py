"""Hash tables as flat arrays, of kernels and of torch.

Each of L tables has one row of every array, so threads fill tables at the same time without locks.
A bucket is a range of its table's pool. A build gives each bucket the room that it needs. A bucket
that needs more moves to the end of the pool and gets twice the room, up to its capacity.

In torch, on any device, each change makes new tables, whose buckets stand without gaps.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.ops.compile import helper, parallel, prange
from slide.ops.products import first_of_equal
from slide.ops.random import random_below, torch_random_below

FIFO, RESERVOIR = 0, 1
# Ids for which a bucket of growing tables has room at least.
SPARE = 8
# Of the draws' counters: random odd factors (int64, products wrap).
TABLE_FACTOR, CODE_FACTOR = 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D
ID_FACTOR = 0x369DEA0F31A53F85


class Buckets(NamedTuple):
    """L tables of C buckets, as arrays, or as tensors on one device.

    starts (L, C) int32, where a bucket begins in its table's pool; rooms (L, C) int32, number of
    ids that fit there; seen (L, C) int32, number of ids offered since the last build or clear; used
    (L,) int64, length of the part of each pool that belongs to buckets; pool (L, P) int32 ids.
    """

    starts: Any
    rooms: Any
    seen: Any
    used: Any
    pool: Any


@helper
def _position(table, code, own, offered, capacity, policy, key):
    """The position of id ``own`` in a bucket that was offered other ids before; -1: dropped.

    In a full bucket `FIFO` overwrites the oldest id. `RESERVOIR` keeps each offered id with
    probability ``capacity / offered`` (Vitter 1985, "Random sampling with a reservoir", algorithm
    R).
    """
    if offered < capacity:
        return np.int64(offered)
    if policy == FIFO:
        return np.int64(offered % capacity)
    # Not by the number of offered ids alone: where ids are removed, it falls, and comes again.
    bucket = np.int64(table) * TABLE_FACTOR + np.int64(code) * CODE_FACTOR
    counter = bucket + np.int64(own) * ID_FACTOR + np.int64(offered)
    r = random_below(key, counter, offered + 1)
    return np.int64(r) if r < capacity else np.int64(-1)


@parallel
def build(buckets, codes, order, capacity, policy, key, growing):
    """Clear all tables and put id ``i`` into bucket ``codes[l, i]`` of each table l.

    buckets `Buckets`, written; codes (L, N) int32, each in [0, C); order (N,) int64, in which ids
    are put, or empty for that of their numbers; capacity: maximum number of ids in a bucket; policy
    `FIFO` or `RESERVOIR`; key uint64 key of the reservoir's draws; growing: whether a bucket gets
    room for as many ids again.
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
            room = 2 * rooms[c] + SPARE if growing else rooms[c]
            rooms[c] = min(room, capacity)
            end += rooms[c]
        used[l] = end
        for j in range(num_ids):
            i = order[j] if len(order) > 0 else j
            c = table_codes[i]
            position = _position(l, c, i, seen[c], capacity, policy, key)
            seen[c] += 1
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
            if offered == rooms[c] and offered < capacity:
                room = min(capacity, max(4, 2 * rooms[c]))
                if used[l] + room > pool_size:
                    break
                for j in range(offered):
                    pool[used[l] + j] = pool[starts[c] + j]
                starts[c] = used[l]
                rooms[c] = room
                used[l] += room
            seen[c] = offered + 1
            position = _position(l, c, ids[i], offered, capacity, policy, key)
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
def bucket_lengths(buckets, codes, capacity, out):
    """Write the total number of ids in the buckets of each query to ``out`` ``(B,)`` int64."""
    num_tables = buckets.starts.shape[0]
    for b in prange(codes.shape[1]):
        total = 0
        for i in range(codes.shape[0]):
            total += min(buckets.seen[i % num_tables, codes[i, b]], capacity)
        out[b] = total


@parallel
def look_up(buckets, codes, capacity, indptr, out):
    """Copy the buckets of each of B queries, table after table; an id may occur several times.

    codes (P * L, B) int32; indptr (B + 1,) int64, where the ids of each query begin; out
    (indptr[-1],) int32 ids.
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


class Entries(NamedTuple):
    """Ids, bucket after bucket.

    at (n,) int64, their buckets, counted through all tables; ids (n,) int32.
    """

    at: Tensor
    ids: Tensor


def _entries(buckets: Buckets) -> tuple[Entries, Tensor]:
    """What buckets hold, and the position ``(n,)`` of each id in its bucket."""
    num_buckets, size = buckets.starts.shape[1], buckets.pool.shape[1]
    held = buckets.rooms.minimum(buckets.seen).flatten().long()
    at = torch.arange(held.numel(), device=held.device).repeat_interleave(held)
    rank = torch.arange(len(at), device=held.device) - (held.cumsum(0) - held)[at]
    slots = at // num_buckets * size + buckets.starts.flatten().long()[at] + rank
    return Entries(at, buckets.pool.flatten()[slots]), rank


def _numbered(buckets: Buckets, ids: Tensor, codes: Tensor) -> Entries:
    """Ids ``(n,)`` with codes ``(L, n)``, of which negative ones are left out."""
    num_tables, num_buckets = buckets.starts.shape
    first = torch.arange(num_tables, device=ids.device)[:, None] * num_buckets
    valid = codes >= 0
    at, order = (first + codes)[valid].sort(stable=True)
    return Entries(at, ids.expand(codes.shape)[valid][order])


def _packed(shape: torch.Size, seen: Tensor, entries: Entries) -> Buckets:
    """Tables of these entries; seen: of all buckets, flat."""
    held = entries.at.bincount(minlength=len(seen)).view(shape)
    used = held.sum(1)
    pool = entries.ids.new_zeros(shape[0], int(used.max()))
    pool[torch.arange(pool.shape[1], device=pool.device) < used[:, None]] = entries.ids
    starts = held.cumsum(1) - held
    return Buckets(starts.int(), held.int(), seen.view(shape).int(), used, pool)


def torch_build(
    shape: tuple[int, int], codes: Tensor, order: Tensor, capacity: int, policy: int, key: int
) -> Buckets:
    """Tables with id ``i`` in bucket ``codes[l, i]`` of each table l; see the kernel."""
    none = torch.zeros(shape, dtype=torch.int32, device=codes.device)
    empty = Buckets(none, none, none, none[:, 0].long(), none[:, :0])
    return torch_insert(empty, order.int(), codes[:, order], capacity, policy, key)


def torch_insert(
    buckets: Buckets, ids: Tensor, codes: Tensor, capacity: int, policy: int, key: int
) -> Buckets:
    """Tables with ``ids[i]`` in bucket ``codes[l, i]`` of each table l, too; see the kernel."""
    (at, ids), (held, rank) = _numbered(buckets, ids, codes), _entries(buckets)
    seen, shape = buckets.seen.flatten().long(), buckets.seen.shape
    # How many ids a bucket was offered before each of these.
    offered = seen[at] + torch.arange(len(at), device=at.device) - torch.searchsorted(at, at)
    if policy == FIFO:
        late = offered % capacity
    else:
        bucket = at // shape[1] * TABLE_FACTOR + at % shape[1] * CODE_FACTOR
        counters = bucket + ids.long() * ID_FACTOR + offered
        late = torch_random_below(key, counters, offered + 1)
    position = torch.where(offered < capacity, offered, late)
    kept = position < capacity
    # Of several ids for one position the last one stays.
    places = torch.cat([(held.at << 32) + rank, ((at << 32) + position)[kept]])
    places, order = places.sort(stable=True)
    last = first_of_equal(places.flip(0)).flip(0)
    every = torch.cat([held.ids, ids[kept]])[order][last]
    seen = seen + at.bincount(minlength=len(seen))
    return _packed(shape, seen, Entries(places[last] >> 32, every))


def torch_look_up(buckets: Buckets, codes: Tensor, most: int) -> Tensor:
    """The ids in the buckets ``codes`` ``(P * L, B)``, ``(P * L, B, most)`` int32; -1: none."""
    tables = torch.arange(len(codes), device=codes.device)[:, None] % len(buckets.starts)
    positions, at = torch.arange(most, device=codes.device), codes.long()
    held = positions < buckets.seen[tables, at][:, :, None]
    slots = torch.where(held, buckets.starts[tables, at][:, :, None] + positions, 0)
    return torch.where(held, buckets.pool[tables[:, :, None], slots], -1)
