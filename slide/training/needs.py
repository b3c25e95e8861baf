"""How much memory a run will need, from its sizes alone."""

import math
from itertools import pairwise
from typing import NamedTuple

from slide.data.validation import held_rows
from slide.ranking.associations import MOST_LABELS
from slide.ranking.dense_search import count_as_dense
from slide.ranking.ensemble import ROWS_AT_ONCE
from slide.ranking.evidence import COLUMNS
from slide.ranking.item_regressions import WEIGHTS, num_sharing
from slide.ranking.linear_classifiers import MOST_COPIED, counts_items
from slide.ranking.row_blocks import MOST_ROOM
from slide.ranking.substitutes import MOST_SIMILAR

# Types of numbers, in bytes.
_FLOAT, _INT, _LONG = 4, 4, 8
# What Python, libraries that are imported later, and compiled kernels take beside the arrays; and
# those of a re-ranker beside them. In a first run compilers take more, which is not counted.
_LIBRARIES, _LIBRARIES_OF_RANKER = 75 << 20, 100 << 20
# The share of candidates that no other expert of a re-ranker names, too.
_ALONE = 0.6
# Bytes of an entry of the rows while near rows take it, and while only its list is made; of a pair
# of row and label while the classifiers learn; of room for a weight, a quarter of which is used.
_ENTRY_TAKEN, _ENTRY_LISTED, _PAIR_LEARNT, _WEIGHT_LEARNT = 44, 16, 12, 10
# Bytes of a pair of a feature and a label of its row, while similar questions are looked for; and
# similar features for each pair.
_PAIR_ASKED, _SIMILAR = 115, 3
# How many times its size an index of dense rows takes while it is saved.
_INDEX_SAVED = 2.2
# Bytes of a training row of a label while it learns, and how much longer the longest list of these
# rows is than the mean one.
_ROW_LEARNT, _LONGER = 44, 20


class TableSizes(NamedTuple):
    """Sizes of hash tables: their number, of buckets in each, and of ids in a bucket at most."""

    tables: int
    buckets: int
    capacity: int


class RankerSizes(NamedTuple):
    """What the memory of a re-ranker depends on.

    Attributes:
        candidates: of a row that it looks at.
        negatives: of a row that classifiers learn from.
        features: D, also where several processes share the network.
        labels: N, likewise.
        kind: of the rows; see `slide.data.kind_of`.
        weighted: whether rows have weights.
    """

    candidates: int
    negatives: int
    features: int
    labels: int
    kind: str = "other"
    weighted: bool = False

    @property
    def regressions(self) -> bool:
        """Whether regressions of items are in the place of classifiers."""
        return counts_items(self.kind, self.weighted)


class RunSizes(NamedTuple):
    """What the memory of a run depends on.

    Attributes:
        rows: number of training rows.
        features: D, number of features.
        labels: N, number of labels.
        entries: number of entries of all training rows.
        targets: number of labels of all training rows.
        hidden: widths of the hidden layers.
        batch: rows in a step.
        active: outputs in an active set; N: all.
        shared: whether a set is for the whole batch.
        first_moment: whether the optimizer has first moments.
        rowwise: whether it has one second moment for each row.
        last_steps: whether the optimizer notes the last step of each row.
        copied: whether the rows are divided into parts, which are copies in memory.
        checkpoints: whether the run writes checkpoints on the way, from a copy.
        row_index: whether outputs are looked up for prediction.
        tables: hash tables over the outputs; None: there are none.
        vectors: whether the sampler has an index that holds the rows of the outputs, as FAISS.
        ranker: the re-ranker; None: there is none.
        threads: number of threads.
        itemsize: bytes of a weight.
    """

    rows: int
    features: int
    labels: int
    entries: int
    targets: int
    hidden: tuple[int, ...]
    batch: int
    active: int
    shared: bool = True
    first_moment: bool = True
    rowwise: bool = False
    last_steps: bool = False
    copied: bool = True
    checkpoints: bool = False
    row_index: bool = False
    tables: TableSizes | None = None
    vectors: bool = False
    ranker: RankerSizes | None = None
    threads: int = 1
    itemsize: int = _FLOAT


def memory_needs(sizes: RunSizes) -> dict[str, int]:
    """The bytes of each part of a run at the moment when it needs the most; see `peak_memory`.

    Arrays that are mapped from files do not count: the system can drop them.

    Example:
        >>> from slide.training.needs import RunSizes, memory_needs
        >>> data = {"rows": 1000, "entries": 20_000, "targets": 2000}
        >>> layers = {"features": 5000, "labels": 1000, "hidden": (100,)}
        >>> found = memory_needs(RunSizes(**data, **layers, batch=64, active=256))
        >>> found["weights"], found["moments"]
        (2404400, 4808800)
    """
    always = {
        "weights": sizes.itemsize * _weights(sizes),
        "moments": _moments(sizes),
        "rows": _copied_rows(sizes),
        "index of the sampler": _sampler_index(sizes),
    }
    training = {"a step": _step(sizes), "copy for checkpoints": _copies(sizes, always)}
    ending = {"index for prediction": _index(sizes), "re-ranker": _ranker(sizes)}
    training["libraries"] = _LIBRARIES
    ending["libraries"] = _LIBRARIES + (_LIBRARIES_OF_RANKER if sizes.ranker else 0)
    most = max(training, ending, key=lambda parts: sum(parts.values()))
    return {name: size for name, size in {**always, **most}.items() if size}


def peak_memory(sizes: RunSizes) -> int:
    """The most bytes that a run needs, beside what its process holds before it.

    Example:
        >>> from slide.training.needs import RunSizes, peak_memory
        >>> data = {"rows": 100_000, "entries": 10**7, "targets": 10**6, "batch": 256}
        >>> layers = {"features": 400_000, "labels": 300_000, "active": 2048}
        >>> sizes = RunSizes(**data, **layers, hidden=(256,))
        >>> round(peak_memory(sizes) / 2**30, 1)
        2.2
    """
    return sum(memory_needs(sizes).values())


def _rows_of_weights(sizes: RunSizes) -> int:
    """Rows of all weights and biases, as the optimizer sees them."""
    biases = sum(sizes.hidden) + sizes.labels  # Each entry is a row.
    return sizes.features + sum(sizes.hidden[1:]) + sizes.labels + biases


def _weights(sizes: RunSizes) -> int:
    widths = [*sizes.hidden, sizes.labels]
    inner = sum(a * b for a, b in pairwise(widths))
    return sizes.features * sizes.hidden[0] + inner + sum(widths)


def _moments(sizes: RunSizes) -> int:
    number, rows = _weights(sizes), _rows_of_weights(sizes)
    second = rows if sizes.rowwise else number
    first = number if sizes.first_moment else 0
    return _FLOAT * (first + second) + (_INT * rows if sizes.last_steps else 0)


def _copied_rows(sizes: RunSizes) -> int:
    order = _LONG * sizes.rows
    if not sizes.copied:
        return order
    return order + (_FLOAT + _INT) * sizes.entries + _INT * sizes.targets + 2 * _LONG * sizes.rows


def _sampler_index(sizes: RunSizes) -> int:
    if sizes.vectors:  # The rows, as they are added, and room for more.
        return 3 * _FLOAT * sizes.labels * (sizes.hidden[-1] + 1)
    if sizes.tables is None:
        return 0
    tables, buckets, capacity = sizes.tables
    voted = min(min(sizes.batch, buckets) * capacity, sizes.labels) if sizes.shared else 0
    # Bounds of buckets and their hits; pools, and codes before and after a rebuild; votes.
    return _INT * tables * (4 * buckets + 3 * sizes.labels + 2 * voted)


def _index_state(sizes: RunSizes) -> int:
    """What of the index of a sampler a checkpoint holds: its rows, or its buckets and codes."""
    if sizes.vectors:
        return _FLOAT * sizes.labels * (sizes.hidden[-1] + 1)
    if sizes.tables is None:
        return 0
    return _INT * sizes.tables.tables * (3 * sizes.tables.buckets + 2 * sizes.labels)


def _step(sizes: RunSizes) -> int:
    scratch = (_INT + sizes.threads) * sizes.labels
    inputs = sizes.batch * (40 * sizes.entries // max(sizes.rows, 1) + 24 * sum(sizes.hidden))
    pairs, last = sizes.batch * sizes.active, sizes.hidden[-1]
    if not sizes.shared:
        return scratch + inputs + 48 * pairs
    return scratch + inputs + _FLOAT * (2 * pairs + 3 * sizes.active * last)


def _copies(sizes: RunSizes, always: dict[str, int]) -> int:
    if not sizes.checkpoints:
        return 0
    # The state of an index is a copy by itself.
    return always["weights"] + always["moments"] + 2 * _index_state(sizes)


def _index(sizes: RunSizes) -> int:
    if not sizes.row_index:
        return 0
    lists = round(4 * sizes.labels**0.5) * sizes.hidden[-1]
    return sizes.labels * (sizes.hidden[-1] + 3 * _LONG) + _FLOAT * lists


def _ranker(sizes: RunSizes) -> int:
    """The re-ranker: what stays, and the largest of the phases of its training."""
    if sizes.ranker is None:
        return 0
    rows, each = max(sizes.rows, 1), sizes.entries / max(sizes.rows, 1)
    ranker, features, labels = sizes.ranker, sizes.ranker.features, sizes.ranker.labels
    sizes, questions = sizes._replace(features=features, labels=labels), ranker.kind == "graph"
    neighbours, compared = _near_rows(sizes)
    associations = min(_distinct(each * sizes.targets, features * labels), MOST_LABELS * features)
    learn = _regressions if ranker.regressions else _classifiers
    classifiers, learnt = learn(sizes)
    phases = (
        compared,
        learnt,
        # The judge learns.
        _FLOAT * len(COLUMNS) * _ALONE * ranker.candidates * 2 * (held_rows(rows) + ROWS_AT_ONCE),
        # At the end, labels of features are counted again: the rows of each feature, room, parts.
        _ENTRY_LISTED * sizes.entries
        + (_FLOAT + _INT) * (min(MOST_ROOM, associations) + 2 * associations),
        _PAIR_ASKED * each * sizes.targets * questions,
    )
    scratch = (_FLOAT + _INT) * (rows + 2 * labels) + (_FLOAT + 2 * _INT) * features
    kept = neighbours + (_FLOAT + _INT) * associations + _FLOAT * (features + labels) + classifiers
    asked = (_LONG + 2 * _INT) * sizes.entries
    asked += (_FLOAT + _INT) * min(_SIMILAR * each * sizes.targets, MOST_SIMILAR * features)
    return round(kept + questions * asked + sizes.threads * scratch + max(phases))


def _classifiers(sizes: RunSizes) -> tuple[float, float]:
    """Weights of the classifiers, and what is beside them while they learn."""
    each = sizes.entries / max(sizes.rows, 1)
    distinct_pairs = _distinct(each * sizes.targets, sizes.features * sizes.labels)
    kept = (_FLOAT + _INT) * distinct_pairs
    negatives = 0 if sizes.ranker is None else sizes.ranker.negatives
    pairs = sizes.targets + sizes.rows * negatives
    room = min(MOST_ROOM, each * pairs, sizes.features * sizes.labels)
    longest = min(sizes.rows, _LONGER * pairs / max(sizes.labels, 1))
    copies = (_FLOAT + _INT) * min(MOST_COPIED, sizes.entries) + _ROW_LEARNT * longest
    # The weights are put together in the end.
    learnt = _PAIR_LEARNT * pairs + max(_WEIGHT_LEARNT * room, kept) + sizes.threads * copies
    return kept, learnt


def _regressions(sizes: RunSizes) -> tuple[float, float]:
    """Weights of the regressions of items, and what is beside them while they are solved."""
    items, labels = sizes.entries + sizes.targets, sizes.labels
    # Pairs of items that share a row.
    pairs = _distinct(items**2 / max(sizes.rows, 1), labels * labels)
    shared = min(pairs, num_sharing(labels) * labels)
    kept = min(shared, WEIGHTS * labels)
    room = min(MOST_ROOM, shared)
    return (_FLOAT + _INT) * kept, _ENTRY_LISTED * items + (_FLOAT + _INT) * (shared + room)


def _near_rows(sizes: RunSizes) -> tuple[float, float]:
    """What finds near rows, and what is beside it while two kinds are compared, or it is saved."""
    every = max(sizes.rows * sizes.features, 1)
    # As if all features were equally frequent: then lists are shortest.
    if count_as_dense(sizes.entries / every, sizes.entries**2 / every):
        return _FLOAT * every, _INDEX_SAVED * _FLOAT * every
    neighbours = (2 * _FLOAT + _INT) * sizes.entries
    return neighbours, neighbours + _ENTRY_TAKEN * sizes.entries


def _distinct(pairs: float, every: int) -> float:
    """The mean number of distinct pairs, if all of those that can be are equally frequent."""
    every = max(every, 1)
    return every * -math.expm1(-pairs / every)
