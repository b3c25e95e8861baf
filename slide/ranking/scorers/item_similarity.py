"""Item-item similarity: counts of rows that have both items, and their cosine."""

from typing import Any, ClassVar

import numpy as np

from slide.data.row_transform import keep_labels
from slide.ops.base_scorers import shrunk_cosines
from slide.ops.ragged import select_rows
from slide.ranking import base_scorer as base
from slide.ranking.scorers.linear import scores_of_rows
from slide.search import column_lists, sparse_top_k
from slide.search.row_blocks import ItemPairs, ones_of
from slide.sparse import CSR, Pattern
from slide.utils import checks
from slide.utils.array_checks import Expected, Stored


class ItemSimilarity(base.BaseScorer):
    """Scores items by their similarity to the items of a row, summed up.

    The similarity of two items is ``shared / (sqrt(a * b) + shrink)``: ``shared`` rows have both, a
    and b rows one of them. So it is the cosine of their columns, but small where few rows have them
    (Sarwar et al. 2001, "Item-based collaborative filtering recommendation algorithms"; Bell and
    Koren 2007, "Improved neighborhood-based collaborative filtering", section 3). The sum of
    ``shared`` itself is a second feature, which favours frequent items. In a knowledge graph the
    items of a row are its seen labels: who is a node or a user says nothing, but what it is known
    to be linked with does.

    Args:
        shrink: number of rows that is added, at least 0.
        proposed: number of candidates.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> import numpy as np
        >>> from slide.search.row_blocks import count_pairs
        >>> from slide.ranking.scorers.item_similarity import ItemSimilarity
        >>> from slide.sparse import CSR, Pattern
        >>> baskets = Pattern.from_lists([[0, 1], [0, 1], [1, 2]])
        >>> model = ItemSimilarity(shrink=0).fit(count_pairs(baskets, 3), num_features=3)
        >>> row = CSR(*Pattern.from_lists([[1]]), np.full(1, 0.3, np.float32))
        >>> cosines, counts = model.scores(row, np.array([[0, 2]]))
        >>> counts
        array([[2., 1.]], dtype=float32)
    """

    name, kinds = "item_similarity", ("items", "graph")
    features: ClassVar = {**base.scored("cosine", base.BEHIND, base.RANK), "shared_rows": base.FOR}
    numbers = "shrink", "num_features", "of_seen"

    def __init__(self, shrink: float = 10.0, proposed: int = 20):
        checks.not_negative("shrink", shrink)
        self.set_counts(proposed=proposed)
        self.shrink, self.num_features = shrink, 0
        self.of_seen = False  # Whether the items of a row are its seen labels.
        self.cosines: CSR | None = None  # (N, D), and the numbers of shared rows of its entries.
        self.shared = np.empty(0, np.float32)
        self._by_feature: CSR | None = None

    def fit(self, pairs: ItemPairs, num_features: int) -> "ItemSimilarity":
        """Learn from counts of pairs; items from ``num_features`` on are no features."""
        self.cosines = self._by_feature = None  # Before new ones are made.
        counts, lists = pairs
        if num_features < lists.num_rows:
            lists = lists.keep(lists.indices < num_features)
        cosines, shared = np.empty_like(lists.values), np.empty_like(lists.values)
        shrunk_cosines(lists, counts, np.float32(self.shrink), cosines, shared)
        self.cosines, self.shared = lists._replace(values=cosines), shared
        self.num_features = num_features
        return self

    def scores(self, features: CSR, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums of cosines and of shared rows ``(B, K)`` float32 each; -inf for ids below 0."""
        if self.cosines is None:
            raise RuntimeError("there are no items: call fit first")
        rows, shared = ones_of(features), self.cosines._replace(values=self.shared)
        one, other = (
            scores_of_rows(rows, weights, 0.0, ids, self.num_features)
            for weights in (self.cosines, shared)
        )
        return one, other

    def learn(self, training: base.Training) -> None:
        train, self.of_seen = training.train, training.kind == "graph"
        self.fit(training.item_pairs, train.num_labels if self.of_seen else train.num_features)

    def _items(self, queries: base.Queries) -> CSR:
        """The items of rows, all with the value 1."""
        if not self.of_seen:
            return ones_of(queries.features)
        if queries.seen is None:  # `ranker.known=keep`
            return ones_of(Pattern.from_lists([[]] * queries.features.num_rows))
        return ones_of(queries.seen)

    def propose(self, queries: base.Queries) -> base.Named:
        assert self.cosines is not None
        if self._by_feature is None:
            self._by_feature = column_lists(self.cosines, self.num_features)
        count, items = min(self.proposed, queries.num_labels), self._items(queries)
        found = sparse_top_k(items, self._by_feature, queries.num_labels, count, queries.seen)
        return base.Named(found[1], items)

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        cosines, shared = self.scores(more, candidates.ids)
        return {"cosine": candidates.flat(cosines), "shared_rows": candidates.flat(shared)}

    def arrays(self) -> dict[str, np.ndarray]:
        return base.named_arrays("cosines", self.cosines) | {"shared": self.shared}

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        super().restore(stored, num_labels, num_features)
        self.shrink = stored.number("shrink", 0)
        self.of_seen = "of_seen" in stored.numbers and stored.flag("of_seen")
        width = num_labels if self.of_seen else num_features
        self.num_features = stored.exactly("num_features", width)
        self.cosines = stored.csr("cosines", num_labels, width)
        self.shared = stored.array("shared", Expected(self.cosines.values.shape, "float32", 0))

    def grown(self, labels: int, features: int) -> "ItemSimilarity":
        assert self.cosines is not None
        cosines = base.more_rows(self.cosines, labels)
        width = self.num_features + (labels if self.of_seen else features)
        return self.with_(cosines=cosines, _by_feature=None, num_features=width)

    def selected(self, kept: np.ndarray, num_labels: int) -> "ItemSimilarity":
        assert self.cosines is not None
        indptr, *entries = self.cosines
        *found, shared = select_rows(indptr, kept, *entries, self.shared)
        model = self.with_(cosines=CSR(*found), _by_feature=None, shared=shared)
        if not self.of_seen:
            return model
        # Seen labels have new numbers, too.
        cosines = keep_labels(model.cosines, kept, num_labels)
        shared = keep_labels(model.cosines._replace(values=shared), kept, num_labels).values
        return model.with_(cosines=cosines, shared=shared, num_features=len(kept))
