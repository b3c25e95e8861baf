"""A re-ranker that joins a network, linear classifiers, near training rows and features."""

from collections.abc import Callable

import numpy as np

from slide.data import (
    SeenItems,
    SeenLabels,
    Split,
    find_seen,
    kind_of,
    labels_and_items,
)
from slide.nn import SlideNetwork
from slide.ranking.associations import Associations
from slide.ranking.evidence import COLUMNS, RANKED, Depths, Evidence, Experts, gather
from slide.ranking.judge import Judge, load_learner
from slide.ranking.linear_classifiers import LinearClassifiers, counts_items
from slide.ranking.neighbours import USUAL_NEAR, Neighbours, num_near_rows
from slide.ranking.ranked import Ranked
from slide.ranking.substitutes import Substitutes
from slide.sparse import CSR, Pattern, hits
from slide.utils import checks
from slide.utils.progress_bar import ProgressBar
from slide.utils.sizes import validation_cutoffs

OBJECTIVES = ("p", "psp")
ROWS_AT_ONCE = 1024
# What is left out of the answers for each kind of data, and what shows the kind.
_KNOWN = {
    "graph": (
        "no answers to rows that repeat the features of a training row",
        "rows are questions of few features, and training rows do not repeat each other's labels",
    ),
    "items": (
        "no answers to rows that have them as features, and labels and features of the nearest "
        "rows are votes",
        "no training row asks for its own features",
    ),
}
# Held-out rows for the choice of the neighbours' weights.
_TRIAL_ROWS = 1000
# Equal training rows that are looked at for labels that are no negatives: more would take a time
# that grows with the square of their number.
_MOST_EQUAL = 1000
# Share of the held-out rows from which on the classifiers learn from these in the end.
_WORTH_LEARNING = 0.125


class EnsembleRanker:
    """Candidates of a network and of the training rows, judged by all that is known of them.

    A judge learns from held-out rows how much the scores of the network and of linear classifiers,
    the votes of the nearest rows, the labels of the features and, in a knowledge graph, the answers
    to similar questions count (stacking: Wolpert 1992, "Stacked generalization"). So no share has
    to be set, and the scores are probabilities.

    Args:
        classifiers: with `fit_items` in a recommender without weights of rows; None: usual ones.
        depth: number of candidates of the network.
        neighbours: number of nearest training rows; None: see `num_near_rows`.
        voted: number of candidates of the neighbours.
        associated: number of candidates that go with the features; see `Associations`.
        negatives: number of labels of its neighbours that are negatives of a row in `fit`.
        objective: ``"p"`` ranks by the probability of a label; ``"psp"`` by probability times
            inverse propensity, which favours rare labels (Jain et al. 2016, "Extreme multi-label
            loss functions for recommendation, tagging, ranking and other missing label
            applications").
        known: ``"exclude"`` leaves known labels out of the answers: the own items of a row in a
            recommender, otherwise the labels of training rows with the same features. ``"keep"``
            does not. ``"auto"`` does in a recommender and in a knowledge graph
            (`slide.data.kind_of`).

    Raises:
        ValueError: for a number or name out of range.

    Attributes:
        kind: `slide.data.kind_of` the rows of `fit`.
        notes: sentences about the choices that `fit` made.

    Example:
        >>> import slide, tempfile
        >>> from slide.data import holdout, synthetic
        >>> from slide.ranking import EnsembleRanker
        >>> with tempfile.TemporaryDirectory() as cache:
        ...     data = synthetic(cache=cache, num_features=60, num_labels=40, train_samples=50,
        ...                      test_samples=5, nonzeros=8, labels_per_row=2)
        ...     train, held = holdout(data.train, 0.2, seed=0)
        ...     network = slide.SlideNetwork(60, [8], 40, slide.FullSampler)
        ...     ranker = EnsembleRanker().fit(network, train, held)
        ...     ranker.rank(network, data.test.features, k=3).ids.shape
        (5, 3)
    """

    def __init__(
        self,
        classifiers: LinearClassifiers | None = None,
        depth: int = 30,
        neighbours: int | None = None,
        voted: int = 60,
        associated: int = 20,
        negatives: int = 50,
        objective: str = "p",
        known: str = "auto",
    ):
        numbers = {"depth": depth, "neighbours": neighbours, "voted": voted}
        for name, value in (numbers | {"associated": associated, "negatives": negatives}).items():
            if value is not None or name != "neighbours":
                checks.whole(name, value, 1)
        checks.one_of("objective", objective, OBJECTIVES)
        checks.one_of("known", known, ("auto", "exclude", "keep"))
        self.classifiers = LinearClassifiers() if classifiers is None else classifiers
        self.depths, self.negatives = Depths(depth, voted, associated), negatives
        self.objective, self.known = objective, known
        self.num_near, self.associations = neighbours, Associations()
        self.substitutes = Substitutes()
        self.neighbours = Neighbours(neighbours or USUAL_NEAR)
        # The score of a label with which a row shares no feature is the bias of its classifier.
        nothing = {"linear": self.classifiers.solver.bias}
        ranked = [(list(COLUMNS).index(name), nothing.get(name, 0.0)) for name in RANKED]
        self.judge = Judge(list(COLUMNS.values()), ranked)
        self.frequency = self.inverse = np.empty(0)
        self.known_labels: SeenLabels | SeenItems | None = None
        self.kind = "other"
        self.notes: list[str] = []

    @staticmethod
    def prepare() -> None:
        """Import what `fit` needs, so that the seconds of the import are not in those of `fit`."""
        load_learner()

    def fit(
        self,
        network: SlideNetwork,
        train: Split,
        held: Split,
        inverse: np.ndarray | None = None,
        search: str = "exact",
        every: Split | None = None,
    ) -> "EnsembleRanker":
        """Train classifiers and neighbours on ``train``, and the judge on ``held``.

        Args:
            network: a network that was trained on ``train`` and has not seen ``held``.
            train: training rows.
            held: rows for the choices; see `slide.data.validation_split`.
            inverse: ``(N,)`` inverse propensities, for ``objective="psp"``; None: all are 1.
            search: how the network finds its best labels; see `slide.SampledLinear.top_k`.
            every: the rows of both. If it is given, held-out rows are neighbours, too, in the end,
                and their labels are known; if they are more than an eighth of all rows, or too few
                for the judge, the classifiers also learn from them.

        Returns:
            The ranker itself.

        Raises:
            ValueError: for features that are not finite, or ``"sampler"`` with a sampler that has
                no index.
        """
        self.kind, self.notes = kind_of(train if every is None else every), []
        self.inverse = np.empty(0)  # It is not trained until the end: an error may come before.
        self._count(train, self._excludes(train))
        self.neighbours = Neighbours(self.num_near or num_near_rows(train, self.kind))
        self.neighbours = self._choose_neighbours(train, held)
        self._fit_classifiers(train)
        columns, right = [np.empty((0, len(COLUMNS)), np.float32)], [np.empty(0, bool)]
        weights = [np.empty(0)]
        parts, count = held.blocks(ROWS_AT_ONCE), -(-len(held) // ROWS_AT_ONCE)
        for part in ProgressBar(parts, "evidence", count, leave=False):
            evidence = self.evidence(network, part.features, 1, search)
            columns.append(evidence.columns)
            known = evidence.ids >= 0
            right.append(hits(evidence.ids, part.labels)[known])
            if part.weights is not None:
                weights.append(np.repeat(part.weights, known.sum(1)))
        every_weight = None if held.weights is None else np.concatenate(weights)
        self.judge.fit(np.concatenate(columns), np.concatenate(right), every_weight)
        del columns, right
        if every is not None:
            self._take_rows(every, self.neighbours.weighted, self.known_labels is not None)
            if len(held) > _WORTH_LEARNING * len(every) or self.judge.trees is None:
                self._fit_classifiers(every)
        self.inverse = np.ones(train.num_labels) if inverse is None else inverse
        return self

    def rank(self, network: SlideNetwork, features: CSR, k: int, search: str = "exact") -> Ranked:
        """The k best labels of each row.

        Args:
            network: the network of `fit`.
            features: ``(B, D)``.
            k: number of labels; where a row has fewer candidates, the answers are filled up.
            search: see `fit`.

        Raises:
            RuntimeError: before `fit`.
        """
        if not len(self.inverse):
            raise RuntimeError("the ranker is not trained: call fit first")
        evidence = self.evidence(network, features, k, search)
        ids, known = evidence.ids, evidence.ids >= 0
        scores = np.full(ids.shape, -np.inf)
        scores[known] = self.judge.probabilities(evidence.columns)
        if self.objective == "psp":
            scores[known] *= self.inverse[ids[known]]
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        scores, ids = (np.take_along_axis(array, order, 1) for array in (scores, ids))
        ids = np.where(np.isfinite(scores), ids, -1)
        return Ranked.of(k, scores, ids, evidence.network_ids)

    def unweighted(self, scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Probabilities of answers of `rank`, whatever they are ranked by.

        Args:
            scores: of answers.
            ids: the labels that have them, of the same shape.
        """
        return scores if self.objective == "p" else scores / self.inverse[ids]

    def evidence(self, network: SlideNetwork, features: CSR, least: int, search: str) -> Evidence:
        """The candidates of rows, at least ``least`` of the network's, and what is known of them.

        Args:
            network: the network of `fit`.
            features: ``(B, D)``.
            least: number of labels that the network proposes for each row, at least.
            search: see `fit`.
        """
        depths = self.depths._replace(network=max(self.depths.network, least))
        counted = self.associations, self.substitutes, self.frequency, self.known_labels
        experts = Experts(network, self.classifiers, self.neighbours, *counted)
        return gather(experts, features, depths, search)

    def _take_rows(self, train: Split, weighted: bool, exclude: bool) -> None:
        """Take rows as neighbours, and count and look up their labels."""
        self.neighbours = Neighbours(self.neighbours.count)  # Before the new ones are made.
        self.neighbours = self._neighbours(train, weighted)
        self._count(train, exclude)

    def _neighbours(self, train: Split, weighted: bool) -> Neighbours:
        # What a near row of items holds is as good an answer as what it asks for.
        labels = labels_and_items(train) if self.kind == "items" else train.labels
        model = Neighbours(self.neighbours.count, weighted)
        return model.fit(train.features, labels, train.num_features, train.num_labels)

    def _count(self, train: Split, exclude: bool) -> None:
        sizes = train.num_features, train.num_labels
        self.frequency = np.bincount(train.labels.indices, minlength=train.num_labels)
        self.associations.fit(train.features, train.labels, *sizes)
        self.substitutes = Substitutes()  # Of rows that are questions only.
        if self.kind == "graph":
            self.substitutes.fit(train.features, train.labels, *sizes)
        self.known_labels = find_seen(train, self.kind) if exclude else None

    def _fit_classifiers(self, train: Split) -> None:
        """Train the classifiers: on items, or with labels of near rows as negatives."""
        sizes = train.num_features, train.num_labels
        if counts_items(self.kind, train.weights is not None):
            self.classifiers.fit_items(labels_and_items(train), *sizes)
            return
        count = min(self.negatives, train.num_labels)
        negatives = self.neighbours.own_candidates(count, self._right_or_known(train))
        self.classifiers.fit(train.features, train.labels, negatives, *sizes, train.weights)

    def _right_or_known(self, train: Split) -> Callable[[int, int], Pattern]:
        """For some training rows the labels that are no negatives."""
        known = self.known_labels
        right = labels_and_items(train) if isinstance(known, SeenItems) else train.labels
        if not isinstance(known, SeenLabels):
            return right.slice
        # The labels of a row are among those of equal rows.
        return lambda begin, end: known.of(train.features.slice(begin, end), _MOST_EQUAL)

    def _excludes(self, train: Split) -> bool:
        """Whether known labels are left out of the answers."""
        if self.known == "auto" and self.kind in _KNOWN:
            what, shown = _KNOWN[self.kind]
            found = f", because {shown}" if train.kind == "auto" else ""
            self.notes.append(f"known labels: {what}{found}")
            return True
        return self.known == "exclude"

    def _choose_neighbours(self, train: Split, held: Split) -> Neighbours:
        """Neighbours by plain or by weighted features, the better ones for held-out rows."""
        # Files may be sorted, so the rows come from all of them.
        rows = np.linspace(0, len(held) - 1, min(_TRIAL_ROWS, len(held))).astype(np.int64)
        trial, places, found = held.take(rows), validation_cutoffs(train.num_labels), []
        known = None if self.known_labels is None else self.known_labels.of(trial.features)
        for weighted in (False, True):
            model = self._neighbours(train, weighted)
            right = hits(model.votes(trial.features, places[-1], known).ids, trial.labels)
            found.append((100 * float(np.mean([right[:, :k].mean() for k in places])), model))
        (better, model), (worse, _) = sorted(found, key=lambda pair: -pair[0])
        how = model.fitted().weighting if model.weighted else "as they are"
        self.notes.append(
            f"features of the nearest rows: {how}, "
            f"precision {better:.1f} against {worse:.1f} on {len(trial)} held-out rows"
        )
        return model
