"""Open data sets: rows of sparse features and labels, their batches and their checksum."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from slide.data.columns import Columns
from slide.data.row_transform import RowTransform
from slide.data.text_vectorizer import TextVectorizer
from slide.ops.ragged import select_rows
from slide.sparse import CSR, Pattern
from slide.utils import checks
from slide.utils.names import Names
from slide.utils.profiling import profiled

# What rows can be; see `slide.data.kind_of`.
ROW_KINDS = ("auto", "graph", "items", "dense", "other")

# a and b of Jain et al. 2016, for sets that are not from Amazon or Wikipedia.
PROPENSITY = (0.55, 1.5)
# A part of a split of this size fits into the memory of any machine.
SLICE_ROWS = 1 << 16
SLICE_ENTRIES = 1 << 21


class Block(NamedTuple):
    """Consecutive rows of a split, and how many malformed lines a reader left out among them."""

    features: CSR
    labels: Pattern
    skipped: int = 0


@dataclass(frozen=True, eq=False)
class Split:
    """Rows for training, validation or testing.

    The features and the labels of a row keep the order of the file. The arrays may be memory maps.
    Writing to them changes neither the file nor another process.

    Attributes:
        features: N rows of column numbers in ``[0, num_features)`` and values.
        labels: N rows of label numbers in ``[0, num_labels)``; rows may be empty.
        weights: ``(N,)`` float64, how much each row counts in training; None: all count the same.
        kind: what rows are, one of `ROW_KINDS`; ``"auto"``: `slide.data.kind_of` finds it out.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split
        >>> from slide.sparse import CSR, Pattern
        >>> features = CSR(*Pattern.from_lists([[4], [0, 2]]), np.ones(3, np.float32))
        >>> split = Split(features, Pattern.from_lists([[1], [0, 3]]), 5, 4)
        >>> len(split), split.take(np.array([1])).labels.indices.tolist()
        (2, [0, 3])
    """

    features: CSR
    labels: Pattern
    num_features: int
    num_labels: int
    weights: np.ndarray | None = None
    kind: str = "auto"

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, ROW_KINDS)
        if self.features.num_rows != self.labels.num_rows:
            raise ValueError(
                f"features have {self.features.num_rows} rows, labels {self.labels.num_rows}"
            )
        if self.weights is not None and self.weights.shape != (len(self),):
            raise ValueError(f"weights {self.weights.shape} do not fit {len(self)} rows")

    def __len__(self) -> int:
        return self.features.num_rows

    def without_zeros(self) -> "Split":
        """The same rows without features of value 0; itself if there are none."""
        features = self.features.without_zeros()
        return self if features is self.features else replace(self, features=features)

    def slice(self, start: int, stop: int) -> "Split":
        """Returns the rows from ``start`` to before ``stop``; indices and values are views."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"rows [{start}, {stop}) are not within [0, {len(self)})")
        weights = None if self.weights is None else self.weights[start:stop]
        features, labels = self.features.slice(start, stop), self.labels.slice(start, stop)
        return Split(features, labels, self.num_features, self.num_labels, weights, self.kind)

    def blocks(self, rows: int = SLICE_ROWS, entries: int = SLICE_ENTRIES) -> Iterator["Split"]:
        """Yields all rows in order, as slices of at most ``rows`` rows.

        A slice has at most ``entries`` features, and labels; a row with more is a slice of its own.
        """
        start = 0
        while start < len(self):
            stop = min(start + rows, len(self))
            for indptr in (self.features.indptr, self.labels.indptr):
                ends = indptr[start + 1 : stop + 1]
                within = int(np.searchsorted(ends, indptr[start] + entries, "right"))
                stop = start + max(within, 1)
            yield self.slice(start, stop)
            start = stop

    def take(self, rows: np.ndarray) -> "Split":
        """Copies rows ``(B,)`` int64 in the given order; a row may occur more than once."""
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            bad = rows[(rows < 0) | (rows >= len(self))][0]
            raise IndexError(f"row {bad} is not in [0, {len(self)})")
        indptr, indices, values = self.features
        features = CSR(*select_rows(indptr, rows, indices, values))
        weights = None if self.weights is None else self.weights[rows]
        labels = take_labels(self.labels, rows)
        return Split(features, labels, self.num_features, self.num_labels, weights, self.kind)


@dataclass(frozen=True, eq=False)
class SparseDataset:
    """A training and a test split over the same features and labels.

    Features of value 0 mean the same as no features, and are left out of rows in memory; files have
    none of them.

    Attributes:
        propensity: the constants a and b of propensity-scored metrics (Jain et al. 2016, section
            5). The default is that of the paper for sets that are not from Amazon or Wikipedia.
        folder: the cache folder of the arrays; None: they are in memory only.
        source: what the arrays were made from; see `slide.data.cache.cached`.
        steps: what was done to the rows of the source, in this order (`slide.data.transform`).
        label_names: a name for each label of the source, before the ``steps``; None: they have
            none.
        vectorizer: made the rows of the source from texts; None: there were no texts.
        columns: what the source is understood as, if it is a table.
        test_row_names: a name for each test row, such as its file and line; None: they have none.

    Example:
        >>> import tempfile
        >>> from slide.data import SparseDataset, holdout, synthetic
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, train_samples=10, test_samples=5)
        >>> train, validation = holdout(data.train, 0.2, seed=0)
        >>> tuned = SparseDataset("mine", train, validation, data.num_features, data.num_labels)
        >>> len(tuned.train), len(tuned.test)
        (8, 2)
    """

    name: str
    train: Split
    test: Split
    num_features: int
    num_labels: int
    propensity: tuple[float, float] = PROPENSITY
    folder: Path | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[RowTransform, ...] = ()
    label_names: Names | None = None
    vectorizer: TextVectorizer | None = None
    columns: Columns | None = None
    test_row_names: Names | None = None

    def __post_init__(self) -> None:
        if self.folder is None:  # Files hold none, so they are not read for it.
            for name in ("train", "test"):
                object.__setattr__(self, name, getattr(self, name).without_zeros())

    @cached_property
    def feature_names(self) -> Names | None:
        """The words of texts, and after them the bins of numbers; None: there are no names."""
        terms = None if self.vectorizer is None else self.vectorizer.terms
        numbers = [] if self.columns is None else self.columns.number_names()
        if not numbers:
            return terms
        return Names.of(numbers) if terms is None else terms.extended(numbers)


def holdout(split: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Divides the rows at random into a larger part and a part for validation.

    ``fraction`` is the share of the rows for validation, in (0, 1). Each part gets at least one.

    Example:
        >>> import tempfile
        >>> from slide.data import holdout, synthetic
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, train_samples=10, test_samples=0)
        >>> train, validation = holdout(data.train, 0.2, seed=0)
        >>> len(train), len(validation)
        (8, 2)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be in (0, 1), not {fraction}")
    if len(split) < 2:
        raise ValueError(
            f"{checks.counted(len(split), 'training row')} cannot be divided into rows to learn "
            "from and rows to evaluate on: take more rows, or a smaller dataset.holdout"
        )
    chosen = draw_rows(len(split), fraction, seed)
    return split.take(np.flatnonzero(~chosen)), split.take(np.flatnonzero(chosen))


def draw_rows(count: int, share: float, seed: int) -> np.ndarray:
    """Which rows are drawn, ``(count,)`` bool: a share of them, one at least, but not all."""
    aside = min(max(round(share * count), 1), max(count - 1, 0))
    chosen = np.zeros(count, bool)
    chosen[np.random.default_rng(seed).permutation(count)[:aside]] = True
    return chosen


def take_labels(labels: Pattern, rows: np.ndarray) -> Pattern:
    """Copies the labels of rows ``(B,)`` int64, in the given order."""
    return Pattern(*select_rows(labels.indptr, rows, labels.indices))


class Batch(NamedTuple):
    """B rows of a split.

    ``rows`` ``(B,)`` int64 are their numbers in the split, ``weights`` ``(B,)`` float64 how much
    each counts; None: all the same.

    Example:
        >>> import tempfile
        >>> from slide.data import Batches, synthetic
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, train_samples=10, test_samples=0)
        >>> batch = Batches(data.train, 4, seed=0, shuffle=False).batch(epoch=0, index=2)
        >>> batch.rows.tolist(), batch.features.num_rows, batch.labels.num_rows
        ([8, 9], 2, 2)
    """

    features: CSR
    labels: Pattern
    rows: np.ndarray
    weights: np.ndarray | None = None


class Batches:
    """The batches of a split. Each epoch has another random order.

    A batch depends only on ``(seed, epoch, step)``, so a run can continue in the middle of an
    epoch. Each row occurs once in an epoch. The last batch may have fewer rows.

    Args:
        batch_size: rows per batch, at least 1.
        seed: of the random orders, at least 0.
        shuffle: False: the rows keep their order, and batches are views of the split.

    Example:
        >>> import tempfile
        >>> from slide.data import Batches, synthetic
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, train_samples=10, test_samples=0)
        >>> batches = Batches(data.train, batch_size=4, seed=0)
        >>> len(batches), [len(batch.rows) for batch in batches.epoch(0)]
        (3, [4, 4, 2])
        >>> sorted(row for batch in batches.epoch(1) for row in batch.rows.tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, split: Split, batch_size: int, seed: int, shuffle: bool = True) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, not {seed}")
        self.split, self.batch_size, self.seed, self.shuffle = split, batch_size, seed, shuffle
        self._order: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        """The number of steps in an epoch."""
        return -(-len(self.split) // self.batch_size)

    @profiled("batch")
    def batch(self, epoch: int, index: int) -> Batch:
        """The batch of a step, ``index`` in ``[0, len(self))``."""
        if epoch < 0:
            raise IndexError(f"epoch must not be negative, not {epoch}")
        if not 0 <= index < len(self):
            raise IndexError(f"step {index} is not in [0, {len(self)})")
        start = index * self.batch_size
        stop = min(start + self.batch_size, len(self.split))
        if self.shuffle:
            rows = self._permutation(epoch)[start:stop].copy()
            part = self.split.take(rows)
        else:
            rows = np.arange(start, stop, dtype=np.int64)
            part = self.split.slice(start, stop)
        return Batch(part.features, part.labels, rows, part.weights)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yields the batches of an epoch, beginning with the step ``start``."""
        if not 0 <= start <= len(self):
            raise IndexError(f"step {start} is not in [0, {len(self)}]")
        return (self.batch(epoch, index) for index in range(start, len(self)))

    def _permutation(self, epoch: int) -> np.ndarray:
        # The order costs as much as many batches, so that of one epoch is kept. Epoch and order
        # are one attribute: threads see both or neither.
        if self._order is None or self._order[0] != epoch:
            generator = np.random.default_rng((self.seed, epoch))
            self._order = epoch, generator.permutation(len(self.split))
        return self._order[1]


def fingerprint(split: Split) -> str:
    """A checksum (CRC-32) of all features, labels and weights of a split; reads all of it.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split, fingerprint
        >>> from slide.sparse import CSR, Pattern
        >>> features = CSR(*Pattern.from_lists([[4], [0, 2]]), np.ones(3, np.float32))
        >>> fingerprint(Split(features, Pattern.from_lists([[1], [0, 3]]), 5, 4))
        '993e70cb'
    """
    found = 0
    # Of a slice, arrays of offsets begin above 0; their differences are the same.
    for indptr in (split.features.indptr, split.labels.indptr):
        found = crc32(np.diff(indptr).data, found)
    for array in (split.features.indices, split.features.values, split.labels.indices):
        found = crc32(np.ascontiguousarray(array).data, found)
    if split.weights is not None:
        found = crc32(np.ascontiguousarray(split.weights).data, found)
    return f"{found:08x}"
