"""Active sets of the C++ program that was released with Chen et al. 2020 (SLIDE)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import on_host, plain
from slide.hashing import DWTA, HashFamily, HashTables
from slide.hashing.tables import bucket_count
from slide.kernels.votes import RankedIds, vote_per_sample
from slide.runtime import num_threads, profiled, random_key
from slide.sampling import schedules
from slide.sampling.protocol import Proposer, Queries, num_queries
from slide.scratch import Scratch
from slide.sparse import CSR, Pattern
from slide.states import check_same_settings

# Far below any other coordinate, and above none that is negative.
_TINY = 1e-30


# The hash of the released configuration for Amazon-670K.
released_hash = partial(DWTA, hashes_per_table=6, num_tables=50, packing="released")


class PublishedLSHProposer(Proposer):
    """Proposes what the C++ program released with Chen et al. 2020 retrieves (in its "mode 4").

    Weights and inputs are hashed as they are, without biases. A sample's candidates are all ids in
    its buckets of all tables, without a threshold on votes; where a set has fewer places, those
    with the most votes. With ``candidate_share=None`` an `ActiveSampler` takes all of them and, as
    that program, draws outputs at random only where they and the labels are fewer than ``active``.
    Tables follow the weights by rebuilds alone. It is here for comparison: `slide.LSHProposer`
    finds more.

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        family: makes a hash family of D coordinates. It is called as
            ``family(D, num_vectors=N, seed=seed)``.
        bucket_capacity, bucket_policy: see `slide.HashTables`.
        redraw: schedule of new hash functions: a function from a number of samples to the number of
            changes due, such as `slide.sampling.fixed`. A change takes effect at the next rebuild.
        seed: seed of hash functions and draws.

    Raises:
        ValueError: for a number or name out of range.
        TypeError: for a schedule that is none.

    Example:
        >>> import slide, torch
        >>> weight = torch.randn(1000, 16)
        >>> proposer = slide.sampling.PublishedLSHProposer(16, 1000)
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
        bucket_capacity: int | None = 128,
        bucket_policy: str = "fifo",
        redraw: schedules.Schedule = schedules.never,
        seed: int = 0,
    ):
        super().__init__(in_features, out_features, seed=seed)
        schedules.check_schedule("redraw", redraw)
        self.redraw_due = redraw
        self._family, self._capacity, self._policy = family, bucket_capacity, bucket_policy
        self.samples = self.draw = self.rebuilds = 0
        self._make_tables()

    def _make_tables(self) -> None:
        """Hash functions and empty tables for the number of outputs."""
        n, width = self.out_features, self.in_features
        self.hash = self._family(width, num_vectors=n, seed=self.seed)
        codes, buckets = self.hash.num_buckets, bucket_count(self.hash.num_buckets, n)
        shape = self.hash.num_tables, buckets, self._capacity, self._policy, self.seed
        self.tables = HashTables(*shape, num_codes=codes)
        self.codes: Any = np.empty((self.hash.num_tables, 0), np.int32)
        self.found = 0.0  # Candidates of a sample in the last set, in the mean.
        self._scratch = Scratch(n)

    def resize(self, out_features: int) -> None:
        """See `Proposer.resize`."""
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
        self.codes = self.hash.codes(weight)
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
            return self.hash.sparse_codes(queries)
        # Most coordinates are 0 after a ReLU. Of equal ones in a bin the released program takes the
        # first in the order of the coordinates, so its place there, the digit, is as if drawn.
        falling = torch.arange(1, self.in_features + 1, device=queries.device) * -_TINY
        queries = queries.detach()
        return self.hash.codes(torch.where(queries == 0, falling.to(queries.dtype), queries))

    def candidates(self, queries: Queries) -> Pattern:
        """All ids in the buckets of each input; an id may be in several of them."""
        return self.tables.query(self._query_codes(queries))

    @profiled("votes")
    def propose(
        self, queries: Queries, labels: Pattern, places: np.ndarray, key: np.uint64
    ) -> RankedIds | Tensor:
        """See `Proposer.propose`; of ids with equal votes, those that are found first."""
        codes = self._query_codes(queries)
        if plain(codes):
            ranked = super().propose(queries, labels, places, key)
            assert isinstance(ranked, RankedIds)
        else:
            tables, n = self.tables, self.out_features
            most = min(n, len(codes) * tables.capacity)
            counts = np.minimum(places, most)
            ranked = RankedIds(np.empty((len(counts), counts.max(initial=0)), np.int32), counts)
            runs, filled = num_threads(), self._scratch.filled
            votes, room = filled("votes", (runs, n), np.uint8), filled("ids", (runs, most), np.int32)
            buckets = tables.arrays(), tables.buckets_of(codes), tables.capacity
            vote_per_sample(*buckets, key, votes, room, ranked)
        self.found = float(ranked.counts.mean()) if len(ranked.counts) else 0.0
        return ranked

    def statistics(self) -> dict[str, float]:
        """How full the tables are, and how many ids they gave a sample."""
        share, largest = self.tables.occupancy()
        return {
            "tables/found": self.found,
            "tables/non_empty_share": share,
            "tables/largest_bucket": largest,
        }

    def _settings(self) -> dict[str, Any]:
        """What tables depend on, besides the codes."""
        names = ("hashes_per_table", "num_tables", "bin_size", "packing")
        return {
            "family": type(self.hash).__name__,
            "seed": self.seed,
            "bucket_capacity": self._capacity,
            "bucket_policy": self._policy,
            **{name: getattr(self.hash, name, None) for name in names},
        }

    def state_dict(self) -> dict[str, Any]:
        """Settings, counters, and the codes of the last rebuild, which the tables are made from."""
        counters = {name: getattr(self, name) for name in ("samples", "rebuilds", "draw")}
        codes = on_host(self.codes).copy()
        return {"settings": self._settings(), **counters, "codes": codes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; hash functions are drawn again from their seed.

        Raises:
            ValueError: for the state of a proposer with other settings, or other numbers of tables
                or outputs.
        """
        check_same_settings(state, self._settings(), "a PublishedLSHProposer")
        codes = state["codes"]
        if codes.shape not in ((self.hash.num_tables, n) for n in (0, self.out_features)):
            raise ValueError(f"codes {codes.shape} do not fit {self.out_features} outputs")
        self.samples = int(state["samples"])
        if int(state["draw"]) != self.draw:
            self._redraw(int(state["draw"]))
        self.codes, self.rebuilds = codes.copy(), int(state["rebuilds"])
        self._build()
