"""The most frequent labels: where the features say nothing, no answers are better."""

from typing import Any, ClassVar

import numpy as np

from slide.data.unseen import most_frequent
from slide.ranking import base_scorer as base


class Frequency(base.BaseScorer):
    """Names the labels with the most training rows; `ranking_features` says how many they are."""

    name = "frequency"
    features: ClassVar = {"log_frequency": base.ANY, "frequency_rank": base.RANK}

    def __init__(self, proposed: int = 10):
        self.set_counts(proposed=proposed)
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None  # Frequencies, and their order.

    def propose(self, queries: base.Queries) -> base.Named:
        frequency = queries.frequency
        if self._sorted is None or self._sorted[0] is not frequency:  # Once, not for each row.
            self._sorted = frequency, np.argsort(-frequency, kind="stable")
        order, rows = self._sorted[1], queries.features.num_rows
        return base.Named(most_frequent(order, queries.seen, rows, min(self.proposed, len(order))))

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        return {}
