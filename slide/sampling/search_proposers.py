"""Candidates by inverted lists of rounded rows, `slide.search.RowIndex`, which follow training."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.sampling.protocol import (
    Proposer,
    Queries,
    dense,
    most_labels,
    without_labels,
)
from slide.search import RowIndex
from slide.search.row_index import checked_state, kept_state, unchanged
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.array_checks import Expected, check_arrays, check_counter
from slide.utils.profiling import profiled

# More than for prediction, since a row that moved is far from the others of its list.
_DEVIATIONS = 7.0
# Steps that change a row before a rebuild puts it into another list: rows of rare labels, which are
# most of the rows, hardly move in fewer.
_STEPS = 4


class IndexProposer(Proposer):
    """Proposes the few rows with the largest inner products that `slide.search.RowIndex` finds.

    The best rounded rows are scored again with the weights as they are, so a row that is no longer
    good is not proposed. Between rebuilds the index follows the rows that were labels or candidates
    of the last step: rows that have become better were labels, and rows that have become worse show
    when they are found. A rebuild follows all rows, and puts rows that were labels or
    candidates in several steps since they came into their lists into new inverted lists.

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        best: number of candidates of each sample.
        most_seen: an input begins no further list after this number of rows; see `RowIndex.top_k`.
        seed: seed of the lists.

    Raises:
        ValueError: for a number below 1.

    Example:
        >>> import slide, torch
        >>> weight = torch.randn(100, 8)
        >>> proposer = slide.IndexProposer(8, 100, best=3)
        >>> proposer.rebuild(weight, None)
        >>> proposer.candidates(10 * weight[:1]).indices.shape
        (3,)
    """

    sparse_inputs = False
    cpu_only = holds_vectors = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        best: int = 8,
        most_seen: int = 4096,
        seed: int = 0,
    ):
        super().__init__(in_features, out_features, seed=seed)
        best = checks.whole("best", best, 1)
        most_seen = checks.whole("most_seen", most_seen, 1)
        self.best, self.most_seen, self.rebuilds = best, most_seen, 0
        self._index: RowIndex | None = None
        self._saved: dict[str, np.ndarray] = {}
        self._found = np.empty(0, np.int32)
        # The state of the weights that the index follows, and whether it is that of the next ones.
        self._followed: Any = None
        self._waits = False
        self._forget_moves()

    def _forget_moves(self) -> None:
        # Arrays of rows to follow, and which rows the steps have put there: if the weights are
        # frozen for long, a step must not go through all that wait.
        self._moved: list[np.ndarray] = []
        self._noted = np.zeros(self.out_features, bool)
        # Steps in which each row was followed, up to `_STEPS`; 0 after a rebuild moved it.
        self._steps = np.zeros(self.out_features, np.uint8)

    def _waiting(self) -> np.ndarray:
        """The rows to follow, int32, distinct and sorted."""
        return np.sort(np.concatenate([np.empty(0, np.int32), *self._moved]))

    @profiled("rebuild")
    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Make lists of all rows, or if there are some, new ones for the rows that moved."""
        try:
            index = self._restored(weight, bias)
        except ValueError:  # It is of other rows.
            self.forget()
            index = None
        changed, steps = self._changed(weight, bias), self._steps.copy()
        if changed is not None:
            steps[changed] += 1
        moved = steps >= _STEPS
        self._index, seed = None, self.seed + self.rebuilds  # No index if this fails midway.
        if index is None:
            index = RowIndex(weight, bias, seed)
            moved[:] = True
        else:
            index.regroup(np.flatnonzero(moved), seed)
        self._index = index
        self.rebuilds += 1
        self._follow(changed, weight, bias)
        self._steps[moved] = 0

    @profiled("update index")
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Follow the rows that the last step changed most.

        If the weights have not changed since the last call, the noted rows wait. A change by way of
        ``weight.data`` may escape this; see `RowIndex.fits`.
        """
        self._index = self._restored(weight, bias)
        if self._index is None:
            raise RuntimeError("the index is empty; call rebuild first")
        changed = self._changed(weight, bias)
        if changed is not None and len(changed):
            self._index.update(changed)
        self._follow(changed, weight, bias)

    def _restored(self, weight: Tensor, bias: Tensor | None) -> RowIndex | None:
        """The index, if there is one, over these weights."""
        index = self._index
        if index is not None:
            index.read_from(weight, bias)
        elif self._saved:
            index = RowIndex.restored(weight, bias, self._saved)
        self._saved = {}
        return index

    def _changed(self, weight: Tensor, bias: Tensor | None) -> np.ndarray | None:
        """The rows to follow; None: they wait, because the weights have not changed so far."""
        if self._waits:
            self._followed, self._waits = kept_state(weight, bias), False
        if self._followed is not None and unchanged(self._followed, weight, bias):
            return None
        return self._waiting()

    def _follow(self, changed: np.ndarray | None, weight: Tensor, bias: Tensor | None) -> None:
        """Note that the index has followed these rows."""
        if changed is None:
            return
        self._noted[changed] = False
        self._steps[changed] = np.minimum(self._steps[changed] + 1, _STEPS)
        self._moved, self._followed = [], kept_state(weight, bias)

    def touched(self, active: ActiveSet) -> None:
        """Note the labels and the candidates of a training step."""
        rows = np.concatenate([active.label_ids(), self._found])
        fresh = np.sort(rows[~self._noted[rows]])
        fresh = fresh[np.diff(fresh, prepend=-1) > 0]
        if len(fresh):
            self._noted[fresh] = True
            self._moved.append(fresh)
        self._found = np.empty(0, np.int32)

    def _search(self, queries: Queries, k: int) -> np.ndarray:
        queries = dense(queries, type(self).__name__)
        if self._index is None:
            raise RuntimeError("the index is empty; call rebuild first")
        with torch.no_grad():
            x = queries.detach().to(self._index.weight.dtype)
            k = min(k, self.out_features)
            limits = {"most_seen": self.most_seen, "deviations": _DEVIATIONS}
            return self._index.top_k(x, k, **limits)[1].numpy()

    def candidates(self, queries: Queries) -> Pattern:
        """The best rows of each input that are found."""
        return Pattern.from_padded(self._search(queries, self.best))

    @profiled("search index")
    def look_up(self, queries: Queries, labels: Pattern) -> Pattern:
        """The best rows of each input that are found, without its labels; see `candidates`."""
        ids = self._search(queries, self.best + most_labels(labels))
        found = without_labels(ids, labels, self.best)
        self._found = found.indices
        return found

    def statistics(self) -> dict[str, float]:
        """Number of lists, and of rows that an input of the last search has seen."""
        if self._index is None:
            return {}
        return {"index/lists": self._index.num_lists, "look_up/rows_seen": self._index.seen}

    def forget(self) -> None:
        """See `Proposer.forget`; the next `rebuild` makes lists of all rows."""
        self._index, self._saved = None, {}
        self._found = np.empty(0, np.int32)
        self._forget_moves()

    def resize(self, out_features: int) -> None:
        super().resize(out_features)
        self.forget()

    @property
    def has_index(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._index is not None or bool(self._saved)

    def state_dict(self) -> dict[str, Any]:
        """The index, if there is one, without the weights, and the rows that have moved."""
        index = self._saved if self._index is None else self._index.state_dict()
        moves = {"moved": self._waiting(), "steps": self._steps.copy(), "waits": self._wait()}
        return {"rebuilds": self.rebuilds, **moves, "index": index}

    def _wait(self) -> bool:
        """Whether the rows to follow wait for a change of the weights."""
        if self._index is None or self._followed is None:
            return self._waits
        return unchanged(self._followed, self._index.weight, self._index.bias)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        what, number = "the state of an IndexProposer", self.out_features
        rows = Expected((None,), "int32", 0, number - 1)
        check_arrays(what, state, {"moved": rows, "steps": Expected((number,), "uint8")})
        self.rebuilds = check_counter(what, "rebuilds", state["rebuilds"])
        if state["index"]:
            checked_state(state["index"], (number, self.in_features))
        self._index, self._saved, self._followed = None, dict(state["index"]), None
        self._forget_moves()
        moved = np.unique(state["moved"])  # A row twice would be followed twice.
        self._noted[moved] = True
        self._moved, self._waits = [moved], bool(state["waits"])
        self._steps = state["steps"].copy()

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a layer has other weights, which it hands over before each set.
        saved = self._saved if self._index is None else self._index.state_dict()
        gone = {"_index": None, "_saved": saved, "_followed": None, "_waits": self._wait()}
        return self.__dict__ | gone
