"""The network as a base scorer, and its best labels where some are seen, which are no answers."""

from collections.abc import Iterator
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
from slide.utils import checks
from slide.utils.array_checks import Stored

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
        checks.whole("proposed", proposed, 1)
        self.proposed = proposed

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

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"proposed": self.proposed}, {}

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        self.proposed = stored.count("proposed", 1)


def best_unknown(
    output: SampledLinear, hidden: Tensor, known: Pattern, k: int, search: str = "exact"
) -> np.ndarray:
    """A layer's k best labels ``(B, k)`` that are not known, best first; -1: no more."""
    found = np.full((len(hidden), k), -1, np.int64)
    for rows, depth in rows_by_depth(known, k, output.out_features):
        ids = on_host(output.top_k(hidden[rows], depth, search)[1])
        found[rows] = first_unseen(ids, take_labels(known, rows), k)
    return found


def rows_by_depth(known: Pattern, k: int, num_labels: int) -> Iterator[tuple[np.ndarray, int]]:
    """Rows in groups, and how many labels to ask for so that k of them are not known."""
    counts = np.diff(known.indptr)
    more = np.where(counts > 0, _MORE[np.searchsorted(_MORE, counts)], 0)
    for level in np.unique(more):
        depth = min(k + int(level), num_labels)
        rows, step = np.flatnonzero(more == level), max(_MOST_ASKED // depth, 1)
        for start in range(0, len(rows), step):
            yield rows[start : start + step], depth
