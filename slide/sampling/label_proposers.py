"""Candidates from labels: the best labels of recent samples."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.backend import array_view, on_device, uses_reference
from slide.ops.active_sets import RankedIds
from slide.ops.largest import keep_largest
from slide.sampling.protocol import (
    Proposer,
    Queries,
    dense,
    most_labels,
    without_labels,
)
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.array_checks import Expected, check_arrays
from slide.utils.profiling import profiled


class RecentProposer(Proposer):
    """Proposes the best labels of recent samples.

    Outputs with large scores for an input are often labels of similar inputs, so most of them were
    labels a moment ago. The weights score the labels of this batch and of earlier batches
    (`recent` different ones) for each sample; the best of them, without the sample's labels, are
    its candidates. For a shared set, the newest labels are candidates without scores: each is a
    negative of all samples, and scores would cost as much as the step. There is no index that could
    be out of date.

    Batches are a known source of hard negatives in the training of retrievers (Karpukhin et al.
    2020, "Dense passage retrieval for open-domain question answering", section 3.2); Wang et al.
    2020, "Cross-batch memory for embedding learning", keep earlier batches.

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        recent: largest number of different labels that are remembered. For sets of each sample a
            step scores ``B * recent``; more of them make harder negatives.
        best: largest number of candidates of each sample; None: as many as fit into its set,
            as always in a shared set.
        seed: not used; other proposers have this argument, too.

    Raises:
        ValueError: for a number below 1.

    Example:
        >>> import slide, torch
        >>> options = {"active": 64, "mode": "per_sample"}
        >>> sampler = slide.ActiveSampler(16, 1000, slide.RecentProposer, **options)
        >>> layer = slide.SampledLinear(16, 1000, sampler)
        >>> labels = slide.Pattern.from_lists([[3], [7, 8], [9]])
        >>> active = layer(torch.randn(3, 16), labels).active
        >>> sorted(active.row(0)[:4].tolist())  # Its label, and labels of others.
        [3, 7, 8, 9]
    """

    sparse_inputs = False
    needs_labels = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        recent: int = 4096,
        best: int | None = None,
        seed: int = 0,
    ):
        super().__init__(in_features, out_features, seed=seed)
        recent = checks.whole("recent", recent, 1)
        if best is not None:
            best = checks.whole("best", best, 1)
        self.recent, self.best = recent, best
        self.pool = np.empty(0, np.int32)
        self._rows: tuple[Tensor, Tensor | None] | None = None
        self._labels: np.ndarray | None = None  # Of the last batch, as the host knows them.

    def resize(self, out_features: int) -> None:
        """See `Proposer.resize`; forgets all labels, whose numbers may have changed."""
        super().resize(out_features)
        self.pool = np.empty(0, np.int32)

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keep the weight itself: there is nothing to build."""
        self._rows, self._labels = (weight, bias), None

    refresh = rebuild

    def look_up(self, queries: Queries, labels: Pattern) -> Pattern:
        """The best labels of recent samples, this batch's included, that are not a sample's own."""
        return self._best(queries, labels, self.best or self.recent)

    @profiled("score recent labels")
    @torch.no_grad()
    def _scores(self, queries: Queries, labels: Pattern) -> tuple[Tensor, np.ndarray]:
        """Scores ``(B, P)`` of all remembered labels and these, and their ids ``(P,)``, sorted."""
        queries = dense(queries, type(self).__name__)
        assert self._rows is not None, "a sampler calls rebuild first"
        weight, bias = self._rows
        pool = np.sort(self._newest(labels.indices))  # Memory is read faster in order.
        at = on_device(pool, weight.device).long()
        x, rows = queries.detach().to(weight.dtype), weight[at]
        scores = x @ rows.T if bias is None else torch.addmm(bias[at], x, rows.T)
        return scores.float(), pool

    def _best(self, queries: Queries, labels: Pattern, most: int) -> Pattern:
        """`look_up` of ``most`` ids for each sample."""
        scores, pool = self._scores(queries, labels)
        shape = len(scores), min(most + most_labels(labels), len(pool))
        best = torch.full(shape, -torch.inf, dtype=scores.dtype)
        positions = torch.full(best.shape, -1)
        if best.numel():
            keep_largest(array_view(scores), 0, array_view(best), array_view(positions))
        # Equal scores in the order of ids. Which are kept at the border, the heap decides.
        order = np.lexsort((positions.numpy(), -best.numpy()), axis=1)
        found = np.take_along_axis(positions.numpy(), order, 1)
        ids = np.where(found < 0, -1, pool[found] if len(pool) else -1)
        return without_labels(ids, labels, most)

    def _best_on_device(self, queries: Queries, labels: Pattern, limits: np.ndarray) -> Tensor:
        """`look_up` on the device of the weight: ids ``(B, k)`` int32; -1 after the last one."""
        self._labels = labels.indices
        scores, pool = self._scores(queries, labels)
        device, scores = scores.device, scores.nan_to_num(-torch.inf, torch.inf, -torch.inf)
        at = np.searchsorted(pool, labels.indices).clip(max=max(len(pool) - 1, 0))
        known = pool[at] == labels.indices if len(pool) else np.zeros(0, bool)
        own = labels.entry_rows()[known], at[known]
        scores[tuple(on_device(each, device).long() for each in own)] = -torch.inf
        best, found = scores.sort(dim=1, descending=True, stable=True)
        most = int(limits.max(initial=0))
        best, found = best[:, :most], found[:, :most]
        counted = torch.arange(best.shape[1], device=device) < on_device(limits, device)[:, None]
        found = torch.where(counted & (best > -torch.inf), found, -1)
        if not len(pool):
            return found.int()
        return torch.where(found < 0, -1, on_device(pool, device)[found.clamp(min=0)]).int()

    def propose(
        self, queries: Queries, labels: Pattern, wanted: np.ndarray, key: np.uint64
    ) -> RankedIds | Tensor:
        limits = wanted if self.best is None else np.minimum(wanted, self.best)
        if uses_reference(queries):
            found = self._best_on_device(queries, labels, limits)
            if found.device.type != "cpu":
                return found
            ids = found.numpy()
        else:
            most = int(limits.max(initial=0))
            ids = self._best(queries, labels, most).padded(most)
        return RankedIds(ids, np.minimum((ids >= 0).sum(1), limits))

    def propose_shared(
        self, queries: Queries, labels: Pattern, wanted: int, key: np.uint64
    ) -> np.ndarray:
        """The newest labels of batches before this one; see `Proposer.propose_shared`."""
        self._labels = labels.indices
        return self.pool[~np.isin(self.pool, labels.indices)][:wanted]

    def touched(self, active: ActiveSet) -> None:
        """Remember the labels of a training step."""
        known, self._labels = self._labels, None
        # Ids on another device are not read, because the host would wait for it.
        if known is None or not isinstance(active.ids, Tensor):
            known = active.label_ids()
        self.pool = self._newest(known)

    def _newest(self, labels: np.ndarray) -> np.ndarray:
        """The pool with these labels in front, cut to its size."""
        every = np.concatenate([labels, self.pool])
        _, first = np.unique(every, return_index=True)
        return every[np.sort(first)[: self.recent]]

    def description(self) -> str:
        """See `Proposer.description`."""
        return f"the last {self.recent:,} labels"

    def statistics(self) -> dict[str, float]:
        """The number of different labels kept, all of which an input reads."""
        return {"look_up/rows_seen": float(len(self.pool))}

    def state_dict(self) -> dict[str, Any]:
        """The remembered labels, the newest first."""
        return {"pool": self.pool.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        labels = Expected((None,), "int32", 0, self.out_features - 1)
        check_arrays("the state of a RecentProposer", state, {"pool": labels})
        self.pool = state["pool"][: self.recent].copy()

    def __getstate__(self) -> dict[str, Any]:
        # The layer hands its weight over again before each set.
        return self.__dict__ | {"_rows": None, "_labels": None}
