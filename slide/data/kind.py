"""The kind of training data, and the seen labels of a row, which filtered ranking leaves out.

Counts only suggest a kind; `slide.ranking.choose_kind` compares answers on held-out rows.
"""

from typing import NamedTuple

import numpy as np

from slide.data.dataset import Split, take_labels
from slide.data.row_transform import mix_bits
from slide.sparse import CSR, Pattern, hits, row_bounds

# Four features at most fill slots, such as head and relation; a longer row describes one object.
_SHORT = 4
# At most one row in a hundred repeats another one by chance.
_FEW_REPEATED = 0.01
# Five rows that repeat others are evidence; fewer are not.
_ENOUGH = 5
# Labels seem avoided if they occur at most a twentieth as often as by chance. If they occur half as
# often, held-out rows decide.
_SHARE, _POSSIBLE = 0.05, 0.5
# Significance level of the Poisson test: at 5 %, seeing 0 where 3 are expected just passes.
_SIGNIFICANT = 0.05
# The expected pairs must come from at least about 15 equally likely labels, not from a few.
_SPREAD = 15
# Counts that vary more than three times as much as by chance tell frequent items from rare ones.
# The logarithms of counts as features and as labels correlate by far more in recommenders, and
# hardly in other sets.
_VARIED, _ALIKE = 3, 0.2
# Rows are dense if they have more than half of the features, as measurements have. Then a row takes
# hardly more memory where a mean is taken away.
MOSTLY_NONZERO = 1 / 2
# They are dense with an eighth of the features, too, as images have, if that is more than 16.
DENSE = 1 / 8
# Texts with few words have that share of a small vocabulary.
_MANY_FEATURES = 16
# 2^31: features have numbers below it, so no feature is the item of a new label.
_NO_ITEM = 2**31
# 65,536 rows are hashed at a time, so that the hashes stay in a cache.
_BLOCK = 1 << 16


def row_keys(features: CSR) -> np.ndarray:
    """A number for each row, ``(R,)`` uint64: equal rows have equal keys, other rows others.

    A key is the sum, modulo 2^64, of a hash of each column number with its value. The order of
    entries does not matter, and zeros count as missing.

    Example:
        >>> import numpy as np
        >>> from slide.data import row_keys
        >>> from slide.sparse import CSR, Pattern
        >>> pattern = Pattern.from_lists([[4, 7], [7, 4], [4]])
        >>> keys = row_keys(CSR(*pattern, np.ones(5, np.float32)))
        >>> bool(keys[0] == keys[1]), bool(keys[0] == keys[2])
        (True, False)
    """
    keys = np.empty(features.num_rows, np.uint64)
    for start in range(0, len(keys), _BLOCK):
        part = features.slice(start, start + _BLOCK)
        values = np.ascontiguousarray(part.values, np.float32)
        words = part.indices.astype(np.uint64) << np.uint64(32)
        mixed = mix_bits(words | values.view(np.uint32).astype(np.uint64))
        mixed[values == 0] = 0
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
        keys[start : start + _BLOCK] = np.diff(sums[part.indptr])
    return keys


class Proposal(NamedTuple):
    """``"graph"`` or ``"items"``, and ``why``; held-out rows decide what is not ``likely``."""

    kind: str
    likely: bool
    why: str


def propose_kinds(train: Split) -> tuple[list[Proposal], list[str]]:
    """What training rows may be, and the counts because of which they are nothing else.

    In a graph a row is a question, such as head and relation, and lists all known answers: rows
    have the same few non-zeros, which fill slots (no feature is a head here and a relation there),
    and rows of equal features have other labels. Short texts have no slots; measurements are dense.

    In a recommender features and labels are the same items: an item that a row has is hardly ever
    its label, and items that are frequent as features are frequent as labels. What chance would do
    must not hang on a few labels, or on rows that are copies.
    """
    keys = row_keys(train.features)
    found = {"graph": _look_for_graph(train, keys), "items": _look_for_items(train, keys)}
    proposals = [each for each in found.values() if isinstance(each, Proposal)]
    against = [f"no {kind}: {why}" for kind, why in found.items() if isinstance(why, str)]
    return proposals, against


def _is_likely(found: Proposal | str) -> bool:
    return isinstance(found, Proposal) and found.likely


def _look_for_graph(train: Split, keys: np.ndarray | None = None) -> Proposal | str:
    """A proposal, or why there is none."""
    rows, nonzeros = len(train), len(train.features.indices)
    if not 0 < nonzeros <= rows * min(_SHORT, train.num_features / 2):
        return f"{nonzeros / max(rows, 1):.1f} features a row"
    sizes = np.diff(train.features.indptr)
    if sizes.min() < sizes.max() or not _fill_slots(train.features, train.num_features):
        return "features fill no slots"
    keys = row_keys(train.features) if keys is None else keys
    groups = np.unique(keys, return_inverse=True)[1]
    return _look_for_lists(groups, train.labels, train.num_labels)


def _fill_slots(features: CSR, num_features: int) -> bool:
    """Whether each feature belongs to one slot, and each row has a feature of each slot."""
    # Two slots may have any numbers: features of one row are the two sides of a bipartite graph.
    # Three or more slots are ranges of numbers, as encoders make them.
    from scipy.sparse import coo_array  # Imported here, so that `import slide` stays fast.
    from scipy.sparse.csgraph import connected_components

    columns = np.sort(features.indices.reshape(features.num_rows, -1), axis=1)
    if columns.shape[1] != 2:
        return bool((columns.max(0)[:-1] < columns.min(0)[1:]).all())
    # Each feature twice, for each side, joined with the other side of its neighbours: the two
    # copies are connected where a ring of odd length goes through a feature.
    one, other = columns.T.astype(np.int64)
    ends = np.concatenate([one, other]), np.concatenate([other, one]) + num_features
    joined = coo_array((np.ones(len(ends[0]), np.int8), ends), (2 * num_features,) * 2)
    _, parts = connected_components(joined, directed=False)
    used = np.unique(columns)
    return bool((parts[used] != parts[used + num_features]).all())


def _look_for_lists(groups: np.ndarray, labels: Pattern, num_labels: int) -> Proposal | str:
    """Whether rows of equal features list further labels, and do not repeat each other's."""
    sizes = np.diff(labels.indptr).astype(np.float64)
    pairs = np.sort(groups[labels.entry_rows()] * np.int64(num_labels) + labels.indices)
    first = np.flatnonzero(np.diff(pairs, prepend=-1))  # In less time than `np.unique`.
    times = np.diff(first, append=len(pairs)).astype(np.float64)
    distinct = np.bincount(pairs[first] // num_labels, minlength=groups.max() + 1)
    if distinct.max(initial=0) < 2:
        return "equal features have one label"
    repeated = len(groups) - len(distinct)
    few = repeated <= _FEW_REPEATED * len(groups)
    if repeated < _ENOUGH:
        if not few:
            return "too few rows"
        why = "features fill slots as in questions, and rows do not repeat the labels of others"
        return Proposal("graph", True, why)
    # Of pairs of labels of two rows of equal features, how many are equal.
    both = (np.bincount(groups, sizes) ** 2 - np.bincount(groups, sizes**2)).sum() / 2
    found = (times * (times - 1)).sum() / 2
    frequency = np.bincount(labels.indices, minlength=num_labels) / max(len(labels.indices), 1)
    expected = both * (frequency**2).sum()  # By chance.
    why = f"{repeated:,} rows repeat features of others; equal pairs of their labels: {found:,.0f} "
    why += f"of {both:,.0f}, by chance {expected:,.1f}"
    likely = found <= _SHARE * both if few else _are_fewer(found, expected, _SHARE)
    return Proposal("graph", bool(likely), why) if likely or found < _POSSIBLE * both else why


def _are_fewer(found: float, expected: float, share: float) -> bool:
    """Whether there are at most a share of what is expected, and that is no chance itself."""
    from scipy.special import pdtr  # Poisson's distribution function.

    return bool(found <= share * expected and pdtr(found, expected) < _SIGNIFICANT)


class SeenLabels:
    """Finds the labels that training rows list for equal features.

    In a knowledge graph seen labels are no answers to a question: the filtered setting of Bordes et
    al. 2013, "Translating embeddings for modeling multi-relational data", section 4.2.

    Attributes:
        keys: ``(R,)`` uint64, `row_keys` of the training rows, ascending.
        rows: ``(R,)`` int64, the rows of the keys.
        labels: R rows, the labels of the training rows.

    Example:
        >>> import numpy as np
        >>> from slide.data import SeenLabels, Split
        >>> from slide.sparse import CSR, Pattern
        >>> rows = CSR(*Pattern.from_lists([[0, 5], [0, 6]]), np.ones(4, np.float32))
        >>> seen = SeenLabels(Split(rows, Pattern.from_lists([[2], [1, 3]]), 7, 4))
        >>> seen.of(CSR(*Pattern.from_lists([[6, 0]]), np.ones(2, np.float32))).indices
        array([1, 3], dtype=int32)
    """

    def __init__(self, train: Split):
        keys = row_keys(train.features)
        self.rows = np.argsort(keys, kind="stable")
        self.keys, self.labels = keys[self.rows], train.labels

    @classmethod
    def restored(cls, keys: np.ndarray, rows: np.ndarray, labels: Pattern) -> "SeenLabels":
        """The object from its attributes."""
        seen = cls.__new__(cls)
        seen.keys, seen.rows, seen.labels = keys, rows, labels
        return seen

    def of(self, features: CSR, most: int | None = None) -> Pattern:
        """The seen labels of R rows: R rows, empty for new features.

        At most ``most`` equal training rows count; None: all.
        """
        wanted = row_keys(features)
        first, end = (np.searchsorted(self.keys, wanted, side) for side in ("left", "right"))
        end = np.where(np.diff(features.indptr) > 0, end, first)  # A row without any asks nothing.
        if most is not None:
            end = np.minimum(end, first + most)
        bounds = row_bounds(end - first)
        positions = np.arange(bounds[-1]) + np.repeat(first - bounds[:-1], end - first)
        labels = take_labels(self.labels, self.rows[positions])
        return Pattern(labels.indptr[bounds], labels.indices)


def first_unseen(ids: np.ndarray, seen: Pattern, count: int) -> np.ndarray:
    """The first ids of each row that are not seen.

    ``ids`` ``(R, k)`` are label numbers, best first; -1: there are no more. Returns ``(R, count)``
    int64; -1 where a row has fewer.

    Example:
        >>> import numpy as np
        >>> from slide.data import first_unseen
        >>> from slide.sparse import Pattern
        >>> first_unseen(np.array([[7, 3, 5], [3, 9, 4]]), Pattern.from_lists([[7], []]), 2)
        array([[3, 5],
               [3, 9]])
    """
    left = (ids >= 0) & ~hits(ids, seen)
    order = np.argsort(~left, axis=1, kind="stable")[:, :count]
    found = np.full((len(ids), count), -1, np.int64)
    found[:, : order.shape[1]] = np.take_along_axis(np.where(left, ids, -1), order, axis=1)
    return found


def kind_of(train: Split) -> str:
    """What training rows seem to be: ``"graph"``, ``"items"``, ``"dense"`` or ``"other"``.

    It is what they are said to be (`slide.data.Split.kind`), or else the likely one of
    `propose_kinds`. Dense rows, such as measurements, have more than half of the
    features, or such as images an eighth of many.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split, kind_of
        >>> from slide.sparse import CSR, Pattern
        >>> rows = CSR(*Pattern.from_lists([[0, 5], [0, 6]]), np.ones(4, np.float32))
        >>> kind_of(Split(rows, Pattern.from_lists([[2], [1, 3]]), 7, 4))
        'graph'
    """
    if train.kind != "auto":
        return train.kind
    if _is_likely(_look_for_graph(train)):
        return "graph"
    return "items" if _is_likely(_look_for_items(train)) else usual_kind(train)


def usual_kind(train: Split) -> str:
    """What rows are that are neither a graph nor items: ``"dense"`` or ``"other"``."""
    share = nonzero_share(train.features, train.num_features)
    image = share > DENSE and share * train.num_features > _MANY_FEATURES
    return "dense" if share > MOSTLY_NONZERO or image else "other"


def nonzero_share(features: CSR, num_features: int) -> float:
    """The share of features that a row has, on average."""
    return len(features.indices) / max(features.num_rows * num_features, 1)


def is_graph(train: Split) -> bool:
    """Whether training rows are a knowledge graph."""
    return train.kind == "graph" or (train.kind == "auto" and _is_likely(_look_for_graph(train)))


def _look_for_items(train: Split, keys: np.ndarray | None = None) -> Proposal | str:
    """A proposal, or why there is none."""
    keys = row_keys(train.features) if keys is None else keys
    first = np.sort(np.unique(keys, return_index=True)[1])
    train = train if len(first) == len(train) else train.take(first)
    width = min(train.num_features, train.num_labels)
    features, labels = (
        np.bincount(ids, minlength=width)[:width].astype(np.float64)
        for ids in (train.features.indices, train.labels.indices)
    )
    chances = features * labels / max(len(train), 1)
    found, expected = _own_labels(train), chances.sum()
    why = f"labels that are features of their row: {found:,}, by chance {expected:,.1f}"
    if not _are_fewer(found, expected, _POSSIBLE):
        return why
    varied = all(counts.var() > _VARIED * counts.mean() for counts in (features, labels))
    alike = np.corrcoef(np.log1p(features), np.log1p(labels))[0, 1] if varied else 1.0
    if alike < _ALIKE:
        return f"frequent features have other numbers than frequent labels, correlation {alike:.2f}"
    # As many equal chances would have this ratio.
    spread = expected**2 >= _SPREAD * (chances**2).sum()
    return Proposal("items", bool(spread and found <= _SHARE * expected), why)


class SeenItems:
    """Finds the items of a row, which are no answers in a recommender (`kind_of` ``"items"``).

    Args:
        items: ``(N,)`` ascending numbers, for each label the feature that is the same item; None:
            they have the same number.

    Example:
        >>> import numpy as np
        >>> from slide.data import SeenItems
        >>> from slide.sparse import CSR, Pattern
        >>> rows = CSR(*Pattern.from_lists([[0, 5], [9]]), np.ones(3, np.float32))
        >>> SeenItems(num_labels=8).of(rows).indices
        array([0, 5], dtype=int32)
    """

    def __init__(self, num_labels: int, items: np.ndarray | None = None):
        self.num_labels, self.items = num_labels, items

    def restricted(self, kept: np.ndarray) -> "SeenItems":
        """The same for some of the labels: ``kept`` holds their numbers, ascending."""
        return SeenItems(len(kept), kept if self.items is None else self.items[kept])

    def grown(self, count: int) -> "SeenItems":
        """The same with further labels, which are no items."""
        items = np.arange(self.num_labels) if self.items is None else self.items
        # Ascending, and above all numbers of features.
        new = _NO_ITEM + np.arange(self.num_labels, self.num_labels + count)
        return SeenItems(len(items) + count, np.concatenate([items, new]))

    def of(self, features: CSR) -> Pattern:
        """The labels that are features of R rows: R rows."""
        labels, items = features.indices, self.items
        if items is None:
            kept = labels < self.num_labels
        else:
            labels = np.minimum(np.searchsorted(items, labels), len(items) - 1).astype(np.int32)
            kept = items[labels] == features.indices
        return Pattern(features.indptr, labels).keep(kept)


def find_seen(train: Split, kind: str) -> SeenLabels | SeenItems:
    """Finds the seen labels of rows to come, which filtered ranking leaves out of the answers.

    If the ``kind`` of rows is ``"items"``, the own items of a row are seen, else the labels of
    training rows with the same features.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split, find_seen
        >>> from slide.sparse import CSR, Pattern
        >>> rows = CSR(*Pattern.from_lists([[0, 5], [0, 6]]), np.ones(4, np.float32))
        >>> train = Split(rows, Pattern.from_lists([[2], [1, 3]]), 7, 4)
        >>> find_seen(train, "graph").of(rows).indices
        array([2, 1, 3], dtype=int32)
    """
    return SeenItems(train.num_labels) if kind == "items" else SeenLabels(train)


def labels_and_items(split: Split) -> Pattern:
    """The labels and the own items of each row, in ascending order.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split, labels_and_items
        >>> from slide.sparse import CSR, Pattern
        >>> rows = CSR(*Pattern.from_lists([[3, 7]]), np.ones(2, np.float32))
        >>> labels_and_items(Split(rows, Pattern.from_lists([[1, 3]]), 8, 8)).indices
        array([1, 3, 7], dtype=int32)
    """
    rows, width = len(split), np.int64(split.num_labels)
    parts = split.labels, SeenItems(split.num_labels).of(split.features)
    pairs = np.sort(np.concatenate([_pairs(part, width) for part in parts]))
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    indptr = np.searchsorted(pairs, np.arange(rows + 1) * width).astype(np.int64)
    return Pattern(indptr, (pairs % width).astype(np.int32))


def _own_labels(train: Split) -> int:
    """Number of labels that are features of their row."""
    width, found = np.int64(max(train.num_features, train.num_labels)), 0
    for part in train.blocks():
        features, labels = (_pairs(each, width) for each in (part.features, part.labels))
        # Both ascend nearly, so merging them is much faster than looking each up.
        found += int(np.isin(labels, features, assume_unique=True, kind="sort").sum())
    return found


def _pairs(pattern: CSR | Pattern, width: np.int64) -> np.ndarray:
    """A number for each entry, which no other row and column has."""
    return pattern.entry_rows() * width + pattern.indices
