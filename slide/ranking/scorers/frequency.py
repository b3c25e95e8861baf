"""The most frequent labels: where the features say nothing, no answers are better."""

from typing import Any, ClassVar

import numpy as np

from slide.data import first_unseen
from slide.data.dataset import take_labels
from slide.ranking import base_scorer as base
from slide.ranking.scorers.network import rows_by_depth
from slide.utils import checks
from slide.utils.array_checks import Stored


class Frequency(base.BaseScorer):
    """Names the labels with the most training rows; `ranking_features` says how many they are."""

    name = "frequency"
    features: ClassVar = {"log_frequency": base.ANY, "frequency_rank": base.RANK}

    def __init__(self, proposed: int = 10):
        checks.whole("proposed", proposed, 1)
        self.proposed = proposed

    def propose(self, queries: base.Queries) -> base.Named:
        order = np.argsort(-queries.frequency, kind="stable")
        count = min(self.proposed, len(order))
        if queries.seen is None:
            return base.Named(np.broadcast_to(order[:count], (queries.features.num_rows, count)))
        found = np.full((queries.features.num_rows, count), -1, np.int64)
        for rows, depth in rows_by_depth(queries.seen, count, len(order)):
            ids = np.broadcast_to(order[:depth], (len(rows), depth))
            found[rows] = first_unseen(ids, take_labels(queries.seen, rows), count)
        return base.Named(found)

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        return {}

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"proposed": self.proposed}, {}

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        self.proposed = stored.count("proposed", 1)
