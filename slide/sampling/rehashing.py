"""Which rows are to be hashed again: those that were in many active sets since they were hashed.

On other devices than the CPU the host does not learn how many rows there are. So some are -1, in
places that are left over, and only `noted_rows` waits for the device.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import device_of, native, on_device, plain
from slide.kernels import assemble_sets as kernels
from slide.plain import assemble_sets as plain_sets

# The noted rows are looked at after this many active sets, so that the host waits rarely.
LOOK_AFTER = 8


def note_updates(updates: Any, ids: Any, limit: int) -> tuple[Any, Any]:
    """Count an update of each row in ``ids``.

    Returns:
        The counts, on the device of the ids, and the rows that have just had ``limit`` updates.
    """
    if not plain(ids):
        out = np.empty(len(ids), np.int32)
        return updates, out[: kernels.count_updates(ids, updates, limit, out)].copy()
    device = device_of(ids)
    counts = on_device(updates, device)
    rows = plain_sets.count_updates(on_device(ids, device), counts, limit)
    return native(counts), native(rows) if device.type != "cpu" else rows[rows >= 0].numpy()


def noted_rows(moved: list[Any]) -> list[Any]:
    """The noted rows; if they are tensors, now and then without the places that are left over.

    Only then the host waits for the device. Until then, so many rows are not known.
    """
    if len(moved) < LOOK_AFTER or not any(isinstance(rows, Tensor) for rows in moved):
        return moved
    device = next(rows.device for rows in moved if isinstance(rows, Tensor))
    return [joined(moved, device)]


def joined(moved: list[Any], place: Any) -> Any:
    """All noted rows ``(n,)``, on the device of ``place``; an array where kernels work.

    -1, which stands for a row that is not due, is left out.
    """
    if not plain(place):
        return np.concatenate(moved)
    rows = torch.cat([on_device(each, device_of(place)) for each in moved])
    return rows[rows >= 0]


def count_noted(moved: list[Any]) -> int:
    """How many rows are noted, as far as the host knows."""
    if len(moved) > 1 and any(isinstance(rows, Tensor) for rows in moved):
        return 0
    return sum(map(len, moved))
