"""Hash codes ``(L, n)`` int32, and hash tables on any device.

Each bucket has room for its whole capacity from the start, and pools have one more position, for
ids that are not kept. Without a capacity buckets stand without gaps, and each change makes them
anew.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.backend import CPU, device_of, native, on_device
from slide.ops.kernels.hashing import (
    CODE_FACTOR,
    FIFO,
    FOLDING,
    ID_FACTOR,
    MAX_DENSIFY_ATTEMPTS,
    TABLE_FACTOR,
    Buckets,
)
from slide.ops.reference.products import first_of_equal, samples_on, weighted_sum
from slide.ops.reference.random import random_below
from slide.sparse import Pattern


def pack_signs(projections: Tensor, hashes_per_table: int) -> Tensor:
    num_tables = projections.shape[1] // hashes_per_table
    signs = (projections > 0).view(len(projections), num_tables, hashes_per_table)
    bits = 1 << torch.arange(hashes_per_table, device=signs.device)
    return (signs * bits).sum(2).T.int()


def project_sparse(
    indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, directions: Tensor
) -> Tensor:
    return weighted_sum(indptr, indices, values, directions)


def dwta_dense(
    vectors: Tensor, coordinates: np.ndarray, hashes_per_table: int, shift: int
) -> Tensor:
    bins = on_device(coordinates, vectors.device)
    return _pack(vectors.detach()[:, bins].argmax(2), hashes_per_table, shift)


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


def dwta_runners(
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


def probe_codes(codes: Any, costs: Tensor, flips: Any, sets: Pattern, probes: int) -> Tensor:
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


class BucketTensors(NamedTuple):
    """`slide.ops.kernels.hashing.Buckets` as tensors of the same types and shapes."""

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


def fold(codes: Any, num_buckets: int) -> Any:
    codes = on_device(codes, device_of(codes))
    mixed = codes.long()
    for shift, factor in FOLDING:
        mixed = ((mixed ^ (mixed >> shift)) * factor) & 0xFFFFFFFF
    return native((((mixed ^ (mixed >> 16)) * num_buckets) >> 32).int())


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


def insert_all(buckets: BucketTensors, ids: Tensor, codes: Tensor) -> BucketTensors:
    """`insert` for tables without a capacity, which are new tables then."""
    kept = zip(_entries(buckets), _numbered(buckets, ids, codes), strict=True)
    num_tables, num_buckets = buckets.starts.shape
    return _packed((num_tables, num_buckets), *map(torch.cat, kept))


def remove_all(buckets: BucketTensors, ids: Tensor, codes: Tensor) -> BucketTensors:
    """`remove` for tables without a capacity, which are new tables then."""
    positions, held = _entries(buckets)
    gone, lost = _numbered(buckets, ids, codes)
    kept = torch.isin((positions << 32) + held, (gone << 32) + lost, invert=True)
    num_tables, num_buckets = buckets.starts.shape
    return _packed((num_tables, num_buckets), positions[kept], held[kept])


def build(
    shape: tuple[int, int], codes: Tensor, capacity: int | None, policy: int, key: int
) -> BucketTensors:
    """Tables with id ``i`` in bucket ``codes[l, i]`` of each table l; see the kernel."""
    buckets = emptied(*shape, capacity or 0, codes.device)
    ids = torch.arange(codes.shape[1], device=codes.device).int()
    if capacity is None:
        return insert_all(buckets, ids, codes)
    insert(buckets, ids, codes, policy, key)
    return buckets


def insert(buckets: BucketTensors, ids: Tensor, codes: Tensor, policy: int, key: int) -> None:
    """Put ``ids[i]`` into bucket ``codes[l, i]`` of each table l; a negative code is skipped."""
    if not len(ids):
        return
    for table, own in enumerate(codes):
        _insert(BucketTensors(*(each[table] for each in buckets)), ids, own, table, policy, key)


def _insert(
    one: BucketTensors, ids: Tensor, codes: Tensor, table: int, policy: int, key: int
) -> None:
    """`insert` for one table."""
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
        late = random_below(key, counters, offered + 1)
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


def remove(buckets: BucketTensors, ids: Tensor, codes: Tensor, capacity: int) -> None:
    """The kernel of this name; but the other ids of the bucket stay in their order."""
    for table, own in enumerate(codes):
        _remove(BucketTensors(*(each[table] for each in buckets)), ids, own, capacity)


def _remove(one: BucketTensors, ids: Tensor, codes: Tensor, capacity: int) -> None:
    """`remove` for one table."""
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


def look_up(buckets: BucketTensors, codes: Tensor, capacity: int) -> Tensor:
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
