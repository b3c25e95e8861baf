"""Candidates by sketches: every input scans the rows with the largest possible scores."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from slide.backend import on_device, on_host, uses_reference
from slide.ops.sketches import (
    CODES,
    PRIOR,
    WIDTH,
    no_keys,
    rounded_queries,
    rows_of,
    torch_rank_all,
)
from slide.sampling.head import Head, bound_of, records
from slide.sampling.ranked import BLOCK, DEVIATIONS, SketchedProposer, blocks
from slide.sparse import Pattern
from slide.utils.array_checks import Expected, check_arrays
from slide.utils.profiling import profiled
from slide.utils.tensor_folder import check_same_settings

# Size of the head: rows that every input scores by sketch. With 360,939 rows, 65,536 nearly match
# a full scan; two thirds of them lose recall, however many are re-scored.
HEAD = 65_536
# Above this number of rows, the head grows with the root of N: with 4 million, twice the head finds
# more.
GROWS = 2**20
# Choose the head again when its size leaves this band around its target: a smaller head loses
# recall, and a larger one takes time.
_FEWEST, _MOST = 0.9, 1.15
# All rows are projected on a few directions first. Only this many times the rows of the head are
# projected on the others; they contain nearly all rows of the head.
_FEW, _LIKELY = 32, 1.25
_NO_ROWS, _NO_SKETCHES = np.empty(0, np.int32), torch.zeros(0, WIDTH, dtype=torch.int8)
# The sketch of a row that no input scans.
_SCORELESS = torch.zeros(1, WIDTH, dtype=torch.int8)
_SCORELESS.view(torch.float32)[:, PRIOR] = -math.inf


class SketchProposer(SketchedProposer):
    """Proposes the rows with the largest scores in a head that every input scans.

    A sketch is the projection of a row on the principal directions of recent inputs
    (`slide.hashing.projection.Projection`), rounded to 8 bits, and its prior. The head consists of
    the rows with the largest possible scores: 65,536 rows, or 64 times the root of N if that is
    more. Each input scans the whole head by matrix products with sketches, and the weights score
    the best rows. There are no hash tables; `slide.LSHProposer` has them.

    Before each step, the index sketches the rows that the last step changed most again: its labels
    and candidates. A few directions decide which rows may be in the head, and only these rows are
    projected on the others. On other devices than the CPU, sketches rank all rows.

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        best: maximum number of candidates of a sample; six times as many are scored exactly.
        seed: seed of the directions before the first inputs.

    Raises:
        ValueError: for a number out of range.

    Attributes:
        rows_scanned: number of rows that each input of the last look-up has scanned.

    Example:
        >>> import slide, torch
        >>> weight = torch.randn(10_000, 16, generator=torch.Generator().manual_seed(0))
        >>> proposer = slide.SketchProposer(16, 10_000)
        >>> proposer.rebuild(weight, None)
        >>> found = proposer.candidates(weight[:1])
        >>> bool((found.indices == 0).any())
        True
    """

    # Dropout turns an input away from the directions: with two thirds as many exact scores, a
    # twentieth of the ten best rows is lost.
    scored, width = 6, WIDTH

    def __init__(self, in_features: int, out_features: int, *, best: int = 16, seed: int = 0):
        super().__init__(in_features, out_features, best=best, seed=seed)
        self._size()

    def _size(self) -> None:
        """Empty sketches for the number of outputs."""
        head = int(HEAD * math.sqrt(max(1, self.out_features / GROWS)))
        self._most = head if head < self.out_features else None
        # The head has the rows whose largest possible score exceeds this.
        self.bound = torch.full((0 if self._most is None else 1,), 0.0, dtype=torch.float32)
        super()._size()
        self._head = Head(_NO_ROWS, _NO_SKETCHES)

    @profiled("rebuild")
    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Find the directions of recent inputs, and sketch all rows that may be in the head."""
        self._rows = weight, bias
        self.projection.renew(weight, bias, self.numbers)
        rows = np.arange(len(weight), dtype=np.int32)
        self._make_room(weight)
        if self._most is not None and not uses_reference(weight):
            rows = self._likely(weight, bias, round(_LIKELY * self._most))
            self.sketches.copy_(_SCORELESS)
        for some in blocks(rows):
            self._store(some, self._sketched(weight, bias, some))
        self.changed.settle(weight, bias)
        self._choose_head()

    def _likely(self, weight: Tensor, bias: Tensor | None, most: int) -> np.ndarray:
        """More rows than the head needs: the largest possible scores by few directions."""
        every, scores, projection = np.arange(len(weight), dtype=np.int32), [], self.projection
        if most >= len(every):
            return every
        for rows in blocks(every):
            found = projection.rows(weight, bias, rows, _FEW)
            projected, priors = found[:, :-1], found[:, -1]
            known = projected.shape[1]
            spread = (projected - projection.offset[:known]).square() @ projection.variances[:known]
            scores.append(priors + DEVIATIONS * spread.sqrt())
        scores = torch.cat(scores).nan_to_num_(-torch.inf, -torch.inf, -torch.inf).numpy()
        return np.sort(np.argpartition(scores, -most)[-most:]).astype(np.int32)

    def _store(self, rows: np.ndarray, sketches: Tensor) -> None:
        if uses_reference(sketches):
            self.sketches[on_device(rows, sketches.device).long()] = sketches
        else:
            records(self.sketches)[rows] = records(sketches)

    def _inside(self, sketches: Tensor) -> np.ndarray:
        """``(n,)`` bools: which rows belong to the head."""
        if self._most is None:
            return np.ones(len(sketches), bool)
        return self._largest_scores(sketches) > self.bound.numpy()

    def _choose_head(self) -> None:
        """Choose the bound of the head and its rows."""
        if uses_reference(self.sketches):
            self._head = Head(_NO_ROWS, _NO_SKETCHES)
            return
        if self._most is not None:
            scores = self._largest_scores(self.sketches)
            self.bound = torch.tensor([bound_of(scores, self._most)], dtype=torch.float32)
        self._take_head()

    def _take_head(self) -> None:
        inside = [self._inside(some) for some in self.sketches.split(BLOCK) if len(some)]
        rows = np.flatnonzero(np.concatenate([np.zeros(0, bool), *inside])).astype(np.int32)
        self._head = Head(rows, self.sketches)

    @profiled("follow rows")
    def refresh(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Sketch the rows again that steps changed; all rows after a move to another device."""
        self._rows = weight, bias
        if self.sketches.device != weight.device:
            self.sketches = self.sketches.to(weight.device)
            self.projection.to(weight.device)
        if uses_reference(weight) == bool(len(self._head)):
            self._choose_head()
            # Sketches of the head alone do not suffice if sketches rank all rows.
            priors = self.sketches.view(torch.float32)[:, PRIOR]
            if uses_reference(weight) and bool((priors == -torch.inf).any()):
                self.rebuild(weight, bias)
                return True
        rows = self.changed.take(weight, bias)
        if not len(rows):
            return False
        sketches = self._sketched(weight, bias, rows)
        self._store(rows, sketches)
        if not uses_reference(weight):
            self._head.move(rows, sketches, self._inside(sketches))
            if self._most is not None and not _FEWEST < len(self._head) / self._most < _MOST:
                self._choose_head()
        return False

    def find(self, queries: Tensor, labels: Pattern, most: int) -> Tensor:
        """See `RankedProposer.find`: the head, and on other devices than the CPU all rows."""
        z = self.projection.inputs(queries, CODES)
        most = min(most, self.out_features)
        if uses_reference(z):
            numbers, factors = rounded_queries(z)
            z = numbers * factors[:, None]
            self.rows_scanned = float(self.out_features)
            pairs = np.stack([labels.entry_rows(), labels.indices], 1).astype(np.int64)
            z = F.pad(z, (0, CODES - z.shape[1]))
            return torch_rank_all(z, self.sketches, torch.from_numpy(pairs).to(z.device), most)
        if not len(z) or not most:
            return torch.from_numpy(rows_of(no_keys((len(z), most))))
        keys = self._head.best(z, labels, most)
        self.rows_scanned = float(len(self._head))
        return torch.from_numpy(rows_of(keys))

    def description(self) -> str:
        """See `Proposer.description`."""
        most = self.out_features if self._most is None else self._most
        return f"a scan of {most:,} of {self.out_features:,} sketches"

    def sizes(self) -> dict[str, int]:
        """See `Proposer.sizes`."""
        return {"directions": self.numbers}

    def _settings(self) -> dict[str, Any]:
        """What sketches depend on."""
        directions = self.projection.directions.shape[1]
        return {"directions": directions, "numbers": self.numbers, "seed": self.seed}

    def state_dict(self) -> dict[str, Any]:
        """Settings, projection, sketches, recent inputs, rows to sketch again."""
        tensors = {"bound": self.bound, "sketches": self.sketches}
        return {
            "settings": self._settings(),
            **self.projection.state(),
            **{name: on_host(tensor).copy() for name, tensor in tensors.items()},
            "noted": self.changed.rows(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        check_same_settings(state, self._settings(), "a SketchProposer")
        what = "the state of a SketchProposer"
        bound = Expected((len(self.bound),), "float32", finite=False)
        check_arrays(what, state, {"bound": bound} | index_arrays(state, self.out_features, WIDTH))
        self.projection.load(what, state, self.numbers)
        self.changed.restore(state["noted"])
        self.bound, self.sketches = (
            torch.from_numpy(state[name].copy()) for name in ("bound", "sketches")
        )
        self._take_head()


def index_arrays(state: dict[str, Any], rows: int, width: int) -> dict[str, Expected]:
    """The expected arrays ``sketches`` and ``noted`` of a state."""
    built = len(state.get("sketches", ())) > 0  # Not built if sets hold all outputs.
    return {
        "sketches": Expected((rows if built else 0, width), "int8"),
        "noted": Expected((None,), "int32", 0, rows - 1),
    }
