"""Active sets and the gradients that live on them."""

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from slide.kernels import active as kernels
from slide.kernels.votes import PARTS, SharedScratch
from slide.runtime import array_view, num_threads
from slide.sparse import Pattern, check_pattern

# So many gradients nobody accumulates: the weight is in no optimizer that knows them.
MANY_PENDING = 1_000


class Scratch:
    """Arrays with one entry an output, made once and handed from step to step.

    Every kernel that borrows one gives it back as it was (all -1, or all 0), so no step clears or
    allocates anything of length N.

    Args:
        out_features: N.
    """

    def __init__(self, out_features: int):
        self.out_features = out_features
        self._arrays: dict[str, np.ndarray] = {}
        self._tensors: dict[str, torch.Tensor] = {}

    def slots(self) -> np.ndarray:
        """``(N,)`` int32, all -1."""
        return self._get("slots", (self.out_features,), np.int32, -1)

    def marks(self, runs: int) -> np.ndarray:
        """``(runs, N)`` uint8, all 0."""
        return self._get(f"marks{runs}", (runs, self.out_features), np.uint8, 0)

    def ballot_box(
        self, num_tables: int, num_samples: int, num_buckets: int, capacity: int
    ) -> SharedScratch:
        """For `slide.kernels.votes.vote_shared`."""
        runs, span = num_threads(), 1 << (-(-self.out_features // PARTS) - 1).bit_length()
        # A table holds an id once.
        room = num_tables * min(min(num_samples, num_buckets) * capacity, self.out_features)
        return SharedScratch(
            hits=self._get("hits", (num_tables, num_buckets), np.int32, 0),
            votes=self._get(f"votes{runs}", (runs, span), np.int32, 0),
            buckets=self._get("buckets", (num_tables, num_samples), np.int32, 0),
            weights=self._get("weights", (num_tables, num_samples), np.int32, 0),
            cursors=self._get("cursors", (num_tables, PARTS), np.int64, 0),
            ids=self._get("ids", (room,), np.int32, 0),
            ballots=self._get("ballots", (room,), np.int32, 0),
            histogram=self._get("histogram", (runs, num_tables * num_samples + 1), np.int64, 0),
        )

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised; for use within one call. Large fresh memory has to be zeroed first."""
        found = self._tensors.get(name)
        if found is None or found.dtype != dtype or found.numel() < math.prod(shape):
            with torch.inference_mode(False):
                found = self._tensors[name] = torch.empty(math.prod(shape), dtype=dtype)
        return found[: math.prod(shape)].view(shape)

    def _get(self, name: str, shape: tuple[int, ...], dtype: type, fill: int) -> np.ndarray:
        found = self._arrays.get(name)
        if found is None or found.shape != shape:
            found = self._arrays[name] = np.full(shape, fill, dtype)
        return found

    def __deepcopy__(self, memo: dict) -> "Scratch":
        return Scratch(self.out_features)

    def __getstate__(self) -> dict:
        return {"out_features": self.out_features, "_arrays": {}, "_tensors": {}}


@dataclass(frozen=True)
class Transposed:
    """The entries of a pattern, grouped by id.

    Attributes:
        ids: ``(R,)`` int32, distinct.
        starts: ``(R + 1,)`` int64, bounds of the groups.
        entries: ``(nnz,)`` int64, positions in the pattern.
        samples: ``(nnz,)`` int32, the row of each of those positions.
        scratch: that it was made with, and that its like may be made with.
    """

    ids: np.ndarray
    starts: np.ndarray
    entries: np.ndarray
    samples: np.ndarray
    scratch: Scratch = field(repr=False)


def transpose(pattern: Pattern, scratch: Scratch) -> Transposed:
    """Group the entries of ``pattern`` by id, in time proportional to their number."""
    nnz = int(pattern.indptr[-1])
    touched, starts = np.empty(nnz, np.int32), np.empty(nnz + 1, np.int64)
    entries, samples = np.empty(nnz, np.int64), np.empty(nnz, np.int32)
    distinct = kernels.transpose_pattern(
        *pattern, scratch.slots(), touched, starts, entries, samples
    )
    return Transposed(touched[:distinct], starts[: distinct + 1], entries, samples, scratch)


@dataclass(frozen=True)
class ActiveSet:
    """The outputs that a step computes: one set a sample, or one for the whole batch.

    Attributes:
        out_features: N.
        ids: int32; ``(nnz,)``, sample after sample, or ``(A,)`` if shared. Distinct within a set.
        indptr: ``(B + 1,)`` int64 bounds of the samples' sets; None if shared.
        targets: where the positive outputs stand: row b holds positions within b's set.
        log_weights: float32, as long as ``ids``: logarithm of how many outputs each id stands for;
            None if each stands for itself.
        scratch: of the layer that the set belongs to.
    """

    out_features: int
    ids: np.ndarray
    indptr: np.ndarray | None = None
    targets: Pattern | None = None
    log_weights: np.ndarray | None = None
    scratch: Scratch = field(default=None, repr=False)  # type: ignore[assignment]

    def __post_init__(self):
        if self.scratch is None:
            object.__setattr__(self, "scratch", Scratch(self.out_features))

    @property
    def shared(self) -> bool:
        """Whether all samples have the same set."""
        return self.indptr is None

    @cached_property
    def complete(self) -> bool:
        """Whether the set is shared and holds all N outputs, in order."""
        if not self.shared or len(self.ids) != self.out_features:
            return False
        return np.array_equal(self.ids, np.arange(self.out_features))

    @cached_property
    def transposed(self) -> Transposed:
        """The entries grouped by output; for sets of the samples' own."""
        assert self.indptr is not None
        return transpose(Pattern(self.indptr, self.ids), self.scratch)

    def row(self, b: int) -> np.ndarray:
        """The ids in the set of sample b."""
        if self.indptr is None:
            return self.ids
        return self.ids[self.indptr[b] : self.indptr[b + 1]]

    def mean_size(self) -> float:
        """Number of outputs computed for a sample, on average."""
        if self.indptr is None:
            return float(len(self.ids))
        return len(self.ids) / max(1, len(self.indptr) - 1)


def check_sets(active: ActiveSet, num_samples: int) -> None:
    """Raise unless the bounds of the samples' sets fit the ids and ``num_samples`` inputs.

    Raises:
        ValueError: naming what is wrong; TypeError: for a wrong dtype.
    """
    indptr, count = active.indptr, len(active.ids)
    if indptr is None:
        return
    if indptr.dtype != np.int64:
        raise TypeError(f"indptr of active sets must be int64, not {indptr.dtype}")
    if indptr.shape != (num_samples + 1,):
        raise ValueError(f"{len(indptr) - 1} active sets do not fit {num_samples} samples")
    if indptr[0] or indptr[-1] != count or (np.diff(indptr) < 0).any():
        raise ValueError(f"indptr of active sets must rise from 0 to their number of ids, {count}")


def check_targets(active: ActiveSet, num_samples: int) -> None:
    """Raise unless a loss can follow the targets and weights of a set that `check_sets` passed.

    Raises:
        ValueError: naming what is wrong; TypeError: for a wrong dtype.
    """
    targets, indptr, weights = active.targets, active.indptr, active.log_weights
    if targets is None:
        raise ValueError("a loss needs an active set with targets")
    check_pattern("targets", targets, num_samples, len(active.ids))
    if indptr is not None:
        sizes = np.repeat(np.diff(indptr), np.diff(targets.indptr))
        outside = targets.indices >= sizes
        if outside.any():
            place, size = targets.indices[outside][0], sizes[outside][0]
            raise ValueError(f"a target at place {place} is outside of a set of {size} ids")
    if weights is not None and weights.shape != active.ids.shape:
        raise ValueError(f"log_weights {weights.shape} do not fit ids {active.ids.shape}")


@dataclass(frozen=True)
class RowGradient:
    """A gradient that is zero outside some rows.

    Attributes:
        ids: ``(R,)`` int32, distinct row numbers.
        rows: ``(R, D)`` floats, their gradients.
    """

    ids: np.ndarray
    rows: torch.Tensor

    def values(self) -> torch.Tensor:
        """The rows' gradients ``(R, D)``."""
        return self.rows

    def scaled(self, factor: float, copy: bool = False) -> "RowGradient":
        """``factor`` times it, on request in memory of its own in any case."""
        same = factor == 1 and not copy
        return self if same else RowGradient(self.ids, self.rows * factor)


@dataclass(frozen=True)
class FactoredRowGradient:
    """A row gradient as its factors ``G^T H``, so that it need not be written out.

    Attributes:
        transposed: the pattern of G, by row of the weight.
        coefficients: ``(nnz,)`` floats, the entries of G in the pattern's order.
        vectors: ``(B, D)`` floats, H.
    """

    transposed: Transposed
    coefficients: np.ndarray
    vectors: np.ndarray

    @property
    def ids(self) -> np.ndarray:
        return self.transposed.ids

    def values(self) -> torch.Tensor:
        """The rows' gradients ``(R, D)``, computed now."""
        t = self.transposed
        out = np.empty((len(t.ids), self.vectors.shape[1]), self.vectors.dtype)
        kernels.row_gradient(t.starts, t.entries, t.samples, self.coefficients, self.vectors, out)
        return torch.from_numpy(out)

    def scaled(self, factor: float, copy: bool = False) -> "FactoredRowGradient":
        """``factor`` times it; `values` are in memory of their own anyway."""
        if factor == 1:
            return self
        return replace(self, coefficients=self.coefficients * self.coefficients.dtype.type(factor))


AnyRowGradient = RowGradient | FactoredRowGradient


def check_leaves(*parameters: torch.Tensor | None) -> None:
    """Raise for tensors whose row gradients nobody would find."""
    for parameter in parameters:
        if parameter is not None and parameter.requires_grad and not parameter.is_leaf:
            raise ValueError(
                "this weight is computed from other tensors, which row gradients left on it would "
                "not reach: use sparse_grad=True"
            )


def hand_over(parameter: torch.Tensor, gradient: AnyRowGradient, sparse: bool):
    """What a backward pass returns as the gradient of ``parameter``.

    Either a sparse tensor, which goes on through autograd, or None: then the gradient was left on
    the parameter, for `slide.optim.RowSparseAdam`.
    """
    if sparse:
        return to_sparse(parameter, gradient)
    add_row_gradient(parameter, gradient)
    return None


def to_sparse(parameter: torch.Tensor, gradient: AnyRowGradient) -> torch.Tensor:
    """A row gradient of ``parameter`` as ``torch.sparse_coo`` tensor of its shape and type.

    Rows occur once each, but are not in order, so that the tensor does not count as coalesced.
    """
    axes = row_axes(parameter)
    values = gradient.values().to(parameter.dtype).view(-1, *parameter.shape[axes:])
    places = np.unravel_index(gradient.ids.astype(np.int64), parameter.shape[:axes])
    ids = torch.from_numpy(np.stack(places))
    return torch.sparse_coo_tensor(ids, values, parameter.shape, check_invariants=False)


def add_row_gradient(parameter: torch.Tensor, gradient: AnyRowGradient) -> None:
    """Leave a gradient on ``parameter`` for `slide.optim.RowSparseAdam`, beside earlier ones."""
    pending = getattr(parameter, "row_gradients", None)
    if pending is None:
        pending = parameter.row_gradients = []  # type: ignore[attr-defined]
    pending.append(gradient)
    if len(pending) == MANY_PENDING:
        warnings.warn(
            f"{MANY_PENDING} backward passes left gradients on a weight {tuple(parameter.shape)}, "
            "and no RowSparseAdam took them; other optimizers need sparse_grad=True",
            stacklevel=2,
        )


def take_row_gradients(parameter: torch.Tensor) -> AnyRowGradient | None:
    """All gradients of ``parameter``, added up, and taken off it; None if there are none.

    Those left by `add_row_gradient`, and its ``grad``, sparse or dense, which stays where it is.

    Raises:
        ValueError: for a sparse ``grad`` that is not made of rows.
    """
    gradients: list[AnyRowGradient] = list(getattr(parameter, "row_gradients", ()))
    if gradients:
        parameter.row_gradients = []  # type: ignore[attr-defined]
    grad = parameter.grad
    if grad is not None and grad.layout == torch.sparse_coo:
        axes, found = row_axes(parameter), grad.sparse_dim()
        if found != axes:
            raise ValueError(f"a sparse gradient needs {axes} sparse dimension, not {found}")
        grad = grad.coalesce()
        rows = grad.values().reshape(grad.values().shape[0], -1).contiguous()
        places = tuple(array_view(grad.indices()))
        ids = np.asarray(np.ravel_multi_index(places, parameter.shape[:axes]), np.int32)
        gradients.append(RowGradient(ids, rows))
    elif grad is not None:
        rows = grad.reshape(num_rows(parameter), -1).contiguous()
        gradients.append(RowGradient(np.arange(len(rows), dtype=np.int32), rows))
    return add_up(gradients) if gradients else None


def add_up(gradients: list[AnyRowGradient]) -> AnyRowGradient:
    """One gradient with distinct rows out of several."""
    if len(gradients) == 1:
        return gradients[0]
    ids, places = np.unique(np.concatenate([g.ids for g in gradients]), return_inverse=True)
    values = torch.cat([g.values() for g in gradients])
    total = values.new_zeros(len(ids), values.shape[1])
    return RowGradient(ids, total.index_add_(0, torch.from_numpy(places), values))


def dense_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The pending row gradients of ``parameter`` added up in its own shape; for checks."""
    out = torch.zeros_like(parameter)
    for gradient in getattr(parameter, "row_gradients", []):
        ids = torch.from_numpy(gradient.ids).long()
        out.view(num_rows(out), -1).index_add_(0, ids, gradient.values())
    return out


def row_axes(parameter: torch.Tensor) -> int:
    """How many of the first axes count rows: 2 of a convolution's weight, 1 of others."""
    return 2 if parameter.ndim > 2 else 1


def num_rows(parameter: torch.Tensor) -> int:
    """Into how many rows a parameter divides: N, and for a convolution's kernels O x I."""
    return math.prod(parameter.shape[: row_axes(parameter)])


def as_rows(parameter: torch.Tensor) -> np.ndarray:
    """A parameter's memory as ``(N, D)``.

    A bias ``(N,)`` counts as ``(N, 1)``, a convolution's weight ``(O, I, kh, kw)`` as
    ``(O * I, kh * kw)``: output ``o`` meets input ``i`` in row ``o * I + i``.
    """
    return array_view(parameter).reshape(num_rows(parameter), -1)
