"""Active sets of the C++ program that was released with Chen et al. 2020 (SLIDE)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import on_host, uses_reference
from slide.hashing import DWTA, HashFamily, HashTables
from slide.hashing.families import MOST_TABLES, codes_of, new_family
from slide.hashing.hash_tables import bucket_count
from slide.ops.active_sets import RankedIds, vote_per_sample
from slide.ops.scratch import Scratch
from slide.runtime import num_threads
from slide.sampling import schedules
from slide.sampling.protocol import Proposer, Queries, num_queries
from slide.sparse import CSR, Pattern
from slide.utils import checks
from slide.utils.array_checks import Expected, check_arrays, check_counter
from slide.utils.profiling import profiled
from slide.utils.random_keys import random_key
from slide.utils.tensor_folder import check_same_settings

# Far below any other coordinate, and above none that is negative.
_TINY = 1e-30


released_hash = partial(DWTA, packing="released")


class PublishedLSHProposer(Proposer):
    """Proposes the outputs that the C++ program released with Chen et al. 2020 computes.

    It hashes weights and inputs without biases. The candidates of a sample are all ids in its
    buckets of all tables, without a threshold on votes ("mode 4" of the program). If these and the
    labels are fewer than ``fill``, the next ids of a shuffled list of all outputs follow, from a
    position drawn for the batch (the program draws it once a second). Tables change by rebuilds
    alone. To keep all candidates, give the `ActiveSampler` ``candidate_share=None``; with less room
    it keeps the ids in the most buckets.

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        family: makes a hash family of D coordinates. It is called as
            ``family(D, hashes_per_table=K, num_tables=L, seed=seed)``.
        hashes_per_table, num_tables: K and L; None: 6, and 50 as in the released configuration for
            Amazon-670K.
        bucket_capacity, bucket_policy: see `slide.HashTables`.
        fill: minimum number of outputs of a sample, labels included. A layer with no more outputs
            than this, which the program computes whole, is not filled up.
        redraw: schedule of new hash functions: a function from a number of samples to the number of
            changes due, such as `slide.sampling.fixed`. A change takes effect at the next rebuild.
        seed: seed of hash functions and draws.

    Raises:
        ValueError: for a number or name out of range.
        TypeError: for a schedule that is not a function.

    Example:
        >>> import slide, torch
        >>> from slide.sampling import PublishedLSHProposer
        >>> weight = torch.randn(1000, 16)
        >>> proposer = PublishedLSHProposer(16, 1000)
        >>> proposer.rebuild(weight, None)
        >>> found = proposer.candidates(weight[:1])
        >>> bool((found.indices == 0).any())
        True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        family: Callable[..., HashFamily] = released_hash,
        hashes_per_table: int | None = None,
        num_tables: int | None = None,
        bucket_capacity: int | None = 128,
        bucket_policy: str = "fifo",
        fill: int = 1000,
        redraw: schedules.Schedule = schedules.never,
        seed: int = 0,
    ):
        super().__init__(in_features, out_features, seed=seed)
        schedules.check_schedule("redraw", redraw)
        fill = checks.whole("fill", fill, 0)
        self.redraw_due, self.fill = redraw, fill
        self.hashes_per_table = 6 if hashes_per_table is None else hashes_per_table
        self.num_tables = 50 if num_tables is None else num_tables
        checks.whole_within("num_tables", self.num_tables, 1, MOST_TABLES)
        self._family, self._capacity, self._policy = family, bucket_capacity, bucket_policy
        self.samples = self.draw = self.rebuilds = 0
        self._make_tables()

    def _make_tables(self) -> None:
        """Hash functions and empty tables for the number of outputs."""
        n, width = self.out_features, self.in_features
        sizes = self.hashes_per_table, self.num_tables
        self.hash = new_family(self._family, width, *sizes, self.seed)
        codes, buckets = self.hash.num_buckets, bucket_count(self.hash.num_buckets, n)
        self.tables = HashTables(
            self.hash.num_tables,
            buckets,
            bucket_capacity=self._capacity,
            bucket_policy=self._policy,
            seed=self.seed,
            num_codes=codes,
        )
        self.codes: Any = np.empty((self.hash.num_tables, 0), np.int32)
        self.retrieved = 0.0
        self._scratch = Scratch()
        self._order = np.random.default_rng([0xF111, self.seed]).permutation(n).astype(np.int32)

    def resize(self, out_features: int) -> None:
        super().resize(out_features)
        self._make_tables()
        self._redraw(self.draw)

    def _redraw(self, draw: int) -> None:
        self.draw = draw
        # Draw 0 is the one that the family was made with.
        self.hash.redraw(int(random_key(self.seed, draw)) if draw else self.seed)

    @profiled("rebuild")
    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Hash all rows into empty tables, with new hash functions if a change is due."""
        draw = self.redraw_due(self.samples)
        if draw != self.draw:
            self._redraw(draw)
        self.codes = codes_of(self.hash, weight)
        self.rebuilds += 1
        self._build()

    def _build(self) -> None:
        self.tables.seed = self.seed + self.rebuilds
        self.tables.build(self.codes)

    def observe(self, inputs: Queries) -> None:
        """Count the samples, on which the schedule of hash functions depends."""
        self.samples += num_queries(inputs)

    def _query_codes(self, queries: Queries) -> Any:
        if isinstance(queries, CSR):
            return codes_of(self.hash, queries)
        if getattr(self.hash, "packing", None) != "released":
            return codes_of(self.hash, queries.detach())
        # Most coordinates are 0 after a ReLU. Of equal ones in a bin the released program takes the
        # first in the order of the coordinates, so its position there, the digit, is as if drawn.
        numbers = torch.arange(1, self.in_features + 1, dtype=torch.float32, device=queries.device)
        falling = numbers * -_TINY
        queries = queries.detach()
        return codes_of(self.hash, torch.where(queries == 0, falling.to(queries.dtype), queries))

    def candidates(self, queries: Queries) -> Pattern:
        """All ids in the buckets of each input; an id may be in several of them."""
        return self.tables.query(self._query_codes(queries))

    @profiled("votes")
    def propose(
        self, queries: Queries, labels: Pattern, wanted: np.ndarray, key: np.uint64
    ) -> RankedIds | Tensor:
        """See `Proposer.propose`; of ids with equal votes, the first that are found."""
        if uses_reference(queries):
            found = super().propose(queries, labels, wanted, key)
            assert isinstance(found, RankedIds)
        else:
            found = self._voted(self._query_codes(queries), wanted, key)
        return self._filled_up(found, labels, wanted, key)

    def _voted(self, codes: Any, wanted: np.ndarray, key: np.uint64) -> RankedIds:
        tables, n = self.tables, self.out_features
        most = min(n, len(codes) * tables.capacity)
        counts = np.minimum(wanted, most)
        ranked = RankedIds(np.empty((len(counts), counts.max(initial=0)), np.int32), counts)
        runs, filled = num_threads(), self._scratch.filled
        room = filled("votes", (runs, n), np.uint8), filled("ids", (runs, most), np.int32)
        codes = tables.buckets_of(codes)
        vote_per_sample(tables.arrays(), codes, tables.capacity, key, *room, ranked)
        return ranked

    def _filled_up(
        self, found: RankedIds, labels: Pattern, wanted: np.ndarray, key: np.uint64
    ) -> RankedIds:
        """The ids that were found, without labels, and ids of the list that are wanting."""
        least = self.fill if self.fill < self.out_features else 0
        start = int(random_key(int(key), 1)) % self.out_features
        length = least + found.counts.max(initial=0)  # The set may hold as many already.
        run = self._order[(start + np.arange(min(length, self.out_features))) % self.out_features]
        mark = self._scratch.filled("marks", (1, self.out_features), np.uint8)[0]
        own, retrieved, filled = [], 0, 0
        for b, count in enumerate(found.counts):
            targets = labels.indices[labels.indptr[b] : labels.indptr[b + 1]]
            mark[targets] = 1
            ids = found.ids[b, :count]
            ids = ids[mark[ids] == 0]
            looked_up = len(ids)
            retrieved += len(targets) + looked_up
            if (wanting := least - len(targets) - looked_up) > 0:
                mark[ids] = 1
                ids = np.concatenate([ids, run[mark[run] == 0][:wanting]])
                mark[ids] = 0
            mark[targets] = 0
            own.append(ids[: wanted[b]])
            filled += max(0, len(own[-1]) - looked_up)
        self.retrieved, self.filled = retrieved / max(1, len(own)), filled
        counts = np.array([len(ids) for ids in own], np.int64)
        out = np.empty((len(own), counts.max(initial=0)), np.int32)
        for b, ids in enumerate(own):
            out[b, : len(ids)] = ids
        return RankedIds(out, counts)

    def description(self) -> str:
        """See `Proposer.description`."""
        hashes, tables = self.hashes_per_table, self.num_tables
        return (
            f"{type(self.hash).__name__} tables as published (K {hashes}, L {tables}) over "
            f"{self.out_features:,} outputs"
        )

    def statistics(self) -> dict[str, float]:
        """See `Proposer.statistics`; rows that were seen are the rows of a set without the fill."""
        return {"look_up/rows_seen": self.retrieved, **self.tables.statistics()}

    def sizes(self) -> dict[str, int]:
        """See `Proposer.sizes`."""
        return {"num_tables": self.num_tables, "hashes_per_table": self.hashes_per_table}

    def _settings(self) -> dict[str, Any]:
        """What tables depend on, besides the codes."""
        names = ("hashes_per_table", "num_tables", "bin_size", "packing")
        return {
            "family": type(self.hash).__name__,
            "seed": self.seed,
            "bucket_capacity": self._capacity,
            "bucket_policy": self._policy,
            "fill": self.fill,
            **{name: getattr(self.hash, name, None) for name in names},
        }

    def state_dict(self) -> dict[str, Any]:
        """Settings, counters, and the codes of the last rebuild, which the tables are made from."""
        counters = {name: getattr(self, name) for name in ("samples", "rebuilds", "draw")}
        codes = on_host(self.codes).copy()
        return {"settings": self._settings(), **counters, "codes": codes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; hash functions are drawn again from their seed."""
        check_same_settings(state, self._settings(), "a PublishedLSHProposer")
        what, codes = "the state of a PublishedLSHProposer", state["codes"]
        check_arrays(what, state, {"codes": Expected((None, None), "int32")})
        if codes.shape not in ((self.hash.num_tables, n) for n in (0, self.out_features)):
            raise ValueError(f"codes {codes.shape} do not fit {self.out_features} outputs")
        known = Expected(codes.shape, "int32", 0, self.hash.num_buckets - 1)
        check_arrays(what, state, {"codes": known})
        samples, draw, rebuilds = (
            check_counter(what, name, state[name]) for name in ("samples", "draw", "rebuilds")
        )
        if draw != self.draw:
            self._redraw(draw)
        self.samples, self.codes, self.rebuilds = samples, codes.copy(), rebuilds
        self._build()
