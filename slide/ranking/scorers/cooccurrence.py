"""Feature-label co-occurrence: the share of the training rows of a feature that have a label."""

from typing import Any, ClassVar

import numpy as np

from slide.data.row_transform import keep_labels
from slide.ops.base_scorers import relate_candidates
from slide.ranking import base_scorer as base
from slide.search import sparse_top_k
from slide.search.row_blocks import label_shares
from slide.sparse import CSR, Pattern, check_pattern
from slide.utils.array_checks import Expected, Stored

# Shares of less than a ten-billionth need more rows than a matrix can have; the kernel divides by
# products of two of them, which float32 holds.
LEAST_SHARE = 1e-10


class Cooccurrence(base.BaseScorer):
    """Scores labels by the share of the rows of each feature that have them.

    The score of a label is the sum over the features of a row of ``value * count(feature, label) /
    (count(feature) + 3)``. In a recommender the score says which items users of an item like, too
    (Sarwar et al. 2001, "Item-based collaborative filtering recommendation algorithms").

    Args:
        proposed: number of candidates that the features of a row name.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> import numpy as np, slide
        >>> from slide.ranking import Cooccurrence
        >>> features = slide.CSR(np.arange(4), np.zeros(3, np.int32), np.ones(3, np.float32))
        >>> labels = slide.Pattern(np.arange(4), np.array([5, 5, 7], np.int32))
        >>> model = Cooccurrence().fit(features, labels, 1, 8)
        >>> model.best(features, k=2)[1][0].tolist()
        [5, 7]
    """

    name = "cooccurrence"
    features: ClassVar = {
        "cooccurrence": base.FOR,
        "cooccurrence_best": base.FOR,
        "naive_bayes": base.FOR,
        "cooccurrence_rank": base.RANK,
    }

    numbers = ("num_rows",)

    def __init__(self, proposed: int = 20):
        self.set_counts(proposed=proposed)
        self.num_labels, self.num_rows, self.lists = 0, 0, base.NOTHING
        self.unseen = self.label_shares = np.empty(0, np.float32)

    def fit(
        self, features: CSR, labels: Pattern, num_features: int, num_labels: int
    ) -> "Cooccurrence":
        """Count the features of ``(R, D)`` rows, whose values do not count, with their labels."""
        check_pattern("features", features, None, num_features)
        check_pattern("labels", labels, features.num_rows, num_labels)
        self.lists = base.NOTHING  # Before new ones are made, which take as much memory.
        self.lists, self.unseen = label_shares(features, labels, num_features, num_labels)
        self.num_labels, self.num_rows = num_labels, features.num_rows
        self.label_shares = shares_of_labels(labels, num_labels)
        return self

    def best(
        self, features: CSR, k: int, left_out: Pattern | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k highest scores above 0, and the labels that have them; 0 and -1: no more."""
        return sparse_top_k(features, self.lists, self.num_labels, k, left_out)

    def relate(self, features: CSR, ids: np.ndarray) -> np.ndarray:
        """What the features of each row say of its candidates ``(B, K)``, below 0 for none.

        Returns:
            ``(pairs, 3)`` float32, a row for each candidate: its score as in `best`, which may also
            be below 0; the largest share of the rows of a feature that have it; and the logarithm
            of its probability by naive Bayes, as if the features were independent (Manning et al.
            2008, "Introduction to information retrieval", section 13.2). There a feature that does
            not keep a label speaks against it, the more the more rows it has.
        """
        check_pattern("features", features, None, len(self.unseen))
        arrays, sizes = (features, self.lists, self.unseen, self.label_shares), self.num_labels
        return base.of_candidates(relate_candidates, arrays, ids, features.num_rows, sizes, (3,))

    def learn(self, training: base.Training) -> None:
        train = training.train
        self.fit(train.features, train.labels, train.num_features, train.num_labels)

    def propose(self, queries: base.Queries) -> base.Named:
        count = min(self.proposed, queries.num_labels)
        return base.Named(self.best(queries.features, count, queries.seen)[1])

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        found = self.relate(queries.features, candidates.ids)
        names = "cooccurrence", "cooccurrence_best", "naive_bayes"
        return dict(zip(names, found.T, strict=True))

    def arrays(self) -> dict[str, np.ndarray]:
        found = base.named_arrays("lists", self.lists)
        return found | {"unseen": self.unseen, "label_shares": self.label_shares}

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        super().restore(stored, num_labels, num_features)
        self.num_labels, self.num_rows = num_labels, stored.count("num_rows")
        self.lists = stored.csr("lists", num_features, num_labels, least=0)
        expected = Expected((num_features,), "float32", LEAST_SHARE, 1)
        self.unseen = stored.array("unseen", expected)
        expected = Expected((num_labels,), "float32", LEAST_SHARE)
        self.label_shares = stored.array("label_shares", expected)

    def grown(self, labels: int, features: int) -> "Cooccurrence":
        return self.with_(
            num_labels=self.num_labels + labels,
            lists=base.more_rows(self.lists, features),
            unseen=base.padded(self.unseen, features, 1),
            # A label without a row counts as one with a row, as in `fit`.
            label_shares=base.padded(self.label_shares, labels, 1 / max(self.num_rows, 1)),
        )

    def selected(self, kept: np.ndarray, num_labels: int) -> "Cooccurrence":
        lists, shares = keep_labels(self.lists, kept, num_labels), self.label_shares[kept]
        return self.with_(num_labels=len(kept), lists=lists, label_shares=shares)


def shares_of_labels(labels: Pattern, num_labels: int) -> np.ndarray:
    """The shares ``(N,)`` float32 of rows with each label; one without a row counts as with one."""
    frequency = np.maximum(np.bincount(labels.indices, minlength=num_labels), 1)
    return (frequency / max(labels.num_rows, 1)).astype(np.float32)
