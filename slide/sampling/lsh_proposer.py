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
from slide.backend import array_view, has_bfloat16, has_int8, on_device, on_host, uses_reference
from slide.hashing import HashFamily, HashTables, SimHash
from slide.hashing.directions import principal_directions, random_directions
from slide.hashing.families import MOST_PROBES, MOST_TABLES
from slide.hashing.hash_tables import bucket_count, fold
from slide.ops.active_sets import RankedIds
from slide.ops.sketches import (
    CODES,
    FIRST,
    PRIOR,
    SCALE,
    SMALLEST,
    UNLIKELY,
    WIDTH,
    Rows,
    at_least,
    is_no_row,
    largest_scores,
    no_keys,
    rank_buckets,
    rank_rows,
    round_rows,
    rows_of,
    sketch_rows,
    torch_rank_all,
    torch_sketch_rows,
)
from slide.sampling.protocol import (
    Proposer,
    Queries,
    best_of_voted,
    dense,
    in_turns,
    most_labels,
    num_queries,
    padded,
)
from slide.search.row_index import kept_state, unchanged
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.array_checks import Expected, check_arrays, check_counter
from slide.utils.profiling import profiled
from slide.utils.random_keys import random_key
from slide.utils.tensor_folder import check_same_settings

# Rows of the head, which each input looks at, and which matrix products rank. Of 360,939 rows these
# are nearly as good as all, and two thirds of them lose recall even if more of them are scored
# exactly.
FRONT = 65_536
# With more rows than this the head grows with the root of N: of 4 million, twice as many find more.
GROWS = 2**20
# The head where tables are asked for: 1/32 of the rows, in [4096, 8192].
_HEAD, HEAD, _MOST_HEAD = 1 / 32, 4096, 8192
# Tables and probes, where there are tables.
_TABLES, _PROBES = 4, 15
# Products that are computed at a time: 4 MB, which stay in the caches of a core.
_PRODUCTS = 2**20
# Rows of a large head, by which a score is chosen that at least as many rows have as are looked
# for: 4 standard deviations on the safe side. A large head has 8 times these rows.
_SAMPLE, _UNSURE, _TIMES = 2048, 4, 8
# The other rows are in ranges by the largest score that they may have; each range ends at a row
# number four times that of the range before.
_GROWTH = 4
# Of a range of n rows an input looks at n / 64, and at most at this number.
_SHARE, _MOST = 1 / 64, 512
# The largest score that a row may have: its score for the mean input, and 3 standard deviations of
# its score over recent inputs.
_DEVIATIONS = 3.0
# The directions are principal directions of the last 1,024 inputs.
RECENT = 1024
# Inputs of the last look-up whose distinct rows are counted for the log.
_COUNTED = 16
# Directions, of which folders of models hold 120; sketches have the first `CODES`, and codes are
# hashed in the first 32.
DIRECTIONS = 120
HASHED = 32
# All rows are projected again after steps have computed 8 outputs for each row of the layer, and
# after 16 steps at the earliest: sooner it would take much of a step's time, and directions that
# stand still lose rows that are among the best, a tenth of them in fifty steps.
_OUTPUTS_PER_ROW, _STEPS = 8, 16
# The second time after 8 steps: directions of the inputs of a batch are no better than random ones.
_FIRST_STEPS = 8
# Ranges are chosen anew when the head has less or more rows than these parts of what it shall have:
# with tables, all of which are made then, and without: there a smaller head loses recall,
# and a larger one takes time.
_TABLED, _UNTABLED = (0.75, 1.5), (0.9, 1.15)
# Without tables, rows are first projected on these directions alone. These times the rows of the
# head are projected on the others, too: they have nearly all rows of the head.
_FEW, _LIKELY = 32, 1.25
# Rows that are projected at a time, and rows of which the mean row is computed, at most.
_BLOCK, _MEAN_ROWS = 16_384, 2**12
# Rows are projected in multiples of this number, with zeros after the last one: oneDNN makes new
# code for each product of another shape.
_UNIT = 512
# Tensors of a state, beside the projection.
_KEPT = ("bounds", "sketches", "_offset", "_recent")
# Rows of an input that are scored exactly, for each candidate. Dropout turns an input away from the
# directions: two thirds as many would leave out a twentieth of the ten best rows.
_SCORED = 6
# Candidates of an input for prediction.
_ANSWERS = 128
# Of a proposer that has seen no rows.
_NO_ROWS, _NO_SKETCHES = np.empty(0, np.int32), torch.zeros(0, WIDTH, dtype=torch.int8)
# The sketch of a row that no input looks at.
_SCORELESS = torch.zeros(1, WIDTH, dtype=torch.int8)
_SCORELESS.view(torch.float32)[:, PRIOR] = -math.inf


class LSHProposer(Proposer):
    """Proposes the rows with large scores that sketches of rows, or hash tables, bring up.

    The score of input h is ``<w, h> + b = (<w, m> + b) + <w, h - m>``, with the mean input m. The
    first part is one number for a row, its prior. The second depends on the few directions in which
    inputs vary. So rows and inputs are projected on the principal directions of recent inputs. The
    rows with the largest scores that they may have are the head: 65,536, or 64 times the root of N
    if that is more (norm-ranging, Yan et al. 2018, "Norm-ranging LSH for maximum inner product
    search"). An input looks at all of it, by products with sketches: the projection of a row,
    rounded to 8 bits, and its prior. The best ones are scored with the weights.

    Where an argument of tables is given, the head is smaller, and the other rows are in further
    ranges by their largest scores, and are hashed there. An input looks at its buckets, and at
    those that its least certain hashes lead to (Lv et al. 2007, "Multi-probe LSH").

    The rows that a step changed most, its labels and candidates, are projected and hashed again
    before the next step, and all rows after the first 8 steps, and whenever steps have computed 8
    outputs for each of them. Without tables a few directions tell which rows may be in the head,
    and only these are projected on the others.

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
        num_tables: L, number of tables; None: 4.
        probes: number of further buckets that an input looks into, in each table, at most 64; a
            family without ``probe_codes`` has none. None: 15. If this, K and L are None, and the
            family is `SimHash`, there are no tables.
        best: largest number of candidates of a sample; six times as many are scored.
        seed: seed of hash functions.

    Raises:
        ValueError: for a number out of range.

    Attributes:
        looked: mean number of rows that an input of the last look-up has looked at; a row counts
            as often as it is in a bucket.

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
        num_tables: int | None = None,
        probes: int | None = None,
        best: int = 16,
        seed: int = 0,
    ):
        super().__init__(in_features, out_features, seed=seed)
        if hashes_per_table is not None:
            hashes_per_table = checks.whole("hashes_per_table", hashes_per_table, 1)
        best = checks.whole("best", best, 1)
        if num_tables is not None:
            num_tables = checks.whole_within("num_tables", num_tables, 1, MOST_TABLES)
        if probes is not None:
            checks.whole_within("probes", probes, 0, MOST_PROBES)
        self.hashes_per_table, self.num_tables, self.probes = hashes_per_table, num_tables, probes
        given = hashes_per_table, num_tables, probes
        other = getattr(family, "func", family) is not SimHash
        self._asked = other or any(each is not None for each in given)
        self._tables = _TABLES if num_tables is None else num_tables
        self._probes = _PROBES if probes is None else probes
        self.best, self.family = best, family
        self.directions = random_directions(in_features, min(in_features, DIRECTIONS), seed)
        self.mean_input = torch.zeros(in_features, dtype=torch.float32)
        self.variances = torch.ones(self.directions.shape[1], dtype=torch.float32)
        self._recent = torch.empty(0, in_features, dtype=torch.float32)
        self.rebuilds, self._outputs, self._steps = 0, 0.0, 0
        self._in_buckets = 0.0
        self._rows: tuple[Tensor, Tensor | None] | None = None
        self._size()

    def __getstate__(self) -> dict[str, Any]:
        # A lambda cannot be pickled, and only `resize` needs the family again.
        unnamed = "<" in getattr(self.family, "__qualname__", "")
        # A copy of a layer has other weights, which it hands over before each set.
        return (
            self.__dict__
            | {"_followed": None, "_read": None, "_rows": None}
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
        head = FRONT * math.sqrt(max(1, n / GROWS))
        if self._asked:
            head = min(max(_HEAD * n, HEAD), _MOST_HEAD)
        self._ends = [] if n <= head else [int(head)]
        while self._asked and self._ends and 2 * _GROWTH * self._ends[-1] < n:
            self._ends.append(_GROWTH * self._ends[-1])
        self.families = self._make_families() if self._asked else []
        # Bucket 0 of the first table is the first range, then come the buckets of the other ones.
        rows = np.diff([*self._ends, n])
        self._buckets = [
            bucket_count(family.num_buckets, size)
            for family, size in zip(self.families, rows.tolist(), strict=False)
        ]
        self._offsets = np.cumsum([1, *self._buckets])[:-1].tolist()
        buckets = 1 + sum(self._buckets)
        self.tables = HashTables(self._tables, buckets, bucket_capacity=None)
        self.bounds = torch.zeros(len(self._ends), dtype=torch.float32)
        self.sketches = _NO_SKETCHES
        self.codes = np.zeros((self._tables if self.families else 1, 0), np.int32)
        self._offset = torch.zeros(1 + min(CODES, self.directions.shape[1]), dtype=torch.float32)
        self._head = _Head(_NO_ROWS, _NO_SKETCHES)
        self._noted: list[np.ndarray] = []
        self._found = np.empty(0, np.int32)
        self.looked = 0.0
        # The tables and codes (L * (1 + probes), B) of the last look-up, for the log.
        self._read: tuple[np.ndarray, np.ndarray] | None = None
        self._followed: Any = None

    def _make_families(self) -> list[HashFamily]:
        """A hash family for each range of rows but the head; small ranges have short codes."""
        assert self.family is not None
        width = _hashed_width(self.directions.shape[1])
        make = partial(self.family, width, seed=self.seed)
        bits = math.log2(make(hashes_per_table=1, num_tables=1).num_buckets)
        hashes = []
        for size in np.diff([*(self._ends or [0]), self.out_features]).tolist():
            looked = self._tables * (1 + self._probes) * size / min(_MOST, _SHARE * size)
            hashes.append(round(math.log2(looked) / bits))
        more = 0 if self.hashes_per_table is None else self.hashes_per_table - hashes[-1]
        hashes = [max(1, number + more) for number in hashes]
        self._hashes = hashes[-1]
        # Made in small layers, too, so that numbers out of range are errors in any layer.
        families = [make(hashes_per_table=each, num_tables=self._tables) for each in hashes]
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
        """Keep the inputs of a step."""
        x = dense(inputs, "LSHProposer").detach().float()
        x = x[x.isfinite().all(1)]
        if not len(x):
            return
        self._place(x.device)
        self._recent = torch.cat([self._recent, x])[-RECENT:]

    @profiled("rebuild")
    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Find the directions of recent inputs, and project and hash all rows."""
        self._place(weight.device)
        self._rows = weight, bias
        if len(self._recent):
            self.mean_input = self._recent.mean(0)
            x = self._recent - self.mean_input
            warm = bool((self.variances != 1).any())  # Those of random directions are all 1.
            self.directions = principal_directions(x, self.directions, warm=warm)
            self.variances = (x @ self.directions).square().mean(0)
        rows = np.arange(len(weight), dtype=np.int32)
        known = self._projected(weight, bias, rows[:: -(-len(weight) // _MEAN_ROWS)].copy())
        self._offset = known.nan_to_num(0, 0, 0).mean(0)
        if self.sketches.shape[0] != len(weight) or self.sketches.device != weight.device:
            self.sketches = torch.empty(len(weight), WIDTH, dtype=torch.int8, device=weight.device)
        if self._ends and not self.families and not uses_reference(weight):
            rows = self._likely(weight, bias)
            self.sketches.copy_(_SCORELESS)
        for some in np.split(rows, range(_BLOCK, len(rows), _BLOCK)):
            self._store(some, self._sketched(weight, bias, some))
        self.rebuilds += 1
        self._outputs, self._steps = 0.0, 0
        self._followed = kept_state(weight, bias)
        self._redraw()
        self._fill()

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

    def _likely(self, weight: Tensor, bias: Tensor | None) -> np.ndarray:
        """The rows that may have the largest scores, by few directions: more than the head."""
        most = round(_LIKELY * self._ends[0])
        every, scores = np.arange(len(weight), dtype=np.int32), []
        if most >= len(every):
            return every
        for rows in np.split(every, range(_BLOCK, len(every), _BLOCK)):
            found = self._projected(weight, bias, rows, _FEW)
            projected, priors = found[:, :-1], found[:, -1]
            known = projected.shape[1]
            spread = (projected - self._offset[:known]).square() @ self.variances[:known]
            scores.append(priors + _DEVIATIONS * spread.sqrt())
        scores = torch.cat(scores).nan_to_num_(-torch.inf, -torch.inf, -torch.inf).numpy()
        return np.sort(np.argpartition(scores, -most)[-most:]).astype(np.int32)

    def _projected(
        self, weight: Tensor, bias: Tensor | None, rows: np.ndarray, most: int = CODES
    ) -> Tensor:
        """``(n, k + 1)`` float32: rows in the first directions, and scores for the mean input."""
        # Sketches have fewer bits than bfloat16; priors are compared with products of the weights.
        kind = torch.bfloat16 if has_bfloat16(weight.device) else torch.float32
        directions = self.directions[:, :most].to(kind)
        shape = len(rows), directions.shape[1] + 1
        out = torch.empty(shape, device=weight.device, dtype=torch.float32)
        read = not uses_reference(weight) and weight.is_contiguous()
        if read and (weight.dtype, kind) == (torch.float32, torch.bfloat16):
            bits = torch.empty(-(-len(rows) // _UNIT) * _UNIT, weight.shape[1], dtype=torch.uint16)
            priors = np.empty(len(rows), np.float32)
            vector = array_view(self.mean_input)
            round_rows(array_view(weight), rows, vector, array_view(bits), priors)
            out[:, :-1] = (bits.view(kind) @ directions)[: len(rows)]
            out[:, -1] = torch.from_numpy(priors)
        else:
            some = weight[on_device(rows, weight.device).long()]
            out[:, :-1] = some.to(kind) @ directions
            out[:, -1] = some.float() @ self.mean_input
        if bias is not None:
            out[:, -1] += bias[on_device(rows, bias.device).long()]
        return out

    def _sketched(self, weight: Tensor, bias: Tensor | None, rows: np.ndarray) -> Tensor:
        """The sketches ``(n, WIDTH)`` int8 of some rows; see `slide.ops.sketches`."""
        projected = self._projected(weight, bias, rows)
        if uses_reference(projected):
            return torch_sketch_rows(projected, self._offset)
        out = torch.empty(len(projected), WIDTH, dtype=torch.int8)
        sketch_rows(array_view(projected), array_view(self._offset), _views(out))
        return out

    def _store(self, rows: np.ndarray, sketches: Tensor) -> None:
        if uses_reference(sketches):
            self.sketches[on_device(rows, sketches.device).long()] = sketches
        else:
            _records(self.sketches)[rows] = _records(sketches)

    def _largest_scores(self, sketches: Tensor) -> np.ndarray:
        """``(n,)`` float32: the score that a row may have for one of few inputs."""
        out, variances = np.empty(len(sketches), np.float32), np.zeros(WIDTH, np.float32)
        known = self.variances[:CODES]
        variances[FIRST : FIRST + len(known)] = known
        largest_scores(_views(sketches), variances, np.float32(_DEVIATIONS), out)
        return out

    def _addresses(self, sketches: Tensor) -> np.ndarray:
        """The bucket ``(L, n)`` int32 of rows in each table: it depends on the sketches alone.

        It is 0 in the head. Without tables it is 1 for the other rows, and L is 1.
        """
        # Of rows with equal scores none is in an earlier range than the others.
        scores = self._largest_scores(sketches)
        ranges = (scores[:, None] <= self.bounds.numpy()).sum(1, dtype=np.int32)
        if not self.families:
            return ranges[None]
        out = np.zeros((self._tables, len(sketches)), np.int32)
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

    def _fill(self) -> None:
        """Choose head and ranges anew, and put all rows into the tables."""
        if self._ends and not uses_reference(self.sketches):
            scores = self._largest_scores(self.sketches)
            scores = np.append(np.float32(-np.inf), scores[scores > -np.inf])
            at = [max(0, len(scores) - 1 - end) for end in self._ends]
            self.bounds = torch.from_numpy(np.partition(scores, at)[at])
        self._build()

    def _redraw(self) -> None:
        """New hash functions at each rebuild: what they miss of a row, the next ones may find."""
        for i, family in enumerate(self.families):
            family.redraw(int(random_key(self.seed, self.rebuilds, i)))

    def _build(self) -> None:
        """Put all rows into empty tables, by their sketches and the bounds of the ranges."""
        self.codes, self._head = self.codes[:, :0], _Head(_NO_ROWS, _NO_SKETCHES)
        # Tables do not follow rows of another device.
        if uses_reference(self.sketches) or not len(self.sketches):
            return
        # In parts, whose vectors stay in the cache.
        self.codes = np.concatenate([*map(self._addresses, self.sketches.split(_BLOCK))], 1)
        self._head = _Head(np.flatnonzero(self.codes[0] == 0).astype(np.int32), self.sketches)
        if self.families:
            self.tables.build(self.codes)

    def _is_due(self) -> bool:
        """Whether all rows shall be projected again."""
        many = self._outputs >= _OUTPUTS_PER_ROW * self.out_features
        first = self.rebuilds == 1 and self._steps >= _FIRST_STEPS
        return first or (many and self._steps >= _STEPS)

    def touched(self, active: ActiveSet) -> None:
        """Note the labels and the candidates of a training step."""
        self._outputs += len(active.ids)
        self._steps += 1
        self._noted.append(np.concatenate([active.label_ids(), self._found]))
        self._found = np.empty(0, np.int32)

    @profiled("follow rows")
    def refresh(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Project and hash the noted rows again, or all rows after many steps.

        If the weights have not changed since the last call, the noted rows wait: several batches
        may come before a step.
        """
        self._place(weight.device)
        self._rows = weight, bias
        moved = uses_reference(weight) == bool(self.codes.shape[1])
        if moved:
            self._fill()
        # On a device that ranks all rows, the sketches of a head do not do.
        priors = self.sketches.view(torch.float32)[:, PRIOR]
        incomplete = moved and uses_reference(weight) and bool((priors == -torch.inf).any())
        if self._is_due() or incomplete:
            self.rebuild(weight, bias)
            return True
        if not self._noted or (self._followed and unchanged(self._followed, weight, bias)):
            return False
        rows = np.unique(np.concatenate(self._noted))
        self._noted, self._followed = [], kept_state(weight, bias)
        sketches = self._sketched(weight, bias, rows)
        self._store(rows, sketches)
        if uses_reference(weight):
            return False
        codes = self._addresses(sketches)
        if self.families:
            self.tables.move(rows, self.codes[:, rows], codes)
        self.codes[:, rows] = codes
        self._head.move(rows, sketches, codes[0] == 0)
        if self._ends:
            fewest, most = _TABLED if self.families else _UNTABLED
            if not fewest < len(self._head) / self._ends[0] < most:
                self._fill()
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

    @profiled("look up")
    def _look_up(self, queries: Queries, labels: Pattern, most: int) -> Tensor:
        """The best ``most`` rows ``(B, most)`` int32 of each input, without its labels."""
        x = dense(queries, "LSHProposer").detach().float()
        z = (x - self.mean_input) @ self.directions[:, :CODES]
        most = min(most, self.out_features)
        if uses_reference(z):
            numbers, factors = _rounded(z)
            z = numbers * factors[:, None]
            self.looked = float(self.out_features)
            pairs = np.stack([labels.entry_rows(), labels.indices], 1).astype(np.int64)
            z = F.pad(z, (0, CODES - z.shape[1]))
            return torch_rank_all(z, self.sketches, torch.from_numpy(pairs).to(z.device), most)
        if not len(z) or not most:
            return torch.from_numpy(rows_of(no_keys((len(z), most))))
        numbers, factors = _rounded(z)
        # At the positions of a sketch, whose other bytes then count nothing.
        asked = F.pad(numbers, (FIRST, CODES - z.shape[1]))
        keys = self._head.best(asked, factors, labels, most)
        self.looked = float(len(self._head))
        if not self.families:
            return torch.from_numpy(rows_of(keys))
        codes, tables, vectors = [], [], _mixed(z[:, :HASHED])
        for i, family in enumerate(self.families):
            further: Any = getattr(family, "probe_codes", None)
            if further is not None and self._probes:
                probed = further(vectors, self._probes)
            else:
                probed = family.codes(vectors)
            codes.append(self._in_range(i, probed))
            tables.append(np.arange(len(probed)) % self._tables)
        self._read = np.concatenate(tables), np.concatenate(codes)
        looked = rank_buckets(
            array_view(asked * factors[:, None]),
            *self._read,
            self.tables.arrays(),
            _views(self.sketches),
            labels,
            self._most(),
            np.float32(UNLIKELY),
            keys,
        )
        self._in_buckets = float(looked.mean())
        self.looked += self._in_buckets
        return torch.from_numpy(rows_of(keys))

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

    def _most(self) -> int:
        """Ids in a bucket that an input reads; larger buckets are passed over."""
        return max(_MOST, self.out_features // 16)

    def statistics(self) -> dict[str, float]:
        """See `Proposer.statistics`."""
        if not self.families or not self.codes.shape[1]:  # Other devices put no rows in tables.
            return {"look_up/rows_seen": self.looked}
        found: dict[str, float] = {"look_up/rows_seen": 0}
        if self._read is not None:  # Labels may leave no places to look up for.
            rows = np.diff([*self._ends, self.out_features])
            found["look_up/rows_seen"] = len(self._head) + self._distinct()
            found["tables/found_share"] = self._in_buckets / float(rows.sum())
            meant = np.minimum(_MOST, _SHARE * rows).sum()
            found["tables/meant_share"] = float(meant / rows.sum())
        # Bucket 0 is the head.
        return found | self.tables.statistics(first=1, most=self._most())

    def _distinct(self) -> float:
        """Mean number of rows in the buckets that some of the last inputs read, each once."""
        assert self._read is not None
        tables, codes = self._read
        buckets, found = self.tables.arrays(), []
        for at in codes[:, :_COUNTED].T:
            starts, sizes = buckets.starts[tables, at], buckets.seen[tables, at]
            read = np.flatnonzero((sizes > 0) & (sizes <= self._most()))
            ids = [buckets.pool[tables[t], starts[t] : starts[t] + sizes[t]] for t in read]
            found.append(len(np.unique(np.concatenate(ids))) if ids else 0)
        return float(np.mean(found))

    def sizes(self) -> dict[str, int]:
        """See `Proposer.sizes`; K is that of the largest range."""
        found = {"directions": len(self._offset) - 1, "num_tables": 0}
        if self.families and not uses_reference(self.sketches):  # Other devices have no tables.
            found["num_tables"] = self._tables
            found["hashes_per_table"] = self._hashes
        return found

    def _settings(self) -> dict[str, Any]:
        """What tables and codes depend on."""
        return {
            "families": [type(family).__name__ for family in self.families],
            "buckets": self._buckets,
            "num_tables": self._tables,
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
            "steps": self._steps,
            **{name: on_host(tensor).copy() for name, tensor in tensors.items()},
            "noted": np.concatenate([np.empty(0, np.int32), *self._noted]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the same tables are built again from the sketches."""
        check_same_settings(state, self._settings(), "an LSHProposer")
        what = "the state of an LSHProposer"
        check_arrays(what, state, {"sketches": Expected((None, None), "int8")})
        # Where sets hold all outputs, nothing is built.
        rows = self.out_features if len(state["sketches"]) else 0, WIDTH
        if state["sketches"].shape != rows:
            raise ValueError(f"sketches must be {rows}, not {state['sketches'].shape}")
        width, directions = self.in_features, self.directions.shape[1]
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
        steps = check_counter(what, "steps", state["steps"])
        checks.not_negative("outputs", float(state["outputs"]))
        noted = state["noted"].copy()
        self.project_by(**{name: torch.from_numpy(state[name]) for name in self.projection()})
        for name in _KEPT:
            setattr(self, name, torch.from_numpy(state[name].copy()))
        self.rebuilds, self._steps, self._outputs = rebuilds, steps, float(state["outputs"])
        self._noted, self._followed = [noted], None
        self._redraw()
        self._build()


class _Head:
    """The sketches of some rows side by side, which matrix products read as they are.

    Their order has no effect on which rows are the best.
    """

    def __init__(self, ids: np.ndarray, sketches: Tensor):
        self._at = np.full(len(sketches), -1, np.int32)
        self._ids = np.empty(0, np.int32)
        self._scales, self._priors = np.empty(0, np.float32), np.empty(0, np.float32)
        self._sketches, self._size = sketches[:0], 0
        self._append(ids, _records(sketches)[ids])

    def __len__(self) -> int:
        return self._size

    @property
    def ids(self) -> np.ndarray:
        """The rows, ascending."""
        return np.sort(self._ids[: self._size])

    def move(self, rows: np.ndarray, sketches: Tensor, inside: np.ndarray) -> None:
        """Take the new sketches of some rows, of which those ``inside`` belong to the head."""
        at = self._at[rows]
        stay, new, records = inside & (at >= 0), inside & (at < 0), _records(sketches)
        self._put(at[stay], records[stay])
        # The last rows move to the slots of those that leave.
        gone = at[~inside & (at >= 0)]
        size = self._size - len(gone)
        last = np.setdiff1d(np.arange(size, self._size, dtype=np.int32), gone)
        slots = gone[gone < size]
        self._at[self._ids[gone]] = -1
        self._assign(slots, self._ids[last])
        self._put(slots, _records(self._sketches)[last])
        self._size = size
        self._append(rows[new], records[new])

    def _append(self, ids: np.ndarray, records: np.ndarray) -> None:
        size = self._size + len(ids)
        if size > len(self._ids):  # With room for what the next steps bring.
            room = min(len(self._at), size + size // 4)
            self._ids = np.resize(self._ids, room)
            self._scales = np.resize(self._scales, room)
            self._priors = np.resize(self._priors, room)
            kept, self._sketches = self._sketches, torch.empty(room, WIDTH, dtype=torch.int8)
            self._sketches[: self._size] = kept[: self._size]
        slots = np.arange(self._size, size, dtype=np.int32)
        self._assign(slots, ids)
        self._put(slots, records)
        self._size = size

    def _assign(self, slots: np.ndarray, ids: np.ndarray) -> None:
        self._ids[slots], self._at[ids] = ids, slots

    def _put(self, slots: np.ndarray, records: np.ndarray) -> None:
        _records(self._sketches)[slots] = records
        floats = records[:, None].view(np.float32)
        self._scales[slots], self._priors[slots] = floats[:, SCALE], floats[:, PRIOR]

    def best(self, numbers: Tensor, factors: Tensor, left_out: Pattern, most: int) -> np.ndarray:
        """Heaps ``(B, most)`` of the best rows of rounded inputs, without those left out."""
        every, none = slice(0, self._size), no_keys((len(numbers), most))
        # A score that a few times as many rows have, by a part of the rows: without it, most of the
        # time would go into rows that are among the best only so far.
        expected = most * _SAMPLE / max(1, self._size)
        least = math.ceil(expected + _UNSURE * math.sqrt(expected)) + 1
        if self._size < _SAMPLE * _TIMES or _TIMES * least > _SAMPLE:
            return self._rank(numbers, factors, left_out, every, none)
        part = slice(0, self._size, self._size // _SAMPLE)
        some = self._rank(numbers, factors, left_out, part, no_keys((len(numbers), least)))
        first = np.repeat(at_least(some[:, :1]), most, axis=1)
        keys = self._rank(numbers, factors, left_out, every, first)
        short = np.flatnonzero(is_no_row(keys[:, 0]))
        if len(short):  # Fewer rows have that score.
            at, known = torch.from_numpy(short), padded(left_out, most_labels(left_out))[short]
            known = Pattern.from_padded(known)
            keys[short] = self._rank(numbers[at], factors[at], known, every, none[short])
        return keys

    def _rank(
        self, numbers: Tensor, factors: Tensor, left_out: Pattern, part: slice, keys: np.ndarray
    ) -> np.ndarray:
        """`rank_rows` for some of the rows, as many at a time as products fit into the caches."""
        step, every = (part.step or 1) * max(1, _PRODUCTS // len(numbers)), part.stop
        for start in range(0, every, step):
            some = slice(start, min(start + step, every), part.step)
            sketches = self._sketches[some]
            if has_int8():
                multiply = torch._int_mm  # pyright: ignore[reportPrivateImportUsage]
                found = multiply(numbers, sketches.T)
            else:  # The sums are whole numbers below 2^24, so they are the same.
                found = (numbers.float() @ sketches.float().T).int()
            rows = Rows(
                ids=np.ascontiguousarray(self._ids[some]),
                scales=np.ascontiguousarray(self._scales[some]),
                priors=np.ascontiguousarray(self._priors[some]),
            )
            rank_rows(array_view(found), array_view(factors), rows, left_out, keys)
        return keys


def _records(sketches: Tensor) -> np.ndarray:
    """The same memory with a sketch as one item, which NumPy copies much faster."""
    return array_view(sketches).view(f"V{WIDTH}")[:, 0]


def _views(sketches: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Sketches as kernels take them: their numbers, and the same memory as floats."""
    return array_view(sketches), array_view(sketches.view(torch.float32))


def _rounded(queries: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors ``(n, k)`` as int8 numbers and factors ``(n,)`` float32."""
    factors = queries.abs().amax(1) / 127
    numbers = (queries / factors.clamp(min=float(SMALLEST))[:, None]).round_()
    return numbers.nan_to_num_(0, 0, 0).clamp_(-127, 127).to(torch.int8), factors


def _hashed_width(directions: int) -> int:
    """Coordinates of what is hashed: a power of two."""
    return 1 << (min(HASHED, directions) - 1).bit_length()


def _mixed(vectors: Tensor) -> Tensor:
    """Vectors ``(n, k)`` turned so that no coordinate stands for one direction alone."""
    known = vectors.shape[1]
    return vectors @ _hadamard(_hashed_width(known))[:known]


def _hadamard(width: int) -> Tensor:
    """The Hadamard matrix ``(width, width)`` of Sylvester."""
    out = torch.ones(1, 1, dtype=torch.float32)
    while len(out) < width:
        out = torch.cat([torch.cat([out, out], 1), torch.cat([out, -out], 1)])
    return out
