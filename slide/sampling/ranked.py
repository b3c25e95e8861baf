"""What indexes over weight rows share: exact scores of found rows, and changed rows."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from slide.active_set import ActiveSet
from slide.backend import on_device, on_host, uses_reference
from slide.hashing.projection import Projection
from slide.ops.active_sets import RankedIds
from slide.ops.sketches import FIRST, largest_scores, sketches_of
from slide.sampling.protocol import (
    Proposer,
    Queries,
    best_of_voted,
    dense,
    in_turns,
    num_queries,
)
from slide.search.row_index import kept_state, unchanged
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.profiling import profiled

# Number of candidates of an input in prediction.
_ANSWERS = 128

# Largest possible score of a row: its score for the mean input plus 3 standard deviations of its
# score over recent inputs.
DEVIATIONS = 3.0
# Rows in a block to project: their vectors stay in the cache.
BLOCK = 16_384
_NONE = np.empty(0, np.int32)


class ChangedRows:
    """The labels and candidates of training steps, until an index updates these rows.

    A step changes the rows of its labels and candidates most; other rows of its sets hardly change.
    """

    def __init__(self):
        self._state: Any = None  # Of the weights at the last update of the index.
        self.forget()

    def forget(self) -> None:
        """Drop all rows: the index is about to be rebuilt."""
        self._noted: list[np.ndarray] = []
        self._candidates = _NONE

    def propose(self, candidates: np.ndarray) -> None:
        """Keep the candidates ``(n,)`` int32 of the coming step."""
        self._candidates = candidates

    def touched(self, active: ActiveSet) -> None:
        """Note the labels and the candidates of a training step."""
        self._noted.append(np.concatenate([active.label_ids(), self._candidates]))
        self._candidates = _NONE

    def take(self, weight: Tensor, bias: Tensor | None, least: int = 1) -> np.ndarray:
        """The rows ``(n,)`` int32, ascending, of ``least`` steps or more, which are then forgotten.

        No rows if there were fewer steps, or if the weights have not changed since the last call:
        several batches may come before a step.
        """
        if len(self._noted) < least or (self._state and unchanged(self._state, weight, bias)):
            return _NONE
        rows = self.rows()
        self._noted = []
        self.settle(weight, bias)
        return np.unique(rows)

    def settle(self, weight: Tensor, bias: Tensor | None) -> None:
        """Record that the index is up to date with these weights."""
        self._state = kept_state(weight, bias)

    def rows(self) -> np.ndarray:
        """The noted rows, step after step, for a state."""
        return np.concatenate([_NONE, *self._noted])

    @property
    def steps(self) -> int:
        """The number of steps whose rows are noted."""
        return len(self._noted)

    def restore(self, rows: np.ndarray, steps: int = 1) -> None:
        """Continue with what `rows` and `steps` returned."""
        self._noted = [rows.copy(), *[_NONE] * (steps - 1)][:steps]
        self._candidates, self._state = _NONE, None

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a layer has other weights, which it hands over before each set.
        return self.__dict__ | {"_state": None}


class RankedProposer(Proposer):
    """A proposer whose index finds rows; the rows with the largest exact scores are candidates.

    A subclass defines `rebuild`, which sets ``_rows``, and `find`.

    Attributes:
        best: maximum number of candidates of a sample.
        scored: number of rows that the weights score for each candidate.
        changed: the rows that steps have changed since the last update of the index.
        rows_scanned: mean number of rows that an input of the last look-up has scanned.
    """

    sparse_inputs = False
    scored: int = 1

    def __init__(self, in_features: int, out_features: int, *, best: int, seed: int = 0):
        super().__init__(in_features, out_features, seed=seed)
        self.best = checks.whole("best", best, 1)
        self.changed, self.rows_scanned = ChangedRows(), 0.0
        self._rows: tuple[Tensor, Tensor | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a layer has other weights, which it hands over before each set.
        return self.__dict__ | {"_rows": None}

    def find(self, queries: Tensor, labels: Pattern, most: int) -> Tensor:
        """The best ``most`` rows of each input ``(B, D)`` by the index, without its labels.

        Returns ``(B, most)`` int32, the best first, -1 after the last one; on the device of the
        index.
        """
        raise NotImplementedError(f"{type(self).__name__} must define find")

    def forget(self) -> None:
        """See `Proposer.forget`."""
        self.changed.forget()

    def touched(self, active: ActiveSet) -> None:
        """Note the labels and the candidates of a training step."""
        self.changed.touched(active)

    def candidates(self, queries: Queries) -> Pattern:
        """The best rows of each input, best first."""
        nobody = Pattern(np.zeros(num_queries(queries) + 1, np.int64), np.empty(0, np.int32))
        return Pattern.from_padded(on_host(self._found(queries, nobody, _ANSWERS)))

    @profiled("look up")
    def _found(self, queries: Queries, labels: Pattern, most: int) -> Tensor:
        x = dense(queries, type(self).__name__)
        if not len(x) or not most:  # Kernels need an input, and a place for a row.
            return torch.full((len(x), most), -1, dtype=torch.int32, device=x.device)
        return self.find(x, labels, most)

    def _best(self, queries: Queries, labels: Pattern, most: int) -> Tensor:
        """The rows with the largest exact scores among those that the index finds."""
        assert self._rows is not None, "a sampler calls rebuild first"
        ids = self._found(queries, labels, self.scored * most)
        if not ids.numel():
            return ids
        found: Tensor | RankedIds = ids
        if not uses_reference(ids):
            found = RankedIds(ids.numpy(), (ids >= 0).sum(1).numpy())
        x = dense(queries, type(self).__name__)
        return on_device(best_of_voted(x, *self._rows, found, labels, most), ids.device)

    def propose(
        self, queries: Queries, labels: Pattern, wanted: np.ndarray, key: np.uint64
    ) -> RankedIds | Tensor:
        """See `Proposer.propose`."""
        limits = np.minimum(wanted, self.best)
        ids = self._best(queries, labels, int(limits.max(initial=0)))
        if ids.device.type != "cpu":
            limits = on_device(limits, ids.device)
            counted = torch.arange(ids.shape[1], device=ids.device) < limits[:, None]
            return torch.where(counted, ids, -1)
        counts = np.minimum((ids >= 0).sum(1).numpy(), limits)
        self.changed.propose(ids.numpy()[np.arange(ids.shape[1]) < counts[:, None]])
        return RankedIds(ids.numpy(), counts)

    def propose_shared(
        self, queries: Queries, labels: Pattern, wanted: int, key: np.uint64
    ) -> np.ndarray | Tensor:
        """See `Proposer.propose_shared`: the best id of each sample, then the second ones, ..."""
        ids = on_host(self._best(queries, labels, self.best))
        # Labels of other samples are in the set, too.
        found = in_turns(np.where(np.isin(ids, labels.indices), -1, ids), wanted)
        self.changed.propose(found)
        return found

    def statistics(self) -> dict[str, float]:
        """See `Proposer.statistics`."""
        return {"look_up/rows_seen": self.rows_scanned}


class SketchedProposer(RankedProposer):
    """A ranked proposer with a sketch of each row, in the principal directions of recent inputs.

    A subclass sets ``width``, the bytes of a sketch, and defines `_size`, which a constructor calls
    last.

    Attributes:
        projection: the directions.
        sketches: ``(N, width)`` int8; no rows before the first rebuild. See `slide.ops.sketches`.
    """

    width: int

    def __init__(self, in_features: int, out_features: int, *, best: int, seed: int = 0):
        super().__init__(in_features, out_features, best=best, seed=seed)
        self.projection = Projection(in_features, seed)

    def _size(self) -> None:
        """Empty sketches for the number of outputs."""
        self.sketches = torch.zeros(0, self.width, dtype=torch.int8)
        self.changed.forget()
        self.rows_scanned = 0.0

    def resize(self, out_features: int) -> None:
        """See `Proposer.resize`; keeps the directions and drops the rest."""
        super().resize(out_features)
        self._size()

    @property
    def has_index(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.sketches) == self.out_features

    @property
    def numbers(self) -> int:
        """The number of directions of a sketch."""
        return min(self.width - FIRST, self.projection.directions.shape[1])

    @profiled("observe")
    def observe(self, inputs: Queries) -> None:
        """Keep the inputs of a step."""
        self.projection.observe(dense(inputs, type(self).__name__))

    def _make_room(self, weight: Tensor) -> None:
        """Allocate sketches for all rows of a weight, on its device, if there are none."""
        if len(self.sketches) != len(weight) or self.sketches.device != weight.device:
            shape = len(weight), self.width
            self.sketches = torch.empty(shape, dtype=torch.int8, device=weight.device)

    def _sketched(self, weight: Tensor, bias: Tensor | None, rows: np.ndarray) -> Tensor:
        """The sketches of some rows ``(n,)`` int32."""
        projected = self.projection.rows(weight, bias, rows, self.numbers)
        return sketches_of(projected, self.projection.offset, self.width)

    def _largest_scores(self, sketches: Tensor) -> np.ndarray:
        """``(n,)`` float32: the largest possible score of each row."""
        room = self.width - FIRST - self.numbers
        variances = F.pad(self.projection.variances[: self.numbers], (FIRST, room))
        return largest_scores(sketches, variances, DEVIATIONS)


def blocks(rows: np.ndarray) -> list[np.ndarray]:
    """Rows ``(n,)`` in blocks to project."""
    return np.split(rows, range(BLOCK, len(rows), BLOCK))
