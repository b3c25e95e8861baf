"""`slide.LSHProposer` on other devices than the CPU, by `slide.plain`.

The host does not learn how many rows there are of anything. So ids have -1 in the places that are
left over, and only `noted_rows` waits for the device.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import device_of, native, on_device
from slide.hashing import HashTables
from slide.kernels.votes import RankedIds
from slide.plain.assemble_sets import count_updates
from slide.plain.shared_votes import vote_shared
from slide.plain.votes import vote_per_sample

# The noted rows are looked at after this many active sets, so that the host waits rarely.
LOOK_AFTER = 8


def propose(tables: HashTables, codes: Any, places: np.ndarray, key: Any) -> RankedIds | Tensor:
    """See `slide.LSHProposer.propose`; ``codes`` ``(L, B)`` are those of the inputs."""
    device = device_of(codes)
    most, codes = int(places.max(initial=0)), on_device(codes, device)
    options = tables.bucket_capacity, int(key), on_device(places, device), most
    best = vote_per_sample(tables.tensors(device), codes, *options)
    if device.type != "cpu":
        return best
    return RankedIds(best.numpy(), (best >= 0).sum(1).numpy())


def propose_shared(tables: HashTables, codes: Any, places: int, key: Any) -> Any:
    """See `slide.LSHProposer.propose_shared`; ``codes`` ``(L, B)`` are those of the inputs."""
    device = device_of(codes)
    codes = on_device(codes, device)
    best = vote_shared(tables.tensors(device), codes, tables.bucket_capacity, int(key), places)
    return best if device.type != "cpu" else best[best >= 0].numpy()


def note_updates(updates: Any, ids: Any, limit: int) -> tuple[Any, Any]:
    """Count an update of each row in ``ids``.

    Returns:
        The counts, on the device of the ids, and the rows that have just had ``limit`` updates.
    """
    device = device_of(ids)
    counts = on_device(updates, device)
    rows = count_updates(on_device(ids, device), counts, limit)
    return native(counts), native(rows) if device.type != "cpu" else rows[rows >= 0].numpy()


def noted_rows(moved: list[Any]) -> list[Any]:
    """The noted rows; if they are tensors, now and then without the places that are left over.

    Only then the host waits for the device. Until then, so many rows are not known.
    """
    if len(moved) < LOOK_AFTER or not any(isinstance(rows, Tensor) for rows in moved):
        return moved
    device = next(rows.device for rows in moved if isinstance(rows, Tensor))
    rows = torch.cat([on_device(each, device) for each in moved])
    return [rows[rows >= 0]]


def count_noted(moved: list[Any]) -> int:
    """How many rows are noted, as far as the host knows."""
    if len(moved) > 1 and any(isinstance(rows, Tensor) for rows in moved):
        return 0
    return sum(map(len, moved))


def rehash(tables: HashTables, codes: Any, rows: Tensor, found: Any) -> Any:
    """Move rows ``(n,)`` to the buckets of the codes ``found`` ``(L, n)``.

    Args:
        tables: changed.
        codes: ``(L, N)`` int32 codes of all rows.
        rows: on the device of the weight.
        found: the new codes of these rows.

    Returns:
        The codes of all rows, on that device.
    """
    known, new = on_device(codes, rows.device), on_device(found, rows.device)
    tables.move(native(rows), native(known[:, rows]), native(new))
    known[:, rows] = new
    return native(known)
