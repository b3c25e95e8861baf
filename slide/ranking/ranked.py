"""The answers to rows: labels with their scores, the best first."""

from typing import NamedTuple

import numpy as np


class Ranked(NamedTuple):
    """The answers to B rows.

    Attributes:
        scores: ``(B, k)`` float64, best first; probabilities, times inverse propensities if the
            objective is ``"psp"``; 0 where there are no more labels.
        ids: ``(B, k)`` int64 labels; -1: there are no more.
        network_ids: ``(B, k)`` int64, what the network alone answers; -1: there are no more.

    Example:
        >>> import numpy as np
        >>> from slide.ranking import Ranked
        >>> found = Ranked(np.array([[0.9, 0.2]]), np.array([[3, 1]]), np.array([[1, 3]]))
        >>> found.ids[found.scores > 0.5]
        array([3])
    """

    scores: np.ndarray
    ids: np.ndarray
    network_ids: np.ndarray

    @classmethod
    def of(
        cls, k: int, scores: np.ndarray, ids: np.ndarray, network_ids: np.ndarray | None = None
    ) -> "Ranked":
        """The first k answers to each row, filled up where there are fewer.

        Args:
            k: number of answers.
            scores: ``(B, n)`` floats, best first.
            ids: ``(B, n)`` int64, below 0 where there is no label, whatever the score is.
            network_ids: ``(B, m)`` int64; None: ``ids``.
        """
        scores = np.where(ids < 0, 0, scores).astype(np.float64, copy=False)
        found = _first(ids, k, -1)
        alone = found if network_ids is None else _first(network_ids, k, -1)
        return cls(_first(scores, k, 0), found, alone)


def _first(array: np.ndarray, k: int, missing: int) -> np.ndarray:
    """The first k columns; those that it does not have are all ``missing``."""
    if array.shape[1] >= k:
        return array[:, :k]
    return np.pad(array, ((0, 0), (0, k - array.shape[1])), constant_values=missing)
