"""Candidates by locality-sensitive hashing: rows that share hash buckets with the input."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.backend import on_device, on_host, plain
from slide.hashing import HashFamily, HashTables, InnerProductHash, SimHash
from slide.hashing.tables import bucket_count
from slide.kernels.buckets import Buckets
from slide.kernels.votes import RankedIds
from slide.runtime import profiled, random_key
from slide.sampling import plain_lsh, rehashing, voting
from slide.sampling.best_ids import best_of_voted, dense, in_turns, ranked
from slide.sampling.drift import changed_codes, watched_rows
from slide.sampling.lsh_settings import LookUp, Upkeep
from slide.sampling.protocol import Proposer, Queries, num_queries
from slide.scratch import Scratch
from slide.sparse import Pattern
from slide.states import check_same_settings

# Rows are hashed again when this many are noted, or this share of all rows. So the product is
# efficient, and a small layer does not wait for most of its rows.
REHASH_ROWS = 1024
REHASH_SHARE = 0.25
# By default a row is hashed again after this many active sets. Sets per sample touch more rows.
REHASH_AFTER = {"shared": 8, "per_sample": 64}
# With `best`, so many times that many most-voted ids are scored.
POOL = 4
# What codes depend on, of the families that have it.
_SIZES = ("hashes_per_table", "bin_size")
_PUBLISHED, _USUAL = LookUp(), Upkeep()


class LSHProposer(Proposer):
    """Proposes the rows that collide with the input in the most hash tables.

    With a set for each sample, an id gets one vote from each table in which it is in the bucket of
    the sample (Chen et al. 2020, section 3.1). With a shared set, the votes of all samples are
    added up. With ``look_up.best``, votes only choose what is scored, and a shared set has places
    for each sample's own best ids.

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        family: makes a hash family of ``D + 2`` coordinates. It is called as
            ``family(D + 2, num_vectors=N, seed=seed)``.
        bucket_capacity, bucket_policy: see `slide.HashTables`.
        norm, center: see `slide.hashing.InnerProductHash`.
        look_up: how inputs are looked up; see `slide.sampling.LookUp`.
        upkeep: how tables follow the weights; see `slide.sampling.Upkeep`.
        seed: seed of hash functions and draws.

    Raises:
        ValueError: for a number or name out of range.

    Example:
        >>> import slide, torch
        >>> weight = torch.randn(1000, 16)
        >>> proposer = slide.LSHProposer(16, 1000)
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
        family: Callable[..., HashFamily] = SimHash,
        bucket_capacity: int | None = 128,
        bucket_policy: str = "reservoir",
        norm: str = "simple_lsh",
        center: bool = True,
        look_up: LookUp = _PUBLISHED,
        upkeep: Upkeep = _USUAL,
        seed: int = 0,
    ):
        super().__init__(in_features, out_features, seed=seed)
        self.probes, self.best = look_up
        self.sparse_inputs = look_up.published
        self._rows: tuple[Tensor, Tensor | None] | None = None
        upkeep.check()
        self.rehash_after, self.redraw_due = upkeep
        self._family: Callable[..., Any] | None = family
        self._make_tables(norm, center, bucket_capacity, bucket_policy)
        look_up.check(self.hash.family)
        self.draw = self.samples = self.rebuilds = 0

    def __getstate__(self) -> dict[str, Any]:
        # A lambda cannot be pickled, and only `resize` needs the family again.
        unnamed = "<" in getattr(self._family, "__qualname__", "")
        # The layer hands its weight over again before each set.
        return self.__dict__ | {"_rows": None} | ({"_family": None} if unnamed else {})

    def _make_tables(self, norm: str, center: bool, capacity: int | None, policy: str) -> None:
        """Hash functions and empty tables for the number of outputs."""
        if self._family is None:
            raise ValueError(
                "the hash family of this copy was a lambda, which is not copied, so its number of "
                "outputs cannot change; make the proposer with a class or functools.partial"
            )
        drawn = self._family(self.in_features + 2, num_vectors=self.out_features, seed=self.seed)
        self.hash = InnerProductHash(drawn, norm, center)
        sizes = drawn.num_tables, bucket_count(drawn.num_buckets, self.out_features)
        self.tables = HashTables(*sizes, capacity, policy, self.seed, drawn.num_buckets)
        self.codes: Any = np.empty((drawn.num_tables, 0), np.int32)
        self._scratch = Scratch(self.out_features)
        self._forget_updates()

    def resize(self, out_features: int) -> None:
        """See `Proposer.resize`; tables and hash functions are new, except for what was learnt."""
        super().resize(out_features)
        old, tables = self.hash, self.tables
        self._make_tables(old.norm, old.center, tables.bucket_capacity, tables.bucket_policy)
        if self.draw:
            self._redraw(self.draw)
        self.hash.take_over(old)

    @profiled("rebuild")
    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Hash all rows into empty tables, with new hash functions if a change is due."""
        self._rows, draw = (weight, bias), self.redraw_due(self.samples)
        if draw != self.draw:
            self._redraw(draw)
        self.hash.fit(weight, bias)
        self.hash.learn(weight, bias, random_key(self.seed, self.rebuilds, 1))
        self.tables.seed = self.seed + self.rebuilds
        codes = self.hash.row_codes(weight, bias)
        self.tables.build(codes)
        self.rebuilds += 1
        if self.rehash_after == 0:  # Then only `drift` asks for them.
            key = random_key(self.seed, self.rebuilds)
            codes = codes[:, watched_rows(self.out_features, key, codes)]
        self.codes = codes
        self._forget_updates()

    @profiled("drift")
    def drift(self, weight: Tensor, bias: Tensor | None) -> float | None:
        """The share of codes that differ from those in the tables; see `slide.sampling.drift`."""
        rows = watched_rows(self.out_features, random_key(self.seed, self.rebuilds), weight)
        return changed_codes(self.hash, self.codes, rows, weight, bias)

    def _redraw(self, draw: int) -> None:
        self.draw = draw
        # Draw 0 is the one that the family was made with.
        self.hash.family.redraw(int(random_key(self.seed, draw)) if draw else self.seed)

    def _forget_updates(self) -> None:
        self.updates: Any = np.zeros(0 if self.rehash_after == 0 else self.out_features, np.uint8)
        self.moved: list[Any] = []

    def observe(self, inputs: Queries) -> None:
        """Add the inputs to the running mean of inputs."""
        self.hash.observe(inputs)
        self.samples += num_queries(inputs)

    def touched(self, active: ActiveSet) -> None:
        """Count the updates of each row, and note the rows that reach ``rehash_after``."""
        limit = self.rehash_after
        if limit is None:
            limit = REHASH_AFTER["shared" if active.shared else "per_sample"]
        if limit:
            self.updates, rows = rehashing.note_updates(self.updates, active.ids, limit)
            self.moved.append(rows)

    @profiled("rehash")
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Hash the noted rows again and move them to their new buckets, if enough are noted."""
        self._rows = weight, bias
        enough = min(REHASH_ROWS, max(1, REHASH_SHARE * self.out_features))
        self.moved = rehashing.noted_rows(self.moved)
        if rehashing.count_noted(self.moved) < enough:
            return
        rows = rehashing.joined(self.moved, weight)
        at = torch.as_tensor(rows)
        codes = self.hash.row_codes(weight[at], None if bias is None else bias[at])
        if plain(weight):
            self.codes = plain_lsh.rehash(self.tables, self.codes, rows, codes)
            self.updates = on_device(self.updates, weight.device)
        else:
            self.tables.move(rows, self.codes[:, rows], codes)
            self.codes[:, rows] = codes
        self.updates[rows] = 0
        self.moved = []

    def candidates(self, queries: Queries) -> Pattern:
        """All ids in the buckets of each input; an id may be in several of them."""
        return self.tables.query(self.hash.query_codes(queries, self.probes))

    @profiled("score candidates")
    def _best(self, queries: Queries, labels: Pattern, key: np.uint64) -> np.ndarray:
        """Of each sample's most-voted ids those with the largest scores; see `best_of_voted`."""
        queries = dense(queries, "LSHProposer with best")
        assert self._rows is not None, "a sampler calls rebuild first"
        best = min(self.best or 0, self.out_features)
        codes = self.hash.query_codes(queries, self.probes)
        places = np.minimum(POOL * best + np.diff(labels.indptr), self.out_features)
        voted = voting.most_voted_ids(self.tables, codes, places, key, self._scratch)
        return best_of_voted(queries, *self._rows, voted, labels, best)

    def propose(
        self, queries: Queries, labels: Pattern, places: np.ndarray, key: np.uint64
    ) -> RankedIds | Tensor:
        """See `Proposer.propose`.

        Of ids with equal votes, those that are found first are chosen; where a sample begins to
        look, is drawn.
        """
        if self.best is not None:
            return ranked(self._best(queries, labels, key), places)
        codes = self.hash.query_codes(queries, self.probes)
        return voting.most_voted_ids(self.tables, codes, places, key, self._scratch)

    def propose_shared(
        self, queries: Queries, labels: Pattern, places: int, key: np.uint64
    ) -> np.ndarray | Tensor:
        """See `Proposer.propose_shared`; of ids with equal votes, the chosen ones are drawn.

        With ``best``: first each sample's best id, then the second ones, and so on.
        """
        if self.best is not None:
            return in_turns(self._best(queries, labels, key), places)
        codes = self.hash.query_codes(queries, self.probes)
        return voting.most_voted_by_all(self.tables, codes, places, key, self._scratch)

    def statistics(self) -> dict[str, float]:
        """How full the tables are."""
        share, largest = self.tables.occupancy()
        return {"tables/non_empty_share": share, "tables/largest_bucket": largest}

    def _settings(self) -> dict[str, Any]:
        """What tables and codes depend on, besides the sizes of the tables."""
        return {
            "family": type(self.hash.family).__name__,
            "seed": self.seed,
            "norm": self.hash.norm,
            "center": self.hash.center,
            "bucket_capacity": self.tables.bucket_capacity,
            "bucket_policy": self.tables.bucket_policy,
            "rehash_after": self.rehash_after,
            # Digits of other sizes may give codes of the same length.
            **{name: getattr(self.hash.family, name, None) for name in _SIZES},
        }

    def state_dict(self) -> dict[str, Any]:
        """Settings, counters, tables, and the state of the hash."""
        moved = np.concatenate([np.empty(0, np.int32), *map(on_host, self.moved)])
        return {
            "settings": self._settings(),
            "samples": self.samples,
            "rebuilds": self.rebuilds,
            "draw": self.draw,
            "tables": self.tables.state_dict(),
            "hash": self.hash.state_dict(),
            "codes": on_host(self.codes).copy(),
            "updates": on_host(self.updates).copy(),
            "moved": moved[moved >= 0],
        }

    def restore_tables(self, buckets: Buckets, mean_input: Tensor, draw: int) -> None:
        """Take tables for prediction, without a copy.

        Args:
            buckets: arrays of tables of the same shape.
            mean_input: ``(D,)`` float32; see `slide.hashing.InnerProductHash`.
            draw: number of changes of the hash functions when the tables were built.
        """
        if draw != self.draw:
            self._redraw(draw)
        self.tables.buckets, self.hash.mean_input = buckets, mean_input

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; hash functions are drawn again from their seed.

        Raises:
            ValueError: for the state of a proposer with other settings.
        """
        saved, own = state.get("settings", {}), self._settings()
        for name in _SIZES:  # Earlier states lack them.
            if name not in saved:
                del own[name]
        check_same_settings(state, own, "an LSHProposer")
        self.samples, self.rebuilds = int(state["samples"]), int(state["rebuilds"])
        if int(state["draw"]) != self.draw:
            self._redraw(int(state["draw"]))
        self.tables.load_state_dict(state["tables"])
        self.tables.seed = self.seed + max(self.rebuilds - 1, 0)
        self.hash.load_state_dict(state["hash"])
        self.codes, self.updates = state["codes"].copy(), state["updates"].copy()
        self.moved = [state["moved"].copy()]
