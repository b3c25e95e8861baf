"""What training rows are, where it decides what may be an answer or how long to train."""

import numpy as np

from slide.data.dataset import Split
from slide.data.known_labels import KnownLabels, lists_all_labels, row_keys
from slide.sparse import CSR, Pattern

__all__ = ["OwnItems", "are_items", "find_known", "is_graph", "kind_of", "labels_and_items"]

# Rows are items if chance would give so many pairs of a row and a label that is its feature, of so
# many labels, and there is at most this share of them, in so many rows.
_EXPECTED, _SPREAD, _SHARE, _ROWS = 30, 15, 0.05, 20_000
# Rows with more than this share of the features are dense.
DENSE = 1 / 2
# From here on there are no numbers of items.
_NO_ITEM = 2**31


def kind_of(train: Split) -> str:
    """What training rows are: ``"graph"``, ``"items"``, ``"dense"`` or ``"other"``.

    Args:
        train: training rows, and what they are said to be (`slide.data.Split.kind`), or else:
            `slide.data.lists_all_labels` holds for a graph, `are_items` for items; dense rows have
            more than half of the features, such as measurements.

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
    if lists_all_labels(train):
        return "graph"
    if are_items(train):
        return "items"
    every = len(train) * train.num_features
    return "dense" if len(train.features.indices) > DENSE * every else "other"


def is_graph(train: Split) -> bool:
    """Whether training rows are a knowledge graph, as in `kind_of`."""
    return train.kind == "graph" or (train.kind == "auto" and lists_all_labels(train))


def are_items(train: Split) -> bool:
    """Whether features and labels are the same items, and rows ask for other ones than their own.

    So it is in a recommender: places visited are features, places visited later are labels, each
    place has one number for both, and a place that was visited is no answer. It is assumed if
    chance alone would make a feature a label of its row, too, at least 30 times, and it occurs at
    most a twentieth as often, in 20,000 rows at most. What chance would do must not hang on a few
    labels, because a feature may be an answer that never holds, or on rows that are copies.

    Args:
        train: training rows.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split, are_items
        >>> from slide.sparse import CSR, Pattern
        >>> rng = np.random.default_rng(0)
        >>> baskets = np.argsort(rng.random((200, 20)), axis=1)[:, :8]
        >>> seen, later = (Pattern.from_lists(part) for part in (baskets[:, :4], baskets[:, 4:]))
        >>> are_items(Split(CSR(*seen, np.ones(800, np.float32)), later, 20, 20))
        True
    """
    # Files may be sorted, so the rows come from all of them.
    rows = np.linspace(0, len(train) - 1, min(len(train), _ROWS)).astype(np.int64)
    train, width = train.take(rows), min(train.num_features, train.num_labels)
    train = train.take(np.sort(np.unique(row_keys(train.features), return_index=True)[1]))
    features, labels = (
        np.bincount(ids, minlength=width)[:width].astype(np.float64)
        for ids in (train.features.indices, train.labels.indices)
    )
    chances = features * labels / max(len(train), 1)
    expected = chances.sum()
    # As many equal chances would have this ratio.
    if expected < _EXPECTED or expected**2 < _SPREAD * (chances**2).sum():
        return False
    return bool(_own_labels(train) <= _SHARE * expected)


class OwnItems:
    """Finds the items of a row, which are no answers where `are_items` holds.

    Args:
        num_labels: number of labels, N.
        items: ``(N,)`` ascending numbers, for each label the feature that is the same item; None:
            they have the same number.

    Example:
        >>> import numpy as np
        >>> from slide.data import OwnItems
        >>> from slide.sparse import CSR, Pattern
        >>> rows = CSR(*Pattern.from_lists([[0, 5], [9]]), np.ones(3, np.float32))
        >>> OwnItems(num_labels=8).of(rows).indices
        array([0, 5], dtype=int32)
    """

    def __init__(self, num_labels: int, items: np.ndarray | None = None):
        self.num_labels, self.items = num_labels, items

    def restricted(self, kept: np.ndarray) -> "OwnItems":
        """The same for some of the labels: ``kept`` holds their numbers, ascending."""
        return OwnItems(len(kept), kept if self.items is None else self.items[kept])

    def grown(self, count: int) -> "OwnItems":
        """The same with further labels, which are no items."""
        items = np.arange(self.num_labels) if self.items is None else self.items
        # Ascending, and above all numbers of features.
        new = _NO_ITEM + np.arange(self.num_labels, self.num_labels + count)
        return OwnItems(len(items) + count, np.concatenate([items, new]))

    def of(self, features: CSR) -> Pattern:
        """The labels that are features of R rows: R rows."""
        labels, items = features.indices, self.items
        if items is None:
            kept = labels < self.num_labels
        else:
            labels = np.minimum(np.searchsorted(items, labels), len(items) - 1).astype(np.int32)
            kept = items[labels] == features.indices
        return Pattern(features.indptr, labels).keep(kept)


def find_known(train: Split, kind: str) -> KnownLabels | OwnItems:
    """Finds the labels of rows to come that are known, so that they are no answers.

    Args:
        train: training rows.
        kind: `kind_of` the training rows. The own items of a row are known if it is ``"items"``,
            else the labels of training rows with the same features.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split, find_known
        >>> from slide.sparse import CSR, Pattern
        >>> rows = CSR(*Pattern.from_lists([[0, 5], [0, 6]]), np.ones(4, np.float32))
        >>> train = Split(rows, Pattern.from_lists([[2], [1, 3]]), 7, 4)
        >>> find_known(train, "graph").of(rows).indices
        array([2, 1, 3], dtype=int32)
    """
    return OwnItems(train.num_labels) if kind == "items" else KnownLabels(train)


def labels_and_items(split: Split) -> Pattern:
    """The labels and the own items of each row, in ascending order.

    Args:
        split: R rows of items.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split, labels_and_items
        >>> from slide.sparse import CSR, Pattern
        >>> rows = CSR(*Pattern.from_lists([[3, 7]]), np.ones(2, np.float32))
        >>> labels_and_items(Split(rows, Pattern.from_lists([[1, 3]]), 8, 8)).indices
        array([1, 3, 7], dtype=int32)
    """
    rows, width = len(split), np.int64(split.num_labels)
    parts = split.labels, OwnItems(split.num_labels).of(split.features)
    pairs = np.sort(np.concatenate([_pairs(part, width) for part in parts]))
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    indptr = np.searchsorted(pairs, np.arange(rows + 1) * width).astype(np.int64)
    return Pattern(indptr, (pairs % width).astype(np.int32))


def _own_labels(train: Split) -> int:
    """Number of labels that are features of their row."""
    width = np.int64(max(train.num_features, train.num_labels))
    features, labels = (_pairs(part, width) for part in (train.features, train.labels))
    # Both ascend, so merging them is much faster than looking each up.
    return int(np.isin(labels, features, assume_unique=True, kind="sort").sum())


def _pairs(pattern: CSR | Pattern, width: np.int64) -> np.ndarray:
    """A number for each entry, which differs from those of all other rows and columns."""
    return pattern.entry_rows() * width + pattern.indices
