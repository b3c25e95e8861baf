"""Batches, in an order that depends only on the seed, the epoch and the step."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from slide.data.dataset import Split
from slide.sparse import CSR, Pattern
from slide.utils.profiling import profiled

__all__ = ["Batch", "Batches"]


class Batch(NamedTuple):
    """B rows of a split.

    Attributes:
        features: B rows of column numbers (int32) and values (float32).
        labels: B rows of label numbers (int32).
        rows: ``(B,)`` int64 row numbers in the split.
        weights: ``(B,)`` float64, how much each row counts; None: all count the same.

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
        split: the rows.
        batch_size: rows per batch, at least 1.
        seed: of the random orders, at least 0.
        shuffle: False: the rows keep their order, and batches are views of the split.

    Raises:
        ValueError: ``batch_size`` or ``seed`` is out of range.

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
        self.split = split
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self._order: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        """The number of steps in an epoch."""
        return -(-len(self.split) // self.batch_size)

    @profiled("batch")
    def batch(self, epoch: int, index: int) -> Batch:
        """The batch of one step.

        Args:
            epoch: at least 0.
            index: the step, in ``[0, len(self))``.

        Raises:
            IndexError: ``epoch`` or ``index`` is out of range.
        """
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
        """Yields the batches of an epoch, beginning with the step ``start``.

        Raises:
            IndexError: ``start`` is not in ``[0, len(self)]``.
        """
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
