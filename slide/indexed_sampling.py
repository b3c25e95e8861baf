"""Samplers that follow the weights with an index over their rows: hash tables, or FAISS."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide import checks, schedules
from slide.hashing import HashFamily, SimHash
from slide.inner_product import InnerProductHash
from slide.kernels import select as kernels
from slide.kernels.select import Lists
from slide.mips import FaissIndex
from slide.runtime import num_threads, random_key
from slide.sampling import Queries, UniformSampler, num_rows_of
from slide.sparse import CSR, Pattern
from slide.tables import HashTables

DEFAULT_FAMILY = partial(SimHash, hashes_per_table=8, num_tables=16)


class IndexedSampler(UniformSampler):
    """A sampler with an index over the weight rows that is rebuilt as they move.

    Args:
        in_features, out_features, active, mode, weighting, seed: see `UniformSampler`.
        hard_share: most of the places left by the labels that promising ids may take, in [0, 1];
            the rest is uniform.
        rebuild: how many rebuilds are due after a number of samples (see `slide.schedules`); a
            rebuild beyond the first, which comes before the first set.

    Attributes:
        rebuilds: how many so far.
        rebuild_seconds: time spent on them.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hard_share: float = 0.5,
        rebuild: Callable[[int], int] = schedules.backoff,
        **options: Any,
    ):
        super().__init__(in_features, out_features, **options)
        checks.share("hard_share", hard_share, with_one=True)
        rebuild(0)  # Schedules check their numbers when they are called.
        self.hard_share = hard_share
        self.rebuild_due = rebuild
        self.samples = 0
        self.done = 0  # of the rebuilds that the schedule asked for
        self.rebuilds = 0
        self.rebuild_seconds = 0.0

    def update(self, weight: Tensor, bias: Tensor | None, samples: int) -> None:
        """Rebuild before the first set, and whenever the schedule asks for it."""
        if self._full is not None:
            return
        due = self.rebuild_due(self.samples)
        if self.rebuilds == 0 or due > self.done:
            start = time.perf_counter()
            with torch.no_grad():
                self._rebuild(weight.detach(), None if bias is None else bias.detach())
            self.done = due
            self.rebuilds += 1
            self.rebuild_seconds += time.perf_counter() - start
        self.samples += samples

    def _rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        raise TypeError(f"{type(self).__name__} has no index")

    def _budget(self, places: int) -> int:
        return max(0, math.floor(self.hard_share * places))

    def state_dict(self) -> dict[str, Any]:
        """Counters; subclasses add their index."""
        counters = {"samples": self.samples, "done": self.done, "rebuilds": self.rebuilds}
        return super().state_dict() | counters

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        super().load_state_dict(state)
        self.samples, self.done = int(state["samples"]), int(state["done"])
        self.rebuilds = int(state["rebuilds"])


class LSHSampler(IndexedSampler):
    """Rows that collide with the input in hash tables, those in the most tables first.

    Per sample, an id's votes are the tables in which it shares the sample's bucket; shared, the
    votes of all samples are added up.

    Args:
        in_features, out_features, active, mode, weighting, seed, hard_share, rebuild: see
            `IndexedSampler`.
        family: makes a hash family of ``D + 2`` coordinates: called as ``family(D + 2, seed=s)``.
        bucket_capacity, bucket_policy: see `slide.tables.HashTables`.
        norm, center: see `slide.inner_product.InnerProductHash`.
        redraw: how many changes of hash functions are due after a number of samples.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        family: Callable[..., HashFamily] = DEFAULT_FAMILY,
        bucket_capacity: int = 128,
        bucket_policy: str = "reservoir",
        norm: str = "cosine",
        center: bool = True,
        redraw: Callable[[int], int] = schedules.never,
        **options: Any,
    ):
        super().__init__(in_features, out_features, **options)
        redraw(0)
        drawn = family(in_features + 2, seed=self.seed)
        self.hash = InnerProductHash(drawn, norm, center)
        self.tables = HashTables(
            drawn.num_tables, drawn.num_buckets, bucket_capacity, bucket_policy, self.seed
        )
        self.redraw_due = redraw
        self.draw = 0

    def _rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        draw = self.redraw_due(self.samples)
        if draw != self.draw:
            self.draw = draw
            self._redraw()
        self.hash.fit(weight, bias)
        self.tables.seed = self.seed + self.rebuilds
        self.tables.build(self.hash.row_codes(weight, bias))

    def _redraw(self) -> None:
        self.hash.family.redraw(int(random_key(self.seed, self.draw)))

    def _lists(self, queries: Queries, key: np.uint64) -> Lists:
        codes = self.hash.query_codes(queries)
        runs, capacity = num_threads(), self.tables.bucket_capacity
        most = min(self.out_features, len(codes) * capacity)
        num_samples = codes.shape[1]
        lists = Lists(
            np.empty((num_samples, self._budget(self.active)), np.int32),
            np.empty(num_samples, np.int64),
        )
        kernels.vote_per_sample(
            self.tables.buckets,
            codes,
            capacity,
            key,
            self._scratch.marks(runs),
            np.empty((runs, most), np.int32),
            lists,
        )
        return lists

    def _list(self, queries: Queries, budget: int) -> np.ndarray:
        codes = self.hash.query_codes(queries)
        capacity = self.tables.bucket_capacity
        out = np.empty(self._budget(budget), np.int32)
        taken = kernels.vote_shared(
            self.tables.buckets,
            codes,
            capacity,
            self._scratch.hits(self.tables.num_buckets),
            self._scratch.votes(),
            np.empty(min(self.out_features, codes.size * capacity), np.int32),
            np.empty(codes.size + 1, np.int64),
            out,
        )
        return out[:taken]

    def candidates(self, queries: Queries) -> Pattern:
        """All ids in the buckets of each input, for prediction; an id may occur several times."""
        return self.tables.query(self.hash.query_codes(queries))

    def state_dict(self) -> dict[str, Any]:
        """Counters, tables, and the state of the hash."""
        return super().state_dict() | {
            "draw": self.draw,
            "tables": self.tables.state_dict(),
            "hash": self.hash.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave; hash functions are drawn again from their seed."""
        super().load_state_dict(state)
        if int(state["draw"]) != self.draw:
            self.draw = int(state["draw"])
            self._redraw()
        self.tables.load_state_dict(state["tables"])
        self.hash.load_state_dict(state["hash"])


class FaissSampler(IndexedSampler):
    """Rows with large inner products by FAISS.

    Args:
        in_features, out_features, active, mode, weighting, seed, hard_share, rebuild: see
            `IndexedSampler`.
        kind, probes: see `slide.mips.FaissIndex`.
        neighbours: ids looked up for each sample in mode ``"shared"``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        kind: str = "ivf",
        probes: int = 16,
        neighbours: int = 32,
        **options: Any,
    ):
        super().__init__(in_features, out_features, **options)
        checks.whole("neighbours", neighbours, 1)
        self.index = FaissIndex(kind, probes)
        self.neighbours = neighbours

    def _rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        self.index.build(weight, bias, self.seed + self.rebuilds)

    def _search(self, queries: Queries, k: int) -> np.ndarray:
        if isinstance(queries, CSR):
            raise TypeError("FAISS searches dense inputs only; use an LSH sampler on this layer")
        return self.index.search(queries, k)

    def _lists(self, queries: Queries, key: np.uint64) -> Lists:
        ids = np.empty((num_rows_of(queries), 0), np.int64)
        if budget := self._budget(self.active):
            ids = self._search(queries, budget)
        # FAISS fills up with -1 at the end.
        return Lists(ids.astype(np.int32), (ids >= 0).sum(1))

    def _list(self, queries: Queries, budget: int) -> np.ndarray:
        budget = self._budget(budget)
        if not budget:
            return np.empty(0, np.int32)
        found = self._search(queries, min(self.neighbours, self.out_features))
        ids, votes = np.unique(found[found >= 0], return_counts=True)
        return ids[np.argsort(-votes, kind="stable")][:budget].astype(np.int32)

    def state_dict(self) -> dict[str, Any]:
        """Counters and the index."""
        return super().state_dict() | self.index.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        super().load_state_dict(state)
        self.index.load_state_dict(state)
