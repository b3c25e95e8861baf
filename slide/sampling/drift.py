"""How many hash codes have changed since rows were put into the tables, from a sample of rows."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import device_of, native, on_device
from slide.hashing import InnerProductHash
from slide.plain.random import random_rows

# The sample: it has so many rows, or all rows of a smaller layer.
WATCHED = 1024


def watched_rows(num_rows: int, key: np.uint64, place: Any) -> Any:
    """Numbers ``(n,)`` int64 of the rows in the sample, which a key determines.

    Args:
        num_rows: N, number of rows of the layer.
        key: of the sample.
        place: something on the device where the numbers are to be.

    Example:
        >>> import numpy as np
        >>> from slide.sampling.drift import watched_rows
        >>> watched_rows(4, np.uint64(7), None)
        array([0, 1, 2, 3])
        >>> watched_rows(100_000, np.uint64(7), None).shape
        (1024,)
    """
    return native(random_rows(int(key), WATCHED, num_rows, device_of(place)))


@torch.no_grad()
def changed_codes(
    hashed: InnerProductHash, codes: Any, rows: Any, weight: Tensor, bias: Tensor | None
) -> float | None:
    """The share of the codes of some rows that differ from earlier ones; None: there are none.

    Args:
        hashed: the hash functions, as they were for the earlier codes.
        codes: ``(L, N)`` int32, earlier codes of all rows, or ``(L, n)``, of these rows.
        rows: ``(n,)`` int64, numbers of the rows.
        weight: ``(N, D)``, present rows.
        bias: ``(N,)`` or None.
    """
    if not codes.shape[1]:
        return None
    then, at = on_device(codes, weight.device), on_device(rows, weight.device)
    now = hashed.row_codes(weight[at], None if bias is None else bias[at])
    if codes.shape[1] == len(weight):
        then = then[:, at]
    return float((then != on_device(now, weight.device)).float().mean())
