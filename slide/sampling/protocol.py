"""The interfaces of samplers, which layers call, and of proposers, which samplers call.

Below them are functions that several proposers share.
"""

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.backend import KERNEL_DTYPES, array_view, on_host, uses_reference
from slide.ops.active_sets import RankedIds, best_of_lists
from slide.search import index_top_k
from slide.sparse import CSR, Pattern, check_pattern, hits

Queries = Tensor | CSR


class Sampler(Protocol):
    """Chooses the active set of a layer. Any object with these members is a sampler.

    A class that inherits from this one must set ``out_features`` and write `select`; the other
    members have defaults. `slide.testing.check_sampler` tests whether a sampler follows this
    interface.

    Attributes:
        out_features: N, number of outputs of the layer.
        sparse_inputs: whether `select` takes inputs in CSR form.
        has_index: whether `candidates` works.
        rebuild_seconds: time that rebuilds of an index have taken so far, in seconds.

    Example:
        >>> import numpy as np
        >>> import slide
        >>> class FirstOutputs(slide.Sampler):
        ...     out_features = 1000
        ...     def select(self, queries, labels):
        ...         return slide.ActiveSet(1000, np.arange(10, dtype=np.int32))
        >>> layer = slide.SampledLinear(8, 1000, FirstOutputs())
    """

    out_features: int
    sparse_inputs: bool = True
    has_index: bool = False
    rebuild_seconds: float = 0.0

    def __repr__(self) -> str:
        return type(self).__name__

    def update(self, weight: Tensor, bias: Tensor | None, inputs: Queries | None) -> None:
        """Prepare for the present weights. The layer calls this before each `select`.

        Args:
            weight: ``(N, D)``, any strides; may require a gradient.
            bias: ``(N,)`` or None.
            inputs: ``(B, D)``, the inputs of a training step; None outside of training.
        """

    def select(self, queries: Queries, labels: Pattern | None) -> ActiveSet:
        """The active set for inputs ``(B, D)``.

        If ``labels`` are given, the set of each sample contains its labels, and ``targets`` holds
        their positions within that set, at which ``log_weights`` are 0. Ids are int32, in
        ``[0, out_features)``, and distinct within a set.
        """
        ...

    def candidates(self, queries: Queries) -> Pattern:
        """Ids that may have large scores for each input, for prediction.

        An id may occur several times in a row. Only called if `has_index` is true.
        """
        raise ValueError(f"{type(self).__name__} has no index")

    def forget_index(self) -> None:
        """Build the index again before it is used: all rows have changed."""

    def resize(self, out_features: int) -> None:
        """Choose among another number of outputs: rows were appended, or some were removed."""
        self.out_features = out_features
        self.forget_index()

    def statistics(self) -> dict[str, float]:
        """Numbers for the log, named ``group/name``; unknown numbers are left out.

        ``selection/candidates`` is the number of candidates in the last set, and
        ``selection/filled`` that of outputs drawn at random: means over the samples if each has its
        own set.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs, as numbers, arrays and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: here, for a state that is not empty: it is that of another sampler.
        """
        if state:
            raise ValueError(
                f"a {type(self).__name__} has no state, so this one, of {', '.join(state)}, is "
                "that of another sampler"
            )


class Proposer:
    """An index over the rows of a weight. It proposes candidates to an `ActiveSampler`.

    A subclass must define `rebuild` and `candidates`, or `look_up` instead of the latter if it sets
    ``needs_labels``. The other methods have defaults, which a subclass may override.

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        seed: seed of all draws.

    Attributes:
        sparse_inputs: whether inputs may be in CSR form.
        needs_labels: whether it finds candidates from labels. Then it works only in the training of
            a layer with labels, and not for prediction or hidden layers.
        cpu_only: whether weights must be on the CPU.
        has_index: whether the index is complete, after a state was loaded.
        filled: number of ids of the last `propose` that were drawn at random.

    Example:
        >>> import slide, torch
        >>> class Exact(slide.Proposer):
        ...     def rebuild(self, weight, bias):
        ...         self.weight = weight.clone()
        ...     def candidates(self, queries):
        ...         best = (queries @ self.weight.T).topk(5).indices
        ...         return slide.Pattern.from_lists(best.tolist())
        >>> sampler = slide.ActiveSampler(8, 1000, Exact, active=100)
        >>> layer = slide.SampledLinear(8, 1000, sampler)
        >>> layer(torch.randn(4, 8)).values.shape
        torch.Size([4, 100])
    """

    sparse_inputs: bool = True
    needs_labels: bool = False
    cpu_only: bool = False
    has_index: bool = True
    filled: int = 0

    def __init__(self, in_features: int, out_features: int, *, seed: int = 0):
        self.in_features = in_features
        self.out_features = out_features
        self.seed = seed

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Index all rows of the present weight.

        Args:
            weight: ``(N, D)``, detached.
            bias: ``(N,)``, detached, or None.
        """
        raise NotImplementedError(f"{type(self).__name__} must define rebuild")

    def candidates(self, queries: Queries) -> Pattern:
        """Ids that may have large scores for each input ``(B, D)``, the best first.

        An id may occur several times in a row: each time is a vote for it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define candidates")

    def look_up(self, queries: Queries, labels: Pattern) -> Pattern:
        """Candidates for the sets of inputs ``(B, D)``, the best first; by default `candidates`.

        Args:
            queries: ``(B, D)``.
            labels: of each sample; they are in its set anyway. Empty rows: unknown labels.
        """
        return self.candidates(queries)

    def propose(
        self, queries: Queries, labels: Pattern, wanted: np.ndarray, key: np.uint64
    ) -> RankedIds | Tensor:
        """The best candidates of each sample, distinct; a set takes all of them, in any order.

        By default the ids with the most votes are the best; among equal votes, the ids nearest to
        the front of the sample's candidates.

        Args:
            queries: ``(B, D)``.
            labels: of each sample; see `look_up`.
            wanted: ``(B,)`` int64, maximum number of candidates of each sample.
            key: key of random draws, if the proposer draws.

        Returns:
            ids ``(B, most)`` int32, and how many of them each sample has, ``(B,)``. A proposer that
            works on other devices than the CPU returns there a tensor ``(B, most)`` with -1 after
            the last id of each sample.
        """
        found = self.look_up(queries, labels)
        check_pattern("candidates", found, num_queries(queries), self.out_features)
        rows = found.entry_rows()
        pairs = rows * self.out_features + found.indices
        pairs, first, votes = np.unique(pairs, return_index=True, return_counts=True)
        rows, ids = np.divmod(pairs, self.out_features)
        order = np.lexsort((first, -votes, rows))
        rows, ids = rows[order], ids[order]
        rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
        kept = rank < wanted[rows]
        out = np.zeros((found.num_rows, int(wanted.max(initial=0))), np.int32)
        out[rows[kept], rank[kept]] = ids[kept]
        return RankedIds(out, np.bincount(rows[kept], minlength=found.num_rows))

    def propose_shared(
        self, queries: Queries, labels: Pattern, wanted: int, key: np.uint64
    ) -> np.ndarray | Tensor:
        """The best candidates of a whole batch: ``(n,)`` int32 distinct ids, in any order.

        In a tensor on another device than the CPU, -1 may follow the last id.

        By default the votes for an id are added up over the samples. Among equal votes, ids nearest
        to the front of some sample's candidates are chosen.

        Args:
            queries: ``(B, D)``.
            labels: of each sample; see `look_up`.
            wanted: maximum number of ids.
            key: key of random draws, if the proposer draws.
        """
        found = self.look_up(queries, labels)
        check_pattern("candidates", found, num_queries(queries), self.out_features)
        rows = found.entry_rows()
        rank = np.arange(len(rows)) - found.indptr[rows]
        by_rank = found.indices[np.lexsort((rows, rank))]
        ids, first, votes = np.unique(by_rank, return_index=True, return_counts=True)
        return ids[np.lexsort((first, -votes))][:wanted].astype(np.int32)

    def observe(self, inputs: Queries) -> None:
        """Called with the inputs of each training step."""

    def touched(self, active: ActiveSet) -> None:
        """Called with the active set of each training step, whose rows the step will change."""

    def refresh(self, weight: Tensor, bias: Tensor | None) -> bool | None:
        """Index changed rows again. Called before each set, unless `rebuild` is called.

        Returns:
            Whether all rows were indexed again; None counts as no.
        """

    def forget(self) -> None:
        """Called before a `rebuild` that must use no earlier index: all rows may have changed."""

    def resize(self, out_features: int) -> None:
        """Change the number of rows; a `rebuild` follows before any query."""
        self.out_features = out_features

    def statistics(self) -> dict[str, float]:
        """Numbers for the log, named ``group/name``; unknown numbers are left out.

        A name has one meaning in all proposers. Runs show these:

        * ``look_up/rows_seen``: mean number of rows that an input of the last look-up read,
        * ``tables/non_empty_share``: share of the buckets of hash tables that are not empty,
        * ``tables/mean_bucket``: mean number of ids that were put into a non-empty bucket,
        * ``tables/largest_bucket``: number of ids in the fullest bucket,
        * ``tables/left_out_share``: share of the entries that full buckets dropped.
        """
        return {}

    def description(self) -> str:
        """The index in a few words, for the first lines of a run; by default the class name."""
        return type(self).__name__

    def sizes(self) -> dict[str, int]:
        """Sizes of the index by name, defaults included; runs show these:

        * ``directions``: number of directions on which rows and inputs are projected,
        * ``num_tables`` and ``hashes_per_table``: L and K, if there are hash tables.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs, as numbers, arrays and dicts of them.

        If it is empty, or if this raises an error before the first `rebuild`, a resumed run
        rebuilds the index from the weights.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


def num_queries(queries: Queries) -> int:
    """B, the number of inputs."""
    return queries.num_rows if isinstance(queries, CSR) else len(queries)


def dense(queries: Tensor | CSR, proposer: str) -> Tensor:
    """Inputs as a tensor; a TypeError that names the proposer for sparse rows."""
    if isinstance(queries, CSR):
        raise TypeError(
            f"{proposer} takes dense inputs only; use PublishedLSHProposer on this layer"
        )
    return queries


def without_labels(ids: np.ndarray, labels: Pattern, most: int) -> Pattern:
    """The first ids of each sample, at most ``most``, that are not among its labels.

    ``ids`` ``(B, k)`` are distinct in a row but for -1, which is left out.
    """
    free = (ids >= 0) & ~hits(ids, labels)
    return Pattern.from_padded(np.where(free & (np.cumsum(free, axis=1) <= most), ids, -1))


def best_of_voted(
    queries: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    voted: RankedIds | Tensor,
    labels: Pattern,
    best: int,
) -> np.ndarray:
    """The ids of each sample with the largest ``<query, row> + bias``, without its labels.

    queries (B, D); weight (N, D); bias (N,) or None; voted: distinct ids of each sample; labels: of
    B samples; best: number of ids of a sample. Returns ``(B, best)`` int32, best first; -1 after
    the last id of a sample.
    """
    x = queries.detach().to(weight.dtype)
    out = np.full((len(x), best), -1, np.int32)
    readable = weight.dtype in KERNEL_DTYPES and not uses_reference(weight)  # Not bfloat16.
    if readable and isinstance(voted, RankedIds):
        added = torch.empty(0, dtype=x.dtype) if bias is None else bias
        factors = array_view(x.contiguous()), array_view(weight), array_view(added)
        best_of_lists(voted, labels, *factors, out)
        return out
    if isinstance(voted, Tensor):
        ids = on_host(voted)
    else:
        ids = np.where(np.arange(voted.ids.shape[1]) < voted.counts[:, None], voted.ids, -1)
    pool, most = Pattern.from_padded(ids), best + most_labels(labels)
    named = index_top_k(x, weight, bias, pool, most)[1]
    return without_labels(on_host(named), labels, best).padded(best)


def in_turns(best: np.ndarray, most: int) -> np.ndarray:
    """The first id of each sample, then the second ones, and so on: ``(n,)`` int32, distinct.

    Of ids at an equal position of ``best`` ``(B, k)``, ids that more samples have come first; -1
    follows the last id of a sample.
    """
    by_rank = best.T[best.T >= 0]
    rank = np.nonzero(best.T >= 0)[0]
    ids, arrival, votes = np.unique(by_rank, return_index=True, return_counts=True)
    return ids[np.lexsort((-votes, rank[arrival]))][:most]


def most_labels(labels: Pattern) -> int:
    """The largest number of labels of a sample."""
    return int(np.diff(labels.indptr).max(initial=0))
