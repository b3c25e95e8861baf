"""`slide.LSHProposer` on other devices than the CPU, by `slide.plain`.

The host does not learn how many ids there are of anything. So they have -1 in the places that are
left over.
"""

from typing import Any

import numpy as np
from torch import Tensor

from slide.backend import device_of, native, on_device
from slide.hashing import HashTables
from slide.kernels.votes import RankedIds
from slide.plain.shared_votes import vote_shared
from slide.plain.votes import vote_per_sample


def propose(tables: HashTables, codes: Any, places: np.ndarray, key: Any) -> RankedIds | Tensor:
    """See `slide.LSHProposer.propose`; ``codes`` ``(P * L, B)`` are those of the inputs."""
    device = device_of(codes)
    most, codes = int(places.max(initial=0)), on_device(codes, device)
    options = tables.most_held(), int(key), on_device(places, device), most
    best = vote_per_sample(tables.tensors(device), codes, *options)
    if device.type != "cpu":
        return best
    return RankedIds(best.numpy(), (best >= 0).sum(1).numpy())


def propose_shared(tables: HashTables, codes: Any, places: int, key: Any) -> Any:
    """See `slide.LSHProposer.propose_shared`; ``codes`` as for `propose`."""
    device = device_of(codes)
    codes = on_device(codes, device)
    best = vote_shared(tables.tensors(device), codes, tables.most_held(), int(key), places)
    return best if device.type != "cpu" else best[best >= 0].numpy()


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
