"""Precision of answers, added up block by block."""

import numpy as np

from slide.sparse import Pattern
from slide.training.evaluation import ndcg_at_k, precision_at_k

_PLACES = (1, 3, 5)


class Scores:
    """Means over all rows, where any of them has labels.

    Args:
        k: number of answers to a row; metrics look at 1, 3 and 5 of them if there are so many.

    Example:
        >>> import numpy as np
        >>> from slide import Pattern
        >>> from slide.predict.scores import Scores
        >>> scores = Scores(k=2)
        >>> scores.add(np.array([[3, 1], [1, 2]]), Pattern.from_lists([[3], [0, 2]]))
        >>> scores.means()
        {'p_at_1': 0.5, 'ndcg_at_1': 0.5}
    """

    def __init__(self, k: int):
        self.places = [place for place in _PLACES if place <= k]
        self.rows = self.labels = 0
        self._sums: dict[str, float] = {}

    def add(self, ids: np.ndarray, labels: Pattern) -> None:
        """Add rows.

        Args:
            ids: ``(B, k)`` integers, best first; -1: none.
            labels: B rows.
        """
        if not len(ids):
            return
        self.rows += len(ids)
        self.labels += len(labels.indices)
        for name, metric in (("p", precision_at_k), ("ndcg", ndcg_at_k)):
            for k in self.places:
                key = f"{name}_at_{k}"
                self._sums[key] = self._sums.get(key, 0.0) + len(ids) * metric(ids, labels, k)

    def means(self) -> dict[str, float]:
        """The means, as ``p_at_1`` and so on; empty if no row has a label."""
        if not self.labels:
            return {}
        return {name: round(total / self.rows, 6) for name, total in self._sums.items()}
