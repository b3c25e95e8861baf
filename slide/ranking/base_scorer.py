"""What a base scorer of the re-ranker is: it names candidates, and says numbers of them."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from slide.data import SeenItems, SeenLabels, Split, labels_and_items
from slide.nn import SlideNetwork
from slide.ops.base_scorers import rank_scores
from slide.runtime import num_threads
from slide.search.row_blocks import ItemPairs, count_pairs
from slide.sparse import CSR, Pattern, check_ids, hits, row_bounds
from slide.utils import checks
from slide.utils.array_checks import Stored
from slide.utils.sizes import validation_cutoffs

# Ranking features of a scorer: numbers that it says, and which only speak for a label if they are
# larger (FOR) or may do both (ANY); and numbers that follow from its first one: how far a candidate
# is behind the best one of its row, its rank from 0 on, and the number of the best one.
FOR, ANY, BEHIND, RANK, BEST = "for", "any", "behind", "rank", "best"
_SIGNS = {FOR: 1, ANY: 0, BEHIND: 1, RANK: -1, BEST: 0}
# The order of the first ranking features. The trees of models without names of features number them
# in it; and of two features that split the rows in the same way, trees take the first.
FIRST_FEATURES = (
    *("network", "network_behind", "network_rank", "linear", "linear_behind", "linear_rank"),
    *("neighbours", "neighbours_sharp", "neighbours_rank", "cooccurrence", "cooccurrence_best"),
    *("naive_bayes", "cooccurrence_rank", "log_frequency", "features", "nearest"),
    *("mean_similarity", "network_best", "analogous", "analogous_best"),
)

Scores = dict[str, np.ndarray]  # Numbers of C candidates, by ranking feature.
# Rows whose features are computed at a time.
ROWS_AT_ONCE = 1024
# 1,000 held-out rows decide on settings of scorers.
_TRIAL_ROWS = 1000
# A matrix without rows, as scorers have before they learn.
NOTHING = CSR(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))


class Queries(NamedTuple):
    """B rows that ask for labels.

    Attributes:
        features: ``(B, D)``.
        seen: B rows of labels that are no answers; None: all labels may be.
        network: a trained network.
        search: how the network finds its best labels; see `slide.SampledLinear.top_k`.
        least: number of labels that the network names for each row, at least.
        frequency: ``(N,)`` number of training rows of each label.
    """

    features: CSR
    seen: Pattern | None
    network: SlideNetwork
    search: str
    least: int
    frequency: np.ndarray

    @property
    def num_labels(self) -> int:
        """N."""
        return len(self.frequency)


class Named(NamedTuple):
    """What a scorer names: ids ``(B, k)`` or None, -1 for none; and what it needs to score."""

    ids: np.ndarray | None = None
    more: Any = None


class Candidates(NamedTuple):
    """The candidates of B rows: ids ``(B, K)`` int64, each once in a row, descending, -1: none.

    The candidates of a row begin in a list of all at ``starts``, ``(B + 1,)`` int64.
    """

    ids: np.ndarray
    starts: np.ndarray

    def flat(self, values: np.ndarray) -> np.ndarray:
        """Values ``(B, K)`` of the candidates as a list."""
        return values[self.ids >= 0]

    def of_rows(self, values: np.ndarray) -> np.ndarray:
        """Values ``(B,)`` of the rows, for each candidate."""
        return np.repeat(values, np.diff(self.starts))


@dataclass
class Training:
    """What base scorers learn from.

    Attributes:
        train: the training rows.
        kind: `slide.data.kind_of` the rows.
        seen: finds labels that are no answers; None: all may be.
        held: rows for choices; None: the scorers have made their choices and take further rows.
        scorers: all that learn, by name.
        notes: sentences about choices are added to it.
    """

    train: Split
    kind: str
    seen: SeenLabels | SeenItems | None
    held: Split | None
    scorers: "dict[str, BaseScorer]"
    notes: list[str]
    _learnt: set[str] = field(default_factory=set)

    @cached_property
    def trial(self) -> Split:
        """1,000 held-out rows at most, from all of them: files may be sorted."""
        assert self.held is not None
        count = len(self.held)
        return self.held.take(np.linspace(0, count - 1, min(_TRIAL_ROWS, count)).astype(np.int64))

    @cached_property
    def cut_offs(self) -> list[int]:
        """The k of the P@k whose mean is `precision`."""
        return validation_cutoffs(self.train.num_labels)

    def precision(self, best: Callable[[CSR, int, Pattern | None], np.ndarray]) -> float:
        """The mean of P@1, P@3 and P@5, in points, of the ids that are best for held-out rows."""
        rows, cut_offs = self.trial.features, self.cut_offs
        seen = None if self.seen is None else self.seen.of(rows)
        right = hits(best(rows, cut_offs[-1], seen), self.trial.labels)
        return 100 * float(np.mean([right[:, :k].mean() for k in cut_offs]))

    @cached_property
    def item_pairs(self) -> ItemPairs:
        """Pairs of items of the training rows, which are counted once.

        They are features and labels, and in a graph, whose features are no items, labels alone.
        """
        train = self.train
        items = train.labels if self.kind == "graph" else labels_and_items(train)
        return count_pairs(items, train.num_labels)

    def learnt(self, name: str) -> Any:
        """The scorer of that name, after it has learnt from the rows."""
        scorer = self.scorers[name]
        if name not in self._learnt:
            self._learnt.add(name)
            scorer.learn(self)
        return scorer


class BaseScorer:
    """Names candidates of rows and says numbers of all candidates, the ranking features.

    A class with a ``name`` in a file of `slide.ranking.scorers` is part of each re-ranker; nothing
    else has to know it. Its settings are its arguments, ``ranker.scorers.<name>`` in a
    configuration.

    Attributes:
        name: of the scorer, in settings and model folders; ``""``: a class for others to build on.
        features: names of its ranking features, the first of which is its score, and what each of
            them is (`FOR`, `ANY`, `BEHIND`, `RANK`, `BEST`).
        kinds: kinds of rows (`slide.data.kind_of`) of which it knows something; None: all.
        slow: it takes long to learn, so it learns from held-out rows in the end only where they are
            a twentieth of all rows or more.
        derives: whether the features that follow from its score are computed; else `score` has all.
        nothing: the score of a candidate of which it knows nothing.
        counts: names of settings that are whole numbers of at least 1; `set_counts` sets them.
        numbers: names of other numbers, which it keeps in a model folder beside the counts.
        proposed: number of candidates that it names.

    Example:
        A scorer that prefers labels with small numbers:

        >>> import numpy as np
        >>> from slide.ranking.base_scorer import FOR, RANK, BaseScorer
        >>> class First(BaseScorer):
        ...     name, features = "first", {"first": FOR, "first_rank": RANK}
        ...     def score(self, queries, candidates, more):
        ...         return {"first": candidates.flat(-candidates.ids)}
    """

    name: ClassVar[str] = ""
    features: ClassVar[dict[str, str]] = {}
    kinds: ClassVar[tuple[str, ...] | None] = None
    slow: ClassVar[bool] = False
    derives: ClassVar[bool] = True
    nothing: float = 0.0
    counts: ClassVar[tuple[str, ...]] = ("proposed",)
    numbers: ClassVar[tuple[str, ...]] = ()
    proposed: int

    def set_counts(self, **values: int) -> None:
        """Set whole numbers; ValueError for one below 1."""
        for name, value in values.items():
            checks.whole(name, value, 1)
            setattr(self, name, value)

    def with_(self, **values: Any) -> Any:
        """A copy with other attributes."""
        other = copy.copy(self)
        vars(other).update(values)
        return other

    def suits(self, train: Split) -> bool:
        """Whether it is for such training rows, of a kind that it knows; else it takes no part."""
        return True

    def learn(self, training: Training) -> None:
        """Learn from training rows."""

    def propose(self, queries: Queries) -> Named:
        """Name candidates of rows."""
        return Named()

    def score(self, queries: Queries, candidates: Candidates, more: Any) -> Scores:
        """Features that follow from no others, by name: ``(C,)`` numbers, of all C candidates.

        ``more`` is what `propose` named besides candidates.
        """
        raise NotImplementedError(f"{type(self).__name__} must define score")

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Its numbers, as JSON can hold them, and its arrays, by name."""
        names = *self.counts, *self.numbers
        return {name: getattr(self, name) for name in names}, self.arrays()

    def arrays(self) -> dict[str, np.ndarray]:
        """What it has learnt, by name."""
        return {}

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        """Take over what `state` returned, or refuse it; the arrays may be views of a file."""
        for name in self.counts:
            setattr(self, name, stored.count(name, 1))

    def grown(self, labels: int, features: int) -> "BaseScorer":
        """The scorer with further labels and features, which come last and which no row had."""
        return self

    def selected(self, kept: np.ndarray, num_labels: int) -> "BaseScorer":
        """The scorer of the labels ``kept`` (numbers, ascending) alone, of ``num_labels``."""
        return self


def scored(name: str, *derived: str) -> dict[str, str]:
    """The features of a score that speaks for a label, and of what follows from it."""
    return {name: FOR, **{f"{name}_{kind}": kind for kind in derived}}


class Layout:
    """The ranking features of some scorers in order.

    Args:
        scorers: the scorers.
        names: of the features in their order; None: that of `FIRST_FEATURES`, and then others.

    Raises:
        ValueError: for names other than the features of the scorers.

    Attributes:
        names: of the features.
        signs: for each feature 1, -1 or 0: it only speaks for a label, only against it, or both.
        ranked: for each rank, the column of the score that it ranks, and the score by which the
            scorer says that it knows nothing of a candidate.
    """

    def __init__(self, scorers: Iterable[BaseScorer], names: Iterable[str] | None = None):
        known = {"log_frequency": ANY, "features": ANY}
        found = {**known, **{n: kind for each in scorers for n, kind in each.features.items()}}
        first = [name for name in FIRST_FEATURES if name in found]
        rest = [name for name in found if name not in FIRST_FEATURES]
        self.names = [*first, *rest] if names is None else list(names)
        if sorted(self.names) != sorted(found):
            wrong = sorted(set(map(str, self.names)) ^ set(found))
            raise ValueError(f"each ranking feature must be there once; {wrong[:3]} differ")
        self.signs = [_SIGNS[found[name]] for name in self.names]
        columns, of_rank = {name: i for i, name in enumerate(self.names)}, {}
        derived = []
        for scorer in scorers:
            score = columns[next(iter(scorer.features))]
            kinds = {kind: columns[name] for name, kind in scorer.features.items()}
            if scorer.derives:
                derived.append([score, *(kinds.get(kind, -1) for kind in (BEHIND, RANK, BEST))])
            of_rank[kinds.get(RANK)] = score, scorer.nothing
        self.ranked = [of_rank[i] for i, sign in enumerate(self.signs) if sign < 0]
        # What follows from scores: columns of scores, of what is behind, of ranks, of the best.
        self._derived = np.array(derived, np.int64).reshape(-1, 4)

    def fill(self, candidates: Candidates, values: Iterator[tuple[str, np.ndarray]]) -> np.ndarray:
        """The features ``(C, F)`` float32 of candidates, from the numbers that scorers give."""
        columns = np.empty((candidates.starts[-1], len(self.names)), np.float32)
        for name, numbers in values:
            columns[:, self.names.index(name)] = numbers
        rank_scores(candidates.starts, self._derived, columns)
        return columns


class RankingFeatures(NamedTuple):
    """Candidates of B rows, and what is known of them.

    Attributes:
        ids: ``(B, K)`` int64, each label once; -1: no candidate.
        columns: ``(C, F)`` float32, a row for each candidate.
        names: of the F features.
        network_ids: ``(B, depth)`` int64, the best labels of the network that are not seen, best
            first; -1: there are no more.
    """

    ids: np.ndarray
    columns: np.ndarray
    names: list[str]
    network_ids: np.ndarray


def ranking_features(
    scorers: dict[str, BaseScorer], layout: Layout, queries: Queries
) -> RankingFeatures:
    """The candidates of all scorers, and what each says of them; scores must be finite."""
    # The network comes first: it refuses rows whose scores are not finite.
    named = {"network": scorers["network"].propose(queries)}
    named |= {name: each.propose(queries) for name, each in scorers.items() if name not in named}
    ids = join(*(each.ids for each in named.values() if each.ids is not None))
    candidates = Candidates(ids, row_bounds((ids >= 0).sum(1)))

    def values() -> Iterator[tuple[str, np.ndarray]]:
        yield "log_frequency", np.log1p(queries.frequency[candidates.flat(ids)])
        yield "features", candidates.of_rows(np.diff(queries.features.indptr))
        for name, own in named.items():
            yield from scorers[name].score(queries, candidates, own.more).items()

    columns = layout.fill(candidates, values())
    network_ids = cast(np.ndarray, named["network"].ids)
    return RankingFeatures(ids, columns, layout.names, network_ids)


def of_candidates(
    kernel: Callable[..., Any], arrays: tuple, ids: np.ndarray, rows: int, labels: int, width: tuple
) -> np.ndarray:
    """What a kernel writes of the candidates ``(rows, K)``, if not below 0: ``(pairs, *width)``.

    It takes arrays, candidates, where those of each row begin, scratch, and the output.
    """
    check_ids(ids, rows, labels)
    starts = row_bounds((ids >= 0).sum(1))
    found = np.zeros((starts[-1], *width), np.float32)
    # A single row needs the scratch of a single thread, which takes most of its time.
    positions = np.zeros((max(min(num_threads(), rows), 1), labels), np.int32)
    kernel(*arrays, ids, starts, positions, found)
    return found


def join(*lists: np.ndarray) -> np.ndarray:
    """The ids ``(B, K)`` int64 of several lists, each once in a row, descending, -1 at the end."""
    ids = np.sort(np.concatenate(lists, 1).astype(np.int64), axis=1)
    ids[:, 1:][ids[:, 1:] == ids[:, :-1]] = -1
    ids = -np.sort(-ids, axis=1)
    return np.ascontiguousarray(ids[:, : int((ids >= 0).sum(1).max(initial=1))])


def more_rows(matrix: CSR, count: int) -> CSR:
    """The matrix with ``count`` empty rows at its end."""
    return matrix._replace(indptr=padded(matrix.indptr, count, matrix.indptr[-1]))


def padded(array: np.ndarray, count: int, value: float) -> np.ndarray:
    """The array with ``count`` further entries, in its type."""
    return np.concatenate([array, np.full(count, value, array.dtype)])


def named_arrays(prefix: str, arrays: Any) -> dict[str, np.ndarray]:
    """The arrays of a named tuple, as ``prefix.field``; for `BaseScorer.state`."""
    return {f"{prefix}.{name}": array for name, array in arrays._asdict().items()}
