"""Samplers choose a layer's active set: labels first, then promising ids, then uniform fill."""

from typing import Any, Protocol

import numpy as np
from torch import Tensor

from slide import checks
from slide.active_set import ActiveSet
from slide.kernels import assemble_sets as kernels
from slide.kernels.votes import Lists
from slide.runtime import num_threads, random_key
from slide.scratch import Scratch
from slide.sparse import CSR, Pattern, check_pattern

MODES = ("per_sample", "shared")
WEIGHTINGS = ("none", "stratified")

Queries = Tensor | CSR


class Sampler(Protocol):
    """What a layer asks of its sampler; any object with these members serves.

    A class that inherits from this one need write no more than `select`, and set ``out_features``.
    `slide.testing.check_sampler` tells whether one keeps to what is said here.
    """

    out_features: int

    def update(self, weight: Tensor, bias: Tensor | None, inputs: Queries | None) -> None:
        """Make ready for the weights as they are; in training, take note of the next inputs.

        Args:
            weight: ``(N, D)``, any strides; may require a gradient.
            bias: ``(N,)`` or None.
            inputs: ``(B, D)``, about to be trained on; None outside of training.
        """

    def select(self, queries: Queries, labels: Pattern | None) -> ActiveSet:
        """The active set for inputs ``(B, D)``.

        All ``labels``, if given, are in it, and its ``targets`` say where: as positions within each
        sample's set. Ids are int32, in ``[0, out_features)``, and distinct within a set.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs, as numbers, arrays and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""


class FullSampler:
    """All outputs, always: the dense layer through the same interface.

    Args:
        in_features: D; does not matter.
        out_features: N.
    """

    def __init__(self, in_features: int, out_features: int):
        self.out_features = out_features
        self._ids = np.arange(out_features, dtype=np.int32)
        self._scratch = Scratch(out_features)

    def update(self, weight: Tensor, bias: Tensor | None, inputs: Queries | None) -> None:
        """Nothing to follow."""

    def select(self, queries: Queries, labels: Pattern | None) -> ActiveSet:
        """All outputs, in order."""
        return ActiveSet(
            self.out_features,
            self._ids,
            None,
            _targets(labels, queries, self.out_features),
            None,
            self._scratch,
        )

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


class UniformSampler:
    """Labels and uniform ids: sampled softmax, and the base of the other samplers.

    Args:
        in_features: D, length of the inputs.
        out_features: N.
        active: outputs in a set. A set that needs more room for its labels is larger; with
            ``active >= out_features`` all outputs are computed.
        mode: ``"per_sample"`` (a set for each sample, as published) or ``"shared"`` (one for the
            batch).
        weighting: ``"stratified"`` lets each uniform id stand for all that were not chosen, so that
            sums over the set estimate sums over all outputs without bias; ``"none"`` takes the set
            for all there is, as published.
        seed: of all draws.

    Raises:
        ValueError: for a number or name out of range.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        active: int = 1024,
        mode: str = "shared",
        weighting: str = "stratified",
        seed: int = 0,
    ):
        checks.whole("out_features", out_features, 1)
        checks.whole("active", active, 1)
        checks.one_of("mode", mode, MODES)
        checks.one_of("weighting", weighting, WEIGHTINGS)
        checks.whole("seed", seed, 0)
        self.out_features = out_features
        self.active = active
        self.mode = mode
        self.weighting = weighting
        self.seed = seed
        self.selections = 0
        # Somebody must stand for the outputs left out.
        self._reserve = 1 if weighting == "stratified" else 0
        self._scratch = Scratch(out_features)
        self._full = FullSampler(in_features, out_features) if active >= out_features else None

    def update(self, weight: Tensor, bias: Tensor | None, inputs: Queries | None) -> None:
        """Nothing to follow."""

    def select(self, queries: Queries, labels: Pattern | None) -> ActiveSet:
        """See `Sampler.select`."""
        if self._full is not None:
            return self._full.select(queries, labels)
        targets = _targets(labels, queries, self.out_features)
        known = targets or _no_labels(queries)
        key = random_key(self.seed, self.selections)
        self.selections += 1
        choose = self._per_sample if self.mode == "per_sample" else self._shared
        return choose(queries, known, targets is not None, key)

    # What a subclass adds to labels and uniform fill: ids that promise a large inner product.

    def _lists(self, queries: Queries, places: np.ndarray, key: np.uint64) -> Lists:
        """Promising ids of each sample, for at most ``places[b]`` places."""
        num_samples = num_rows_of(queries)
        return Lists(np.empty((num_samples, 0), np.int32), np.zeros(num_samples, np.int64))

    def _list(self, queries: Queries, budget: int, key: np.uint64) -> np.ndarray:
        """At most ``budget`` promising ids for the batch."""
        return np.empty(0, np.int32)

    def _per_sample(
        self, queries: Queries, labels: Pattern, supervised: bool, key: np.uint64
    ) -> ActiveSet:
        counts = np.diff(labels.indptr)
        indptr = np.zeros(len(counts) + 1, np.int64)
        sizes = np.maximum(counts + self._reserve, self.active)
        np.cumsum(np.minimum(sizes, self.out_features), out=indptr[1:])
        ids, num_hard = np.empty(indptr[-1], np.int32), np.empty(len(counts), np.int64)
        lists = self._lists(queries, np.maximum(self.active - counts, 0), key)
        kernels.assemble_per_sample(
            labels,
            lists,
            self.out_features,
            key,
            self._scratch.marks(num_threads()),
            indptr,
            ids,
            num_hard,
        )
        targets = None
        if supervised:
            positions = np.arange(len(labels.indices)) - np.repeat(labels.indptr[:-1], counts)
            targets = Pattern(labels.indptr, positions.astype(np.int32))
        return self._with_weights(indptr, ids, num_hard, targets, shared=False)

    def _shared(
        self, queries: Queries, labels: Pattern, supervised: bool, key: np.uint64
    ) -> ActiveSet:
        marks = self._scratch.marks(1)[0]
        distinct = kernels.count_distinct(labels.indices, marks)
        listed = self._list(queries, self.active - distinct, key)
        size = min(max(self.active, distinct + self._reserve), self.out_features)
        ids = np.empty(size, np.int32)
        positions = np.empty(len(labels.indices), np.int32)
        num_hard = kernels.assemble_shared(
            labels, listed, self.out_features, key, marks, self._scratch.slots(), ids, positions
        )
        targets = Pattern(labels.indptr, positions) if supervised else None
        indptr = np.array([0, len(ids)])
        return self._with_weights(indptr, ids, np.array([num_hard]), targets, shared=True)

    def _with_weights(
        self,
        indptr: np.ndarray,
        ids: np.ndarray,
        num_hard: np.ndarray,
        targets: Pattern | None,
        shared: bool,
    ) -> ActiveSet:
        log_weights = None
        if self.weighting == "stratified":
            log_weights = np.empty(len(ids), np.float32)
            kernels.stratified_log_weights(indptr, num_hard, self.out_features, log_weights)
        return ActiveSet(
            self.out_features, ids, None if shared else indptr, targets, log_weights, self._scratch
        )

    def state_dict(self) -> dict[str, Any]:
        """The number of sets chosen so far: all draws follow from it."""
        return {"selections": self.selections}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.selections = int(state["selections"])


def num_rows_of(queries: Queries) -> int:
    return queries.num_rows if isinstance(queries, CSR) else len(queries)


def _no_labels(queries: Queries) -> Pattern:
    return Pattern(np.zeros(num_rows_of(queries) + 1, np.int64), np.empty(0, np.int32))


def _targets(labels: Pattern | None, queries: Queries, out_features: int) -> Pattern | None:
    if labels is not None:
        check_pattern("labels", labels, num_rows_of(queries), out_features)
    return labels
