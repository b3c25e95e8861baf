"""Test rows that methods are judged on, in one way for all of them."""

from collections.abc import Callable

import numpy as np
from peers import TOP, known_labels

from slide.data import Batches, SparseDataset, first_unknown
from slide.sparse import CSR, Pattern
from slide.training.evaluation import inverse_propensities, precision_at_k, psp_at_k

_BATCH = 512


class Judged:
    """Some test rows of a data set, with what our default call leaves out of its answers.

    Args:
        data: the data set.
        most: at most so many rows, spread evenly over the set; 0: all.

    Attributes:
        rows: their numbers in the test split.
        split: these rows.
        left_out: ``(rows,)`` how many known labels of each row are left out of its answers.
        depth: labels that a method names for a row, so that five are left.
    """

    def __init__(self, data: SparseDataset, most: int = 0):
        count = min(most, len(data.test)) if most else len(data.test)
        # Files may be sorted, so the rows come from all of them.
        self.rows = np.linspace(0, len(data.test) - 1, count).astype(np.int64)
        self.split = data.test.take(self.rows)
        known = known_labels(data.train, self.split)
        self.known = known or Pattern.from_lists([[]] * count)
        self.left_out = np.diff(self.known.indptr)
        self.depth = min(max(TOP) + int(self.left_out.max(initial=0)), data.num_labels)
        self.inverse = inverse_propensities(data.train.labels, data.num_labels, *data.propensity)

    def judge(self, best: Callable[[CSR, int], np.ndarray]) -> dict[str, float]:
        """P@k and PSP@k of answers.

        Args:
            best: called with features and a number; returns the ids of so many best labels.
        """
        batches = Batches(self.split, _BATCH, seed=0, shuffle=False).epoch(0)
        return self.scores(np.concatenate([best(each.features, self.depth) for each in batches]))

    def scores(self, ids: np.ndarray) -> dict[str, float]:
        """P@k and PSP@k of the ids ``(rows, k)`` of labels, best first; -1: no more."""
        found, labels = first_unknown(ids, self.known, max(TOP)), self.split.labels
        scores = {f"p_at_{k}": precision_at_k(found, labels, k) for k in TOP}
        return scores | {f"psp_at_{k}": psp_at_k(found, labels, k, self.inverse) for k in TOP}
