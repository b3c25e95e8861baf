"""Hash tables find ids by their codes; they do not depend on vectors."""

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from slide.backend import array_view, device_of, on_device, on_host, uses_reference
from slide.hashing.families import check_codes
from slide.ops import buckets as kernels
from slide.ops import fold as fold
from slide.ops.buckets import Buckets, torch_build, torch_insert, torch_look_up
from slide.ops.sketches import (
    FIRST,
    LINE,
    rank_buckets,
    rows_of,
    torch_best_in_buckets,
    views,
)
from slide.sparse import Pattern, row_bounds
from slide.utils import checks
from slide.utils.array_checks import Expected, check_arrays
from slide.utils.random_keys import random_key

_INT32 = np.dtype(np.int32), torch.int32
_POLICIES = {"fifo": kernels.FIFO, "reservoir": kernels.RESERVOIR}
# 2 buckets for each id: few ids of different codes share one.
_BUCKETS_PER_ID = 2
_UNBOUNDED = 2**31 - 1


def bucket_count(num_codes: int, num_ids: int) -> int:
    """The number of buckets of a table: one for each code, but at most two for each id."""
    return min(num_codes, _BUCKETS_PER_ID * num_ids)


class HashTables:
    """L tables of ``num_buckets`` buckets, as flat arrays.

    After a build the tables take ``4 L (3 num_buckets + number of ids)`` bytes, and after many
    moves up to twice the second part. Codes are arrays, or tensors on any device. The tables lie
    where the last codes were.

    Args:
        num_tables: L.
        num_buckets: number of buckets in a table.
        bucket_capacity: maximum number of ids in a bucket; None: any number.
        bucket_policy: which ids a full bucket keeps. ``"reservoir"`` keeps a uniform sample of all
            ids that were added (Vitter 1985, "Random sampling with a reservoir", algorithm R).
            ``"fifo"`` keeps the ids that were added last.
        growing: whether a build leaves each bucket room for as many ids again, for tables whose ids
            often move.
        seed: seed of the reservoir.
        num_codes: codes lie in ``[0, num_codes)``; more than ``num_buckets`` are folded into these
            (see `fold`; `bucket_count` says how many buckets are enough). None: ``num_buckets``.

    Attributes:
        capacity: the largest number of ids in a bucket, for kernels; large without a bound.

    Raises:
        ValueError: for a number below 1, or for an unknown policy.

    Example:
        >>> import numpy as np, slide
        >>> tables = slide.HashTables(num_tables=2, num_buckets=4)
        >>> tables.build(np.array([[0, 1, 1], [2, 2, 3]], np.int32))  # Codes of ids 0, 1, 2.
        >>> found = tables.query(np.array([[1], [2]], np.int32))
        >>> found.indices  # Ids 1 and 2 in the first table, 0 and 1 in the second.
        array([1, 2, 0, 1], dtype=int32)
    """

    def __init__(
        self,
        num_tables: int,
        num_buckets: int,
        bucket_capacity: int | None = 128,
        bucket_policy: str = "reservoir",
        seed: int = 0,
        num_codes: int | None = None,
        growing: bool = False,
    ):
        checks.whole("num_tables", num_tables, 1)
        checks.whole("num_buckets", num_buckets, 1)
        self.capacity = _UNBOUNDED if bucket_capacity is None else bucket_capacity
        checks.whole("bucket_capacity", self.capacity, 1)
        checks.one_of("bucket_policy", bucket_policy, _POLICIES)
        self.num_codes = num_buckets if num_codes is None else num_codes
        checks.whole("num_codes", self.num_codes, num_buckets)
        self.num_tables, self.num_buckets, self.growing = num_tables, num_buckets, growing
        self.bucket_capacity, self.bucket_policy, self.seed = bucket_capacity, bucket_policy, seed
        self.clear()

    def clear(self) -> None:
        """Empty all buckets."""
        shape = (self.num_tables, self.num_buckets)
        self.buckets = Buckets(
            starts=np.zeros(shape, np.int32),
            rooms=np.zeros(shape, np.int32),
            seen=np.zeros(shape, np.int32),
            used=np.zeros(self.num_tables, np.int64),
            pool=np.empty((self.num_tables, 0), np.int32),
        )

    def build(self, codes: Any, order: np.ndarray | None = None) -> None:
        """Replace the contents by the ids 0 to N - 1 with the codes ``(L, N)`` int32.

        order: ``(N,)`` int64, the ids in the order in which they are added; None: by number.
        """
        codes = self.buckets_of(codes)
        if uses_reference(codes):
            shape = self.num_tables, self.num_buckets
            codes = on_device(codes, device_of(codes))
            ids = torch.arange(codes.shape[1]) if order is None else torch.from_numpy(order)
            ids = ids.to(codes.device)
            self.buckets = torch_build(shape, codes, ids, self.capacity, *self._policy())
            return
        buckets, room = self.arrays(), codes.shape[1]
        if self.growing:
            room = 2 * room + kernels.SPARE * self.num_buckets
        if buckets.pool.shape[1] < room:
            # The pool begins with zeros, so that equal runs have equal states.
            pool = np.zeros((self.num_tables, room), np.int32)
            self.buckets = buckets = buckets._replace(pool=pool)
        codes = np.ascontiguousarray(on_host(codes))
        ids = np.empty(0, np.int64) if order is None else order
        kernels.build(buckets, codes, ids, self.capacity, *self._policy(), self.growing)

    def insert(self, ids: Any, codes: Any, old: Any = None) -> None:
        """Add ids ``(n,)`` int32 with codes ``(L, n)`` int32.

        old: codes of the same shape; where they lead to the same bucket, an id is not added.
        """
        self._check_ids(ids, codes)
        device, added = device_of(codes), self.buckets_of(codes)
        if old is not None:
            added, held = on_host(added), on_host(self.buckets_of(old))
            added = np.where(held == added, np.int32(-1), added)
        if uses_reference(codes):
            ids, added = on_device(ids, device), on_device(added, device)
            buckets = self.tensors(device)
            self.buckets = torch_insert(buckets, ids, added, self.capacity, *self._policy())
            return
        buckets, ids = self.arrays(), on_host(ids)
        codes = np.ascontiguousarray(on_host(added))
        done = np.zeros(self.num_tables, np.int64)
        while True:
            kernels.insert(buckets, ids, codes, self.capacity, *self._policy(), done)
            if (done == len(ids)).all():
                return
            # Buckets that outgrew their room have left it behind, which the new pool does without.
            # It has space for the bucket that did not fit, and for as many ids as there are.
            held = int(np.minimum(buckets.seen, buckets.rooms).sum(1).max())
            room = max(4, 2 * int(buckets.rooms.max()))
            pool = np.zeros((self.num_tables, 2 * held + room), np.int32)
            kernels.compact(buckets, pool)
            self.buckets = buckets = buckets._replace(pool=pool)

    def query(self, codes: Any) -> Pattern:
        """The ids in the buckets of each query, table after table.

        codes (L, B) int32, or (P * L, B) for P buckets in each table. Returns a pattern
        with B rows. An id occurs once for each table in which it was found.
        """
        codes = self.buckets_of(codes, len(codes) // self.num_tables)
        if uses_reference(codes):
            device = device_of(codes)
            buckets = self.tensors(device)
            most = min(self.capacity, int(buckets.seen.max()))
            found = torch_look_up(buckets, on_device(codes, device), most)
            return Pattern.from_padded(on_host(found.transpose(0, 1).flatten(1)))
        buckets, codes = self.arrays(), np.ascontiguousarray(on_host(codes))
        lengths = np.empty(codes.shape[1], np.int64)
        kernels.bucket_lengths(buckets, codes, self.capacity, lengths)
        indptr = row_bounds(lengths)
        ids = np.empty(indptr[-1], np.int32)
        kernels.look_up(buckets, codes, self.capacity, indptr, ids)
        return Pattern(indptr, ids)

    def best(
        self,
        codes: Any,
        queries: torch.Tensor,
        sketches: torch.Tensor,
        left_out: Pattern,
        keys: np.ndarray,
    ) -> tuple[torch.Tensor, float]:
        """The ids in the buckets of each query whose sketches have the largest scores.

        codes (L, B) int32, or (P * L, B), see `query`; queries (B, k) float32; sketches (N, LINE)
        int8 of the ids, see `slide.ops.sketches`; left_out: ids that a query does not get; keys
        (B, most) int64, heaps of the best ids so far, see `slide.ops.sketches.no_keys`. Returns ids
        ``(B, most)`` int32, the best first, -1 after the last one; and the mean number of ids in
        the buckets of a query.
        """
        codes = self.buckets_of(codes, len(codes) // self.num_tables)
        if uses_reference(queries):
            device = queries.device
            buckets, codes = self.tensors(device), on_device(codes, device)
            found = torch_look_up(buckets, codes, min(self.capacity, int(buckets.seen.max())))
            first = on_device(rows_of(keys), device)
            found = torch.cat([first, found.transpose(0, 1).flatten(1)], 1)
            known = on_device(left_out.padded(), device)
            ids = torch_best_in_buckets(queries, found, sketches, known, keys.shape[1])
            return ids, float((found >= 0).sum() - (first >= 0).sum()) / max(1, len(queries))
        codes = np.ascontiguousarray(on_host(codes))
        padded = F.pad(queries, (FIRST, LINE - FIRST - queries.shape[1]))
        tables = np.arange(len(codes)) % self.num_tables
        buckets, some = self.arrays(), views(sketches)
        scanned = rank_buckets(array_view(padded), tables, codes, buckets, some, left_out, keys)
        return torch.from_numpy(rows_of(keys)), float(scanned.mean()) if len(scanned) else 0.0

    def buckets_of(self, codes: Any, probes: int = 1) -> Any:
        """The buckets of codes: `fold` of them if there are more codes than buckets."""
        self.check_codes(codes, probes)
        return codes if self.num_codes == self.num_buckets else fold(codes, self.num_buckets)

    def check_codes(self, codes: Any, probes: int = 1) -> None:
        """Raise unless codes fit the tables; kernels do not check that.

        codes (P * L, n) int32 in [0, num_codes); probes: P, number of buckets in each table.
        """
        check_codes(codes, [max(1, probes) * self.num_tables], num_buckets=self.num_codes)

    def _check_ids(self, ids: Any, codes: Any) -> None:
        """Raise ValueError unless codes fit the tables, and ids ``(n,)`` int32 fit the codes."""
        self.check_codes(codes)
        shape, count = tuple(ids.shape), codes.shape[1]
        if shape != (count,) or ids.dtype not in _INT32:
            raise ValueError(f"ids must be ({count},) int32, not {shape} {ids.dtype}")
        if device_of(ids).type == "cpu" and count and (least := int(ids.min())) < 0:
            raise ValueError(f"ids must be at least 0, not {least}")

    def tensors(self, device: torch.device) -> Buckets:
        """The tables as tensors on a device, where they stay."""
        self.buckets = Buckets(*(on_device(each, device) for each in self.buckets))
        return self.buckets

    def arrays(self) -> Buckets:
        """The tables as arrays, for kernels; the tables stay so."""
        self.buckets = Buckets(*map(on_host, self.buckets))
        return self.buckets

    def statistics(self) -> dict[str, float]:
        """Numbers for the log; see `slide.Proposer.statistics`."""
        seen = on_host(self.buckets.seen).astype(np.int64)
        lost = (seen - self.capacity).clip(0)
        return {
            "tables/non_empty_share": float(np.mean(seen > 0)),
            "tables/mean_bucket": float(seen.sum() / max(1, np.count_nonzero(seen))),
            "tables/largest_bucket": min(int(seen.max()), self.capacity),
            "tables/left_out_share": float(lost.sum() / max(1, seen.sum())),
        }

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all arrays."""
        state = {name: on_host(each).copy() for name, each in self.buckets._asdict().items()}
        used = int(state["used"].max())
        pool = state["pool"][:, :used].copy()
        # The pool after the last bucket is unused. Zeros there give equal tables equal states.
        pool[np.arange(used) >= state["used"][:, None]] = 0
        return state | {"pool": pool}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state_dict` returned."""
        shape = (self.num_tables, self.num_buckets)
        if (found := getattr(state.get("starts"), "shape", None)) not in (None, shape):
            raise ValueError(f"tables of shape {found} do not fit tables of shape {shape}")
        what, width = "the state of hash tables", np.shape(state.get("pool", ()))[-1:] or (0,)
        counts = dict.fromkeys(("starts", "rooms", "seen"), Expected(shape, "int32", 0))
        pool = Expected((self.num_tables, None), "int32", 0)
        used = Expected((self.num_tables,), "int64", 0, width[0])
        check_arrays(what, state, {**counts, "pool": pool, "used": used})
        ends = state["starts"].astype(np.int64) + state["rooms"]
        if (ends > state["used"][:, None]).any():
            raise ValueError(f"{what} is damaged: buckets lie outside of the pool")
        if (state["rooms"].sum(1, dtype=np.int64) > state["used"]).any():
            raise ValueError(f"{what} is damaged: buckets lie in one another")
        if (np.minimum(state["seen"], self.capacity) > state["rooms"]).any():
            raise ValueError(f"{what} is damaged: buckets hold more ids than they have room for")
        self.buckets = Buckets(**{name: state[name].copy() for name in Buckets._fields})

    def _policy(self) -> tuple[int, Any]:
        return _POLICIES[self.bucket_policy], random_key(self.seed)
