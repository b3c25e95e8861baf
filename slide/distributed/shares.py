"""Which process owns which weight row, and first weights that do not depend on that."""

import math
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from slide.ops.random import shifted, torch_random_bits
from slide.sparse import CSR, Pattern
from slide.utils import checks

_Rows = TypeVar("_Rows", CSR, Pattern)
# Rounds that compare the work of the ranks so far: a weight row of later rounds is little work.
_WEIGHED = 4096


class Shares:
    """Rows of a weight, shared out among ranks.

    A row costs work in each step that uses it. With ``counts`` rows are dealt in rounds, by falling
    count, one row to each rank; the rank with the least work so far gets the most frequent one (as
    in Graham 1969, "Bounds on multiprocessing timing anomalies"). Without counts, row i goes to
    rank i modulo ``size``. A row's index among the rising rows of its rank is its local number.

    Args:
        what: what the rows are, for messages: "features", "labels".
        rows: N.
        rank: number of this process, in [0, size).
        counts: ``(N,)``, how often each row is used, in any unit, the same on all ranks. None:
            unknown.

    Raises:
        ValueError: for more processes than rows, or counts that are negative or of another length.

    Attributes:
        rows: N.
        ids: ``(n,)`` int32 or int64, the rows of this rank, rising.

    Example:
        >>> from slide.distributed import Shares
        >>> shares = Shares("labels", 5, rank=1, size=2)
        >>> shares.ids
        array([1, 3], dtype=int32)
        >>> heavy = [Shares("labels", 5, r, 2, [9, 3, 3, 3, 0]).ids.tolist() for r in (0, 1)]
        >>> heavy
        [[0, 3], [1, 2, 4]]
    """

    def __init__(self, what: str, rows: int, rank: int, size: int, counts: object = None):
        checks.whole("size", size, 1)
        if not 0 <= rank < size:
            raise ValueError(f"rank must be in [0, {size}), not {rank}")
        if size > rows:
            raise ValueError(
                f"{size} processes cannot share out {rows} {what}: start at most {rows}"
            )
        self.rows, self.rank, self.size = rows, rank, size
        dtype = np.int32 if rows <= 1 << 31 else np.int64
        self._owner: np.ndarray | None = None
        if counts is None or size == 1:
            self.ids = np.arange(rank, rows, size, dtype=dtype)
            return
        counts = np.asarray(counts)
        if counts.shape != (rows,):
            raise ValueError(f"counts {counts.shape} do not fit {rows} {what}")
        if rows and not counts.min() >= 0:
            raise ValueError(f"counts of {what} must be at least 0, not {counts.min()}")
        self._owner = _deal(counts, size)
        self.ids = np.flatnonzero(self._owner == rank).astype(dtype)
        self._index = np.empty(rows, dtype)
        for each in range(size):
            own = self._owner == each
            self._index[own] = np.arange(np.count_nonzero(own))

    def __len__(self) -> int:
        return len(self.ids)

    def owners(self, ids: np.ndarray) -> np.ndarray:
        """The rank that owns each of the rows ``ids``."""
        return ids % self.size if self._owner is None else self._owner.take(ids)

    def local_ids(self, ids: np.ndarray) -> np.ndarray:
        """The local number of each of the rows ``ids``, at its owner."""
        return ids // self.size if self._owner is None else self._index.take(ids)

    def own(self, x: _Rows) -> _Rows:
        """The entries of a matrix or a pattern whose columns this rank owns, by local number."""
        if self.size == 1:
            return x
        # Positions, since a mask would be turned into them for each array.
        at = np.flatnonzero(self.owners(x.indices) == self.rank)
        own = self.local_ids(x.indices[at]).astype(np.int32, copy=False)
        values = [part[at] for part in x[2:]]
        return type(x)(np.searchsorted(at, x.indptr), own, *values)


def _deal(counts: np.ndarray, size: int) -> np.ndarray:
    """The owner of each row, ``(N,)`` uint16."""
    order = np.argsort(-counts.astype(np.float64), kind="stable")
    rounds = -(-len(counts) // size)
    # Forwards and backwards by turns, in rounds that do not compare the work.
    there = np.arange(size, dtype=np.uint16)
    turns = np.resize(np.concatenate([there, there[::-1]]), rounds * size)
    work = np.zeros(size)
    for number in range(min(rounds, _WEIGHED)):
        part = slice(number * size, (number + 1) * size)
        rows, ranks = order[part], np.argsort(work, kind="stable")
        work[ranks[: len(rows)]] += counts[rows]
        turns[part] = ranks
    owner = np.empty(len(counts), np.uint16)
    owner[order] = turns[: len(counts)]
    return owner


_BLOCK = 1 << 15  # Numbers that are drawn at a time: they stay in the cache.


def uniform_rows(key: int, ids: np.ndarray, width: int, bound: float) -> Tensor:
    """Weight rows in [-bound, bound) by key and number, whatever the number of processes."""
    out = torch.empty(len(ids), width, dtype=torch.float32)
    for part, bits in _blocks(key, ids, width):
        out[part] = shifted(bits, 40).float()  # 24 bits, exactly.
    return out.mul_(2 * bound / 2**24).sub_(bound)


def normal_rows(key: int, ids: np.ndarray, width: int, deviation: float) -> Tensor:
    """`uniform_rows`, but normal with mean 0 (Box and Muller 1958)."""
    out = torch.empty(len(ids), width, dtype=torch.float32)
    half = -(-width // 2)
    for part, bits in _blocks(key, ids, half):
        # In (0, 1], so that the logarithm is finite.
        share = (shifted(bits, 40).float() + 1) * 2**-24
        angle = torch.bitwise_and(bits, 0xFFFFFF).float() * (2 * math.pi / 2**24)
        length = (-2 * share.log()).sqrt() * deviation
        out[part, :half] = length * angle.cos()
        out[part, half:] = (length * angle.sin())[:, : width - half]
    return out


def _blocks(key: int, ids: np.ndarray, width: int) -> Iterator[tuple[slice, Tensor]]:
    """Slices of rows, and their random bits ``(rows, width)``: one counter for each number."""
    columns, step = torch.arange(width), max(1, _BLOCK // max(width, 1))
    for begin in range(0, len(ids), step):
        part = slice(begin, begin + step)
        numbers = torch.from_numpy(ids[part].astype(np.int64))
        yield part, torch_random_bits(key, numbers[:, None] * width + columns)
