"""Active sets, the outputs that a step computes."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from slide.backend import on_host
from slide.ops.products import transpose_pattern
from slide.ops.scratch import Scratch
from slide.sparse import Pattern, check_pattern, inside


class Transposed(NamedTuple):
    """The entries of a pattern, grouped by id.

    ids (R,) int32, distinct; starts (R + 1,) int64 bounds of the groups; entries (nnz,) int64
    positions in the pattern; samples (nnz,) int32, their samples.
    """

    ids: np.ndarray
    starts: np.ndarray
    entries: np.ndarray
    samples: np.ndarray


def transpose(pattern: Pattern, num_rows: int) -> Transposed:
    """Group the entries of ``pattern`` by id, in time proportional to their number."""
    nnz = int(pattern.indptr[-1])
    touched, starts = np.empty(nnz, np.int32), np.empty(nnz + 1, np.int64)
    entries, samples = np.empty(nnz, np.int64), np.empty(nnz, np.int32)
    distinct = transpose_pattern(
        pattern.indptr, pattern.indices, num_rows, touched, starts, entries, samples
    )
    return Transposed(touched[:distinct], starts[: distinct + 1], entries, samples)


class Groups(NamedTuple):
    """Sets that several samples share, each once.

    order (B,) int64, the samples of the first set, then those of the second one, and so on; bounds
    (S + 1,) int64, where the samples of each set begin; ids (n,) int32, the outputs of one set
    after the other; indptr (S + 1,) int64, where the outputs of each set begin.
    """

    order: np.ndarray
    bounds: np.ndarray
    ids: np.ndarray
    indptr: np.ndarray


@dataclass(frozen=True)
class ActiveSet:
    """The outputs that a step computes: a set for each sample, each group, or the whole batch.

    A set of the whole batch is called shared.

    Attributes:
        out_features: N, number of outputs of the layer.
        ids: int32 numbers of outputs, distinct within a set: ``(nnz,)``, sample after sample, or
            ``(A,)`` for a shared set. An array; the samplers of layers on another device than the
            CPU make a tensor there.
        indptr: ``(B + 1,)`` int64 bounds of the samples' sets; None for a shared set.
        targets: pattern of B rows with the positions of the labels: row b holds positions within
            the set of sample b. None: there are no labels.
        log_weights: float32, as long as ``ids``, an array or a tensor like them: the logarithm of
            the number of outputs that each id stands for, which is 0 at targets, as they stand for
            themselves; None if each id does.
        scratch: scratch arrays of the layer; by default new ones.
        groups: if groups of samples share sets, each set once; ``ids`` then repeat the set of a
            group for each of its samples. None: no two samples share a set, or all do.

    Example:
        >>> import numpy as np, slide, torch
        >>> ids = np.array([5, 2, 9], np.int32)
        >>> active = slide.ActiveSet(out_features=10, ids=ids)  # Shared by all samples.
        >>> weight = torch.zeros(10, 4, requires_grad=True)
        >>> slide.active_linear(torch.ones(2, 4), weight, None, active)
        tensor([[0., 0., 0.], [0., 0., 0.]], grad_fn=...)
    """

    out_features: int
    ids: Any
    indptr: np.ndarray | None = None
    targets: Pattern | None = None
    log_weights: Any = None
    scratch: Scratch = field(default_factory=Scratch, repr=False)
    groups: Groups | None = None

    @property
    def shared(self) -> bool:
        """Whether all samples have the same set."""
        return self.indptr is None

    @cached_property
    def complete(self) -> bool:
        """Whether the set is shared and holds all N outputs, in order."""
        ids, every = self.ids, self.out_features
        if not self.shared or len(ids) != every or isinstance(ids, Tensor):
            return False  # To read a tensor would wait for its device.
        return np.array_equal(ids, np.arange(every))

    @property
    def row_ids(self) -> Any:
        """The ids of a shared set; None for all outputs, in order."""
        return None if self.complete else self.ids

    @cached_property
    def transposed(self) -> Transposed:
        """The entries grouped by output; shared sets do not have it."""
        assert self.indptr is not None
        return transpose(Pattern(self.indptr, self.ids), self.out_features)

    def row(self, b: int) -> Any:
        """The ids in the set of sample b, of the kind of ``ids``."""
        return self.ids if self.indptr is None else self.ids[slice(*self.indptr[b : b + 2])]

    def label_ids(self) -> np.ndarray:
        """The labels of all samples, sample after sample, int32; none if there are no targets."""
        if self.targets is None:
            return np.empty(0, np.int32)
        return on_host(self.ids)[target_positions(self.targets, self.indptr)]

    @property
    def computed(self) -> int:
        """The number of outputs in all sets, each set counted once."""
        return len(self.ids if self.groups is None else self.groups.ids)

    def mean_size(self) -> float:
        """The mean number of outputs that are computed for a sample."""
        return len(self.ids) / (1 if self.indptr is None else max(1, len(self.indptr) - 1))


def target_positions(targets: Pattern, indptr: np.ndarray | None) -> np.ndarray:
    """The positions of targets among the ids of all samples, sample after sample."""
    if indptr is None:
        return targets.indices
    return targets.indices + np.repeat(indptr[:-1], np.diff(targets.indptr))


def check_active(
    active: ActiveSet, num_samples: int, out_features: int | None, targets: bool = False
) -> None:
    """Raise unless an active set fits a number of inputs and of outputs.

    ``out_features`` None: the ids have been checked; ``targets``: a loss needs them.
    """
    ids, indptr, count = active.ids, active.indptr, len(active.ids)
    if out_features is not None:
        if active.out_features != out_features:
            raise ValueError(
                f"an active set of {active.out_features} outputs does not fit {out_features} rows"
            )
        # Off the CPU numbers are not checked, since the host would wait for the device.
        on_cpu = not isinstance(ids, Tensor) or ids.is_cpu
        if on_cpu and not inside(ids, out_features):
            raise ValueError(
                f"active ids must lie in [0, {out_features}), not in [{ids.min()}, {ids.max()}]"
            )
    if indptr is not None:
        if indptr.dtype != np.int64:
            raise TypeError(f"indptr of active sets must be int64, not {indptr.dtype}")
        if indptr.shape != (num_samples + 1,):
            raise ValueError(f"{len(indptr) - 1} active sets do not fit {num_samples} samples")
        if indptr[0] or indptr[-1] != count or (np.diff(indptr) < 0).any():
            raise ValueError(
                f"indptr of active sets must rise from 0 to their number of ids, {count}"
            )
    if active.groups is not None:
        _check_groups(active, active.groups)
    if targets:
        _check_targets(active, num_samples)


def _check_groups(active: ActiveSet, groups: Groups) -> None:
    """Raise ValueError unless kernels can read groups: they are no view of ``ids``."""
    order, bounds, ids, indptr = groups
    assert active.indptr is not None
    samples = len(active.indptr) - 1
    fits = len(bounds) == len(indptr) and len(order) == samples
    for starts, end in ((bounds, samples), (indptr, len(ids))):
        fits = fits and len(starts) and starts[0] == 0 and starts[-1] == end
        fits = fits and (np.diff(starts) >= 0).all()
    fits = fits and np.array_equal(np.sort(order), np.arange(samples))
    fits = fits and inside(ids, active.out_features)
    if (
        not fits
        or (np.diff(active.indptr)[order] != np.repeat(np.diff(indptr), np.diff(bounds))).any()
    ):
        raise ValueError(f"the groups of an active set must divide its {samples} samples")


def _check_targets(active: ActiveSet, num_samples: int) -> None:
    targets, indptr, weights = active.targets, active.indptr, active.log_weights
    if targets is None:
        raise ValueError("a loss needs an active set with targets")
    check_pattern("targets", targets, num_samples, len(active.ids))
    if indptr is not None:
        sizes = np.repeat(np.diff(indptr), np.diff(targets.indptr))
        outside = targets.indices >= sizes
        if outside.any():
            position, size = targets.indices[outside][0], sizes[outside][0]
            raise ValueError(f"a target at position {position} is outside of a set of {size} ids")
    if weights is not None and weights.shape != active.ids.shape:
        raise ValueError(f"log_weights {weights.shape} do not fit ids {active.ids.shape}")
    if weights is not None and (not isinstance(weights, Tensor) or weights.is_cpu):
        aimed = weights[target_positions(targets, indptr)]
        if aimed.any():
            raise ValueError(
                "log_weights must be 0 at targets, which stand for themselves, not "
                f"{aimed[np.flatnonzero(aimed)[0]]}"
            )
