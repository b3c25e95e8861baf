"""Candidates from a graph of labels: the rivals of a sample's labels."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.backend import on_host
from slide.sampling.best_ids import dense, most_labels, without_labels
from slide.sampling.protocol import Proposer, Queries
from slide.search import index_top_k
from slide.sparse import Pattern, row_bounds
from slide.utils import checks
from slide.utils.profiling import profiled


class NeighbourProposer(Proposer):
    """Proposes the best few neighbours of each sample's labels, in a graph that training makes.

    Each output has `width` neighbours: the outputs with the largest scores for the last sample that
    had it as a label, of all those that were scored for this sample. These are the neighbours that
    its labels had before, its labels, and some labels of other samples of the batch. So labels that
    occur together become neighbours at once, and better ones take the place of others step by step,
    as the weights move. There is nothing to build. The idea of entering a graph of outputs at the
    label is that of Wang et al. 2020 (arXiv 2012.15843), and neighbours that are found among
    neighbours are known from Dong et al. 2011, "Efficient k-nearest neighbor graph construction".

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        width: number of neighbours of each output.
        explore: labels of other samples of the batch that are scored for each sample.
        best: number of candidates of each sample.
        seed: not used; other proposers have this argument, too.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> import slide, torch
        >>> options = {"active": 64, "mode": "per_sample"}
        >>> sampler = slide.ActiveSampler(16, 1000, slide.NeighbourProposer, **options)
        >>> layer = slide.SampledLinear(16, 1000, sampler)
        >>> active = layer(torch.randn(2, 16), slide.Pattern.from_lists([[3, 5], [7]])).active
        >>> sorted(sampler.proposer.neighbours(3).tolist())
        [5, 7]
    """

    sparse_inputs = False
    needs_labels = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        width: int = 16,
        explore: int = 32,
        best: int = 8,
        seed: int = 0,
    ):
        super().__init__(in_features, out_features, seed=seed)
        width = checks.whole("width", width, 1)
        explore = checks.whole("explore", explore, 0)
        best = checks.whole("best", best, 1)
        self.width, self.explore, self.best = width, explore, best
        self.graph = np.full((out_features, width), -1, np.int32)
        self._rows: tuple[Tensor, Tensor | None] | None = None
        # Labels of the last samples, and what was scored for each of them, the best first.
        self._last: tuple[Pattern, np.ndarray] | None = None
        self._scored = 0.0

    def neighbours(self, label: int) -> np.ndarray:
        """The neighbours of an output, the best first, int32."""
        own = self.graph[label]
        return own[own >= 0]

    def resize(self, out_features: int) -> None:
        """See `Proposer.resize`; labels may have other numbers now, so the graph begins anew."""
        super().resize(out_features)
        self.graph = np.full((out_features, self.width), -1, np.int32)
        self._last = None

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keep the weight itself: there is nothing to build."""
        # What was looked up last counts only if a step of training followed.
        self._rows, self._last = (weight, bias), None

    refresh = rebuild

    @profiled("score neighbours")
    def look_up(self, queries: Queries, labels: Pattern) -> Pattern:
        """The best neighbours of a sample's labels, and of explored labels, without its own.

        Raises:
            TypeError: for inputs in CSR form.
        """
        queries = dense(queries, type(self).__name__)
        assert self._rows is not None, "a sampler calls rebuild first"
        weight, bias = self._rows
        pool = self._pool(labels)
        self._scored = len(pool.indices) / max(1, len(queries))
        most = max(self.width, self.best) + most_labels(labels)
        with torch.no_grad():
            x = queries.detach().to(weight.dtype)
            ids = on_host(index_top_k(x, weight, bias, pool, most)[1])
        self._last = labels, ids
        return without_labels(ids, labels, self.best)

    def _pool(self, labels: Pattern) -> Pattern:
        """What is scored for each sample: its labels, their neighbours, labels of the next ones."""
        samples, count = np.arange(labels.num_rows), len(labels.indices)
        owner = labels.entry_rows()
        explore = self.explore if count else 0
        others = (labels.indptr[1:, None] + np.arange(explore)) % max(1, count)
        ids = [labels.indices, self.graph[labels.indices].ravel(), labels.indices[others].ravel()]
        owners = [owner, np.repeat(owner, self.width), np.repeat(samples, explore)]
        ids, owners = np.concatenate(ids), np.concatenate(owners)
        ids, owners = ids[ids >= 0], owners[ids >= 0]
        indptr = row_bounds(np.bincount(owners, minlength=len(samples)))
        return Pattern(indptr, ids[np.argsort(owners, kind="stable")])

    def touched(self, active: ActiveSet) -> None:
        """Make what was best for a sample the neighbours of its labels."""
        if self._last is None or active.targets is None:
            return
        labels, ids = self._last
        # Of equal labels the last one counts.
        changed, at = np.unique(labels.indices[::-1], return_index=True)
        entry = len(labels.indices) - 1 - at
        rows = ids[np.searchsorted(labels.indptr, entry, side="right") - 1]
        useful = (rows >= 0) & (rows != changed[:, None])
        first = np.argsort(~useful, axis=1, kind="stable")[:, : self.width]
        found = np.take_along_axis(np.where(useful, rows, -1), first, 1)
        self.graph[changed] = found  # `look_up` keeps at least `width` places of each sample.
        self._last = None

    def statistics(self) -> dict[str, float]:
        """How many outputs were scored for a sample of the last batch."""
        return {"look_up/rows_seen": self._scored}

    def state_dict(self) -> dict[str, Any]:
        """The graph: ``(N, width)`` int32, -1 where there are fewer neighbours."""
        return {"graph": self.graph.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: for a graph of another shape.
        """
        shape = state["graph"].shape
        if shape != self.graph.shape:
            raise ValueError(f"a graph of shape {shape} does not fit one of {self.graph.shape}")
        self.graph = state["graph"].copy()

    def __getstate__(self) -> dict[str, Any]:
        # The layer hands its weight over again before each set.
        return self.__dict__ | {"_rows": None, "_last": None}
