"""Which labels go with a feature: conditional frequencies, counted in the training rows."""

import numpy as np

from slide.kernels.label_counts import relate_candidates
from slide.ranking.row_blocks import count_together
from slide.runtime import num_threads
from slide.search import column_lists, sparse_top_k
from slide.sparse import CSR, Pattern, check_ids, check_pattern, row_bounds
from slide.utils import checks

# Added to the number of rows of a feature, so that features of few rows do not seem sure. The rows
# added have labels as all rows do (Zhai and Lafferty 2004, "A study of smoothing methods for
# language models applied to information retrieval", section 2).
_PRIOR = 3
# Number of labels of a feature that are kept.
MOST_LABELS = 512
_NOTHING = CSR(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))


class Associations:
    """Scores labels by the share of the rows of each feature that have them.

    The score of a label is the sum over the features of a row of ``value * count(feature, label) /
    (count(feature) + 3)``. In a recommender these are the items that users of an item like, too
    (Sarwar et al. 2001, "Item-based collaborative filtering recommendation algorithms").

    Args:
        longest: number of labels of a feature that are kept, those with the most rows.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> import numpy as np, slide
        >>> from slide.ranking import Associations
        >>> features = slide.CSR(np.arange(4), np.zeros(3, np.int32), np.ones(3, np.float32))
        >>> labels = slide.Pattern(np.arange(4), np.array([5, 5, 7], np.int32))
        >>> model = Associations().fit(features, labels, 1, 8)
        >>> model.best(features, k=2)[1][0].tolist()
        [5, 7]
    """

    def __init__(self, longest: int = MOST_LABELS):
        checks.whole("longest", longest, 1)
        self.longest, self.num_labels, self.lists = longest, 0, _NOTHING
        self.unseen = self.label_shares = np.empty(0, np.float32)

    def fit(
        self, features: CSR, labels: Pattern, num_features: int, num_labels: int
    ) -> "Associations":
        """Count features and labels.

        Args:
            features: ``(R, D)`` training rows; values do not count.
            labels: R rows of labels, in [0, N).
            num_features: D.
            num_labels: N.

        Returns:
            The object itself.

        Raises:
            ValueError: for ids out of range, or numbers of rows that differ.
        """
        check_pattern("features", features, None, num_features)
        check_pattern("labels", labels, features.num_rows, num_labels)
        self.lists = _NOTHING  # Before new ones are made, which take as much memory.
        rows = column_lists(features, num_features)
        lists = count_together(rows, labels, num_labels, self.longest, "associations")
        smoothed = np.diff(rows.indptr) + _PRIOR
        of_feature = np.repeat(smoothed, np.diff(lists.indptr))
        np.divide(lists.values, of_feature, out=lists.values, casting="same_kind")
        self.lists, self.num_labels = lists, num_labels
        self.unseen = (_PRIOR / smoothed).astype(np.float32)
        # A label without a row counts as one with a row.
        frequency = np.maximum(np.bincount(labels.indices, minlength=num_labels), 1)
        self.label_shares = (frequency / max(features.num_rows, 1)).astype(np.float32)
        return self

    def best(
        self, features: CSR, k: int, left_out: Pattern | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores ``(B, k)`` float32 and ids ``(B, k)`` int32 of the labels with the highest scores.

        Args:
            features: ``(B, D)``; negative values subtract from the scores.
            k: number of labels. Only scores above 0 count: where a row has fewer of them, the
                remaining scores are 0 and the ids are -1.
            left_out: B rows of labels that are not returned; None: none.

        Raises:
            ValueError: for features out of range, or k below 1.
        """
        return sparse_top_k(features, self.lists, self.num_labels, k, left_out)

    def relate(self, features: CSR, ids: np.ndarray) -> np.ndarray:
        """What the features of each row say of its candidates.

        Args:
            features: ``(B, D)``.
            ids: ``(B, K)`` int64, labels, each once in a row; below 0 for none.

        Returns:
            ``(pairs, 3)`` float32, a row for each candidate: its score as in `best`, which may also
            be below 0; the largest share of the rows of a feature that have it; and the logarithm
            of its probability by naive Bayes, as if the features were independent (Manning et al.
            2008, "Introduction to information retrieval", section 13.2). There a feature that does
            not keep a label speaks against it, the more the more rows it has.

        Raises:
            ValueError: for features or ids out of range.
        """
        check_pattern("features", features, None, len(self.unseen))
        check_ids(ids, features.num_rows, self.num_labels)
        starts = row_bounds((ids >= 0).sum(1))
        found = np.empty((starts[-1], 3), np.float32)
        # A single row needs the scratch of a single thread, which takes most of its time.
        threads = max(min(num_threads(), len(ids)), 1)
        places = np.zeros((threads, self.num_labels), np.int32)
        counts = self.lists, self.unseen, self.label_shares
        relate_candidates(features, *counts, ids, starts, places, found)
        return found
