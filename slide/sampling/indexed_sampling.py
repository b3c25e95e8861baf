"""Samplers that follow the weights with an index over their rows: hash tables, or FAISS."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide import checks
from slide.active_set import ActiveSet
from slide.hashing.family import HashFamily
from slide.hashing.inner_product import InnerProductHash
from slide.hashing.simhash import SimHash
from slide.hashing.tables import HashTables
from slide.kernels import assemble_sets as select
from slide.kernels import votes
from slide.kernels.votes import Lists
from slide.runtime import num_threads, random_key
from slide.sampling import schedules
from slide.sampling.faiss_index import FaissIndex
from slide.sampling.sampling import Queries, UniformSampler, num_rows_of
from slide.sparse import CSR, Pattern

# Rows hashed again at once: enough for an efficient product, but not most of a small layer.
REHASH_ROWS = 1024
REHASH_SHARE = 0.25


class IndexedSampler(UniformSampler):
    """A sampler with an index over the weight rows that is rebuilt as they move.

    Args:
        in_features, out_features, active, mode, weighting, seed: see `UniformSampler`.
        hard_share: most of the places left by the labels that promising ids may take, in [0, 1];
            the rest is uniform.
        rebuild: how many rebuilds are due after a number of samples (see `slide.sampling.schedules`); a
            rebuild beyond the first, which comes before the first set.

    Attributes:
        rebuilds: how many so far.
        rebuild_seconds: time spent on them, and on partial ones.
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
        self._training = False

    def update(self, weight: Tensor, bias: Tensor | None, inputs: Queries | None) -> None:
        """Rebuild before the first set, and whenever the schedule asks for it."""
        if self._full is not None:
            return
        if inputs is not None:
            self._observe(inputs)
        due = self.rebuild_due(self.samples)
        if self.rebuilds == 0 or due > self.done:
            start = time.perf_counter()
            with torch.no_grad():
                self._rebuild(weight.detach(), None if bias is None else bias.detach())
            self.done = due
            self.rebuilds += 1
            self.rebuild_seconds += time.perf_counter() - start
        elif self._stale():
            start = time.perf_counter()
            with torch.no_grad():
                self._refresh(weight.detach(), None if bias is None else bias.detach())
            self.rebuild_seconds += time.perf_counter() - start
        self._training = inputs is not None
        if inputs is not None:
            self.samples += num_rows_of(inputs)

    def _stale(self) -> bool:
        """Whether `_refresh` is worth its while."""
        return False

    def _refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Bring the index up to date where it is most out of date."""

    def _observe(self, inputs: Queries) -> None:
        """Take note of inputs to train on."""

    def _rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        raise TypeError(f"{type(self).__name__} has no index")

    def _budgets(self, places: np.ndarray) -> np.ndarray:
        """Most promising ids that may take ``places`` left by labels, int64."""
        most = np.floor(self.hard_share * places).astype(np.int64)
        return np.maximum(np.minimum(most, places - self._reserve), 0)

    def _budget(self, places: int) -> int:
        return int(self._budgets(np.array([places]))[0])

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
        family: makes a hash family of ``D + 2`` coordinates: called as
            ``family(D + 2, num_vectors=N, seed=s)``.
        bucket_capacity, bucket_policy: see `slide.hashing.tables.HashTables`.
        norm, center: see `slide.hashing.inner_product.InnerProductHash`.
        redraw: how many changes of hash functions are due after a number of samples.
        rehash_after: between rebuilds, a row that has been in so many sets of training steps is
            hashed again, in [1, 255]; None: 8, and 64 with a set for each sample, which costs some
            per cent of a step; 0: never.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        family: Callable[..., HashFamily] = SimHash,
        bucket_capacity: int = 128,
        bucket_policy: str = "reservoir",
        norm: str = "simple_lsh",
        center: bool = True,
        redraw: Callable[[int], int] = schedules.never,
        rehash_after: int | None = None,
        **options: Any,
    ):
        super().__init__(in_features, out_features, **options)
        redraw(0)
        if rehash_after is None:
            rehash_after = 8 if self.mode == "shared" else 64
        checks.whole("rehash_after", rehash_after, 0)
        checks.within("rehash_after", rehash_after, 0, 255)
        self.rehash_after = rehash_after
        drawn = family(in_features + 2, num_vectors=out_features, seed=self.seed)
        self.hash = InnerProductHash(drawn, norm, center)
        self.tables = HashTables(
            drawn.num_tables, drawn.num_buckets, bucket_capacity, bucket_policy, self.seed
        )
        self.redraw_due = redraw
        self.draw = 0
        self.codes = np.empty((drawn.num_tables, 0), np.int32)
        self._forget_updates()

    def _rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        draw = self.redraw_due(self.samples)
        if draw != self.draw:
            self.draw = draw
            self._redraw()
        self.hash.fit(weight, bias)
        self.tables.seed = self.seed + self.rebuilds
        codes = self.hash.row_codes(weight, bias)
        self.tables.build(codes)
        if self.rehash_after:
            self.codes = codes
        self._forget_updates()

    def _forget_updates(self) -> None:
        self.updates = np.zeros(self.out_features if self.rehash_after else 0, np.uint8)
        self.moved: list[np.ndarray] = []

    def select(self, queries: Queries, labels: Pattern | None) -> ActiveSet:
        """See `slide.sampling.sampling.Sampler.select`."""
        active = super().select(queries, labels)
        if self.rehash_after and self._training and self._full is None:
            out = np.empty(len(active.ids), np.int32)
            n = select.count_updates(active.ids, self.updates, self.rehash_after, out)
            self.moved.append(out[:n].copy())
        return active

    def _stale(self) -> bool:
        enough = min(REHASH_ROWS, max(1, REHASH_SHARE * self.out_features))
        return sum(map(len, self.moved)) >= enough

    def _refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        ids = np.concatenate(self.moved)
        at = torch.from_numpy(ids)
        codes = self.hash.row_codes(weight[at], None if bias is None else bias[at])
        self.tables.move(ids, self.codes[:, ids], codes)
        self.codes[:, ids] = codes
        self.updates[ids] = 0
        self.moved = []

    def _observe(self, inputs: Queries) -> None:
        self.hash.observe(inputs)

    def _redraw(self) -> None:
        # Draw 0 is the one that the family was made with.
        self.hash.family.redraw(int(random_key(self.seed, self.draw)) if self.draw else self.seed)

    def _lists(self, queries: Queries, places: np.ndarray, key: np.uint64) -> Lists:
        codes = self.hash.query_codes(queries)
        runs, capacity = num_threads(), self.tables.bucket_capacity
        most = min(self.out_features, len(codes) * capacity)
        budgets = self._budgets(places)
        lists = Lists(np.empty((len(budgets), budgets.max(initial=0)), np.int32), budgets)
        votes.vote_per_sample(
            self.tables.buckets,
            codes,
            capacity,
            # Not the key of the fill: uniform ids must not depend on which ids are listed.
            random_key(int(key), 1),
            self._scratch.marks(runs),
            np.empty((runs, most), np.int32),
            lists,
        )
        return lists

    def _list(self, queries: Queries, budget: int, key: np.uint64) -> np.ndarray:
        if not self._budget(budget):  # The labels leave no place.
            return np.empty(0, np.int32)
        codes = self.hash.query_codes(queries)
        tables, capacity = self.tables, self.tables.bucket_capacity
        num_tables, num_samples = codes.shape
        scratch = self._scratch.ballot_box(num_tables, num_samples, tables.num_buckets, capacity)
        out = np.empty(self._budget(budget), np.int32)
        # Not the key of the fill: uniform ids must not depend on which ids are listed.
        key = random_key(int(key), 1)
        return out[: votes.vote_shared(tables.buckets, codes, capacity, key, scratch, out)]

    def candidates(self, queries: Queries) -> Pattern:
        """All ids in the buckets of each input, for prediction; an id may occur several times."""
        if self._full is not None:
            n, every = num_rows_of(queries), np.arange(self.out_features, dtype=np.int32)
            return Pattern(np.arange(n + 1) * len(every), np.tile(every, n))
        return self.tables.query(self.hash.query_codes(queries))

    def state_dict(self) -> dict[str, Any]:
        """Counters, tables, and the state of the hash."""
        return super().state_dict() | {
            "draw": self.draw,
            "tables": self.tables.state_dict(),
            "hash": self.hash.state_dict(),
            "rehash_after": self.rehash_after,
            "codes": self.codes.copy(),
            "updates": self.updates.copy(),
            "moved": np.concatenate([np.empty(0, np.int32), *self.moved]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave; hash functions are drawn again from their seed."""
        if int(state["rehash_after"]) != self.rehash_after:
            raise ValueError(
                f"rehash_after was {state['rehash_after']} where this state was saved, and is "
                f"{self.rehash_after} here; they must agree"
            )
        super().load_state_dict(state)
        if int(state["draw"]) != self.draw:
            self.draw = int(state["draw"])
            self._redraw()
        self.tables.load_state_dict(state["tables"])
        self.hash.load_state_dict(state["hash"])
        self.codes, self.updates = state["codes"].copy(), state["updates"].copy()
        self.moved = [state["moved"].copy()]


class FaissSampler(IndexedSampler):
    """Rows with large inner products by FAISS.

    Args:
        in_features, out_features, active, mode, weighting, seed, hard_share, rebuild: see
            `IndexedSampler`.
        kind, probes: see `slide.sampling.faiss_index.FaissIndex`.
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

    def _lists(self, queries: Queries, places: np.ndarray, key: np.uint64) -> Lists:
        budgets = self._budgets(places)
        ids = np.empty((len(budgets), 0), np.int64)
        if most := int(budgets.max(initial=0)):
            ids = self._search(queries, most)
        # FAISS fills up with -1 at the end.
        return Lists(ids.astype(np.int32), np.minimum((ids >= 0).sum(1), budgets))

    def _list(self, queries: Queries, budget: int, key: np.uint64) -> np.ndarray:
        budget = self._budget(budget)
        if not budget:
            return np.empty(0, np.int32)
        found = self._search(queries, min(self.neighbours, self.out_features))
        by_rank = found.T.ravel()
        # Equal votes: the id that comes first in some sample's list wins.
        ids, first, votes = np.unique(by_rank[by_rank >= 0], return_index=True, return_counts=True)
        return ids[np.lexsort((first, -votes))][:budget].astype(np.int32)

    def state_dict(self) -> dict[str, Any]:
        """Counters and the index."""
        return super().state_dict() | self.index.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        super().load_state_dict(state)
        self.index.load_state_dict(state)
