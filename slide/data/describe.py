"""The facts of a data set, as numbers and as a table of text."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slide.data.dataset import SparseDataset, Split

__all__ = ["QUANTILES", "DatasetFacts", "SplitFacts", "describe", "facts", "folder_bytes"]

QUANTILES = {"min": 0.0, "10 %": 0.1, "50 %": 0.5, "90 %": 0.9, "99 %": 0.99, "max": 1.0}


@dataclass(frozen=True)
class SplitFacts:
    """Counts of a split.

    Attributes:
        rows: N.
        nonzeros: features of a row: the mean and the largest number.
        labels: labels of a row: the mean and the largest number.
        without_features, without_labels: rows that have none.
    """

    rows: int
    nonzeros: tuple[float, int]
    labels: tuple[float, int]
    without_features: int
    without_labels: int


@dataclass(frozen=True)
class DatasetFacts:
    """Counts of a data set. Shares lie in [0, 1]; a share of nothing is 0.

    Attributes:
        train, test: counts of the splits.
        num_features, num_labels: columns.
        quantiles: training rows of a label, over all labels, at `QUANTILES`.
        unseen, seen_once: share of the labels that have no training row, or one.
        test_unseen: share of the label entries of the test rows whose label has no training row.
        test_unseen_distinct: the same, where each label counts once.
    """

    train: SplitFacts
    test: SplitFacts
    num_features: int
    num_labels: int
    quantiles: tuple[int, ...]
    unseen: float
    seen_once: float
    test_unseen: float
    test_unseen_distinct: float


def facts(data: SparseDataset) -> DatasetFacts:
    """Counts what `describe` shows. It reads the labels, but not the features."""
    seen, asked = (_label_counts(split) for split in (data.train, data.test))
    # Each quantile is the count of a label, never a value between two counts.
    found = np.quantile(seen, list(QUANTILES.values()), method="lower") if len(seen) else []
    return DatasetFacts(
        _split_facts(data.train),
        _split_facts(data.test),
        data.num_features,
        data.num_labels,
        tuple(int(count) for count in found),
        _share((seen == 0).sum(), len(seen)),
        _share((seen == 1).sum(), len(seen)),
        _share(asked[seen == 0].sum(), asked.sum()),
        _share((asked[seen == 0] > 0).sum(), (asked > 0).sum()),
    )


def describe(data: SparseDataset) -> str:
    """Returns a table of a data set: a heading, then one line a fact, for training and test rows.

    Example:
        >>> import tempfile
        >>> from slide.data import synthetic
        >>> from slide.data.describe import describe
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = describe(synthetic(cache=folder, train_samples=10, test_samples=5))
        >>> print("".join(table.splitlines(keepends=True)[:3]))
        synthetic                               train         test
        rows                                       10            5
        features                               10,000
    """
    found = facts(data)
    train, test = found.train, found.test
    both = {
        "rows": (f"{train.rows:,}", f"{test.rows:,}"),
        "features": (f"{found.num_features:,}", ""),
        "labels": (f"{found.num_labels:,}", ""),
        "non-zeros a row (most)": (_mean(train.nonzeros), _mean(test.nonzeros)),
        "labels a row (most)": (_mean(train.labels), _mean(test.labels)),
        "rows without features": (f"{train.without_features:,}", f"{test.without_features:,}"),
        "rows without labels": (f"{train.without_labels:,}", f"{test.without_labels:,}"),
    }
    for name, count in zip(QUANTILES, found.quantiles, strict=False):
        both[f"training rows a label, {name}"] = (f"{count:,}", "")
    both |= {
        "labels never seen in training": (_percent(found.unseen), ""),
        "labels seen once": (_percent(found.seen_once), ""),
        "test labels never seen in training": ("", _percent(found.test_unseen)),
        "  each label counted once": ("", _percent(found.test_unseen_distinct)),
    }
    lines = [(data.name, "train", "test"), *((name, *cells) for name, cells in both.items())]
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    shown = (f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in lines)
    return "\n".join(line.rstrip() for line in shown) + "\n"


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder and below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _label_counts(split: Split) -> np.ndarray:
    """Counts the rows of each label; memory is bounded by a block and the result."""
    counts = np.zeros(split.num_labels, np.int64)
    for part in split.blocks():
        counts += np.bincount(part.labels.indices, minlength=len(counts))
    return counts


def _split_facts(split: Split) -> SplitFacts:
    features, labels = (np.diff(part.indptr) for part in (split.features, split.labels))
    return SplitFacts(
        len(split),
        (_share(features.sum(), len(split)), int(features.max(initial=0))),
        (_share(labels.sum(), len(split)), int(labels.max(initial=0))),
        int((features == 0).sum()),
        int((labels == 0).sum()),
    )


def _share(part: int, whole: int) -> float:
    return float(part / whole) if whole else 0.0


def _mean(pair: tuple[float, int]) -> str:
    return f"{pair[0]:,.1f} ({pair[1]:,})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
