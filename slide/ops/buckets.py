"""Hash tables as flat arrays, of kernels and of torch.

Each of L tables has one row of every array, so threads fill tables at the same time without locks.
A bucket is a range of its table's pool. A build gives each bucket the room that it needs. A bucket
that needs more moves to the end of the pool and gets twice the room, up to its capacity.

In torch, on any device, each bucket has room for its whole capacity from the start, and pools have
one more position, for ids that are not kept. Without a capacity buckets stand without gaps, and
each change makes them anew.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.backend import on_device
from slide.ops.compile import helper, parallel, prange
from slide.ops.products import first_of_equal
from slide.ops.random import random_below, torch_random_below

FIFO, RESERVOIR = 0, 1
# Of the draws' counters: random odd factors (int64, products wrap).
TABLE_FACTOR, CODE_FACTOR = 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D
ID_FACTOR = 0x369DEA0F31A53F85


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


class BucketTensors(NamedTuple):
    """`Buckets` as tensors of the same types and shapes."""

    starts: Tensor
    rooms: Tensor
    seen: Tensor
    used: Tensor
    pool: Tensor


def emptied(
    num_tables: int, num_buckets: int, capacity: int, device: torch.device
) -> BucketTensors:
    """Empty tables, as tensors."""
    whole = torch.zeros(num_tables, num_buckets, dtype=torch.int32, device=device)
    starts = torch.arange(num_buckets, device=device).int() * capacity
    return BucketTensors(
        starts=starts.repeat(num_tables, 1),
        rooms=torch.full_like(whole, capacity),
        seen=whole,
        used=torch.full((num_tables,), num_buckets * capacity, device=device),
        pool=torch.zeros(num_tables, num_buckets * capacity + 1, dtype=torch.int32, device=device),
    )


def widened(
    buckets: Buckets | BucketTensors, capacity: int | None, device: torch.device
) -> BucketTensors:
    """Tables of any layout as tensors on a device, in the layout of this file."""
    buckets = BucketTensors(*(on_device(each, device) for each in buckets))
    starts, rooms, seen, _, pool = buckets
    num_tables, num_buckets = starts.shape
    if capacity is None:
        return _packed((num_tables, num_buckets), *_entries(buckets))
    out = emptied(num_tables, num_buckets, capacity, device)
    filled = torch.arange(capacity, device=device) < rooms.minimum(seen)[:, :, None]
    at = torch.where(filled, starts[:, :, None] + torch.arange(capacity, device=device), 0)
    ids = pool.gather(1, at.flatten(1).long()) if pool.shape[1] else torch.zeros_like(at).flatten(1)
    out.pool[:, :-1] = torch.where(filled.flatten(1), ids, 0)
    return out._replace(seen=seen.clone())


def _entries(buckets: BucketTensors) -> tuple[Tensor, Tensor]:
    """The bucket, counted through all tables, and the id of each entry, bucket after bucket."""
    starts, rooms, seen, _, pool = buckets
    num_buckets, size = starts.shape[1], pool.shape[1]
    held = rooms.minimum(seen).flatten().long()
    positions = torch.arange(held.numel(), device=held.device).repeat_interleave(held)
    rank = torch.arange(len(positions), device=held.device) - (held.cumsum(0) - held)[positions]
    at = positions // num_buckets * size + starts.flatten().long()[positions] + rank
    return positions, pool.flatten()[at]


def _packed(shape: tuple[int, int], positions: Tensor, ids: Tensor) -> BucketTensors:
    """Tables of these entries; see `_entries`; the ids of a bucket stay in their order."""
    positions, order = positions.sort(stable=True)
    seen = positions.bincount(minlength=shape[0] * shape[1]).view(shape)
    used, starts = seen.sum(1), seen.cumsum(1) - seen
    pool = ids.new_zeros(shape[0], int(used.max()) + 1)
    tables = positions // shape[1]
    rank = torch.arange(len(positions), device=ids.device) - (used.cumsum(0) - used)[tables]
    pool[tables, rank] = ids[order]
    return BucketTensors(starts.int(), seen.int(), seen.int(), used, pool)


def _numbered(buckets: BucketTensors, ids: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """`_entries` of ids ``(n,)`` with codes ``(L, n)``, without those whose code is negative."""
    num_tables, num_buckets = buckets.starts.shape
    first = torch.arange(num_tables, device=ids.device)[:, None] * num_buckets
    valid = codes >= 0
    return (first + codes)[valid], ids.expand(codes.shape)[valid]


def torch_insert_all(buckets: BucketTensors, ids: Tensor, codes: Tensor) -> BucketTensors:
    """`torch_insert` for tables without a capacity, which are new tables then."""
    kept = zip(_entries(buckets), _numbered(buckets, ids, codes), strict=True)
    num_tables, num_buckets = buckets.starts.shape
    return _packed((num_tables, num_buckets), *map(torch.cat, kept))


def torch_remove_all(buckets: BucketTensors, ids: Tensor, codes: Tensor) -> BucketTensors:
    """`torch_remove` for tables without a capacity, which are new tables then."""
    positions, held = _entries(buckets)
    gone, lost = _numbered(buckets, ids, codes)
    kept = torch.isin((positions << 32) + held, (gone << 32) + lost, invert=True)
    num_tables, num_buckets = buckets.starts.shape
    return _packed((num_tables, num_buckets), positions[kept], held[kept])


def torch_build(
    shape: tuple[int, int], codes: Tensor, capacity: int | None, policy: int, key: int
) -> BucketTensors:
    """Tables with id ``i`` in bucket ``codes[l, i]`` of each table l; see the kernel."""
    buckets = emptied(*shape, capacity or 0, codes.device)
    ids = torch.arange(codes.shape[1], device=codes.device).int()
    if capacity is None:
        return torch_insert_all(buckets, ids, codes)
    torch_insert(buckets, ids, codes, policy, key)
    return buckets


def torch_insert(buckets: BucketTensors, ids: Tensor, codes: Tensor, policy: int, key: int) -> None:
    """Put ``ids[i]`` into bucket ``codes[l, i]`` of each table l; a negative code is skipped."""
    if not len(ids):
        return
    for table, own in enumerate(codes):
        _torch_insert(
            BucketTensors(*(each[table] for each in buckets)), ids, own, table, policy, key
        )


def _torch_insert(
    one: BucketTensors, ids: Tensor, codes: Tensor, table: int, policy: int, key: int
) -> None:
    """`torch_insert` for one table."""
    codes, order = codes.sort(stable=True)
    ids, valid = ids[order], codes >= 0
    at = codes.clamp(min=0).long()
    # How many ids a bucket was offered before each of these.
    numbers = torch.arange(len(codes), device=codes.device)
    begin = torch.where(first_of_equal(codes), numbers, 0).cummax(0).values
    offered = one.seen[at].long() + numbers - begin
    capacity = one.rooms[at].long()
    if policy == FIFO:
        late = offered % capacity
    else:
        bucket = torch.full_like(at, table) * TABLE_FACTOR + at * CODE_FACTOR
        counters = bucket + ids.long() * ID_FACTOR + offered
        late = torch_random_below(key, counters, offered + 1)
    position = torch.where(offered < capacity, offered, late)
    kept = valid & (position < capacity)
    slot = torch.where(kept, one.starts[at] + position, len(one.pool) - 1)
    _write_last(one.pool, slot, ids)
    one.seen.index_add_(0, at, valid.int())


def _write_last(pool: Tensor, slots: Tensor, ids: Tensor) -> None:
    """``pool[slots] = ids``; of several ids for one slot, the last."""
    slots, order = slots.sort(stable=True)
    numbers = torch.arange(len(slots), device=slots.device)
    position = first_of_equal(slots).cumsum(0) - 1
    last = torch.zeros_like(position).scatter_reduce_(0, position, numbers, "amax")[position]
    pool[slots] = ids[order[last]]


def torch_remove(buckets: BucketTensors, ids: Tensor, codes: Tensor, capacity: int) -> None:
    """The kernel of this name; but the other ids of the bucket stay in their order."""
    for table, own in enumerate(codes):
        _torch_remove(BucketTensors(*(each[table] for each in buckets)), ids, own, capacity)


def _torch_remove(one: BucketTensors, ids: Tensor, codes: Tensor, capacity: int) -> None:
    """`torch_remove` for one table."""
    valid, trash = codes >= 0, len(one.pool) - 1
    at = codes.clamp(min=0).long()
    seen, positions = one.seen[at], torch.arange(capacity, device=codes.device)
    # Entries without a code read bucket 0, and so do as others that may have it.
    held = positions < seen[:, None]
    slots = torch.where(held, one.starts[at][:, None] + positions, trash)
    found = (one.pool[slots] == ids[:, None]) & held & valid[:, None]
    one.pool[torch.where(found, slots, trash)] = -1
    # Buckets may lose several ids: look at each again, and move what is left to the front.
    left = (one.pool[slots] >= 0) & held
    front = left.logical_not().byte().argsort(dim=1, stable=True)
    lost = (held & ~left).sum(1).int()
    values = one.pool[slots].gather(1, front)
    kept = held & (positions < left.sum(1)[:, None])
    one.pool[torch.where(kept, slots, trash)] = values
    # A full bucket counts ids that it did not keep, until it loses one that it kept.
    dropped = valid & ~found.any(1) & (seen > capacity)
    one.seen.index_add_(0, at, -dropped.int())
    counted = torch.where(seen > capacity, one.seen[at].clamp(min=capacity), seen)
    one.seen[at] = torch.where(lost > 0, seen.clamp(max=capacity) - lost, counted)


def torch_look_up(buckets: BucketTensors, codes: Tensor, capacity: int) -> Tensor:
    """The ids in the buckets ``codes`` ``(P * L, B)``, ``(P * L, B, capacity)`` int32; -1: none."""
    num_tables, (rows, count) = len(buckets.starts), codes.shape
    probes = rows // num_tables
    # A table's codes side by side.
    at = codes.long().view(probes, num_tables, count).transpose(0, 1)
    at = at.reshape(num_tables, probes * count)
    positions = torch.arange(capacity, device=codes.device)
    held = positions < buckets.seen.gather(1, at)[:, :, None]
    slots = torch.where(held, buckets.starts.gather(1, at)[:, :, None] + positions, 0)
    ids = buckets.pool.gather(1, slots.flatten(1).long()).view(slots.shape)
    found = torch.where(held, ids, -1).view(num_tables, probes, count, capacity)
    return found.transpose(0, 1).reshape(rows, count, capacity)
