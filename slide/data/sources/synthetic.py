"""A generator of learnable multi-label data of any size.

The popularity of features and labels follows a law like Zipf's. Each label has a prototype: a few
features, of which some are the same in all of its cluster. A row has a first label, drawn by
popularity, and labels near it in the cluster. Its features come from the prototypes of its labels
and, as noise, by popularity.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slide.data.cache import cached
from slide.data.dataset import Block, SparseDataset
from slide.ops.sources import draw_features, draw_labels
from slide.sparse import CSR, Pattern, row_bounds
from slide.utils import checks
from slide.utils.progress_bar import ProgressBar
from slide.utils.resources import check_room

# Part of the cache's key. Increase it when the same parameters give other rows.
SYNTHETIC_VERSION = 1
MOST_COLUMNS = 2**31 - 1  # Numbers of columns are int32.
GENERATED_ROWS = 8192
PROTOTYPE = 16  # Features of a label.
SHARED = 4  # Of them, those that are the same in all of its cluster.
# Shapes of the negative binomial distributions: a smaller one makes the rows' lengths differ more.
NONZEROS_SHAPE = 4.0
LABELS_SHAPE = 2.0
# Labels in a cluster, in multiples of the mean number of labels in a row.
CLUSTER = 8
# Streams of random numbers.
STREAMS = {"model": 0, "train": 1, "test": 2}


def synthetic(
    *,
    cache: str | Path,
    name: str = "synthetic",
    num_features: int = 10_000,
    num_labels: int = 20_000,
    train_samples: int = 40_000,
    test_samples: int = 5_000,
    nonzeros: float = 40.0,
    labels_per_row: float = 5.0,
    popularity: float = 0.75,
    feature_popularity: float = 0.75,
    noise: float = 0.4,
    seed: int = 0,
) -> SparseDataset:
    """Opens a generated data set, and generates it the first time.

    Values are positive, like tf-idf weights, and rows have L2 norm 1. Training and test rows have
    the same distribution. The parameters and the seed determine every byte.

    Args:
        nonzeros: mean number of features in a row.
        labels_per_row: mean number of labels in a row.
        popularity: exponent of the labels' popularity. The probability that a label is a row's
            first one is proportional to its rank to the power of ``-popularity``.
        feature_popularity: the same for features.
        noise: share of the features that are drawn by popularity, not from the labels' prototypes.
        seed: at least 0.

    Example:
        >>> import tempfile
        >>> from slide.data import synthetic
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, num_labels=300, train_samples=50, test_samples=5)
        >>> len(data.train), len(data.test), data.num_features, data.num_labels
        (50, 5, 10000, 300)
    """
    shape = RowShape(
        num_features, num_labels, nonzeros, labels_per_row, popularity, feature_popularity, noise
    ).checked()
    counts = {"train_samples": train_samples, "test_samples": test_samples, "seed": seed}
    for parameter, value in counts.items():
        checks.whole(parameter, value, 0)

    @functools.cache
    def model() -> RowModel:
        return build_model(shape, np.random.default_rng((seed, STREAMS["model"])))

    return cached(
        cache,
        name=name,
        key={"generator": "synthetic", "version": SYNTHETIC_VERSION, **shape._asdict(), **counts},
        state={},
        blocks=lambda part: generate_rows(
            shape, model(), counts[f"{part}_samples"], seed, STREAMS[part]
        ),
        num_columns=lambda: (num_features, num_labels),
        # Two numbers of four bytes for a feature, one for a label, and two bounds of eight bytes.
        size=round((train_samples + test_samples) * (8 * nonzeros + 4 * labels_per_row + 16)),
    )


class RowShape(NamedTuple):
    """The arguments of `synthetic` that shape a row."""

    num_features: int
    num_labels: int
    nonzeros: float
    labels_per_row: float
    popularity: float
    feature_popularity: float
    noise: float

    @property
    def num_clusters(self) -> int:
        return max(1, self.num_labels // max(1, round(CLUSTER * self.labels_per_row)))

    def checked(self) -> "RowShape":
        """The same, as floats where they may be: 5 and 5.0 have the same key of the cache."""
        for name in ("num_features", "num_labels"):
            checks.whole(name, getattr(self, name), 1)
            checks.within(name, getattr(self, name), 1, MOST_COLUMNS)
        checks.within("nonzeros", self.nonzeros, 1, self.num_features)
        checks.within("labels_per_row", self.labels_per_row, 1, self.num_labels)
        checks.within("popularity", self.popularity, 0, 5)
        checks.within("feature_popularity", self.feature_popularity, 0, 5)
        checks.share("noise", self.noise)
        return RowShape(self.num_features, self.num_labels, *map(float, self[2:]))


class RowModel(NamedTuple):
    """The parts that all rows share, by rank of popularity; prototypes are ranks of features."""

    feature_names: np.ndarray
    label_names: np.ndarray
    prototypes: np.ndarray
    idf: np.ndarray


def generate_rows(
    shape: RowShape, model: RowModel, rows: int, seed: int, stream: int
) -> Iterator[Block]:
    """Generates rows in chunks; memory is bounded by a chunk and the model."""
    row_counts = _count_table(shape.nonzeros, NONZEROS_SHAPE)
    label_counts = _count_table(shape.labels_per_row, LABELS_SHAPE)
    positions = np.full(shape.num_features, -1, np.int64)
    with ProgressBar(total=rows, unit=" rows", desc="generating") as bar:
        for chunk, start in enumerate(range(0, rows, GENERATED_ROWS)):
            count = min(GENERATED_ROWS, rows - start)
            rng = np.random.default_rng((seed, stream, chunk))
            label_indptr, ranks = _make_labels(shape, rng, label_counts, count)
            indptr = row_bounds(
                np.minimum(_draw_counts(rng, row_counts, count), shape.num_features)
            )
            total = indptr[-1]
            features = CSR(indptr, np.empty(total, np.int32), np.empty(total, np.float32))
            draw_features(
                label_indptr,
                ranks,
                model.prototypes,
                rng.random(total),
                rng.integers(0, PROTOTYPE, total, np.uint8),
                _zipf(rng.random(total), shape.num_features, shape.feature_popularity),
                shape.noise,
                model.idf,
                model.feature_names,
                positions,
                *features,
            )
            # Ascending numbers, as in most files: the order must not tell the first label.
            labels = Pattern(label_indptr, model.label_names[ranks])
            order = np.lexsort((labels.indices, labels.entry_rows()))
            yield Block(features, labels._replace(indices=labels.indices[order]))
            bar.update(count)


def build_model(shape: RowShape, rng: np.random.Generator) -> RowModel:
    """Draws the prototypes, and the column of each rank."""
    size = shape.num_labels * (4 * PROTOTYPE + 12)  # Prototypes, and an order of the labels.
    check_room(size, f"prototypes of num_labels={shape.num_labels:,}")
    common = _zipf(
        rng.random((shape.num_clusters, SHARED)), shape.num_features, shape.feature_popularity
    )
    prototypes = np.empty((shape.num_labels, PROTOTYPE), np.int32)
    with ProgressBar(total=shape.num_labels, unit=" labels", desc="prototypes") as bar:
        for start in range(0, shape.num_labels, 1 << 16):
            part = prototypes[start : start + (1 << 16)]
            part[:] = _zipf(rng.random(part.shape), shape.num_features, shape.feature_popularity)
            part[:, :SHARED] = common[(start + np.arange(len(part))) % shape.num_clusters]
            bar.update(len(part))
    share = np.arange(1, shape.num_features + 1) ** -shape.feature_popularity
    return RowModel(
        rng.permutation(shape.num_features).astype(np.int32),
        rng.permutation(shape.num_labels).astype(np.int32),
        prototypes,
        (1 + np.log(share.sum() / share)).astype(np.float32),
    )


def _make_labels(
    shape: RowShape, rng: np.random.Generator, table: np.ndarray, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    first = _zipf(rng.random(rows), shape.num_labels, shape.popularity).astype(np.int64)
    cluster = first % shape.num_clusters
    size = (shape.num_labels - cluster + shape.num_clusters - 1) // shape.num_clusters
    indptr = row_bounds(np.minimum(_draw_counts(rng, table, rows), size))
    steps = rng.geometric(1 / (1 + shape.labels_per_row), indptr[-1])
    steps *= 1 - 2 * rng.integers(0, 2, indptr[-1])
    ranks = np.empty(indptr[-1], np.int32)
    draw_labels(first, steps, shape.num_clusters, shape.num_labels, indptr, ranks)
    return indptr, ranks


def _zipf(uniform: np.ndarray, size: int, exponent: float) -> np.ndarray:
    """Turns uniform numbers into int32 ranks in [0, size), of density (rank + 1) ^ -exponent."""
    if abs(exponent - 1) < 1e-9:
        x = (size + 1.0) ** uniform
    else:
        power = 1 - exponent
        x = (1 + uniform * ((size + 1.0) ** power - 1)) ** (1 / power)
    return np.minimum(x - 1, size - 1).astype(np.int32)


def _count_table(mean: float, shape: float) -> np.ndarray:
    """Returns cumulated probabilities of 0, 1, ... for a negative binomial of mean ``mean - 1``."""
    mean -= 1
    ratio = mean / (mean + shape)
    number = np.arange(int(mean + 40 * np.sqrt(mean + mean**2 / shape)) + 2)
    steps = ratio * (number + shape) / (number + 1)
    first = (1 - ratio) ** shape
    return np.cumsum(first * np.concatenate(([1.0], np.cumprod(steps))))


def _draw_counts(rng: np.random.Generator, table: np.ndarray, size: int) -> np.ndarray:
    """Draws counts of at least 1, by strata, so that their mean hardly differs between chunks."""
    uniform = (rng.permutation(size) + rng.random(size)) / size
    return 1 + np.minimum(np.searchsorted(table, uniform, side="right"), len(table) - 1)
