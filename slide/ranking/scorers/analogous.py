"""The answers to analogous queries: what they say of a label in a knowledge graph."""

from typing import Any, ClassVar

import numpy as np

from slide.data.dataset import take_labels
from slide.data.row_transform import keep_labels, mix_bits
from slide.ops.base_scorers import Questions, ask_similar
from slide.ranking import base_scorer as base
from slide.search import column_lists
from slide.search.row_blocks import count_together, ones_of
from slide.search.sparse_top_k import shortened
from slide.sparse import CSR, Pattern, check_pattern, row_bounds
from slide.utils.array_checks import Expected, Stored

# Number of similar features of each feature.
MOST_SIMILAR = 512
# Added to the number of occurrences of a feature, so that rare ones do not seem sure.
_PRIOR = 3
# Occurrences that more features share tell little, and their pairs would take most of the time.
_MOST_SHARING = 100


class AnalogousQueries(base.BaseScorer):
    """Scores labels by the answers to questions in which one feature is another, similar one.

    A row of a knowledge graph is a question, such as head and relation, and its labels are known
    answers. Another relation of the same head, or another head with the same relation, is a
    similar question if the two features often have the same answer beside the same other
    features. So facts that stand in the graph speak for facts that do not, as in the models of
    observed features (Toutanova and Chen 2015, "Observed versus latent features for knowledge base
    and text inference").

    An occurrence of a feature is a pair of a label and of the other features of its row. A feature
    c stands in for a feature b with the weight ``shared / (count + 3)``: of the ``count``
    occurrences of c, b has ``shared`` ones, too. One that more than 100 features share is not
    counted.

    Example:
        >>> import numpy as np, slide
        >>> from slide.ranking import AnalogousQueries
        >>> rows = slide.Pattern.from_lists([[0, 8], [0, 9], [1, 8], [2, 9]])
        >>> features = slide.CSR(*rows, np.ones(8, np.float32))
        >>> answers = slide.Pattern.from_lists([[4], [4], [5], [6]])
        >>> model = AnalogousQueries().fit(features, answers, num_features=10, num_labels=7)
        >>> model.relate(slide.CSR(*rows.slice(2, 3), np.ones(2, np.float32)), np.array([[5, 6]]))
        array([[0., 0.],
               [0., 0.]], dtype=float32)
        >>> question = slide.CSR(*slide.Pattern.from_lists([[2, 8]]), np.ones(2, np.float32))
        >>> model.relate(question, np.array([[5, 6]]))  # As 9 does for 8 beside 0.
        array([[0. , 0. ],
               [1. , 0.2]], dtype=float32)
    """

    name, kinds = "analogous", ("graph",)
    features: ClassVar = {"analogous": base.FOR, "analogous_best": base.FOR}

    counts, numbers = (), ("num_labels",)

    def __init__(self):
        self.num_labels, self.similar, self.rests = 0, base.NOTHING, np.empty(0, np.uint64)
        self.labels = Pattern(*base.NOTHING[:2])
        self.questions = Questions(*self.labels, np.empty(0, np.int32))

    def fit(
        self, features: CSR, labels: Pattern, num_features: int, num_labels: int
    ) -> "AnalogousQueries":
        """Find similar features, and list the rows by all of their features but one."""
        check_pattern("features", features, None, num_features)
        check_pattern("labels", labels, features.num_rows, num_labels)
        self.labels, self.num_labels = labels, num_labels
        self.rests, group = np.unique(_rest_keys(features), return_inverse=True)
        rows = features.entry_rows()
        order = np.lexsort((features.indices, group))
        entries = features.indices[order], rows[order].astype(np.int32)
        self.questions = Questions(row_bounds(np.bincount(group)), *entries)
        self.similar = self._similar(features.indices, rows, group, labels, num_features)
        return self

    def relate(self, features: CSR, ids: np.ndarray) -> np.ndarray:
        """What the answers to similar questions say of candidates ``(B, K)``, below 0 for none.

        Returns:
            ``(pairs, 2)`` float32, a row for each candidate: the sum over the features of the row
            of the share, by weight, of the similar questions that have it as an answer; and the
            largest weight of such a question. All are 0 before `fit`.
        """
        if not len(self.rests):
            return np.zeros(((ids >= 0).sum(), 2), np.float32)
        check_pattern("features", features, None, self.similar.num_rows)
        wanted = _rest_keys(features)
        group = np.minimum(np.searchsorted(self.rests, wanted), len(self.rests) - 1)
        group[self.rests[group] != wanted] = -1
        asked = features, group, self.similar, self.questions, self.labels
        sizes = features.num_rows, self.num_labels
        return base.of_candidates(ask_similar, asked, ids, *sizes, width=(2,))

    def _similar(
        self,
        entries: np.ndarray,
        rows: np.ndarray,
        group: np.ndarray,
        labels: Pattern,
        num_features: int,
    ) -> CSR:
        """The features that stand in for each feature, ascending, with their weights.

        ``group`` numbers the other features of the row of each entry.
        """
        answers = take_labels(labels, rows)
        sizes = np.diff(answers.indptr)
        where = np.repeat(group, sizes) * np.int64(self.num_labels) + answers.indices
        where = np.unique(where, return_inverse=True)[1]
        # Equal rows with equal answers count once.
        pairs = np.unique(where * np.int64(num_features) + np.repeat(entries, sizes))
        where, each = np.divmod(pairs, num_features)
        sharing, counts = np.bincount(where), np.bincount(each, minlength=num_features)
        some = np.flatnonzero((sharing[where] > 1) & (sharing[where] <= _MOST_SHARING))
        each, where = each[some], where[some]
        # The features of each place, in ascending order as the pairs are, and vice versa.
        bounds = row_bounds(np.bincount(where, minlength=len(sharing)))
        of_place = Pattern(bounds, each.astype(np.int32))
        of_feature = column_lists(ones_of(of_place), num_features)
        longest = MOST_SIMILAR + 1  # It may also count the feature itself.
        shared = count_together(of_feature, of_place, num_features, longest, "similar features")
        lists = shared.keep(shared.indices != shared.entry_rows())
        lists.values[:] /= (counts[lists.indices] + _PRIOR).astype(np.float32)
        return shortened(lists, MOST_SIMILAR)

    def learn(self, training: base.Training) -> None:
        train = training.train
        self.fit(train.features, train.labels, train.num_features, train.num_labels)

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        found = self.relate(queries.features, candidates.ids)
        return dict(zip(self.features, found.T, strict=True))

    def arrays(self) -> dict[str, np.ndarray]:
        parts = {"similar": self.similar, "questions": self.questions, "labels": self.labels}
        found = {"rests": self.rests.view(np.int64)}
        for name, part in parts.items():
            found |= base.named_arrays(name, part)
        return found

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        self.num_labels = stored.exactly("num_labels", num_labels)
        self.similar = stored.csr("similar", num_features, num_features, least=0)
        self.labels = stored.pattern("labels", None, num_labels)
        rests = stored.ascending("rests", Expected((None,), "int64"), "uint64")
        fields = "indptr", "features"
        beside = stored.pattern("questions", len(rests), num_features, fields)
        expected = Expected(beside.indices.shape, "int32", 0, self.labels.num_rows - 1)
        self.questions = Questions(*beside, stored.array("questions.rows", expected))
        self.rests = rests.view(np.uint64)

    def grown(self, labels: int, features: int) -> "AnalogousQueries":
        similar = base.more_rows(self.similar, features)
        return self.with_(num_labels=self.num_labels + labels, similar=similar)

    def selected(self, kept: np.ndarray, num_labels: int) -> "AnalogousQueries":
        return self.with_(labels=keep_labels(self.labels, kept, num_labels), num_labels=len(kept))


def _rest_keys(features: CSR) -> np.ndarray:
    """For each entry ``(nnz,)`` a uint64 number of the other features of its row."""
    own = mix_bits(features.indices.astype(np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(own)])
    return np.diff(sums[features.indptr])[features.entry_rows()] - own
