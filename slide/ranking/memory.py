"""An estimate of the memory that a re-ranker needs."""

import math

import numpy as np

from slide.data import Split
from slide.data.dataset import take_labels
from slide.data.validation import held_rows
from slide.ranking.base_scorer import FIRST_FEATURES, ROWS_AT_ONCE
from slide.ranking.final_ranker import FEW_HITS
from slide.ranking.scorers.label_tree import LabelTree
from slide.ranking.scorers.linear import MOST_COPIED, WEIGHTS, counts_items, num_negatives
from slide.ranking.scorers.neighbours import count_as_dense
from slide.runtime import num_threads
from slide.search.row_blocks import MOST_LABELS, MOST_ROOM, num_sharing

ENTRY = 8  # Bytes of an entry of a sparse matrix: its column and its value.
# Bytes of a true label that the linear model of the final ranker learns from: its numbers and those
# of 20 wrong candidates, 550 bytes each.
LINEAR = 21 * 550
SAMPLED = 300_000  # Pairs of a feature and a label that are read to estimate their number.


def bytes_needed(split: Split, kind: str, candidates: int, negatives: int) -> int:
    """Bytes of a re-ranker: what stays, and the largest of the phases of its training."""
    rows, features, labels = max(len(split), 1), split.num_features, split.num_labels
    entries, targets = len(split.features.indices), len(split.labels.indices)
    pairs, associated = _pairs(split)
    learnt = targets + rows * num_negatives(split, kind, negatives)
    classifiers, similarities = pairs, 0
    tree = LabelTree()
    if kind in (tree.kinds or ()) and tree.suits(split):
        height = max(math.ceil(math.log2(labels / tree.cluster)), 0)
        # A level of nodes has about half as many weights as there are pairs, labels have twice.
        classifiers += (2 + height // 2) * pairs
        learnt = max(learnt, (1 + tree.cluster) * targets, 2 * height * targets)
    room = min(MOST_ROOM, entries // rows * learnt, features * labels)
    learning = 12 * learnt + 10 * room + ENTRY * pairs
    learning += num_threads() * ENTRY * min(MOST_COPIED, entries)
    if kind in ("items", "graph"):
        items = targets if kind == "graph" else entries + targets
        # Pairs of items that share a row, as if all were equally frequent.
        shared = round(-(labels**2) * math.expm1(-(items**2) / rows / labels**2))
        shared = min(shared, num_sharing(labels) * labels)
        similarities = (2 * ENTRY + 4) * shared
        counting_items = 16 * items + ENTRY * (shared + min(MOST_ROOM // 2, shared))
        learning = max(learning, counting_items)
        if counts_items(kind, split.weights is not None):
            classifiers, learning = min(shared, WEIGHTS * labels), counting_items
    near, comparing = 12 * entries, 56 * entries
    if count_as_dense(entries / rows / features, entries**2 / rows / features):
        near, comparing = 4 * rows * features, 9 * rows * features
    held = held_rows(rows)
    # About half of the labels are candidates. From few hits a linear model learns, too.
    hits = 0.5 * held * targets / rows
    judging = 4 * len(FIRST_FEATURES) * (held + ROWS_AT_ONCE) * candidates
    judging += round(LINEAR * hits) * (hits < FEW_HITS)
    counting = 16 * entries + ENTRY * (min(MOST_ROOM, associated) + 2 * associated)
    analogous = entries // rows * targets if kind == "graph" else 0
    kept = near + ENTRY * (associated + classifiers) + 24 * analogous + similarities
    return kept + max(comparing, learning, judging, counting, 115 * analogous)


def _pairs(split: Split) -> tuple[int, int]:
    """Pairs of a feature and a label of one row, estimated; and at most `MOST_LABELS` a feature."""
    x, y = split.features, split.labels
    step = -(-int(np.diff(x.indptr) @ np.diff(y.indptr)) // SAMPLED) or 1
    counts = np.bincount(x.indices, minlength=split.num_features)
    chosen = np.zeros(len(counts), bool)
    chosen[np.argsort(-counts, kind="stable")[step // 2 :: step]] = True  # Frequent and rare ones.
    entries = np.flatnonzero(chosen[x.indices])
    taken = take_labels(y, np.searchsorted(x.indptr, entries, side="right") - 1)
    feature = x.indices[entries].astype(np.int64)[taken.entry_rows()]
    found = np.unique(feature * split.num_labels + taken.indices) // split.num_labels
    capped = np.minimum(np.unique(found, return_counts=True)[1], MOST_LABELS)
    return step * len(found), step * int(capped.sum())
