"""The re-ranker: candidates of base scorers, ranked by what all of them say (stacking)."""

import copy
import warnings
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from slide.data import SeenItems, SeenLabels, Split, find_seen
from slide.data.dataset import ROW_KINDS
from slide.data.row_kinds import choose_kind
from slide.data.row_transform import keep_labels
from slide.nn import SlideNetwork
from slide.nn.answers import Ranked
from slide.ranking import memory
from slide.ranking.base_scorer import (
    ROWS_AT_ONCE,
    BaseScorer,
    Layout,
    Queries,
    RankingFeatures,
    Training,
    named_arrays,
    padded,
    ranking_features,
)
from slide.ranking.final_ranker import FinalRanker, load_learner
from slide.ranking.left_out import LEFT_OUT, LeftOut
from slide.ranking.scorers import SCORERS
from slide.ranking.scorers.linear import LinearClassifiers
from slide.runtime import release_freed_memory
from slide.sparse import CSR, hits, row_bounds
from slide.utils import checks
from slide.utils.array_checks import Expected, Stored
from slide.utils.progress_bar import ProgressBar

OBJECTIVES = ("p", "psp")
KNOWN = ("auto", "exclude", "keep")
# From fewer held-out rows than a twentieth of all, slow scorers would learn next to nothing: of the
# 440,000 rows of files one in a hundred is held out, which takes half as much time again.
_WORTH_LEARNING = 0.05
# What is left out of the answers for each kind of data.
_SEEN = {
    "graph": "no answers to rows that repeat the features of a training row",
    "items": "no answers to rows that have them as features, and labels and features of the "
    "nearest rows are votes",
}


def _sorted(scores: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both by score, the largest first; equal ones as they were."""
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)


class EnsembleRanker:
    """Candidates of a network and of the training rows, ranked by all that is known of them.

    Base scorers (`slide.ranking.scorers`) name candidates and say numbers of them. A final ranker
    learns from held-out rows how much each number counts (stacking: Wolpert 1992, "Stacked
    generalization"). So no share has to be set, and the scores are probabilities.

    Args:
        classifiers: ridge regressions in a recommender without weights of rows; None: usual ones.
        depth: number of candidates of the network.
        neighbours: number of nearest training rows; None: see
            `slide.ranking.scorers.neighbours.num_near_rows`.
        voted: number of candidates of the nearest neighbours.
        associated: number of candidates that go with the features; see `Cooccurrence`.
        negatives: number of labels of its neighbours that are negatives of a row in `fit`; all
            labels are where there are few (`slide.ranking.scorers.linear.num_negatives`).
        objective: ``"p"`` ranks by the probability of a label; ``"psp"`` by probability times
            inverse propensity, which favours rare labels (Jain et al. 2016, "Extreme multi-label
            loss functions for recommendation, tagging, ranking and other missing label
            applications").
        known: ``"exclude"`` leaves seen items out of the answers: the own items of a row in a
            recommender, otherwise the labels of training rows with the same features (filtered
            ranking). ``"keep"`` does not. ``"auto"`` does in a recommender and in a knowledge graph
            (`slide.data.kind_of`).
        scorers: arguments of further base scorers, by name; None: usual ones.

    Raises:
        ValueError: for a number or name out of range.

    Attributes:
        kind: `slide.data.kind_of` the rows of `fit`.
        notes: sentences about the choices that `fit` made.
        all_scorers: the base scorers by name, whatever the kind of the rows is.
        unsuited: names of base scorers that do not suit the rows of `fit`.

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
        scorers: Mapping[str, Mapping[str, Any] | None] | None = None,
    ):
        numbers = {"depth": depth, "neighbours": neighbours, "voted": voted}
        for name, value in (numbers | {"associated": associated, "negatives": negatives}).items():
            if value is not None or name != "neighbours":
                checks.whole(name, value, 1)
        checks.one_of("objective", objective, OBJECTIVES)
        checks.one_of("known", known, KNOWN)
        options = {
            "network": {"proposed": depth},
            "neighbours": {"count": neighbours, "proposed": voted},
            "cooccurrence": {"proposed": associated},
        }
        for name, more in (scorers or {}).items():
            if name in LEFT_OUT:  # Settings of an earlier version.
                continue
            checks.one_of("scorers", name, SCORERS)
            options[name] = {**options.get(name, {}), **(more or {})}
        self.all_scorers: dict[str, BaseScorer] = {
            name: scorer(**options.get(name, {})) for name, scorer in SCORERS.items()
        }
        linear = LinearClassifiers() if classifiers is None else classifiers
        linear.negatives = negatives
        self.all_scorers["linear"] = linear
        self.objective, self.known = objective, known
        self.frequency = self.inverse = np.empty(0)
        self.seen: SeenLabels | SeenItems | None = None
        self.notes: list[str] = []
        self.final_ranker = FinalRanker([])
        self.kind, self.unsuited = "other", set[str]()
        self._lay_out()

    @property
    def scorers(self) -> dict[str, BaseScorer]:
        """The base scorers that know something of such rows, by name."""
        return {
            name: scorer
            for name, scorer in self.all_scorers.items()
            if name not in self.unsuited and (scorer.kinds is None or self.kind in scorer.kinds)
        }

    @staticmethod
    def prepare() -> None:
        """Import what `fit` needs, so that `fit` does not take the seconds of the import."""
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
        """Train base scorers on ``train``, and the final ranker on ``held``.

        Args:
            network: a network that was trained on ``train`` and has not seen ``held``.
            train: training rows.
            held: rows for the choices; see `slide.data.validation_split`.
            inverse: ``(N,)`` inverse propensities, for ``objective="psp"``; None: all are 1.
            search: how the network finds its best labels; see `slide.SampledLinear.top_k`.
            every: the rows of both. If it is given, all base scorers but the network also learn
                from held-out rows in the end, and their labels are seen.

        Returns:
            The ranker itself.

        Raises:
            ValueError: for features that are not finite, or ``"sampler"`` with a sampler that has
                no index.
        """
        (self.kind, why), self.notes = choose_kind(train if every is None else every), []
        if train.kind == "auto":
            self.notes.append(f"rows: {why}")
        self.unsuited = {name for name, each in self.all_scorers.items() if not each.suits(train)}
        self.inverse = np.empty(0)  # It is not trained until the end: an error may come before.
        self._lay_out()
        exclude = self.known == "exclude"
        if self.known == "auto" and self.kind in _SEEN:
            self.notes.append(f"known labels: {_SEEN[self.kind]}")
            exclude = True
        self._learn(train, exclude, held)
        self.final_ranker.fit(*self._examples(network, held, search))
        release_freed_memory()
        if every is not None:
            few = self.final_ranker.trees is not None and len(held) < _WORTH_LEARNING * len(every)
            self._learn(every, exclude, slow=not few)
        self.inverse = np.ones(train.num_labels) if inverse is None else inverse
        return self

    def _examples(
        self, network: SlideNetwork, held: Split, search: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """What `FinalRanker.fit` takes, of the candidates of held-out rows."""
        columns, right = [np.empty((0, len(self.layout.names)), np.float32)], [np.empty(0, bool)]
        sizes = [np.empty(0, np.int64)]
        parts, count = held.blocks(ROWS_AT_ONCE), -(-len(held) // ROWS_AT_ONCE)
        for part in ProgressBar(parts, "ranking features", count, leave=False):
            found = self.ranking_features(network, part.features, 1, search)
            columns.append(found.columns)
            named = found.ids >= 0
            right.append(hits(found.ids, part.labels)[named])
            sizes.append(named.sum(1))
        counts = np.concatenate(sizes)
        weights = None if held.weights is None else np.repeat(held.weights, counts)
        return np.concatenate(columns), np.concatenate(right), row_bounds(counts), weights

    def rank(self, network: SlideNetwork, features: CSR, k: int, search: str = "exact") -> Ranked:
        """The k best labels of each row.

        Args:
            network: the network of `fit`.
            features: ``(B, D)``.
            k: number of labels; where a row has fewer candidates, the answers are filled up. The
                first answers and their scores do not depend on it.
            search: see `fit`.

        Raises:
            RuntimeError: before `fit`.
        """
        self._check_trained()
        scores, ids, network_ids = self._ranked(network, features, 1, search)
        if k > self.scorers["network"].proposed:
            # The final ranker is overconfident beyond the depth it was trained on, so further
            # candidates come last.
            more, others, network_ids = self._ranked(network, features, k, search)
            rows = len(self.frequency) * np.arange(len(ids))[:, None]
            more[(others < 0) | np.isin(rows + others, (rows + ids)[ids >= 0])] = -np.inf
            lowest = np.where(ids >= 0, scores, np.inf).min(1, initial=np.inf, keepdims=True)
            scores = np.hstack([scores, np.minimum(more, lowest)])
            scores, ids = _sorted(scores, np.hstack([ids, others]))
        ids = np.where(np.isfinite(scores), ids, -1)
        return Ranked.of(k, scores, ids, network_ids)

    def _ranked(
        self, network: SlideNetwork, features: CSR, least: int, search: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores and ids of all candidates, best first, and ids by the network alone."""
        found = self.ranking_features(network, features, least, search)
        named, scores = found.ids >= 0, np.full(found.ids.shape, -np.inf)
        starts = row_bounds(named.sum(1))
        scores[named] = self.final_ranker.probabilities(found.columns, starts)
        if self.objective == "psp":
            scores[named] *= self.inverse[found.ids[named]]
        return *_sorted(scores, found.ids), found.network_ids

    def unweighted(self, scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Probabilities of answers of `rank`, whatever they are ranked by."""
        return scores if self.objective == "p" else scores / self.inverse[ids]

    def ranking_features(
        self, network: SlideNetwork, features: CSR, least: int, search: str
    ) -> RankingFeatures:
        """Candidates of rows, at least ``least`` by the network, and what is known of them."""
        seen = None if self.seen is None else self.seen.of(features)
        queries = Queries(features, seen, network, search, least, self.frequency)
        return ranking_features(self.scorers, self.layout, queries)

    def bytes_needed(self, split: Split, kind: str) -> int:
        """Bytes of memory that `fit` takes with rows of this kind, with what stays of it."""
        scorers = (self.all_scorers[name] for name in ("network", "neighbours", "cooccurrence"))
        candidates = sum(each.proposed for each in scorers)
        negatives = cast(LinearClassifiers, self.all_scorers["linear"]).negatives
        return memory.bytes_needed(split, kind, candidates, negatives)

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """All numbers, as JSON can hold them, and all arrays, by name."""
        self._check_trained()
        final = self.final_ranker
        numbers: dict[str, Any] = {
            "objective": self.objective,
            "known": self.known,
            "kind": self.kind,
            "excludes_seen": self.seen is not None,
            "features": self.layout.names,
            "final_ranker": final.state(),
            "scorers": {},
        }
        arrays = {"frequency": self.frequency, "inverse": self.inverse}
        if final.trees is not None:
            arrays |= named_arrays("final_ranker", final.trees)
        for name, scorer in self.scorers.items():
            numbers["scorers"][name], own = scorer.state()
            arrays |= {f"{name}.{key}": array for key, array in own.items()}
        if isinstance(self.seen, SeenItems) and self.seen.items is not None:
            arrays["seen.items"] = self.seen.items
        if isinstance(self.seen, SeenLabels):
            arrays |= {"seen.keys": self.seen.keys.view(np.int64), "seen.rows": self.seen.rows}
            arrays |= named_arrays("seen.labels", self.seen.labels)
        return numbers, arrays

    @classmethod
    def restored(cls, stored: Stored, num_labels: int, num_features: int) -> "EnsembleRanker":
        """The ranker from its `state`; its arrays are views of the stored ones."""
        known = stored.one_of("known", KNOWN)
        ranker = cls(objective=stored.one_of("objective", OBJECTIVES), known=known)
        ranker.kind = stored.one_of("kind", ROW_KINDS[1:])
        scorers = stored.mapping("scorers")
        for name, scorer in ranker.scorers.items():
            if name in scorers or name == "network":
                own = stored.part(name, scorers.get(name))
                scorer.restore(own, num_labels, num_features)
            else:  # The model is of a version that did not have it.
                del ranker.all_scorers[name]
        if without := [name for name in LEFT_OUT if name in scorers]:
            ranker.all_scorers |= {name: LeftOut(name) for name in without}
            warnings.warn(
                f"the model has base scorers that slide no longer has: {', '.join(without)}. It "
                "answers without them; train it anew for the best answers",
                stacklevel=2,
            )
        ranker.frequency = stored.array("frequency", Expected((num_labels,), "int64", 0))
        ranker.inverse = stored.array("inverse", Expected((num_labels,), "float", 0))
        ranker._lay_out(stored.texts("features"))
        ranker.final_ranker.restore(stored.part("final_ranker", stored.get("final_ranker")))
        seen = stored.part("seen", {})
        if stored.flag("excludes_seen") and ranker.kind == "items":
            items = None
            if "items" in seen:
                items = seen.array("items", Expected((num_labels,), "int", 0))
                if (items[1:] <= items[:-1]).any():
                    seen.refuse_array("items", "ascend")
            ranker.seen = SeenItems(num_labels, items)
        elif stored.flag("excludes_seen"):
            labels = seen.pattern("labels", None, num_labels)
            count = labels.num_rows
            keys = seen.ascending("keys", Expected((count,), "int64"), "uint64").view(np.uint64)
            rows = seen.array("rows", Expected((count,), "int64", 0, count - 1))
            ranker.seen = SeenLabels.restored(keys, rows, labels)
        return ranker

    def grown(self, labels: int = 0, features: int = 0) -> "EnsembleRanker":
        """A ranker that takes more labels or features, which come last and no training row had."""
        large = copy.copy(self)
        large.frequency = padded(self.frequency, labels, 0)
        # The inverse propensity of a label without a row is that of the rarest.
        large.inverse = padded(self.inverse, labels, self.inverse.max(initial=0))
        large.all_scorers = self.all_scorers | {
            name: scorer.grown(labels, features) for name, scorer in self.scorers.items()
        }
        if isinstance(self.seen, SeenItems) and labels:
            large.seen = self.seen.grown(labels)
        return large

    def selected(self, kept: np.ndarray) -> "EnsembleRanker":
        """A ranker of the labels ``kept``, ascending; what is of rows and features is shared."""
        small, count = copy.copy(self), len(self.frequency)
        small.frequency, small.inverse = self.frequency[kept], self.inverse[kept]
        small.all_scorers = self.all_scorers | {
            name: scorer.selected(kept, count) for name, scorer in self.scorers.items()
        }
        if isinstance(self.seen, SeenItems):
            small.seen = self.seen.restricted(kept)
        elif self.seen is not None:
            labels = keep_labels(self.seen.labels, kept, count)
            small.seen = SeenLabels.restored(self.seen.keys, self.seen.rows, labels)
        return small

    def _lay_out(self, names: list[str] | None = None) -> None:
        """Order the features of the scorers, for a new final ranker."""
        self.layout = Layout(self.scorers.values(), names)
        self.final_ranker = type(self.final_ranker)(self.layout.signs, self.layout.ranked)

    def _learn(
        self, train: Split, exclude: bool, held: Split | None = None, slow: bool = True
    ) -> None:
        """Let the scorers learn from rows, and find seen labels in them."""
        self.frequency = np.bincount(train.labels.indices, minlength=train.num_labels)
        self.seen = find_seen(train, self.kind) if exclude else None
        training = Training(train, self.kind, self.seen, held, self.scorers, self.notes)
        for name, scorer in training.scorers.items():
            if slow or not scorer.slow:
                training.learnt(name)

    def _check_trained(self) -> None:
        if not len(self.inverse):
            raise RuntimeError("the ranker is not trained: call fit first")
