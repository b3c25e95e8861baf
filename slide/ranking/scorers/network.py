"""The network as a base scorer."""

from typing import Any, ClassVar

import torch

from slide.backend import on_host
from slide.nn.answers import best_unknown
from slide.nn.sampled_linear import check_finite
from slide.ranking import base_scorer as base


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
