"""A tree of labels with a linear classifier at each node, which many labels share.

Where most labels have few rows, it is worth several points of precision: the classifiers of nodes
have learnt from the rows of all labels below them, and so know features that those of labels lack.
"""

from typing import Any, ClassVar

import numpy as np

from slide.data import Split, first_unseen
from slide.ops.label_clusters import halve_nodes, sum_rows
from slide.ops.ragged import RowRoom
from slide.ranking import base_scorer as base
from slide.ranking.scorers.linear import LinearClassifiers
from slide.runtime import num_threads
from slide.search import column_lists
from slide.search.row_blocks import collect_rows, ones_of, sums_over
from slide.sparse import CSR, Pattern, check_pattern, row_bounds
from slide.utils import checks
from slide.utils.array_checks import Expected, Stored

# 8 passes of 2-means at a node: later ones hardly move labels.
_PASSES = 8
# 5 passes over the rows of a classifier, a quarter of what `LinearClassifiers` makes, to save time.
_SWEEPS = 5
# At most 2 labels a row on average: three sets with 2.4 or more gained nothing on held-out samples.
_MOST_LABELS = 2.0
# The logarithm of the probability by a classifier whose score is -1, which is sure of a negative.
_WRONG = -4.0


class LabelTree(base.BaseScorer):
    """Scores a label by classifiers along its path in a tree, and finds the best by beam search.

    Labels whose rows have similar features are in one cluster (Prabhu et al. 2018, "Parabel:
    partitioned label trees for extreme classification with application to dynamic search
    advertising", sections 3 and 4). A classifier of a node tells the rows of its labels from other
    rows of its parent, and the classifier of a label tells its rows from others of its cluster. The
    score of a label is the sum of ``-max(0, 1 - score)^2`` along its path, a log-probability.

    Args:
        C: see `LinearClassifiers`.
        cluster: number of labels in a cluster at most, which have no nodes below it.
        beam: number of nodes that a search keeps at each level.
        proposed: number of candidates.

    Attributes:
        leaf: ``(N,)`` int32, the cluster of each label; -1: it has no training row.
        height: number of levels of nodes below the root; there are ``2^height`` clusters.
        nodes: the classifiers of nodes, level by level.
        labels: the classifiers of labels.
    """

    # A recommender, a graph and dense rows have base scorers of their own kind.
    name, kinds, slow = "label_tree", ("other",), True
    features: ClassVar = {
        **base.scored("label_tree", base.BEHIND, base.RANK),
        "label_cluster": base.FOR,
    }
    counts = "cluster", "beam", "proposed"
    numbers = "height", "num_features"
    cluster: int
    beam: int

    def __init__(self, C: float = 2.0, cluster: int = 32, beam: int = 10, proposed: int = 10):
        checks.positive("C", C)
        self.set_counts(cluster=cluster, beam=beam, proposed=proposed)
        self.leaf, self.height = np.empty(0, np.int32), 0
        self.nodes, self.labels = (LinearClassifiers(C, max_iter=_SWEEPS) for _ in range(2))
        self._members: np.ndarray | None = None

    def suits(self, train: Split) -> bool:
        """Whether most rows have one label or two: else the classifiers of labels know enough."""
        return 0 < len(train.labels.indices) <= _MOST_LABELS * len(train)

    def fit(
        self,
        features: CSR,
        labels: Pattern,
        num_features: int,
        num_labels: int,
        weights: np.ndarray | None = None,
    ) -> "LabelTree":
        """Cluster the labels, and train all classifiers; see `LinearClassifiers.fit`."""
        check_pattern("features", features, None, num_features)
        check_pattern("labels", labels, features.num_rows, num_labels)
        self.leaf, self.height = self._clusters(features, labels, num_features, num_labels)
        self._members = None
        leaves, bounds = self.leaf[labels.indices], labels.indptr
        levels = np.arange(1, self.height + 1)
        # Numbers of nodes are even at the begin of a level, so the sibling of a node is node ^ 1.
        nodes = (2**levels - 2) + (leaves[:, None] >> (self.height - levels))
        own = Pattern(bounds * self.height, nodes.ravel().astype(np.int32))
        self.nodes.fit(
            features=features,
            labels=own,
            candidates=own._replace(indices=own.indices ^ 1),
            num_features=num_features,
            num_labels=2 ** (self.height + 1) - 2,
            weights=weights,
        )
        del nodes, own
        others = self.members()[leaves]
        near = Pattern(row_bounds((others >= 0).sum(1))[bounds], others[others >= 0])
        del others
        self.labels.fit(features, labels, near, num_features, num_labels, weights)
        return self

    def _clusters(
        self, features: CSR, labels: Pattern, num_features: int, num_labels: int
    ) -> tuple[np.ndarray, int]:
        """The cluster of each label, and the height of the tree."""
        rows = column_lists(ones_of(labels), num_labels)
        dense = np.zeros((num_threads(), 2, num_features), np.float32)

        def write(begin: int, end: int, room: RowRoom) -> None:
            sum_rows(rows.slice(begin, end), features, dense[:, 0], room)

        needed = sums_over(np.diff(features.indptr), rows)
        centres = collect_rows(np.minimum(needed, num_features), write, "centres of labels")
        members = np.flatnonzero(np.diff(rows.indptr))
        height = max(int(np.ceil(np.log2(max(len(members), 1) / self.cluster))), 0)
        bounds = np.array([0, len(members)])
        for _ in range(height):
            halve_nodes(centres, members, bounds, _PASSES, dense)
            middles = bounds[:-1] + (np.diff(bounds) + 1) // 2
            bounds = np.append(np.column_stack([bounds[:-1], middles]).ravel(), len(members))
        leaf = np.full(num_labels, -1, np.int32)
        leaf[members] = np.repeat(np.arange(2**height), np.diff(bounds))
        return leaf, height

    def members(self) -> np.ndarray:
        """The labels ``(clusters, most)`` int32 of each cluster; -1: there are no more."""
        if self._members is None:
            labels = np.flatnonzero(self.leaf >= 0).astype(np.int32)
            labels = labels[np.argsort(self.leaf[labels], kind="stable")]
            counts = np.bincount(self.leaf[labels], minlength=2**self.height)
            self._members = np.full((len(counts), max(counts.max(), 1)), -1, np.int32)
            self._members[np.arange(counts.max(initial=1)) < counts[:, None]] = labels
        return self._members

    def scores(self, features: CSR, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities ``(B, K)`` of labels, and of their clusters; any for ids below 0."""
        label = _log_probabilities(self.labels, features, ids)
        leaves, cluster = self.leaf[np.maximum(ids, 0)], np.zeros(ids.shape, np.float32)
        for level in range(1, self.height + 1):
            first, nodes = 2**level - 2, np.maximum(leaves, 0) >> (self.height - level)
            if 2**level <= ids.shape[1]:
                every = np.broadcast_to(np.arange(2**level), (len(ids), 2**level))
                found = _log_probabilities(self.nodes, features, first + every)
                cluster += np.take_along_axis(found, nodes, 1)
            else:
                cluster += _log_probabilities(self.nodes, features, first + nodes)
        cluster[leaves < 0] = self.nothing - _WRONG
        label += cluster
        return label, cluster

    def best(self, features: CSR, k: int, left_out: Pattern | None = None) -> np.ndarray:
        """The k labels ``(B, k)`` int64 that a beam search finds best and that are not left out."""
        found = np.zeros((features.num_rows, 1), np.int64)
        scores = np.zeros(found.shape, np.float32)
        for level in range(1, self.height + 1):
            found = np.concatenate([2 * found, 2 * found + 1], 1)
            own = _log_probabilities(self.nodes, features, 2**level - 2 + found)
            scores = np.concatenate([scores, scores], 1) + own
            best = np.argsort(-scores, 1, kind="stable")[:, : self.beam]
            found = np.take_along_axis(found, best, 1)
            scores = np.take_along_axis(scores, best, 1)
        ids = self.members()[found].astype(np.int64)
        flat = ids.reshape(len(ids), -1)
        scores = np.repeat(scores, ids.shape[2], 1)
        scores += _log_probabilities(self.labels, features, flat)
        scores[flat < 0] = -np.inf
        most = k if left_out is None else flat.shape[1]
        best = np.argsort(-scores, 1, kind="stable")[:, :most]
        flat = np.take_along_axis(flat, best, 1)
        flat = np.pad(flat, ((0, 0), (0, max(k - flat.shape[1], 0))), constant_values=-1)
        return flat if left_out is None else first_unseen(flat, left_out, k)

    def learn(self, training: base.Training) -> None:
        train = training.train
        sizes = train.num_features, train.num_labels
        self.fit(train.features, train.labels, *sizes, train.weights)

    def propose(self, queries: base.Queries) -> base.Named:
        return base.Named(
            self.best(queries.features, min(self.proposed, queries.num_labels), queries.seen)
        )

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        label, cluster = self.scores(queries.features, candidates.ids)
        return {"label_tree": candidates.flat(label), "label_cluster": candidates.flat(cluster)}

    @property
    def nothing(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The score of a label without training rows, as if each classifier was surely against."""
        return _WRONG * (self.height + 1)

    @property
    def num_features(self) -> int:
        return self.labels.num_features

    def arrays(self) -> dict[str, np.ndarray]:
        found = base.named_arrays("nodes", self.nodes.weights) | {"leaf": self.leaf}
        return found | base.named_arrays("labels", self.labels.weights)

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        super().restore(stored, num_labels, num_features)
        # Each label with rows may have its own cluster, and no more.
        self.height = stored.count("height", 0, num_labels.bit_length())
        expected = Expected((num_labels,), "int32", -1, 2**self.height - 1)
        self.leaf, self._members = stored.array("leaf", expected), None
        rows = {"nodes": 2 ** (self.height + 1) - 2, "labels": num_labels}
        stored.exactly("num_features", num_features)
        for name, count in rows.items():
            own = getattr(self, name)
            own.num_features, own.weights = num_features, stored.csr(name, count, num_features)

    def grown(self, labels: int, features: int) -> "LabelTree":
        nodes, leaves = self.nodes.grown(0, features), self.labels.grown(labels, features)
        leaf = base.padded(self.leaf, labels, -1)
        return self.with_(leaf=leaf, _members=None, nodes=nodes, labels=leaves)

    def selected(self, kept: np.ndarray, num_labels: int) -> "LabelTree":
        labels = self.labels.selected(kept, num_labels)
        return self.with_(leaf=self.leaf[kept], _members=None, labels=labels)


def _log_probabilities(model: LinearClassifiers, features: CSR, ids: np.ndarray) -> np.ndarray:
    """``-max(0, 1 - score)^2`` float32 of some classifiers; 0 for ids below 0."""
    scores = model.scores(features, ids)
    scores[ids < 0] = 1
    return -(np.maximum(1 - scores, 0) ** 2)
