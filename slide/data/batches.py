"""Batches in an order that depends on nothing but seed, epoch and step."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from slide.data.dataset import Split
from slide.sparse import CSR, Pattern

__all__ = ["Batch", "Batches"]


class Batch(NamedTuple):
    """B rows of a split.

    Attributes:
        features: B rows.
        labels: B rows.
        rows: ``(B,)`` int64 row numbers in the split.
    """

    features: CSR
    labels: Pattern
    rows: np.ndarray


class Batches:
    """The batches of a split, shuffled anew each epoch.

    The batch of an epoch and a step is a function of ``(seed, epoch, step)`` alone, so a run can be
    continued in the middle of an epoch. Each row occurs once an epoch; the last batch may be short.

    Args:
        split: the rows.
        batch_size: rows per batch, at least 1.
        seed: of the shuffles, not negative.
        shuffle: without it, rows keep their order and batches are views of the split.

    Raises:
        ValueError: ``batch_size`` or ``seed`` is out of range.
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
        """Steps per epoch."""
        return -(-len(self.split) // self.batch_size)

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch of one step.

        Args:
            epoch: not negative.
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
        return Batch(part.features, part.labels, rows)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from the step ``start`` on.

        Raises:
            IndexError: ``start`` is not in ``[0, len(self)]``.
        """
        if not 0 <= start <= len(self):
            raise IndexError(f"step {start} is not in [0, {len(self)}]")
        return (self.batch(epoch, index) for index in range(start, len(self)))

    def _permutation(self, epoch: int) -> np.ndarray:
        # Kept for the epoch at hand: it costs as much as many batches. Epoch and order are one
        # attribute, so that threads see both or neither.
        if self._order is None or self._order[0] != epoch:
            generator = np.random.default_rng((self.seed, epoch))
            self._order = epoch, generator.permutation(len(self.split))
        return self._order[1]
