"""The most frequent labels: where the features say nothing, no answers are better."""

from typing import Any, ClassVar

import numpy as np

from slide.data import first_unseen
from slide.data.dataset import take_labels
from slide.ranking import base_scorer as base
from slide.ranking.scorers.network import rows_by_depth
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.array_checks import Stored


class Frequency(base.BaseScorer):
    """Names the labels with the most training rows; `ranking_features` says how many they are."""

    name = "frequency"
    features: ClassVar = {"log_frequency": base.ANY, "frequency_rank": base.RANK}

    def __init__(self, proposed: int = 10):
        checks.whole("proposed", proposed, 1)
        self.proposed = proposed
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None  # Frequencies, and their order.

    def propose(self, queries: base.Queries) -> base.Named:
        frequency = queries.frequency
        if self._sorted is None or self._sorted[0] is not frequency:  # Once, not for each row.
            self._sorted = frequency, np.argsort(-frequency, kind="stable")
        order, rows = self._sorted[1], queries.features.num_rows
        return base.Named(most_frequent(order, queries.seen, rows, min(self.proposed, len(order))))

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        return {}

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"proposed": self.proposed}, {}

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        self.proposed = stored.count("proposed", 1)


def most_frequent(order: np.ndarray, seen: Pattern | None, num_rows: int, count: int) -> np.ndarray:
    """The first ``count`` labels of an order (N,) as ids ``(num_rows, count)``, without seen ones.

    -1: there are no more.
    """
    if seen is None:
        return np.broadcast_to(order[:count], (num_rows, count))
    found = np.full((num_rows, count), -1, np.int64)
    for rows, depth in rows_by_depth(seen, count, len(order)):
        ids = np.broadcast_to(order[:depth], (len(rows), depth))
        found[rows] = first_unseen(ids, take_labels(seen, rows), count)
    return found
