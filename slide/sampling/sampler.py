"""The samplers: active sets of labels, candidates and uniform draws, or of all outputs.

Labels are on the host, so the host knows the sizes of all sets. Ids stay on the device.
"""

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet, Groups
from slide.backend import CPU, native, on_device, on_host, uses_reference
from slide.ops import active_sets as kernels
from slide.ops.active_sets import RankedIds, torch_assemble, torch_stratified_log_weights
from slide.ops.ragged import select_rows
from slide.ops.scratch import Scratch
from slide.runtime import num_threads
from slide.sampling import schedules
from slide.sampling.protocol import Proposer, Queries, Sampler, num_queries
from slide.sparse import Pattern, check_labels, check_pattern, row_bounds
from slide.utils import checks
from slide.utils.array_checks import check_counter
from slide.utils.profiling import clock, span
from slide.utils.random_keys import random_key

MODES = ("grouped", "per_sample", "shared")
WEIGHTINGS = ("none", "stratified")
# What a sampler counts, and what its state holds beside that of the proposer.
_COUNTERS = (
    *("selections", "inference_selections", "samples", "scheduled", "rebuilds", "steps"),
    "computed",
)
# Neighbouring samples of a batch that share their uniform draws. A step then changes fewer rows,
# each by the gradients of more samples. A larger group raises precision and lowers recall; without
# candidates, fewer negatives cost precision.
_GROUP = 16
# Share of the draws of a group that are labels of the batch: the step reads their rows anyway, and
# they are often wrong answers.
_LABEL_DRAWS = 0.75
# RNG stream of sets outside of training, so that evaluation does not shift the training draws.
_INFERENCE_STREAM = 2
_MOST_OUTPUTS = 2**31 - 1  # Their numbers are int32.


class FullSampler(Sampler):
    """Chooses all outputs.

    Args:
        in_features: D, not used; other samplers have this argument, too.
        out_features: N, number of outputs.

    Example:
        >>> import slide, torch
        >>> slide.FullSampler(8, 5).select(torch.randn(2, 8), None).ids
        array([0, 1, 2, 3, 4], dtype=int32)
    """

    def __init__(self, in_features: int, out_features: int):
        self.resize(out_features)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(all {self.out_features} outputs)"

    def resize(self, out_features: int) -> None:
        self.out_features = out_features
        self._ids = np.arange(out_features, dtype=np.int32)
        self._scratch = Scratch()

    def update(self, weight: Tensor, bias: Tensor | None, inputs: Queries | None) -> None:
        """Does nothing."""

    def select(self, queries: Queries, labels: Pattern | None) -> ActiveSet:
        """All outputs, in order."""
        if labels is not None:
            check_labels("labels", labels, num_queries(queries), self.out_features)
        return ActiveSet(self.out_features, self._ids, None, labels, None, self._scratch)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing: all outputs are computed, whatever sampler the state is of."""


@dataclass(frozen=True)
class SamplerOptions:
    """What an `ActiveSampler`, which explains the fields, takes beside proposer and schedule."""

    active: int = 1024
    mode: str = "shared"
    weighting: str = "stratified"
    candidate_share: float | None = 0.5
    group_size: int = 16
    lookups: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("active", 1), ("group_size", 1), ("lookups", 0), ("seed", 0)):
            object.__setattr__(self, name, checks.whole(name, getattr(self, name), least))
        checks.one_of("mode", self.mode, MODES)
        checks.one_of("weighting", self.weighting, WEIGHTINGS)
        if self.candidate_share is not None:
            checks.share("candidate_share", self.candidate_share, with_one=True)


class ActiveSampler(Sampler):
    """Chooses the labels, then candidates of a proposer, then uniform ids.

    Without a proposer the draws are uniform, as in sampled softmax. With `LSHProposer` and
    ``mode="per_sample"`` a sample has its set of SLIDE (Chen et al. 2020, "SLIDE: in defense of
    smart algorithms over hardware acceleration", section 3.1).

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        proposer: makes the index over the weight rows, by
            ``proposer(in_features, out_features, seed=seed)``. None: uniform ids only.
        active: number of outputs in a set; with ``active >= out_features`` all outputs. If labels
            fill a set, it has the labels and, if stratified, one uniform id for all other ids.
        mode: ``"per_sample"`` (one set for each sample), ``"grouped"`` (one set for each group of
            similar samples of the batch) or ``"shared"`` (one set for the batch).
        weighting: ``"stratified"`` corrects as sampled softmax does: uniform ids represent all ids
            that were not chosen, so sums over the set are unbiased estimates of sums over all
            outputs. ``"none"`` does not correct, as published; use it with ``squared_hinge``.
        candidate_share: in [0, 1], the maximum share of the places without labels that candidates
            take; uniform ids take the rest (few of them make a loss noisy). None: like 1, but the
            set of a sample contains all candidates and may be larger than ``active``, as published.
            Sets of groups contain all labels and candidates, and the share is one of ``active``.
        group_size: number of samples in a group.
        lookups: number of samples of each group that look up candidates for the group.
        rebuild: rebuild schedule: a function from a number of samples to the number of rebuilds due
            (`slide.sampling.by_updates`, ``backoff``, ``fixed``, ``never``). The first build does
            not count.
        seed: seed of all draws.

    Raises:
        ValueError: for a number or name out of range.
        TypeError: for a proposer or a schedule that is not a function.

    Attributes:
        proposer: the index, or None.
        rebuilds: number of rebuilds so far.
        rebuild_seconds: time that rebuilds and refreshes have taken so far, in seconds.

    Example:
        >>> import slide, torch
        >>> uniform = slide.ActiveSampler(16, 1000, active=64)
        >>> lsh = slide.ActiveSampler(16, 1000, slide.LSHProposer, active=64)
        >>> layer = slide.SampledLinear(16, 1000, lsh)
        >>> layer(torch.randn(4, 16)).values.shape
        torch.Size([4, 64])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        proposer: Callable[..., Proposer] | None = None,
        *,
        active: int = SamplerOptions.active,
        mode: str = SamplerOptions.mode,
        weighting: str = SamplerOptions.weighting,
        candidate_share: float | None = SamplerOptions.candidate_share,
        group_size: int = SamplerOptions.group_size,
        lookups: int = SamplerOptions.lookups,
        rebuild: schedules.Schedule = schedules.by_updates,
        seed: int = SamplerOptions.seed,
    ):
        out_features = checks.whole("out_features", out_features, 1)
        checks.within("out_features", out_features, 1, _MOST_OUTPUTS)
        own = SamplerOptions(active, mode, weighting, candidate_share, group_size, lookups, seed)
        self.active, self.group_size, self.lookups = own.active, own.group_size, own.lookups
        self.mode, self.weighting, self.candidate_share = mode, weighting, candidate_share
        checks.maker("proposer", proposer, "slide.LSHProposer")
        self.out_features, self.rebuild_due, self.seed = out_features, rebuild, own.seed
        self.proposer = proposer(in_features, out_features, seed=own.seed) if proposer else None
        schedules.check_schedule("rebuild", rebuild)
        self.has_index = self.proposer is not None and not self.proposer.needs_labels
        self.sparse_inputs = self.proposer is None or self.proposer.sparse_inputs
        self.selections = self.samples = self.rebuilds = 0
        self.inference_selections = 0  # Sets outside of training; `selections` counts the others.
        self.scheduled = 0  # How many rebuilds the schedule has asked for.
        self.steps = self.computed = 0  # Since the last rebuild: steps, and outputs in their sets.
        self.rebuild_seconds, self._built = 0.0, False
        self._training = 0  # The thread whose next set is for training; 0: none.
        self._device = CPU  # Where the weights are.
        self._chosen = _Chosen(np.zeros(1), labels=0, filled=0, outputs=0, sets=1)
        # With stratified weights at least one uniform id must stand for the outputs not chosen.
        self._reserve = 1 if weighting == "stratified" else 0
        self._size()

    def __repr__(self) -> str:
        index = "" if self.proposer is None else f", proposer={type(self.proposer).__name__}"
        return f"{type(self).__name__}(active={self.active}, mode={self.mode!r}{index})"

    def description(self) -> str:
        """The sets and what fills them, for the first lines of a run."""
        if self._full is not None:
            return f"sets of all {self.out_features:,} outputs"
        of = {"shared": "the batch", "per_sample": "a sample"}
        whom = of.get(self.mode, f"{self.group_size} samples")
        chosen = self.proposer is not None and (self.mode != "grouped" or self.lookups > 0)
        # Without a share of candidates all that are found are in a set, but for a shared one.
        every = chosen and self.candidate_share is None and self.mode != "shared"
        sets = f"sets of {'at least ' if every else ''}{self.active:,} outputs for {whom}"
        if self.proposer is None or not chosen:
            grouped = self.mode == "grouped" and self.weighting == "none"
            draws = f"{'labels of the batch and ' if grouped else ''}uniform draws"
            return f"{sets}; {draws} from {self.out_features:,} outputs"
        if not self.has_index:
            return f"{sets}; {self.proposer.description()}"
        schedule: Any = getattr(self.rebuild_due, "func", self.rebuild_due)
        name = getattr(schedule, "__name__", type(schedule).__name__).removeprefix("by_")
        return f"{sets}; {self.proposer.description()}; rebuilt by schedule {name}"

    def resize(self, out_features: int) -> None:
        """See `Sampler.resize`; seeds, counters and the size of a set stay."""
        super().resize(out_features)
        if self.proposer is not None:
            self.proposer.resize(out_features)
        self._size()

    def _size(self) -> None:
        self._scratch = Scratch()
        self._full = None if self.active < self.out_features else FullSampler(1, self.out_features)

    def update(self, weight: Tensor, bias: Tensor | None, inputs: Queries | None) -> None:
        """Rebuild before the first set, and whenever the schedule asks for it."""
        self._device = weight.device
        if inputs is not None or self._training == get_ident():
            self._training = 0 if inputs is None else get_ident()
        if self.proposer is None or self._full is not None:
            return
        # Predictions with the index may come from several threads: the first one after a training
        # step brings the index up to date, and the others wait for it, and for such a step.
        alone = nullcontext() if inputs is None else self._scratch.alone
        with alone, self._scratch.in_turn(first=inputs is not None):
            self._update(weight, bias, inputs)

    # What is kept is changed in place later, which PyTorch forbids for tensors of inference mode.
    @torch.inference_mode(False)
    @torch.no_grad()
    def _update(self, weight: Tensor, bias: Tensor | None, inputs: Queries | None) -> None:
        assert self.proposer is not None
        for rows in (weight, bias):
            if rows is not None and len(rows) != self.out_features:
                raise ValueError(
                    f"a sampler of {self.out_features} outputs does not fit {len(rows)} rows"
                )
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        due, start, stale = self.rebuild_due(self.progress()), clock(), not self._built
        if stale:
            self.proposer.forget()
        if stale or due > self.scheduled:
            self.proposer.rebuild(weight, bias)
            self._built, made = True, True
            self.scheduled = due  # Not before a rebuild has succeeded.
        else:
            made = bool(self.proposer.refresh(weight, bias))
        if made:
            self.rebuilds += 1
            self.steps = self.computed = 0
        self.rebuild_seconds += clock() - start
        if inputs is not None:
            self.proposer.observe(inputs)
            self.samples += num_queries(inputs)

    def progress(self) -> schedules.Progress:
        """What a rebuild schedule is asked with."""
        return schedules.Progress(
            self.samples,
            scheduled=self.scheduled,
            rebuilds=self.rebuilds,
            steps=self.steps,
            computed=self.computed,
            out_features=self.out_features,
        )

    def select(self, queries: Queries, labels: Pattern | None) -> ActiveSet:
        """See `Sampler.select`; sets that are not for training do not move its draws on."""
        if self._full is not None:
            return self._full.select(queries, labels)
        count, known = num_queries(queries), labels
        if known is None:
            known = Pattern(np.zeros(count + 1, np.int64), np.empty(0, np.int32))
        check_labels("labels", known, count, self.out_features)
        training = self._training == get_ident()
        if training:
            key = random_key(self.seed, self.selections)
            self.selections += 1
        else:
            key = random_key(self.seed, self.inference_selections, _INFERENCE_STREAM)
            self.inference_selections += 1
        assemble = getattr(self, f"_{self.mode}")
        with span("assemble"), self._scratch.alone:
            if self.proposer is None:
                return assemble(queries, known, labels is not None, key)
            with self._scratch.beside():  # A prediction may bring the index up to date.
                active = assemble(queries, known, labels is not None, key)
            if training:
                self.steps += 1
                self.computed += active.computed
                with self._scratch.in_turn():
                    self.proposer.touched(active)
        return active

    def candidates(self, queries: Queries) -> Pattern:
        """The candidates of the proposer; all outputs if the sets hold all outputs."""
        if self.proposer is None or not self.has_index:
            return super().candidates(queries)
        if self._full is not None:
            n, every = num_queries(queries), np.arange(self.out_features, dtype=np.int32)
            return Pattern(np.arange(n + 1) * len(every), np.tile(every, n))
        with self._scratch.beside():
            found = self.proposer.candidates(queries)
        check_pattern("candidates", found, num_queries(queries), self.out_features)
        return found

    def statistics(self) -> dict[str, float]:
        """What the last set has beside labels, on average over the samples; and the proposer's."""
        if self.proposer is None:
            return {}
        last = self._chosen
        found, sets = float(on_host(last.known).sum()) - last.filled, max(last.sets, 1)
        if last.drawn is not None:
            found -= last.drawn()
        return {
            "selection/candidates": (found - last.labels) / sets,
            "selection/filled": (last.outputs - found) / sets,
            **self.proposer.statistics(),
        }

    def _limits(self, free: np.ndarray) -> np.ndarray:
        """The largest number of candidates, int64, if labels leave ``free`` positions of a set."""
        if self.proposer is None:
            return np.zeros_like(free)
        if self.candidate_share is None and self.mode == "per_sample":
            return np.full_like(free, self.out_features)
        share = 1 if self.candidate_share is None else self.candidate_share
        most = np.floor(share * free).astype(np.int64)
        return np.maximum(np.minimum(most, free - self._reserve), 0)

    def _per_sample(
        self, queries: Queries, labels: Pattern, supervised: bool, key: np.uint64
    ) -> ActiveSet:
        counts = np.diff(labels.indptr)
        sizes = np.maximum(counts + self._reserve, self.active)
        limits = self._limits(np.maximum(self.active - counts, 0))
        none, filled = np.empty((len(counts), 0), np.int32), 0
        proposed: RankedIds | Tensor = RankedIds(none, np.zeros_like(limits))
        if self.proposer is not None and limits.any():
            # Another key than that of the fill: uniform ids must not depend on the candidates.
            proposed = self.proposer.propose(queries, labels, limits, random_key(int(key), 1))
            filled = self.proposer.filled
        if self.candidate_share is None:
            if isinstance(proposed, Tensor):
                found = on_host((proposed >= 0).sum(1))
            else:
                found = proposed.counts
            sizes = np.maximum(sizes, counts + self._reserve + found)
        indptr = row_bounds(np.minimum(sizes, self.out_features))
        # Where all candidates are taken, as published, or none, each sample has its own draws.
        group = 1 if self.candidate_share is None or not limits.any() else _GROUP
        device = self._device_of(queries)
        if uses_reference(device):
            if not isinstance(proposed, Tensor):
                kept = np.arange(proposed.ids.shape[1]) < proposed.counts[:, None]
                proposed = on_device(np.where(kept, proposed.ids, np.int32(-1)), device)
            own = labels.padded()
            sizes = np.diff(indptr)
            ids, known, weights = self._reference_sets(own, proposed, sizes, key, group)
        else:
            ids, known = np.empty(indptr[-1], np.int32), np.empty(len(counts), np.int64)
            weights = np.empty(len(ids) if self.weighting == "stratified" else 0, np.float32)
            n = self.out_features
            marks = self._scratch.filled("marks", (num_threads(), n), np.uint8)
            kernels.assemble_per_sample(
                labels, proposed, n, key, group, marks, indptr, ids, known, weights
            )
        self._chosen = _Chosen(known, int(counts.sum()), filled, len(ids), len(counts))
        targets = None
        if supervised:
            positions = np.arange(len(labels.indices)) - np.repeat(labels.indptr[:-1], counts)
            targets = Pattern(labels.indptr, positions.astype(np.int32))
        weights = weights if self.weighting == "stratified" else None
        return ActiveSet(self.out_features, ids, indptr, targets, weights, self._scratch)

    def _shared(
        self, queries: Queries, labels: Pattern, supervised: bool, key: np.uint64
    ) -> ActiveSet:
        everyone = _Division(np.arange(labels.num_rows), np.array([0, labels.num_rows]))
        distinct = self._distinct(labels, everyone)
        most = int(self._limits(self.active - distinct)[0])
        proposed: np.ndarray | Tensor = np.empty(0, np.int32)
        if self.proposer is not None and most:
            draws = random_key(int(key), 1)  # As for sets of each sample.
            proposed = self.proposer.propose_shared(queries, labels, most, draws)
        sizes = np.minimum(np.maximum(self.active, distinct + self._reserve), self.out_features)
        made = self._sets(queries, labels, everyone, proposed[None], sizes, key)
        self._chosen = _Chosen(made.known, int(distinct.sum()), 0, len(made.ids), 1)
        targets = Pattern(labels.indptr, made.positions) if supervised else None
        return ActiveSet(
            self.out_features, made.ids, None, targets, made.log_weights, self._scratch
        )

    def _grouped(
        self, queries: Queries, labels: Pattern, supervised: bool, key: np.uint64
    ) -> ActiveSet:
        division = _divide(queries, self.group_size, int(key))
        order, bounds = division
        distinct, sets = self._distinct(labels, division), len(bounds) - 1
        asking, proposed, filled = np.empty(0, np.int64), np.empty((sets, 0), np.int32), 0
        if self.proposer is not None and self.lookups:
            # The first samples of each group; they are in no particular order there.
            rank = np.arange(len(order)) - np.repeat(bounds[:-1], np.diff(bounds))
            asking = order[rank < self.lookups]
        if len(asking):
            assert self.proposer is not None
            limit = self.out_features
            if self.candidate_share is not None:
                limit = math.ceil(self.candidate_share * self.active / self.lookups)
            some, own = _take(queries, asking), _rows(labels, asking)
            draws = random_key(int(key), 1)  # As for sets of each sample.
            found = self.proposer.propose(some, own, np.full(len(asking), limit), draws)
            filled = self.proposer.filled
            proposed = _in_groups(found, division, self.lookups)
        needed = distinct + self._reserve + on_host((proposed >= 0).sum(1))
        sizes = np.minimum(np.maximum(needed, self.active), self.out_features)
        chosen, drawn = proposed, None
        if self.weighting == "none":
            more = _drawn_labels(labels, _LABEL_DRAWS * (sizes - needed), key)
            chosen = _side_by_side(proposed, more)
            drawn = partial(_only_drawn, labels, division, proposed, more)
        made = self._sets(queries, labels, division, chosen, sizes, key)
        self._chosen = _Chosen(made.known, int(distinct.sum()), filled, len(made.ids), sets, drawn)
        bounds_of_sets, set_of = row_bounds(sizes), np.empty(len(order), np.int64)
        set_of[order] = np.repeat(np.arange(sets), np.diff(bounds))
        indptr = row_bounds(sizes[set_of])
        targets = Pattern(labels.indptr, made.positions) if supervised else None
        if isinstance(made.ids, Tensor):
            at = np.arange(indptr[-1]) + np.repeat(
                bounds_of_sets[set_of] - indptr[:-1], np.diff(indptr)
            )
            at = on_device(at, made.ids.device)
            ids, logs, groups = made.ids[at], made.log_weights, None
            logs = None if logs is None else logs[at]
        else:
            ids, logs = (
                None if each is None else _repeated(each, set_of, bounds_of_sets, indptr)
                for each in (made.ids, made.log_weights)
            )
            groups = Groups(order, bounds, made.ids, bounds_of_sets)
        return ActiveSet(self.out_features, ids, indptr, targets, logs, self._scratch, groups)

    def _distinct(self, labels: Pattern, division: "_Division") -> np.ndarray:
        """The number of different labels of each group ``(S,)``."""
        out = np.empty(len(division.bounds) - 1, np.int64)
        marks = self._scratch.filled("marks", (1, self.out_features), np.uint8)
        kernels.count_distinct(labels, *division, marks[0], out)
        return out

    def _sets(
        self,
        queries: Queries,
        labels: Pattern,
        division: "_Division",
        proposed: np.ndarray | Tensor,
        sizes: np.ndarray,
        key: np.uint64,
    ) -> "_Sets":
        """The sets of groups: their labels, then proposed ids ``(S, M)``, -1: none, then draws."""
        device, n = self._device_of(queries), self.out_features
        if uses_reference(device):
            own, positions = _by_appearance(labels, division)
            best = on_device(proposed, device)
            ids, known, weights = self._reference_sets(own, best, sizes, key, group=1)
            return _Sets(ids, positions, known, weights)
        indptr, stratified = row_bounds(sizes), self.weighting == "stratified"
        ids, positions = np.empty(indptr[-1], np.int32), np.empty(len(labels.indices), np.int32)
        weights = np.empty(len(ids) if stratified else 0, np.float32)
        known = np.empty(len(sizes), np.int64)
        runs = min(num_threads(), len(sizes))
        marks = self._scratch.filled("marks", (max(runs, 1), n), np.uint8)
        slots = self._scratch.filled("slots", (max(runs, 1), n), np.int32)
        kernels.assemble_groups(
            labels,
            *division,
            on_host(proposed),
            n,
            key,
            marks,
            slots,
            indptr,
            ids,
            positions,
            known,
            weights,
        )
        return _Sets(ids, positions, known, weights if stratified else None)

    def _reference_sets(
        self, labels: np.ndarray, proposed: Tensor, sizes: np.ndarray, key: np.uint64, group: int
    ) -> tuple[Any, Tensor, Any]:
        """Ids set after set, how many of each are not drawn, and log weights or None.

        A -1 in ``labels`` or ``proposed`` is none.
        """
        device, width = proposed.device, int(sizes.max(initial=0))
        wanted, own = on_device(sizes, device), on_device(labels, device)
        ids, known = torch_assemble(
            own, proposed, wanted, width, self.out_features, int(key), group
        )
        if self.weighting == "none":
            return _flat(ids, sizes), known, None
        weights = torch_stratified_log_weights(known, wanted, width, self.out_features)
        return _flat(ids, sizes), known, _flat(weights, sizes)

    def _device_of(self, queries: Queries) -> torch.device:
        """Where sets are assembled: sparse inputs are on the host, their layer may not be."""
        return queries.device if isinstance(queries, Tensor) else self._device

    def forget_index(self) -> None:
        self._built = False

    def _proposer_kind(self) -> str:
        """The name of the proposer's class, by which a state knows whose it is."""
        return type(self.proposer).__name__ if self.proposer else "no proposer"

    def state_dict(self) -> dict[str, Any]:
        """The state of the proposer, and counters, which with the seed determine all draws."""
        counters = {name: getattr(self, name) for name in _COUNTERS}
        try:
            known = self.proposer.state_dict() if self.proposer else {}
        except Exception:  # One may have nothing to save yet, as its first rebuild makes it.
            if self.rebuilds:
                raise
            known = {}
        kind = {"proposer_kind": self._proposer_kind(), "built": self._built}
        return counters | kind | {"proposer": known}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        try:
            self._load(state)
        except (AttributeError, KeyError, TypeError) as error:  # Other kinds of values.
            raise ValueError(f"this is no state of an ActiveSampler: {error!r}") from error

    def _load(self, state: dict[str, Any]) -> None:
        saved, own = state.get("proposer_kind"), self._proposer_kind()
        if saved is None:
            raise ValueError(
                "this is no state of an ActiveSampler; make the layer with the sampler that it "
                "was saved with"
            )
        if saved != own:
            raise ValueError(
                f"the state of an ActiveSampler with {saved} does not fit one with {own}"
            )
        self._built = False  # If the state is refused, no part of it counts as an index.
        if self.proposer is not None and state["proposer"]:
            self.proposer.load_state_dict(state["proposer"])
            # A proposer that saves no index is rebuilt. Earlier states do not say "built".
            self._built = bool(state.get("built", state["rebuilds"]))
            if self._built and not self.proposer.has_index:
                raise ValueError(f"the state of an ActiveSampler with {own} lacks its index")
        for name in _COUNTERS:  # Earlier states have "asides" for "inference_selections", or none.
            saved = state.get(name, state.get("asides", 0))
            count = check_counter("the state of an ActiveSampler", name, saved)
            setattr(self, name, count)
        # Another schedule may have asked for more, and this one must not wait until it has, too.
        self.scheduled = min(self.scheduled, self.rebuild_due(self.progress()))


class _Chosen(NamedTuple):
    """Counts of the ids of some sets, for the log.

    known: of each set, ids that are labels, proposed or drawn labels of the batch; labels, filled:
    how many of these are labels, and how many were drawn at random; outputs: all ids; drawn:
    counts those that are drawn labels alone, which takes a while.
    """

    known: Any
    labels: int
    filled: int
    outputs: int
    sets: int
    drawn: Callable[[], int] | None = None


def _only_drawn(labels: Pattern, division: "_Division", proposed: Any, drawn: np.ndarray) -> int:
    """How many ids of groups are drawn labels of the batch, and neither labels nor proposed."""
    found = on_host(proposed)
    return sum(
        len(
            np.setdiff1d(
                drawn[s][drawn[s] >= 0],
                np.append(_rows(labels, division.order[begin:end]).indices, found[s]),
            )
        )
        for s, (begin, end) in enumerate(itertools.pairwise(division.bounds))
    )


def _flat(values: Tensor, sizes: np.ndarray) -> Any:
    """The first ``sizes[b]`` values of each row, one row after the other."""
    width = values.shape[1]
    if (sizes == width).all():
        return native(values.flatten())
    at = np.flatnonzero(np.arange(width) < sizes[:, None])
    return native(values.flatten()[on_device(at, values.device)])


class _Division(NamedTuple):
    """Groups of samples: order (B,) int64, bounds (S + 1,) int64; see `Groups`."""

    order: np.ndarray
    bounds: np.ndarray


class _Sets(NamedTuple):
    """The sets of groups, one after the other; known (S,): labels and candidates of each."""

    ids: Any
    positions: np.ndarray
    known: Any
    log_weights: Any


def _divide(queries: Queries, size: int, key: int) -> _Division:
    """Groups of similar inputs; of neighbours, where inputs are sparse or on another device."""
    count = num_queries(queries)
    bounds = np.append(np.arange(0, count, size), count)
    levels = max(0, round(math.log2(max(1.0, count / size))))
    if not levels or not isinstance(queries, Tensor) or not queries.is_cpu:
        return _Division(np.arange(count), bounds)
    with span("group"):
        x = queries.detach().float()
        generator = torch.Generator().manual_seed(key % 2**63)
        directions = torch.randn(x.shape[1], levels, generator=generator, dtype=torch.float32)
        projections = ((x - x.mean(0)) @ directions).numpy()
        return _Division(kernels.similar_order(projections, levels), bounds)


def _take(queries: Queries, rows: np.ndarray) -> Queries:
    """Some inputs ``(n,)`` int64."""
    if isinstance(queries, Tensor):
        return queries.detach().index_select(0, on_device(rows, queries.device))
    return _rows(queries, rows)


def _rows(matrix: Any, rows: np.ndarray) -> Any:
    """Some rows ``(n,)`` int64 of a `Pattern` or a `CSR`."""
    return type(matrix)(*select_rows(matrix.indptr, rows, *matrix[1:]))


def _in_groups(found: RankedIds | Tensor, division: _Division, each: int) -> np.ndarray | Tensor:
    """What the first ``each`` samples of the groups have found, ``(S, M)`` int32, -1: none."""
    sizes = np.minimum(np.diff(division.bounds), each)
    rows = np.arange(each) < sizes[:, None]
    if isinstance(found, Tensor):
        out = found.new_full((rows.size, found.shape[1]), -1)
        return out.index_copy(0, on_device(np.flatnonzero(rows), out.device), found).view(
            len(rows), -1
        )
    ids, width = found.ids, found.ids.shape[1]
    ids = np.where(np.arange(width) < found.counts[:, None], ids, np.int32(-1))
    out = np.full((rows.size, width), -1, np.int32)
    out[rows.ravel()] = ids
    return out.reshape(len(rows), -1)


def _drawn_labels(labels: Pattern, wanted: np.ndarray, key: np.uint64) -> np.ndarray:
    """Labels of the batch by their frequency there: ``wanted`` (S,) for each set, -1 after them."""
    most = int(wanted.max(initial=0)) if len(labels.indices) else 0
    draws = np.random.default_rng(int(random_key(int(key), 2)))
    at = draws.integers(max(1, len(labels.indices)), size=(len(wanted), most), dtype=np.int32)
    drawn = labels.indices[at] if most else at
    return np.where(np.arange(most) < wanted[:, None], drawn, np.int32(-1))


def _side_by_side(proposed: np.ndarray | Tensor, drawn: np.ndarray) -> np.ndarray | Tensor:
    if isinstance(proposed, Tensor):
        return torch.cat([proposed, on_device(drawn, proposed.device)], 1)
    return np.concatenate([proposed, drawn], 1)


def _repeated(
    sets: np.ndarray, set_of: np.ndarray, bounds: np.ndarray, indptr: np.ndarray
) -> np.ndarray:
    """The set of each sample, sample after sample."""
    out = np.empty(indptr[-1], sets.dtype)
    kernels.repeat_sets(set_of, bounds, indptr, sets, out)
    return out


def _by_appearance(labels: Pattern, division: _Division) -> tuple[np.ndarray, np.ndarray]:
    """The distinct labels of groups by first appearance ``(S, m)``, and each label's position.

    -1 follows the last label of a group.
    """
    found, positions = [], np.empty(len(labels.indices), np.int32)
    entries = np.arange(len(labels.indices))
    for begin, end in itertools.pairwise(division.bounds):
        samples = division.order[begin:end]
        at = _rows(labels._replace(indices=entries), samples).indices
        ids, first, inverse = np.unique(labels.indices[at], return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order))
        found.append(ids[order].tolist())
        positions[at] = rank[inverse]
    own = Pattern.from_lists(found)
    return own.padded(), positions
