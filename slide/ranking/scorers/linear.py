"""Sparse linear one-vs-rest classifiers, trained on few negatives.

In a recommender, where features and labels are the same items, item-item ridge regressions on all
rows are better (`item_regressions`). They do not know weights of rows.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from slide.data import SeenItems, SeenLabels, Split, labels_and_items
from slide.ops.base_scorers import regress_items
from slide.ops.linear_classifiers import (
    DualScratch,
    Solver,
    TrainingRows,
    fit_classifiers,
    list_training_rows,
    score_labels,
)
from slide.ops.ragged import RowRoom, select_rows
from slide.ranking import base_scorer as base
from slide.runtime import num_threads
from slide.search.row_blocks import ItemPairs, collect_rows, ones_of, sums_over
from slide.sparse import CSR, Pattern, check_ids, check_pattern, row_bounds
from slide.utils import checks
from slide.utils.array_checks import Expected, Stored

# A thread copies the rows of a label side by side, up to a million entries (8 MB).
MOST_COPIED = 1 << 20
# The labels of 1,000 equal training rows at most are no negatives: the time of more would
# grow with the square of their number.
_MOST_EQUAL = 1000
# Up to 4 times as many labels as negatives are all negatives of a row, if there are a million pairs
# at most: the labels of near rows are more often negatives of frequent labels than of rare ones.
# Dense rows gained nothing from it (digits), and the re-ranker took twice as long (clusters).
_FEW_LABELS, _MOST_PAIRS = 4, 1 << 20
# C where all labels are negatives, as in LinearSVC, and with few, which weigh less together: there
# 1 in place of 4 lost up to 0.4 points on held-out rows (delicious, debian, wordnet).
_COST_OF_ALL, _COST = 1.0, 4.0
# 64 weights an item at most; |w|^2 counts 30 times; 20 passes over the weights of an item.
WEIGHTS, _PENALTY, _SWEEPS = 64, 30.0, 20


def counts_items(kind: str, weighted: bool) -> bool:
    """Whether classifiers are regressions of items: in a recommender, if rows have no weights."""
    return kind == "items" and not weighted


class LinearClassifiers(base.BaseScorer):
    """One linear classifier for each label, with squared hinge, L2 penalty and few weights.

    They are the classifiers of DiSMEC (Babbar and Schölkopf 2017, "DiSMEC: distributed sparse
    machines for extreme multi-label classification", section 2), with fewer negatives, as in the
    re-ranker of Astec (Dahiya et al. 2021, "DeepXML: a deep extreme multi-label learning
    framework"): a row is a negative of a label only if the label is one of its candidates. After
    `fit_items` they are ridge regressions, for which of the numbers only ``bias`` counts.

    The score of a label is ``bias + <w, x>`` with a fixed bias. If a row has none of the features
    of a label, its score is the bias, like the score of a negative. So a row that shares no feature
    with the positives of a label is not needed in the training of that label. Where all rows take
    part in it, the label has an intercept, too.

    Args:
        C: weight of the squared hinge against |w|^2 / 2, as in ``sklearn.svm.LinearSVC``; None: 4,
            and 1 where a re-ranker takes all labels as negatives.
        bias: fixed part of all scores, in [-1, 0].
        tol: training of a label ends when the projected gradient of its dual is below this number.
        max_iter: largest number of passes over the rows of a label.
        threshold: weights of a smaller magnitude are set to 0.

    Raises:
        ValueError: for a number out of range.

    Attributes:
        weights: CSR ``(N, D)`` after `fit`; the columns of a row ascend.
        intercepts: ``(N,)`` float32, what the scores have beside the bias; None: nothing.
        counts_items: whether `fit_items` was the last; then all values of features count as 1.
        negatives: number of labels of its nearest neighbours that are negatives of a training row;
            all labels are where there are few (`num_negatives`).

    Example:
        >>> import numpy as np, slide
        >>> from slide.ranking import LinearClassifiers
        >>> indptr = np.arange(3)
        >>> features = slide.CSR(indptr, np.array([0, 1], np.int32), np.ones(2, np.float32))
        >>> labels = slide.Pattern(indptr, np.array([0, 1], np.int32))
        >>> candidates = slide.Pattern(indptr, np.array([1, 0], np.int32))
        >>> model = LinearClassifiers().fit(features, labels, candidates, 2, 2)
        >>> scores = model.scores(features, np.array([[0, 1], [0, 1]]))
        >>> scores.argmax(axis=1).tolist()
        [0, 1]
    """

    name, slow = "linear", True
    features: ClassVar = base.scored("linear", base.BEHIND, base.RANK)
    counts, numbers = ("negatives",), ("num_features", "counts_items")

    def __init__(
        self,
        C: float | None = None,
        bias: float = -1.0,
        tol: float = 0.1,
        max_iter: int = 20,
        threshold: float = 0.05,
    ):
        if C is not None:
            checks.positive("C", C)
        checks.within("bias", bias, -1.0, 0.0)
        checks.positive("tol", tol)
        checks.whole("max_iter", max_iter, 1)
        checks.not_negative("threshold", threshold)
        self.C, self.threshold = C, threshold
        self.solver = Solver(float(C or _COST), float(bias), max_iter, float(tol))
        # The score of a label with which a row shares no feature is the bias of its classifier.
        self.nothing = float(bias)
        self.num_features, self.counts_items, self.negatives = 0, False, 50
        self.weights: CSR | None = None
        self.intercepts: np.ndarray | None = None

    def fit(
        self,
        features: CSR,
        labels: Pattern,
        candidates: Pattern | None,
        num_features: int,
        num_labels: int,
        weights: np.ndarray | None = None,
    ) -> "LinearClassifiers":
        """Train each label on its positives, and on the rows that have it as a wrong candidate.

        Args:
            features: ``(R, D)`` training rows.
            labels: R rows of labels, in [0, N).
            candidates: R rows of labels that may be mistaken for labels of the row, which may be
                among them. None: all labels, which then learn intercepts.
            num_features, num_labels: D and N.
            weights: ``(R,)`` factors of C, at least 0; None: all are 1.
        """
        check_pattern("features", features, None, num_features)
        checks.finite("features", features.values)
        check_pattern("labels", labels, features.num_rows, num_labels)
        # Of near rows alone, an intercept would learn how often they are mistaken for positives.
        every = candidates is None
        if candidates is None:
            ids = np.arange(num_labels, dtype=np.int32)
            candidates = Pattern.from_padded(np.tile(ids, (features.num_rows, 1)))
        check_pattern("candidates", candidates, features.num_rows, num_labels)
        weights = checks.row_weights("weights", weights, features.num_rows)
        self.weights = None  # Before new ones are made, which take as much memory.
        lists = _training_lists(labels, candidates, num_labels)
        # A cost of 0 would be divided by; one so small teaches nothing either.
        costs = np.empty(0) if weights is None else np.maximum(weights, 1e-6)
        self.solver = self.solver._replace(constant=float(every))
        self.weights, intercepts = self._weights(features, costs, lists, num_features)
        self.intercepts = intercepts if every else None
        self.num_features, self.counts_items = num_features, False
        return self

    def fit_items(self, pairs: ItemPairs, num_features: int) -> "LinearClassifiers":
        """Take the weights of `item_regressions` instead."""
        self.weights = None  # Before new ones are made, which take as much memory.
        self.weights, self.intercepts = item_regressions(pairs, num_features), None
        self.num_features, self.counts_items = num_features, True
        return self

    def _weights(
        self, features: CSR, costs: np.ndarray, lists: TrainingRows, num_features: int
    ) -> tuple[CSR, np.ndarray]:
        """The weights and intercepts of all classifiers."""
        longest = int(np.diff(lists.indptr).max(initial=0))
        most_copied = min(len(features.indices), MOST_COPIED)
        scratch = DualScratch.of(num_threads(), longest, num_features, most_copied)
        rows = Pattern(lists.indptr, lists.rows)
        intercepts = np.zeros(rows.num_rows, np.float32)
        needed = np.minimum(sums_over(np.diff(features.indptr), rows), num_features)

        def write(begin: int, end: int, room: RowRoom) -> None:
            some = lists._replace(indptr=lists.indptr[begin : end + 1])
            order = np.argsort(-np.diff(some.indptr), kind="stable")
            own, solver, least = intercepts[begin:end], self.solver, self.threshold
            fit_classifiers(features, costs, some, order, solver, least, scratch, room, own)

        return collect_rows(needed, write, "classifiers"), intercepts

    def scores(self, features: CSR, ids: np.ndarray) -> np.ndarray:
        """Scores ``(B, K)`` float32 of the labels ``ids`` ``(B, K)``; -inf for ids below 0."""
        if self.weights is None:
            raise RuntimeError("the classifiers are not trained: call fit first")
        rows = ones_of(features) if self.counts_items else features
        found = scores_of_rows(rows, self.weights, self.solver.bias, ids, self.num_features)
        if self.intercepts is not None:
            found += self.intercepts[ids]  # -inf stays what it is.
        return found

    def learn(self, training: base.Training) -> None:
        """Learn from items, or with labels of the nearest neighbours as negatives."""
        train, near = training.train, training.learnt("neighbours")
        sizes = train.num_features, train.num_labels
        if counts_items(training.kind, train.weights is not None):
            self.fit_items(training.item_pairs, train.num_features)
            return
        count = num_negatives(train, training.kind, self.negatives)
        if self.C is None:
            cost = _COST_OF_ALL if count == train.num_labels else _COST
            self.solver = self.solver._replace(C=cost)
        negatives = None
        if count < train.num_labels or training.seen is not None:
            negatives = near.own_candidates(count, self._right_or_seen(training))
        self.fit(train.features, train.labels, negatives, *sizes, train.weights)

    def _right_or_seen(self, training: base.Training) -> Callable[[int, int], Pattern]:
        """For some training rows the labels that are no negatives."""
        train, seen = training.train, training.seen
        right = labels_and_items(train) if isinstance(seen, SeenItems) else train.labels
        if not isinstance(seen, SeenLabels):
            return right.slice
        # The labels of equal rows include its own.
        return lambda begin, end: seen.of(train.features.slice(begin, end), _MOST_EQUAL)

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        return {"linear": candidates.flat(self.scores(queries.features, candidates.ids))}

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        numbers, arrays = super().state()
        return {**numbers, "bias": self.nothing}, arrays

    def arrays(self) -> dict[str, np.ndarray]:
        own = {} if self.intercepts is None else {"intercepts": self.intercepts}
        return base.named_arrays("weights", self.weights) | own

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        super().restore(stored, num_labels, num_features)
        self.nothing = stored.number("bias", -1, 0)
        self.solver = self.solver._replace(bias=self.nothing)
        self.counts_items = stored.flag("counts_items")
        self.num_features = stored.exactly("num_features", num_features)
        self.weights, self.intercepts = stored.csr("weights", num_labels, num_features), None
        if "intercepts" in stored:
            self.intercepts = stored.array("intercepts", Expected((num_labels,), "float32"))

    def grown(self, labels: int, features: int) -> "LinearClassifiers":
        assert self.weights is not None
        weights, intercepts = base.more_rows(self.weights, labels), self.intercepts
        if intercepts is not None:
            intercepts = base.padded(intercepts, labels, 0)
        features += self.num_features
        return self.with_(weights=weights, intercepts=intercepts, num_features=features)

    def selected(self, kept: np.ndarray, num_labels: int) -> "LinearClassifiers":
        assert self.weights is not None
        intercepts = None if self.intercepts is None else self.intercepts[kept]
        weights = CSR(*select_rows(self.weights.indptr, kept, *self.weights[1:]))
        return self.with_(weights=weights, intercepts=intercepts)


def num_negatives(train: Split, kind: str, negatives: int) -> int:
    """How many labels are negatives of a training row, its own among them: all where few are."""
    few = train.num_labels <= _FEW_LABELS * negatives and kind != "dense"
    few = few and len(train) * train.num_labels <= _MOST_PAIRS
    return train.num_labels if few else min(negatives, train.num_labels)


def scores_of_rows(
    features: CSR, weights: CSR, bias: float, ids: np.ndarray, num_features: int
) -> np.ndarray:
    """The products ``(B, K)`` of rows with rows ``ids`` of weights, plus a bias; below 0: -inf."""
    check_pattern("features", features, None, num_features)
    check_ids(ids, features.num_rows, weights.num_rows)
    dense = np.zeros((num_threads(), num_features), np.float32)
    found = np.empty(ids.shape, np.float32)
    score_labels(features, weights, bias, np.ascontiguousarray(ids, np.int64), dense, found)
    return found


def _training_lists(labels: Pattern, candidates: Pattern, num_labels: int) -> TrainingRows:
    """The training rows of each label: its positives, and rows with it as a wrong candidate."""
    marks, counts = np.empty(num_labels, np.int32), np.zeros(num_labels, np.int64)
    nothing = np.empty(0, np.int32), np.empty(0, np.float32)
    list_training_rows(labels, candidates, marks, counts, *nothing)
    indptr = row_bounds(counts)
    rows, signs = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    list_training_rows(labels, candidates, marks, indptr[:-1].copy(), rows, signs)
    return TrainingRows(indptr, rows, signs)


def item_regressions(pairs: ItemPairs, num_features: int) -> CSR:
    """The weights ``(N, D)`` by which the items of a row say how likely each other item is.

    Each item is regressed on the 64 other items that are closest to it, over all rows: its weights
    minimise the squared error with a penalty on |w|^2. No item has a weight for itself. With all
    items in place of the closest ones this is the model of Steck 2019, "Embarrassingly shallow
    autoencoders for sparse data", section 3; with few it is solved for millions of items, as in
    Steck 2019, "Markov random fields for collaborative filtering", section 3.2. Unlike counts of
    pairs, weights do not count again what two similar items say.
    """
    (counts, lists), threads = pairs, num_threads()
    positions = np.zeros((threads, len(counts)), np.uint8)
    close = np.empty((threads, WEIGHTS), np.int32)
    gram = np.empty((threads, WEIGHTS + 1, WEIGHTS + 1), np.float32)

    def regress(begin: int, end: int, room: RowRoom) -> None:
        how = num_features, np.float32(_PENALTY), _SWEEPS
        regress_items(lists, counts, begin, *how, positions, close, gram, room)

    return collect_rows(np.minimum(np.diff(lists.indptr), WEIGHTS), regress, "regressions of items")
