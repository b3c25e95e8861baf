"""Training rows that are held out for choices: how long to train, how to re-rank."""

from dataclasses import replace

import numpy as np

from slide.data.dataset import Split, holdout
from slide.data.kind import is_graph
from slide.utils.checks import counted

# A tenth of the rows is held out.
_SHARE = 10
# 8,192 rows tell precisions apart that differ by less than a percent.
_MOST = 8192
# Of small sets 1,000 rows are held out, or a fifth if that is less.
_ENOUGH = 1000
_LARGEST_SHARE = 5


def validation_split(split: Split, seed: int) -> tuple[Split, Split]:
    """Divides training rows into rows to learn from, and rows that are held out for choices.

    A tenth of the rows is held out, but at most 8,192, and at least 1,000 or a fifth of the rows,
    whichever is smaller. Both are as from `divide`. It raises ValueError if no label is left to
    learn from.

    Example:
        >>> import tempfile
        >>> from slide.data import synthetic, validation_split
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, train_samples=100, test_samples=0)
        >>> train, held = validation_split(data.train, seed=0)
        >>> len(train), len(held)
        (80, 20)
    """
    rows = len(split)
    if rows > 1:
        train, held = divide(split, min(held_rows(rows) / rows, 0.5), seed)
        if len(train.labels.indices):
            return train, held
    raise ValueError(
        f"{counted(rows, 'training row')} with {counted(len(split.labels.indices), 'label')} "
        "cannot be divided into rows to learn from and rows for choices: take more rows"
    )


def held_rows(rows: int) -> int:
    """How many of ``rows`` rows `validation_split` holds out."""
    return max(min(rows // _SHARE, _MOST), min(_ENOUGH, rows // _LARGEST_SHARE), 1)


def divide(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """Divides training rows into rows to learn from, and rows that are like rows to come.

    In a knowledge graph (`slide.data.kind_of`), pairs of a row and a label are held out, not whole
    rows, each pair with the same probability: a held-out row has the features of its row and its
    held-out labels. A row that loses all its labels is not among the others.

    Returns (the rows to learn from, the held-out rows), copies in memory; rows keep their order.
    There must be two rows, and the ``share`` that is held out lies in (0, 1).

    Example:
        >>> import tempfile
        >>> from slide.data import divide, synthetic
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, train_samples=100, test_samples=0)
        >>> train, held = divide(data.train, 0.3, seed=0)
        >>> len(train), len(held)
        (70, 30)
    """
    if len(split) > 1 and len(split.labels.indices) > 1 and is_graph(split):
        sizes = np.diff(split.labels.indptr)
        count = max(round(share * np.count_nonzero(sizes)), 1)  # Rows with labels can be held out.
        draws = np.random.default_rng(seed).random(len(split.labels.indices))
        held = (draws <= max(_pair_share(sizes, count), draws.min())) & (draws < draws.max())
        return _keep_pairs(split, ~held, True), _keep_pairs(split, held, False)
    return holdout(split, share, seed)


def _pair_share(sizes: np.ndarray, count: int) -> float:
    """The probability of a pair by which ``count`` rows of ``sizes`` get one on average."""
    least, most = 0.0, 1.0
    for _ in range(40):
        middle = (least + most) / 2
        rows = (1 - (1 - middle) ** sizes).sum()
        least, most = (middle, most) if rows < count else (least, middle)
    return least


def _keep_pairs(split: Split, kept: np.ndarray, keep_empty: bool) -> Split:
    """The rows with some of their labels; without rows that lost all, or had none."""
    labels = split.labels.keep(kept)
    left, before = np.diff(labels.indptr), np.diff(split.labels.indptr)
    rows = np.flatnonzero((left > 0) | (keep_empty & (before == 0)))
    return replace(split, labels=labels).take(rows)
