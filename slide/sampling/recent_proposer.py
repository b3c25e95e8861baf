"""Candidates from the labels of recent samples: those with the largest inner products."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.backend import on_device, plain
from slide.kernels.votes import RankedIds
from slide.sampling.best_ids import (
    best_of_pool,
    dense,
    most_labels,
    padded,
    plain_best_of_pool,
    ranked,
    without_labels,
)
from slide.sampling.protocol import Proposer, Queries
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.profiling import profiled


class RecentProposer(Proposer):
    """Proposes, of the labels of recent samples, the best few of each sample.

    The outputs with large scores for an input are those that are often labels, or that are labels
    of inputs like it. So most of them were labels a moment ago. The labels of the batch and of
    those before it, `recent` different ones, are scored for each sample, with the weights as they
    are, and the best few that are not its own labels are its candidates. For a set that the batch
    shares, the newest labels are candidates as they are: each is a negative of all samples, and
    scores would cost as much as the step. There is no index that could be out of date. Batches as a
    source of hard negatives are known from the training of retrievers (Karpukhin et al. 2020,
    "Dense passage retrieval for open-domain question answering", section 3.2), and a memory of
    earlier ones from Wang et al. 2020, "Cross-batch memory for embedding learning".

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        recent: largest number of different labels that are remembered. For sets of each sample a
            step scores ``B * recent``; more of them make harder negatives.
        best: largest number of candidates of each sample; None: as many as its set has places for.
            A shared set has as many as it has places for.
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
        >>> sorted(active.row(0)[:4].tolist())  # Its label, and those of the other samples.
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
        """See `Proposer.resize`; labels may have other numbers now, so none are remembered."""
        super().resize(out_features)
        self.pool = np.empty(0, np.int32)

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keep the weight itself: there is nothing to build."""
        self._rows, self._labels = (weight, bias), None

    refresh = rebuild

    def look_up(self, queries: Queries, labels: Pattern) -> Pattern:
        """The best labels of recent samples, this batch's included, that are not a sample's own.

        Raises:
            TypeError: for inputs in CSR form.
        """
        return self._best(queries, labels, self.best or self.recent)

    @profiled("score recent labels")
    def _best(self, queries: Queries, labels: Pattern, most: int) -> Pattern:
        """`look_up` of ``most`` ids for each sample."""
        queries = dense(queries, type(self).__name__)
        assert self._rows is not None, "a sampler calls rebuild first"
        weight, bias = self._rows
        # Sorted, because memory is read faster in order.
        pool = np.sort(self._newest(labels.indices))
        at = torch.from_numpy(pool.astype(np.int64))
        with torch.no_grad():
            x, own = queries.detach().to(weight.dtype), None if bias is None else bias[at]
            places = best_of_pool(x, weight[at], own, most + most_labels(labels))
        ids = np.where(places < 0, -1, pool[places] if len(pool) else -1)
        return without_labels(ids, labels, most)

    def propose(
        self, queries: Queries, labels: Pattern, places: np.ndarray, key: np.uint64
    ) -> RankedIds | Tensor:
        """See `Proposer.propose`."""
        limits = places if self.best is None else np.minimum(places, self.best)
        if not plain(queries):
            most = int(limits.max(initial=0))
            return ranked(padded(self._best(queries, labels, most), most), limits)
        best, pool = self._best_on_device(queries, labels, limits)
        ids = _named(best, pool)
        if ids.device.type != "cpu":
            return ids
        return RankedIds(ids.numpy(), (ids >= 0).sum(1).numpy())

    def propose_shared(
        self, queries: Queries, labels: Pattern, places: int, key: np.uint64
    ) -> np.ndarray:
        """The newest labels of batches before this one; see `Proposer.propose_shared`."""
        self._labels = labels.indices
        return self.pool[~np.isin(self.pool, labels.indices)][:places]

    @profiled("score recent labels")
    def _best_on_device(
        self, queries: Queries, labels: Pattern, limits: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """`look_up` on the device of the weight: places in the pool, and the pool."""
        queries, self._labels = dense(queries, type(self).__name__), labels.indices
        assert self._rows is not None, "a sampler calls rebuild first"
        weight, bias = self._rows
        known = np.sort(self._newest(labels.indices))
        pool = on_device(known, weight.device)
        rows, x = weight[pool], queries.detach().to(weight.dtype)
        scores = x @ rows.T if bias is None else torch.addmm(bias[pool], x, rows.T)
        samples = labels.entry_rows()
        at = np.searchsorted(known, labels.indices).clip(max=max(len(known) - 1, 0))
        held = known[at] == labels.indices if len(known) else np.zeros(0, bool)
        own = samples[held], at[held]
        return plain_best_of_pool(scores, own, int(limits.max(initial=0)), limits), pool

    def touched(self, active: ActiveSet) -> None:
        """Remember the labels of a training step."""
        known, self._labels = self._labels, None
        # The ids of another device are not looked at, since the host would wait for it.
        if known is None or not isinstance(active.ids, Tensor):
            known = active.label_ids()
        self.pool = self._newest(known)

    def _newest(self, labels: np.ndarray) -> np.ndarray:
        """The pool with these labels in front, cut to its size."""
        every = np.concatenate([labels, self.pool])
        _, first = np.unique(every, return_index=True)
        return every[np.sort(first)[: self.recent]]

    def statistics(self) -> dict[str, float]:
        """How many different labels are remembered, all of which an input looks at."""
        return {"look_up/rows_seen": float(len(self.pool))}

    def state_dict(self) -> dict[str, Any]:
        """The remembered labels, the newest first."""
        return {"pool": self.pool.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: for labels that are no outputs.
        """
        pool = state["pool"].astype(np.int32)
        if len(pool) and not 0 <= pool.min() <= pool.max() < self.out_features:
            raise ValueError(
                f"the remembered labels, up to {pool.max()}, must lie in [0, {self.out_features})"
            )
        self.pool = pool[: self.recent]

    def __getstate__(self) -> dict[str, Any]:
        # The layer hands its weight over again before each set.
        return self.__dict__ | {"_rows": None, "_labels": None}


def _named(places: Tensor, pool: Tensor) -> Tensor:
    """The ids at places of the pool, int32; -1 where a place is below 0."""
    if not len(pool):
        return places.int()
    return torch.where(places < 0, -1, pool[places.clamp(min=0)]).int()
