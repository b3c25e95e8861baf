"""Conjunctions: the labels of rows that have a set of features, or a part of it."""

from math import comb
from typing import Any, ClassVar

import numpy as np

from slide.data import Split
from slide.data.kind import MOSTLY_NONZERO, nonzero_share
from slide.data.row_transform import keep_labels, mix_bits
from slide.ops.conjunctions import list_sets, mix_shares
from slide.ops.ragged import select_rows
from slide.ranking import base_scorer as base
from slide.ranking.scorers.cooccurrence import LEAST_SHARE, shares_of_labels
from slide.search import column_lists, sparse_top_k
from slide.search.row_blocks import MOST_LABELS, count_together
from slide.search.sparse_top_k import shortened
from slide.sparse import CSR, Pattern, check_pattern, row_bounds
from slide.utils.array_checks import Expected, Stored

# 64 sets of a row at most: all of 6 features, up to 3 of 7, pairs of 10, single ones of more.
MOST_SETS = 64
# 2^24 sets of training rows at most, which take 1 GiB for a moment; of more rows a part is counted.
MOST_COUNTED = 1 << 24
# Most sets are in a single row, which says little.
_LEAST_ROWS = 2
# 8 slots at most: there are weights for each of the 256 sets of them.
_MOST_SLOTS = 8
# 2^16 training labels teach the weights, in 20 steps; more of both change them little.
_LESSONS, _STEPS = 1 << 16, 20
# Sets have different weights by the number of their rows, in powers of 2 up to 2^14, and by the
# share of their labels that occur first, in tenths.
_POWERS, _TENTHS = 15, 11
# 0.01 of the share of all rows orders labels that no set has. With all of it, as it is learnt,
# frequent labels come first too often: on held-out next words P@1 was 11.4 in place of 12.4.
_REST = 0.01


class Conjunctions(base.BaseScorer):
    """Scores labels by the shares of the rows of each set of features that have them.

    What single features say of a label need not add up: "new" and "york" together say more. In
    rows of few features all their sets are counted. The probability of a label is the mean of the
    shares of the rows of its sets, and of all rows, that have it (interpolation: Jelinek and
    Mercer 1980, "Interpolated estimation of Markov source parameters from sparse data"; with sets
    in place of the words before, as in Bilmes and Kirchhoff 2003, "Factored language models and
    generalized parallel backoff"). How much a set counts depends on the number of its rows, on the
    share of their labels that occur in no other of them, and on what it is: a set of slots, if each
    feature belongs to a slot, such as a column of a table or the place of a word, else a set of so
    many features. The weights maximise the likelihood of training labels, each of which is left
    out where it is asked for (Ney et al. 1994, "On structuring probabilistic dependences in
    stochastic language modelling", section 2).

    Args:
        proposed: number of candidates.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> import numpy as np, slide
        >>> from slide.ranking import Conjunctions
        >>> rows = slide.Pattern.from_lists([[0, 2], [0, 3], [1, 2], [1, 3]] * 5)
        >>> features = slide.CSR(*rows, np.ones(40, np.float32))
        >>> either = slide.Pattern.from_lists([[0], [1], [1], [0]] * 5)
        >>> model = Conjunctions().fit(features, either, num_features=4, num_labels=2)
        >>> model.relate(model.find(features.slice(0, 1)), np.array([[0, 1]])) > np.log(0.5)
        array([ True, False])
    """

    # In a knowledge graph a pair is a whole question, whose known answers are left out.
    name, kinds = "conjunctions", ("other", "dense", "items")
    features: ClassVar = base.scored("conjunctions", base.BEHIND, base.RANK, base.BEST)

    def __init__(self, proposed: int = 20):
        self.set_counts(proposed=proposed)
        self.lists = base.NOTHING
        self.keys = np.empty(0, np.uint64)  # Of the sets, ascending.
        self.weights = self.label_shares = np.empty(0, np.float32)

    def suits(self, train: Split) -> bool:
        """Whether half of the rows have pairs of features that are listed, and do not have most."""
        counts = np.diff(train.features.indptr)
        listed = (counts > 1) & (_LARGEST[np.minimum(counts, 11)] > 1)
        sparse = nonzero_share(train.features, train.num_features) <= MOSTLY_NONZERO
        return sparse and bool(2 * listed.sum() >= len(counts) > 0)

    def fit(
        self, features: CSR, labels: Pattern, num_features: int, num_labels: int
    ) -> "Conjunctions":
        """Count sets of features with labels, and learn how much each counts."""
        check_pattern("features", features, None, num_features)
        check_pattern("labels", labels, features.num_rows, num_labels)
        step = -(-int(num_sets(np.diff(features.indptr)).sum()) // MOST_COUNTED) or 1
        if step > 1:
            rows = np.arange(0, features.num_rows, step)
            features = CSR(*select_rows(features.indptr, rows, *features[1:]))
            labels = Pattern(*select_rows(labels.indptr, rows, labels.indices))
        self.label_shares = shares_of_labels(labels, num_labels)
        sets, kinds = self._count_sets(features, num_features)
        of_set = column_lists(sets, len(self.keys))
        # All labels of a set, because weights depend on their number.
        lists = count_together(of_set, labels, num_labels, num_labels, "sets of features")
        counts = np.diff(of_set.indptr)
        self.weights = self._weigh(sets, kinds, counts, lists, labels)
        divisors = np.repeat(counts, np.diff(lists.indptr))
        np.divide(lists.values, divisors, out=lists.values, casting="same_kind")
        self.lists = shortened(lists, MOST_LABELS)
        return self

    def _count_sets(self, features: CSR, num_features: int) -> tuple[CSR, np.ndarray]:
        """The sets ``(R, S)`` of rows that are in several of them, and the kind of each."""
        bounds, keys, kinds = _sets(features, _slots(features, num_features))
        every, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        known = counts >= _LEAST_ROWS
        self.keys = every[known]
        kind = np.zeros(len(every), np.uint8)
        kind[inverse] = kinds
        numbers = (np.cumsum(known) - 1).astype(np.int32)[inverse]
        matrix = CSR(bounds, numbers, np.ones(len(numbers), np.float32))
        return matrix.keep(known[inverse]), kind[known]

    def _weigh(
        self, sets: CSR, kinds: np.ndarray, counts: np.ndarray, lists: CSR, labels: Pattern
    ) -> np.ndarray:
        """The weight ``(S,)`` of each set, beside a weight of 1 for all rows."""
        width, num_rows = np.int64(len(self.label_shares)), labels.num_rows
        asked = np.linspace(0, len(labels.indices) - 1, min(_LESSONS, len(labels.indices)))
        asked = asked.astype(np.int64)
        label, rows = labels.indices[asked], labels.entry_rows()[asked]
        bounds, own = select_rows(sets.indptr, rows, sets.indices)
        lesson = np.repeat(np.arange(len(rows)), np.diff(bounds))
        pairs = lists.entry_rows() * width + lists.indices
        shared = lists.values[np.searchsorted(pairs, own * width + label[lesson])]
        labelled = np.bincount(lists.entry_rows(), lists.values, len(counts))
        different = np.diff(lists.indptr)
        # Without the label that is asked for; one that no other row has counts as one with a row.
        left = kinds[own], counts[own] - 1, different[own] - (shared == 1), labelled[own] - 1
        cells, share = _cells(*left), (shared - 1) / (counts[own] - 1)
        of_all = np.maximum(self.label_shares[label] - 1 / num_rows, 1 / num_rows)
        num_cells = 256 * _POWERS * _TENTHS
        weights = np.ones(num_cells)
        for _ in range(_STEPS):
            each = weights[cells]
            total = 1 + np.bincount(lesson, each, len(rows))
            found = of_all + np.bincount(lesson, each * share, len(rows))
            up = np.bincount(cells, each * (share / found[lesson]), num_cells)
            down = np.bincount(cells, 1 / total[lesson], num_cells)
            rest = (of_all / found).sum() / (1 / total).sum()
            # 0 where no lesson says anything.
            weights = np.divide(up, down, out=np.zeros(num_cells), where=down > 0) / rest
        return weights[_cells(kinds, counts, different, labelled)].astype(np.float32)

    def find(self, features: CSR) -> CSR:
        """The sets ``(B, S)`` of rows that training rows have, with their shares of the weight."""
        bounds, keys, _ = _sets(features, None)
        positions = np.searchsorted(self.keys, keys).astype(np.int32)
        # A set beyond the last one has no key of its own.
        known = (base.padded(self.keys, 1, 0)[positions] == keys) & (positions < len(self.keys))
        sets = CSR(bounds, positions, base.padded(self.weights, 1, 0)[positions]).keep(known)
        rows = sets.entry_rows()
        total = np.bincount(rows, sets.values, sets.num_rows)
        np.divide(sets.values, total[rows], out=sets.values, where=sets.values > 0)
        return sets

    def relate(self, sets: CSR, ids: np.ndarray) -> np.ndarray:
        """Logarithms ``(pairs,)`` of the probabilities of candidates ``(B, K)``, if not below 0."""
        arrays, labels = (sets, self.lists), len(self.label_shares)
        found = base.of_candidates(mix_shares, arrays, ids, sets.num_rows, labels, width=())
        return np.log(found + _REST * self.label_shares[ids[ids >= 0]])

    def learn(self, training: base.Training) -> None:
        train = training.train
        self.fit(train.features, train.labels, train.num_features, train.num_labels)

    def propose(self, queries: base.Queries) -> base.Named:
        sets, count = self.find(queries.features), min(self.proposed, queries.num_labels)
        ids = sparse_top_k(sets, self.lists, queries.num_labels, count, queries.seen)[1]
        return base.Named(ids, sets)

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        return {"conjunctions": self.relate(more, candidates.ids)}

    def arrays(self) -> dict[str, np.ndarray]:
        found = {"keys": self.keys.view(np.int64), "weights": self.weights}
        found |= base.named_arrays("lists", self.lists)
        return found | {"label_shares": self.label_shares}

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        super().restore(stored, num_labels, num_features)
        keys = stored.ascending("keys", Expected((None,), "int64"), "uint64")
        self.keys, count = keys.view(np.uint64), len(keys)
        self.weights = stored.array("weights", Expected((count,), "float32", 0))
        self.lists = stored.csr("lists", count, num_labels, least=0)
        expected = Expected((num_labels,), "float32", LEAST_SHARE)
        self.label_shares = stored.array("label_shares", expected)

    def grown(self, labels: int, features: int) -> "Conjunctions":
        least = self.label_shares.min(initial=1)
        return self.with_(label_shares=base.padded(self.label_shares, labels, least))

    def selected(self, kept: np.ndarray, num_labels: int) -> "Conjunctions":
        lists = keep_labels(self.lists, kept, num_labels)
        return self.with_(lists=lists, label_shares=self.label_shares[kept])


def _cells(
    kinds: np.ndarray, counts: np.ndarray, different: np.ndarray, occurrences: np.ndarray
) -> np.ndarray:
    """For each set the number of the weight that it shares with similar ones."""
    power = np.minimum(np.frexp(counts)[1] - 1, _POWERS - 1)
    first = (_TENTHS - 1) * different / np.maximum(occurrences, 1)
    tenth = np.clip(first.astype(np.int64), 0, _TENTHS - 1)
    return (kinds * np.int64(_POWERS) + power) * _TENTHS + tenth


def _slots(features: CSR, num_features: int) -> np.ndarray | None:
    """Where the numbers of the slots begin, of which each row has one feature at most; or None.

    As few ranges as there can be: each begins where the one before would have two of a row.
    """
    order = np.lexsort((features.indices, features.entry_rows()))
    ids = features.indices[order].astype(np.int64)
    same = np.diff(features.entry_rows()) == 0
    before = np.full(num_features, -1)  # The largest number that is just before each in a row.
    np.maximum.at(before, ids[1:][same], ids[:-1][same])
    begins = [0]
    while True:
        ends = before[begins[-1] :] >= begins[-1]
        if not ends.any():
            return np.array(begins)
        if len(begins) == _MOST_SLOTS:
            return None
        begins.append(begins[-1] + int(ends.argmax()))


def _sets(features: CSR, slots: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sets of features of each row: their bounds, keys and kinds.

    A kind is the number of features, or the sum of 2 to the power of their slots.
    """
    hashes = mix_bits(features.indices.astype(np.uint64))
    groups = np.ones(len(hashes), np.uint8)
    if slots is not None:
        groups <<= (np.searchsorted(slots, features.indices, "right") - 1).astype(np.uint8)
    counts = np.diff(features.indptr)
    starts = row_bounds(num_sets(counts))
    keys, kinds = np.empty(starts[-1], np.uint64), np.empty(starts[-1], np.uint8)
    rows, largest = Pattern(*features[:2]), _LARGEST[np.minimum(counts, 11)]
    list_sets(rows, hashes, groups, largest, starts, keys, kinds)
    return starts, keys, kinds


# Numbers of sets of up to 1, 2, ... 6 of 0 to 11 features, and the largest size that is listed.
_SUMS = np.cumsum([[comb(count, size) for size in range(1, 7)] for count in range(12)], 1)
_LARGEST = np.maximum((_SUMS <= MOST_SETS).sum(1), 1)


def num_sets(counts: np.ndarray) -> np.ndarray:
    """The number of sets of each row, by its number of features."""
    few = np.minimum(counts, 11)
    return np.where(counts < 11, _SUMS[few, _LARGEST[few] - 1], counts)
