"""Candidates by locality-sensitive hashing: rows that share hash buckets with the input."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from slide.active_set import ActiveSet
from slide.backend import array_view, has_bfloat16, on_device, on_host, uses_reference
from slide.hashing import HashFamily, HashTables, SimHash
from slide.hashing.directions import principal_directions, random_directions
from slide.hashing.families import MOST_PROBES
from slide.hashing.tables import bucket_count, fold
from slide.ops.kernels.active_sets import RankedIds
from slide.ops.kernels.sketches import (
    CODES,
    FIRST,
    PRIOR,
    SCALE,
    UNLIKELY,
    WIDTH,
    Head,
    largest_scores,
    rank_buckets,
    sketch_rows,
)
from slide.ops.reference import active_sets as reference
from slide.ops.reference.random import random_rows
from slide.sampling.protocol import Proposer, Queries, best_of_voted, dense, in_turns, num_queries
from slide.search.row_index import kept_state, unchanged
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.array_checks import Expected, check_arrays, check_counter
from slide.utils.profiling import profiled
from slide.utils.random_keys import random_key
from slide.utils.tensor_folder import check_same_settings

# Rows of the head, which each input looks at: one product of matrices brings their scores, while a
# row of a bucket costs a wait for memory. 1/32 of the rows, within bounds; in a layer with no more
# rows than the lower bound the head holds all of them.
_HEAD, HEAD, _MOST_HEAD = 1 / 32, 4096, 8192
# The other rows are in ranges by the largest score that they may have; each range ends at a row
# number four times that of the range before.
_GROWTH = 4
# Of a range of n rows an input looks at n / 64, and at most at this number.
_SHARE, _MOST = 1 / 64, 512
# The largest score that a row may have: its score for the mean input, and 2 standard deviations of
# its score over recent inputs.
_DEVIATIONS = 2.0
# The directions are principal directions of the last 1,024 inputs.
RECENT = 1024
# Directions, of which folders of models hold 120; sketches have the first `CODES`, and codes are
# hashed in the first 32.
DIRECTIONS = 120
HASHED = 32
# Of the variance of inputs, directions hold a share. If they hold less than this part of what they
# held when they were chosen, new ones are.
_HELD = 0.9
# Of some rows, sketches may differ from the rows by this share of the sum of their squares. With a
# softmax each step moves the rows of uniform draws, with a hinge hardly any of them.
_WATCHED, _MOVED = 256, 0.1
# All rows are hashed again after steps have computed 8 outputs for each row of the layer, at the
# earliest: sooner it would take much of a step's time, and later directions that stand still lose
# rows that are among the best.
_OUTPUTS_PER_ROW = 8
# Ranges are chosen anew when the head has less or more rows than these parts of what it shall have.
_FEWEST, _MOST_ROWS = 0.75, 1.5
# Weight of a step in the running mean of that share.
_NEWEST = 0.3
# Rows that are projected at a time, and rows of which the mean row is computed, at most.
_BLOCK, _MEAN_ROWS = 16_384, 2**12
# Tensors of a state, beside the projection.
_KEPT = ("bounds", "sketches", "_offset", "_recent")
# Rows of an input that are scored exactly, for each candidate. Dropout turns an input away from the
# directions, so sketches alone would leave out a third of the ten best rows.
_SCORED = 4
# Candidates of an input for prediction.
_ANSWERS = 128


class LSHProposer(Proposer):
    """Proposes the rows with large scores that hash tables bring up.

    The score of input h is ``<w, h> + b = (<w, m> + b) + <w, h - m>``, with the mean input m. The
    first part is one number for a row, its prior. The second depends on the few directions in which
    inputs vary. So rows and inputs are projected on the principal directions of recent inputs and
    hashed there. Rows are put into ranges by the largest score that they may have (norm-ranging,
    Yan et al. 2018, "Norm-ranging LSH for maximum inner product search"). An input looks at all of
    the first range, the head, and in the other ones at its buckets and at those that its least
    certain hashes lead to (Lv et al. 2007, "Multi-probe LSH"). What comes up is ranked by sketches:
    the projection of a row, rounded to 8 bits, and its prior. The best ones are scored with the
    weights.

    The rows that a step changed most, its labels and candidates, are projected and hashed again
    before the next step, and all rows when recent inputs have left the directions, or other rows
    their sketches.

    On other devices than the CPU there are no tables: sketches rank all rows.

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        family: makes a hash family. It is called as
            ``family(in_features, hashes_per_table=K, num_tables=L, seed=seed)``, with a small power
            of two as ``in_features``.
        hashes_per_table: K, number of hashes in a code of the largest range; codes of the other
            ranges have fewer. None: a number for which an input looks at about 1/64 of a range, and
            at most at 512 rows.
        num_tables: L, number of tables.
        probes: number of further buckets that an input looks into, in each table, at most 64; a
            family without ``probe_codes`` has none.
        best: largest number of candidates of a sample; four times as many are scored.
        seed: seed of hash functions.

    Raises:
        ValueError: for a number out of range.

    Attributes:
        looked: mean number of rows that an input of the last look-up has looked at.

    Example:
        >>> import slide, torch
        >>> weight = torch.randn(10_000, 16, generator=torch.Generator().manual_seed(0))
        >>> proposer = slide.LSHProposer(16, 10_000)
        >>> proposer.rebuild(weight, None)
        >>> found = proposer.candidates(weight[:1])
        >>> bool((found.indices == 0).any())
        True
    """

    sparse_inputs = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        family: Callable[..., HashFamily] = SimHash,
        hashes_per_table: int | None = None,
        num_tables: int = 4,
        probes: int = 15,
        best: int = 16,
        seed: int = 0,
    ):
        super().__init__(in_features, out_features, seed=seed)
        if hashes_per_table is not None:
            hashes_per_table = checks.whole("hashes_per_table", hashes_per_table, 1)
        best = checks.whole("best", best, 1)
        num_tables = checks.whole("num_tables", num_tables, 1)
        probes = checks.whole("probes", probes, 0)
        checks.within("probes", probes, 0, MOST_PROBES)
        self.hashes_per_table, self.num_tables = hashes_per_table, num_tables
        self.probes, self.best, self.family = probes, best, family
        self.directions = random_directions(in_features, min(in_features, DIRECTIONS), seed)
        self.mean_input = torch.zeros(in_features)
        self.variances = torch.ones(self.directions.shape[1])
        self._recent = torch.empty(0, in_features)
        self._held = self._held_first = 1.0
        self.rebuilds, self.looked, self._outputs = 0, 0.0, 0.0
        self._rows: tuple[Tensor, Tensor | None] | None = None
        self._size()

    def __getstate__(self) -> dict[str, Any]:
        # A lambda cannot be pickled, and only `resize` needs the family again.
        unnamed = "<" in getattr(self.family, "__qualname__", "")
        # A copy of a layer has other weights, which it hands over before each set.
        return (
            self.__dict__
            | {"_followed": None, "_rows": None}
            | ({"family": None} if unnamed else {})
        )

    def _size(self) -> None:
        """Hash functions and empty tables for the number of outputs."""
        if self.family is None:
            raise ValueError(
                "the hash family of this copy was a lambda, which is not copied, so its number of "
                "outputs cannot change; make the proposer with a class or functools.partial"
            )
        n = self.out_features
        # Where each range ends, but the last.
        self._ends = [] if n <= HEAD else [int(min(max(_HEAD * n, HEAD), _MOST_HEAD))]
        while self._ends and 2 * _GROWTH * self._ends[-1] < n:
            self._ends.append(_GROWTH * self._ends[-1])
        self.families = self._make_families()
        # Bucket 0 of the first table is the first range, then come the buckets of the other ones.
        rows = np.diff([*self._ends, n])
        self._buckets = [
            bucket_count(family.num_buckets, size)
            for family, size in zip(self.families, rows.tolist(), strict=True)
        ]
        self._offsets = np.cumsum([1, *self._buckets])[:-1].tolist()
        buckets = 1 + sum(self._buckets)
        self.tables = HashTables(self.num_tables, buckets, bucket_capacity=None)
        self.bounds = torch.zeros(len(self._ends))
        self.sketches = torch.zeros(0, WIDTH, dtype=torch.int8)
        self.codes = np.zeros((self.num_tables, 0), np.int32)
        self._offset = torch.zeros(1 + min(CODES, self.directions.shape[1]))
        self._noted: list[np.ndarray] = []
        self._found = np.empty(0, np.int32)
        self._followed: Any = None

    def _make_families(self) -> list[HashFamily]:
        """A hash family for each range of rows but the head; small ranges have short codes."""
        assert self.family is not None
        width = _hashed_width(self.directions.shape[1])
        make = partial(self.family, width, seed=self.seed)
        bits = math.log2(make(hashes_per_table=1, num_tables=1).num_buckets)
        hashes = []
        for size in np.diff([*(self._ends or [0]), self.out_features]).tolist():
            looked = self.num_tables * (1 + self.probes) * size / min(_MOST, _SHARE * size)
            hashes.append(round(math.log2(looked) / bits))
        more = 0 if self.hashes_per_table is None else self.hashes_per_table - hashes[-1]
        # Made in small layers, too, so that numbers out of range are errors in any layer.
        families = [
            make(hashes_per_table=max(1, number + more), num_tables=self.num_tables)
            for number in hashes
        ]
        return families if self._ends else []

    def resize(self, out_features: int) -> None:
        """See `Proposer.resize`; directions stay, and tables and sketches are new."""
        super().resize(out_features)
        self._size()

    @property
    def has_index(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.sketches) == self.out_features

    def forget(self) -> None:
        self._noted, self._found = [], np.empty(0, np.int32)

    @profiled("observe")
    def observe(self, inputs: Queries) -> None:
        """Keep the inputs of a step, and measure how much of their variance directions hold."""
        x = dense(inputs, "LSHProposer").detach().float()
        x = x[x.isfinite().all(1)]
        if not len(x):
            return
        self._place(x.device)
        first = not len(self._recent)
        self._recent = torch.cat([self._recent, x])[-RECENT:]
        if first and self._rows is not None:  # The rebuild of this step knew no inputs.
            self.rebuilds -= 1
            self.rebuild(*self._rows)
        held = _share_held(x - self.mean_input, self.directions)
        self._held += _NEWEST * (held - self._held)

    @profiled("rebuild")
    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Find the directions of recent inputs, and project and hash all rows."""
        self._place(weight.device)
        self._rows = weight, bias
        if len(self._recent):
            self.mean_input = self._recent.mean(0)
            x = self._recent - self.mean_input
            self.directions = principal_directions(x, self.directions, warm=self.rebuilds > 0)
            self.variances = (x @ self.directions).square().mean(0)
            self._held = self._held_first = _share_held(x, self.directions)
        some = slice(None, None, -(-len(weight) // _MEAN_ROWS))
        known = self._projected(weight[some], None if bias is None else bias[some])
        self._offset = known.nan_to_num(0, 0, 0).mean(0)
        self.sketches = torch.empty(len(weight), WIDTH, dtype=torch.int8, device=weight.device)
        for start in range(0, len(weight), _BLOCK):
            rows = slice(start, start + _BLOCK)
            added = None if bias is None else bias[rows]
            self.sketches[rows] = self._sketched(weight[rows], added)
        self.rebuilds += 1
        self._outputs = 0.0
        self._followed = kept_state(weight, bias)
        self._redraw()
        self._fill_tables()

    def projection(self) -> dict[str, Tensor]:
        """What inputs have determined: tensors that `project_by` takes."""
        return {
            "mean_input": self.mean_input.cpu().clone(),
            "directions": self.directions.cpu().clone(),
            "variances": self.variances.cpu().clone(),
        }

    def project_by(self, mean_input: Tensor, directions: Tensor, variances: Tensor) -> None:
        """Take what `projection` returned; the next `rebuild` projects all rows by it.

        mean_input (D,) float32; directions (D, k) float32, orthonormal columns; variances (k,)
        float32, of inputs in these directions.
        """
        given = {"mean_input": mean_input, "directions": directions, "variances": variances}
        for name, own in self.projection().items():
            if given[name].shape != own.shape:
                raise ValueError(f"{name} must be {tuple(own.shape)}, not {given[name].shape}")
            setattr(self, name, given[name].float().clone())
        self._recent = self._recent[:0]

    def _place(self, device: torch.device) -> None:
        """Move what projects rows and inputs to a device."""
        for name in ("directions", "mean_input", "variances", *_KEPT):
            setattr(self, name, getattr(self, name).to(device))

    def _projected(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``(n, k + 1)`` float32: rows in the directions, and their scores for the mean input."""
        # Sketches have fewer bits than bfloat16; priors are compared with products of the weights.
        kind = torch.bfloat16 if has_bfloat16(weight.device) else torch.float32
        out = torch.empty(len(weight), len(self._offset), device=weight.device)
        out[:, :-1] = weight.to(kind) @ self.directions[:, :CODES].to(kind)
        out[:, -1] = weight.float() @ self.mean_input
        if bias is not None:
            out[:, -1] += bias
        return out

    def _sketched(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The sketches ``(n, WIDTH)`` int8 of rows; see `slide.ops.kernels.sketches`."""
        projected = self._projected(weight, bias)
        if uses_reference(projected):
            return reference.sketch_rows(projected, self._offset)
        out = torch.empty(len(projected), WIDTH, dtype=torch.int8)
        sketch_rows(array_view(projected), array_view(self._offset), _views(out))
        return out

    def _largest_scores(self, sketches: Tensor) -> np.ndarray:
        """``(n,)`` float32: the score that a row may have for one of few inputs."""
        out, variances = np.empty(len(sketches), np.float32), np.zeros(WIDTH, np.float32)
        known = self.variances[:CODES]
        variances[FIRST : FIRST + len(known)] = known
        largest_scores(_views(sketches), variances, np.float32(_DEVIATIONS), out)
        return out

    def _addresses(self, sketches: Tensor) -> np.ndarray:
        """The bucket ``(L, n)`` int32 of rows in each table: it depends on the sketches alone."""
        out = np.zeros((self.num_tables, len(sketches)), np.int32)
        if not self._ends:
            return out
        # Of rows with equal scores none is in an earlier range than the others.
        scores = self._largest_scores(sketches)
        ranges = (scores[:, None] <= self.bounds.numpy()).sum(1)
        numbers = sketches[:, FIRST : FIRST + min(HASHED, len(self.variances))]
        vectors = _mixed(numbers.float())
        for i, family in enumerate(self.families):
            rows = np.flatnonzero(ranges == i + 1)
            if len(rows):
                out[:, rows] = self._in_range(i, family.codes(vectors[torch.from_numpy(rows)]))
        return out

    def _in_range(self, number: int, codes: Any) -> np.ndarray:
        """Buckets of the tables for codes of the family of a range."""
        folded = on_host(codes)
        if self.families[number].num_buckets > self._buckets[number]:
            folded = on_host(fold(folded, self._buckets[number]))
        return folded + np.int32(self._offsets[number])

    def _fill_tables(self) -> None:
        """Choose the ranges anew, and put all rows into the tables."""
        if self._ends and not uses_reference(self.sketches):
            scores = self._largest_scores(self.sketches)
            at = [len(scores) - 1 - end for end in self._ends]
            self.bounds = torch.from_numpy(np.partition(scores, at)[at])
        self._build()

    def _redraw(self) -> None:
        """New hash functions at each rebuild: what they miss of a row, the next ones may find."""
        for i, family in enumerate(self.families):
            family.redraw(int(random_key(self.seed, self.rebuilds, i)))

    def _build(self) -> None:
        """Put all rows into empty tables, by their sketches and the bounds of the ranges."""
        if uses_reference(self.sketches):
            self.codes = self.codes[:, :0]
            return
        # In parts, whose vectors stay in the cache.
        self.codes = np.empty((self.num_tables, len(self.sketches)), np.int32)
        for start in range(0, len(self.sketches), _BLOCK):
            rows = slice(start, start + _BLOCK)
            self.codes[:, rows] = self._addresses(self.sketches[rows])
        self.tables.build(self.codes)

    def touched(self, active: ActiveSet) -> None:
        """Note the labels and the candidates of a training step."""
        self._outputs += len(active.ids)
        self._noted.append(np.concatenate([active.label_ids(), self._found]))
        self._found = np.empty(0, np.int32)

    @profiled("follow rows")
    def refresh(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Project and hash the noted rows again, or all rows if too much has changed.

        If the weights have not changed since the last call, the noted rows wait: several batches
        may come before a step.
        """
        self._place(weight.device)
        self._rows = weight, bias
        if uses_reference(weight):
            self.codes = self.codes[:, :0]  # Tables do not follow rows of another device.
        elif self.codes.shape[1] < self.out_features:
            self._fill_tables()
        if self._outputs >= _OUTPUTS_PER_ROW * len(weight) and self._stale(weight, bias):
            self.rebuild(weight, bias)
            return True
        if not self._noted or (self._followed and unchanged(self._followed, weight, bias)):
            return False
        rows = np.unique(np.concatenate(self._noted))
        self._noted, self._followed = [], kept_state(weight, bias)
        at = torch.from_numpy(rows.astype(np.int64)).to(weight.device)
        sketches = self._sketched(weight[at], None if bias is None else bias[at])
        self.sketches[at] = sketches
        if uses_reference(weight):
            return False
        codes = self._addresses(sketches)
        self.tables.move(rows, self.codes[:, rows], codes)
        self.codes[:, rows] = codes
        filled = self.tables.arrays().seen[0, 0] / self._ends[0] if self._ends else 1
        if not _FEWEST < filled < _MOST_ROWS:
            self._fill_tables()
        return False

    def _best(self, queries: Queries, labels: Pattern, most: int) -> Tensor:
        """Of the rows with the largest rounded scores those with the largest exact scores."""
        assert self._rows is not None, "a sampler calls rebuild first"
        ids = self._look_up(queries, labels, _SCORED * most)
        found: Tensor | RankedIds = ids
        if not uses_reference(ids):
            found = RankedIds(ids.numpy(), (ids >= 0).sum(1).numpy())
        x = dense(queries, "LSHProposer")
        best = best_of_voted(x, *self._rows, found, labels, most)
        return on_device(best, ids.device)

    def _stale(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether inputs have left the directions, or rows that are not followed their sketches."""
        if self._held < _HELD * self._held_first:
            return True
        key = int(random_key(self.seed, self.rebuilds))
        at = random_rows(key, _WATCHED, len(weight), weight.device)
        now = self._projected(weight[at], None if bias is None else bias[at]) - self._offset
        sketches = self.sketches[at]
        rows, floats = sketches[:, FIRST : FIRST + now.shape[1] - 1], sketches.view(torch.float32)
        then = torch.cat([rows * floats[:, SCALE, None], floats[:, PRIOR, None]], 1)
        # Of the scores of recent inputs: squares in the directions, and that of the prior.
        weights = torch.cat([self.variances[:CODES], self.variances.new_ones(1)])
        moved, every = (((x**2 * weights).nan_to_num(0, 0, 0)).sum() for x in (now - then, now))
        return bool(moved > _MOVED * every)

    @profiled("look up")
    def _look_up(self, queries: Queries, labels: Pattern, most: int) -> Tensor:
        """The best ``most`` rows ``(B, most)`` int32 of each input, without its labels."""
        x = dense(queries, "LSHProposer").detach().float()
        z = (x - self.mean_input) @ self.directions[:, :CODES]
        most = min(most, self.out_features)
        if uses_reference(z):
            self.looked = float(self.out_features)
            pairs = np.stack([labels.entry_rows(), labels.indices], 1).astype(np.int64)
            z = F.pad(z, (0, CODES - z.shape[1]))
            return reference.rank_all(z, self.sketches, torch.from_numpy(pairs).to(z.device), most)
        codes, tables = [np.zeros((0, len(z)), np.int32)], [np.zeros(0, np.int64)]
        vectors = _mixed(z[:, :HASHED])
        for i, family in enumerate(self.families):
            further: Any = getattr(family, "probe_codes", None)
            if further is not None and self.probes:
                probed = further(vectors, self.probes)
            else:
                probed = family.codes(vectors)
            codes.append(self._in_range(i, probed))
            tables.append(np.arange(len(probed)) % self.num_tables)
        products, head = self._head(z)
        ids = torch.full((len(z), most), -1, dtype=torch.int32)
        if not most:
            return ids
        looked = rank_buckets(
            array_view(products),
            head,
            array_view(F.pad(z, (FIRST, CODES - z.shape[1]))),
            np.concatenate(tables),
            np.concatenate(codes),
            self.tables.arrays(),
            _views(self.sketches),
            labels,
            max(_MOST, self.out_features // 16),
            np.float32(UNLIKELY),
            array_view(ids),
        )
        self.looked = float(looked.mean()) if len(looked) else 0.0
        return ids

    def _head(self, z: Tensor) -> tuple[Tensor, Head]:
        """The rows that each input looks at, and products of inputs ``(B, k)`` and sketches."""
        buckets = self.tables.arrays()
        start, size = buckets.starts[0, 0], buckets.seen[0, 0]
        # In one order, since products of matrices may be rounded by it.
        ids = np.sort(buckets.pool[0, start : start + size])
        sketches = self.sketches[torch.from_numpy(ids).long()] if self._ends else self.sketches
        numbers = sketches[:, FIRST : FIRST + z.shape[1]]
        floats = sketches.view(torch.float32)
        scales, priors = floats[:, SCALE].contiguous(), floats[:, PRIOR].contiguous()
        # Numbers of 8 bits are exact in bfloat16.
        kind = torch.bfloat16 if has_bfloat16() else torch.float32
        products = (z.to(kind) @ numbers.to(kind).T).float()
        return products, Head(ids, array_view(scales), array_view(priors))

    def candidates(self, queries: Queries) -> Pattern:
        """The best rows that are found for each input, the best first."""
        nobody = Pattern(np.zeros(num_queries(queries) + 1, np.int64), np.empty(0, np.int32))
        return Pattern.from_padded(on_host(self._look_up(queries, nobody, _ANSWERS)))

    def propose(
        self, queries: Queries, labels: Pattern, wanted: np.ndarray, key: np.uint64
    ) -> RankedIds | Tensor:
        limits = np.minimum(wanted, self.best)
        ids = self._best(queries, labels, int(limits.max(initial=0)))
        if ids.device.type != "cpu":
            limits = on_device(limits, ids.device)
            counted = torch.arange(ids.shape[1], device=ids.device) < limits[:, None]
            return torch.where(counted, ids, -1)
        counts = np.minimum((ids >= 0).sum(1).numpy(), limits)
        self._found = ids.numpy()[np.arange(ids.shape[1]) < counts[:, None]]
        return RankedIds(ids.numpy(), counts)

    def propose_shared(
        self, queries: Queries, labels: Pattern, wanted: int, key: np.uint64
    ) -> np.ndarray | Tensor:
        """See `Proposer.propose_shared`: the best id of each sample, then the second ones, ..."""
        ids = on_host(self._best(queries, labels, self.best))
        # Labels of other samples are in the set, too.
        self._found = in_turns(np.where(np.isin(ids, labels.indices), -1, ids), wanted)
        return self._found

    def statistics(self) -> dict[str, float]:
        """See `Proposer.statistics`; and the share of the variance of inputs in the directions."""
        found = {"look_up/rows_seen": self.looked, "look_up/variance_held": self._held}
        # Nothing is in the tables where sketches rank all rows.
        return found | (self.tables.statistics() if self.codes.shape[1] else {})

    def _settings(self) -> dict[str, Any]:
        """What tables and codes depend on."""
        return {
            "families": [type(family).__name__ for family in self.families],
            "buckets": self._buckets,
            "num_tables": self.num_tables,
            "directions": self.directions.shape[1],
            "numbers": len(self._offset) - 1,
            "seed": self.seed,
        }

    def state_dict(self) -> dict[str, Any]:
        """Settings, counters, projection, sketches, recent inputs: the tables follow from them."""
        tensors = self.projection() | {name: getattr(self, name) for name in _KEPT}
        return {
            "settings": self._settings(),
            "rebuilds": self.rebuilds,
            "outputs": self._outputs,
            "held": [self._held, self._held_first],
            **{name: on_host(tensor).copy() for name, tensor in tensors.items()},
            "noted": np.concatenate([np.empty(0, np.int32), *self._noted]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the same tables are built again from the sketches."""
        check_same_settings(state, self._settings(), "an LSHProposer")
        # Where sets hold all outputs, nothing is built.
        rows = self.out_features if len(state["sketches"]) else 0, WIDTH
        if state["sketches"].shape != rows:
            raise ValueError(f"sketches must be {rows}, not {state['sketches'].shape}")
        width, directions = self.in_features, self.directions.shape[1]
        what = "the state of an LSHProposer"
        expected = {
            "noted": Expected((None,), "int32", 0, self.out_features - 1),
            "sketches": Expected(rows, "int8"),
            "bounds": Expected((len(self._ends),), "float32", finite=False),
            "_offset": Expected(tuple(self._offset.shape), "float32"),
            "_recent": Expected((None, width), "float32"),
            "mean_input": Expected((width,), "float32"),
            "directions": Expected((width, directions), "float32"),
            "variances": Expected((directions,), "float32", 0),
        }
        check_arrays(what, state, expected)
        rebuilds = check_counter(what, "rebuilds", state["rebuilds"])
        noted = state["noted"].copy()
        self.project_by(**{name: torch.from_numpy(state[name]) for name in self.projection()})
        for name in _KEPT:
            setattr(self, name, torch.from_numpy(state[name].copy()))
        self.rebuilds, self._outputs = rebuilds, float(state["outputs"])
        self._held, self._held_first = map(float, state["held"])
        self._noted, self._followed = [noted], None
        self._redraw()
        self._build()


def _views(sketches: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Sketches as kernels take them: their numbers, and the same memory as floats."""
    return array_view(sketches), array_view(sketches.view(torch.float32))


def _share_held(centered: Tensor, directions: Tensor) -> float:
    """The share of the variance of inputs without their mean that some directions hold."""
    total = float(centered.square().sum())
    return float((centered @ directions).square().sum()) / total if total else 1.0


def _hashed_width(directions: int) -> int:
    """Coordinates of what is hashed: a power of two."""
    return 1 << (min(HASHED, directions) - 1).bit_length()


def _mixed(vectors: Tensor) -> Tensor:
    """Vectors ``(n, k)`` turned so that no coordinate stands for one direction alone."""
    known = vectors.shape[1]
    return vectors @ _hadamard(_hashed_width(known))[:known]


def _hadamard(width: int) -> Tensor:
    """The Hadamard matrix ``(width, width)`` of Sylvester."""
    out = torch.ones(1, 1)
    while len(out) < width:
        out = torch.cat([torch.cat([out, out], 1), torch.cat([out, -out], 1)])
    return out
