"""The network as a base scorer, and its best labels where some are seen, which are no answers."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from slide.backend import on_host
from slide.data import first_unseen
from slide.data.dataset import take_labels
from slide.nn import SampledLinear
from slide.nn.sampled_linear import check_finite
from slide.ranking import base_scorer as base
from slide.sparse import Pattern

# A row is asked for 16, 64, 256, ... labels more, the first number not below that of its seen
# labels: so the number depends on the row alone, and there are few different ones.
_MORE = 16 * 4 ** np.arange(15, dtype=np.int64)
# 4 million labels at a time: 48 MB of scores and ids.
_MOST_ASKED = 1 << 22


class Network(base.BaseScorer):
    """Names the best labels of the network of a query, and says its scores."""

    name = "network"
    features: ClassVar = base.scored("network", base.BEHIND, base.RANK, base.BEST)

    def __init__(self, proposed: int = 30):
        self.set_counts(proposed=proposed)

    def propose(self, queries: base.Queries) -> base.Named:
        output, hidden = queries.network.output, queries.network.embed(queries.features)
        check_finite(hidden)
        count = min(max(self.proposed, queries.least), queries.num_labels)
        if queries.seen is None:
            ids = on_host(output.top_k(hidden, count, queries.search)[1])
        else:
            ids = best_unknown(output, hidden, queries.seen, count, queries.search)
        return base.Named(ids, hidden)

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        scores = queries.network.output.scores_of(more, candidates.ids)
        check_finite(torch.from_numpy(scores))
        return {"network": candidates.flat(scores)}


def best_unknown(
    output: SampledLinear, hidden: Tensor, known: Pattern, k: int, search: str = "exact"
) -> np.ndarray:
    """A layer's k best labels ``(B, k)`` that are not known, best first; -1: no more."""

    def best(rows: np.ndarray, depth: int) -> np.ndarray:
        return on_host(output.top_k(hidden[rows], depth, search)[1])

    return best_unseen(known, k, output.out_features, best)


def best_unseen(
    seen: Pattern, k: int, num_labels: int, best: Callable[[np.ndarray, int], np.ndarray]
) -> np.ndarray:
    """The first k labels ``(B, k)`` int64 that rows have not seen; -1: there are no more.

    ``best(rows, depth)`` names as many labels of some of the rows, best first.
    """
    found, counts = np.full((seen.num_rows, k), -1, np.int64), np.diff(seen.indptr)
    more = np.where(counts > 0, _MORE[np.searchsorted(_MORE, counts)], 0)
    for level in np.unique(more):
        depth = min(k + int(level), num_labels)
        rows, step = np.flatnonzero(more == level), max(_MOST_ASKED // depth, 1)
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            found[some] = first_unseen(best(some, depth), take_labels(seen, some), k)
    return found
