"""Candidates by hash tables: the rows that share hash buckets with the input, the best first."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.backend import on_device, on_host, uses_reference
from slide.hashing import HashFamily, HashTables, SimHash
from slide.hashing.families import MOST_PROBES, MOST_TABLES, check_maker, codes_of, new_family
from slide.hashing.hash_tables import bucket_count
from slide.ops.buckets import SPARE
from slide.ops.sketches import FIRST, LINE
from slide.sampling.head import Head, bound_of
from slide.sampling.ranked import BLOCK, SketchedProposer, blocks
from slide.sampling.sketch import index_arrays
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.array_checks import Expected, check_arrays, check_counter
from slide.utils.profiling import profiled
from slide.utils.random_keys import random_key
from slide.utils.tensor_folder import check_same_settings

# Number of tables, and mean number of rows in a bucket, which determines K.
NUM_TABLES, _IN_BUCKET = 8, 16
# Number of directions that are hashed, of those of a sketch.
_HASHED = 32
# Size of the head, the rows that every input scans beside its buckets: N / 64, at most 4,096.
_HEAD, _MOST_HEAD = 1 / 64, 4096
# Choose the head again when its size leaves this band around its target.
_FEWEST, _MOST = 0.8, 1.5
# Maximum number of rows in a bucket, which keeps the rows that were hashed last.
_CAPACITY = 128
# Steps between two moves of changed rows: moving after every step costs nearly as much each time
# and gains nothing. Rows change less and less, so the interval is an eighth of all steps so far,
# within these bounds.
_STEPS, _MOST_STEPS = 8, 64


class LSHProposer(SketchedProposer):
    """Proposes the rows with the largest scores in the hash buckets of an input (SLIDE).

    Rows and inputs are projected on the principal directions of recent inputs
    (`slide.hashing.projection.Projection`), without the mean row and the mean input, and hashed
    there. An input reads its bucket in each table. Sketches, which are the projected rows rounded
    to 8 bits, rank the rows in the buckets; the best ones are scored with the weights.

    The rows that steps changed most, their labels and candidates, move to their new buckets every 8
    steps, and later every 64. A rebuild finds the directions of recent inputs, draws new hash
    functions, and hashes all rows. (Chen et al. 2020, "SLIDE: in defense of smart algorithms over
    hardware acceleration", section 3.1; `slide.sampling.PublishedLSHProposer` is the published
    version.)

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        family: makes a hash family. It is called as
            ``family(in_features, hashes_per_table=K, num_tables=L, seed=seed)``, with a small power
            of two as ``in_features``.
        hashes_per_table: K, number of hashes in a code; None: chosen so that a bucket has 16
            rows on average.
        num_tables: L, number of tables; None: 8.
        probes: number of further buckets that an input reads in each table, at most 64: those that
            its least certain hashes lead to (Lv et al. 2007, "Multi-probe LSH"). None: 0.
        best: maximum number of candidates of a sample.
        seed: seed of hash functions.

    Raises:
        ValueError: for a number out of range.

    Attributes:
        tables: the hash tables.
        codes: ``(L, N)`` int32, the code of each row in each table.
        rows_scanned: mean number of rows that an input of the last look-up has scanned; a row
            counts as often as it is in a bucket.

    Example:
        >>> import slide, torch
        >>> weight = torch.randn(10_000, 16, generator=torch.Generator().manual_seed(0))
        >>> proposer = slide.LSHProposer(16, 10_000)
        >>> proposer.rebuild(weight, None)
        >>> found = proposer.candidates(weight[:1])
        >>> bool((found.indices == 0).any())
        True
    """

    scored, width = 2, LINE

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        family: Callable[..., HashFamily] = SimHash,
        hashes_per_table: int | None = None,
        num_tables: int | None = None,
        probes: int | None = None,
        best: int = 16,
        seed: int = 0,
    ):
        super().__init__(in_features, out_features, best=best, seed=seed)
        if hashes_per_table is not None:
            hashes_per_table = checks.whole("hashes_per_table", hashes_per_table, 1)
        if num_tables is not None:
            num_tables = checks.whole_within("num_tables", num_tables, 1, MOST_TABLES)
        if probes is not None:
            checks.whole_within("probes", probes, 0, MOST_PROBES)
        check_maker(family)
        self.hashes_per_table, self.num_tables, self.probes = hashes_per_table, num_tables, probes
        self.family, self.rebuilds, self.steps = family, 0, 0
        self._size()

    def __getstate__(self) -> dict[str, Any]:
        # A lambda cannot be pickled, and only `resize` needs the family again.
        unnamed = "<" in getattr(self.family, "__qualname__", "")
        return super().__getstate__() | ({"family": None} if unnamed else {})

    def _size(self) -> None:
        """Hash functions and empty tables for the number of outputs."""
        if self.family is None:
            raise ValueError(
                "the hash family of this copy was a lambda, which is not copied, so its number of "
                "outputs cannot change; make the proposer with a class or functools.partial"
            )
        directions, rows = self.projection.directions.shape[1], self.out_features
        width = 1 << (min(_HASHED, directions) - 1).bit_length()  # Of what is hashed.
        hashes = self.hashes_per_table
        if hashes is None:
            values = new_family(self.family, width, 1, 1, seed=0).num_buckets
            hashes = max(1, round(math.log2(max(2, rows / _IN_BUCKET)) / math.log2(values)))
        tables = NUM_TABLES if self.num_tables is None else self.num_tables
        self.hash = new_family(self.family, width, hashes, tables, self.seed)
        codes = self.hash.num_buckets
        buckets = bucket_count(codes, rows)
        self.tables = HashTables(
            tables,
            buckets,
            bucket_capacity=_CAPACITY,
            bucket_policy="fifo",
            num_codes=codes,
            growing=True,
        )
        self._sizes = {"hashes_per_table": hashes, "num_tables": tables}
        super()._size()
        self.codes: Any = np.zeros((tables, 0), np.int32)
        self._most = max(1, min(round(_HEAD * rows), _MOST_HEAD))
        self._head, self._bound = Head(np.empty(0, np.int32), self.sketches), -np.inf

    @profiled("rebuild")
    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Find the directions of recent inputs, draw hash functions, and hash all rows."""
        self._rows = weight, bias
        self.projection.renew(weight, bias, self.numbers)
        self._make_room(weight)
        for some in blocks(np.arange(len(weight), dtype=np.int32)):
            self._sketch(weight, bias, some)
        self.rebuilds += 1
        self.changed.settle(weight, bias)
        scores = self._hash()
        placed = on_device(self.codes, self.sketches.device)
        placed = placed if uses_reference(self.sketches) else self.codes
        # A full bucket keeps the rows that came last.
        self.tables.build(placed, _ascending(scores))
        self._choose_head(scores)

    def _sketch(self, weight: Tensor, bias: Tensor | None, rows: np.ndarray) -> Tensor:
        """Sketch some rows anew."""
        sketches = self._sketched(weight, bias, rows)
        self.sketches[on_device(rows, sketches.device).long()] = sketches
        return sketches

    def _hash(self) -> np.ndarray:
        """Draw hash functions, which may find what the last ones missed, and hash all sketches.

        Returns the largest possible scores of the rows, ``(N,)``.
        """
        self.hash.redraw(int(random_key(self.seed, self.rebuilds)))
        codes = [on_host(self._codes(some)) for some in self.sketches.split(BLOCK)]
        self.codes = np.concatenate(codes, 1)
        return self._largest_scores(self.sketches)

    def _choose_head(self, scores: np.ndarray) -> None:
        """Choose the head: the rows with the largest possible scores ``(N,)``."""
        self._bound = bound_of(scores, self._most)
        self._take_head(scores)

    def _take_head(self, scores: np.ndarray) -> None:
        rows = np.flatnonzero(scores > self._bound).astype(np.int32)
        self._head = Head(rows, self.sketches.cpu())

    def _codes(self, sketches: Tensor) -> Any:
        """The codes ``(L, n)`` int32 of rows, which depend on their sketches alone."""
        known = min(_HASHED, self.projection.directions.shape[1])
        return codes_of(self.hash, _hadamard_rotate(sketches[:, FIRST : FIRST + known].float()))

    def touched(self, active: ActiveSet) -> None:
        """Note the labels and the candidates of a training step."""
        super().touched(active)
        self.steps += 1

    @profiled("follow rows")
    def refresh(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Move the rows that steps changed to their new buckets."""
        self._rows = weight, bias
        if self.sketches.device != weight.device:
            self.rebuild(weight, bias)
            return True
        least = min(max(_STEPS, self.steps // 8), _MOST_STEPS)
        rows = self.changed.take(weight, bias, least=least)
        if len(rows):
            # They stay in their old buckets, too: their new sketches rank them.
            sketches = self._sketch(weight, bias, rows)
            codes, old = self._codes(sketches), self.codes[:, rows]
            self.tables.insert(rows, codes, old)
            self.codes[:, rows] = on_host(codes)
            self._head.move(rows, sketches.cpu(), self._largest_scores(sketches) > self._bound)
            if not _FEWEST < len(self._head) / self._most < _MOST:
                self._choose_head(self._largest_scores(self.sketches))
        return False

    def find(self, queries: Tensor, labels: Pattern, most: int) -> Tensor:
        """See `RankedProposer.find`: the rows in the buckets of the inputs."""
        z = self.projection.inputs(queries, self.numbers)
        vectors = _hadamard_rotate(z[:, :_HASHED])
        codes = codes_of(self.hash, vectors, self.probes or 0)
        first = self._head.best(z.cpu(), labels, most)
        ids, scanned = self.tables.best(codes, z, self.sketches, labels, first)
        self.rows_scanned = len(self._head) + scanned
        return ids

    def statistics(self) -> dict[str, float]:
        """See `Proposer.statistics`."""
        return super().statistics() | self.tables.statistics()

    def description(self) -> str:
        """See `Proposer.description`."""
        hashes, tables = self._sizes.values()
        room = 2 * self.out_features + SPARE * self.tables.num_buckets
        in_tables = 4 * tables * (room + 3 * self.tables.num_buckets + self.out_features)
        return (
            f"{type(self.hash).__name__} tables (K {hashes}, L {tables}) over "
            f"{self.out_features:,} outputs, {(in_tables + LINE * self.out_features) / 1e6:,.0f} MB"
        )

    def sizes(self) -> dict[str, int]:
        """See `Proposer.sizes`."""
        return {"directions": self.projection.directions.shape[1], **self._sizes}

    def _settings(self) -> dict[str, Any]:
        """What tables and codes depend on."""
        directions = self.projection.directions.shape[1]
        family = {"family": type(self.hash).__name__, "codes": self.hash.num_buckets}
        return family | self._sizes | {"directions": directions, "seed": self.seed}

    def state_dict(self) -> dict[str, Any]:
        """Settings, projection, sketches, tables, bound of the head, rows to move."""
        return {
            "settings": self._settings(),
            "rebuilds": self.rebuilds,
            "steps": self.steps,
            **self.projection.state(),
            "sketches": on_host(self.sketches).copy(),
            "noted": self.changed.rows(),
            "noted_steps": self.changed.steps,
            "bound": np.array([self._bound], np.float32),
            "tables": self.tables.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        check_same_settings(state, self._settings(), "an LSHProposer")
        what = "the state of an LSHProposer"
        check_arrays(what, state, index_arrays(state, self.out_features, LINE))
        rebuilds = check_counter(what, "rebuilds", state["rebuilds"])
        self.steps = check_counter(what, "steps", state["steps"])
        self.projection.load(what, state, self.numbers)
        self.rebuilds, self.sketches = rebuilds, torch.from_numpy(state["sketches"].copy())
        steps = check_counter(what, "noted_steps", state["noted_steps"])
        self.changed.restore(state["noted"], steps)
        if len(self.sketches):  # Rows are in the buckets that they have left, too.
            scores = self._hash()
            check_arrays(what, state, {"bound": Expected((1,), "float32", finite=False)})
            self.tables.load_state_dict(state["tables"])
            if int(self.tables.arrays().pool.max(initial=0)) >= self.out_features:
                raise ValueError(f"{what} is damaged: its tables hold rows that there are not")
            self._bound = state["bound"][0]
            self._take_head(scores)


def _ascending(scores: np.ndarray) -> np.ndarray:
    """About the ascending order of scores ``(n,)``: 65,536 levels, which NumPy sorts fast."""
    finite = scores[np.isfinite(scores)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    levels = (np.clip(scores, low, high) - low) * (65_535 / max(high - low, 1e-30))
    return np.argsort(np.nan_to_num(levels).astype(np.uint16), kind="stable")


def _hadamard_rotate(vectors: Tensor) -> Tensor:
    """Rotate vectors ``(n, k)`` so that each coordinate mixes all directions."""
    known = vectors.shape[1]
    return vectors @ _hadamard(1 << (known - 1).bit_length()).to(vectors.device)[:known]


@cache
def _hadamard(width: int) -> Tensor:
    """The Hadamard matrix ``(width, width)`` of Sylvester."""
    out = torch.ones(1, 1, dtype=torch.float32)
    while len(out) < width:
        out = torch.cat([torch.cat([out, out], 1), torch.cat([out, -out], 1)])
    return out
