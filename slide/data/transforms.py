"""Data sets made from data sets: tf-idf, hashed features, rows of length 1, frequent labels only.

`transform` reads the rows of a cached data set in blocks and caches the result beside it. The steps
that are asked for are done in this order; memory is bounded by a block and a few numbers a column.

tf-idf
    The value of feature j becomes ``value * (ln((1 + n) / (1 + n_j)) + 1)``, where n_j of the n
    training rows have the feature. The values should be counts. Rows that a run later uses for
    validation count as training rows here.

Hashing
    Feature j is added, with a random sign, to a random one of fewer columns (Weinberger et al.
    2009, section 2). The features of a row are in ascending order then, and sums of 0 are left out.

L2 norm
    Rows are divided by their length. Rows without features stay as they are.

Labels
    Labels of fewer training rows than asked for are left out. The other labels get new numbers, in
    the same order. All rows stay, even without labels, so metrics are about the labels that are
    left. ``label_ids.npy`` (int32) in the folder of the result holds the old number of each label.

References:
    K. Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from slide import checks
from slide.data.cache import cached
from slide.data.dataset import Block, SparseDataset, Split
from slide.data.transform_steps import (
    frequent_labels,
    hash_columns,
    hash_features,
    keep_labels,
    normalize_rows,
    row_counts,
    tf_idf_values,
    tf_idf_weights,
)

__all__ = [
    "LABEL_IDS",
    "check_transform",
    "transform",
]

# Part of the cache's key. Increase it when the same arguments give other rows.
TRANSFORM_VERSION = 1
# A file in the folder of a set with ``min_label_count``: the old number of each label.
LABEL_IDS = "label_ids"


def transform(
    data: SparseDataset,
    *,
    tf_idf: bool = False,
    l2_norm: bool = False,
    hashed_features: int = 0,
    min_label_count: int = 0,
) -> SparseDataset:
    """Opens a transformed data set, and computes it the first time.

    `slide.data.transforms` gives the formulas of the steps.

    Args:
        data: a data set with a cache folder.
        tf_idf: weight counts by tf-idf.
        l2_norm: divide rows by their length.
        hashed_features: number of columns after hashing; 0: no hashing.
        min_label_count: n, the fewest training rows of a label; 0: all labels stay.

    Returns:
        The data set over memory-mapped arrays; ``data`` itself if no step is asked for.

    Raises:
        ValueError: an argument is out of range, a value is negative and tf-idf is asked for, no
            label has enough rows, or ``data`` has no cache folder.

    Example:
        >>> import tempfile
        >>> from slide.data import synthetic, transform
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, train_samples=50, test_samples=5)
        ...     small = transform(data, hashed_features=100, min_label_count=2)
        >>> data.num_features, small.num_features, small.num_labels < data.num_labels
        (10000, 100, True)
    """
    arguments: dict[str, Any] = {"tf_idf": tf_idf, "l2_norm": l2_norm}
    arguments |= {"hashed_features": hashed_features, "min_label_count": min_label_count}
    check_transform(**arguments)
    if not any(arguments.values()):
        return data
    if data.folder is None:
        raise ValueError(f"{data.name} is not in a cache folder, so the result has no place")
    if hashed_features >= data.num_features:
        raise ValueError(
            f"hashed_features must be below the number of features of {data.name}, "
            f"{data.num_features}, not {hashed_features}"
        )
    recipe = _Recipe(data, **arguments)
    return cached(
        data.folder.parent,
        name=data.name,
        key={"transform": arguments, "version": TRANSFORM_VERSION, "of": data.folder.name},
        state=data.source["state"],
        num_features=hashed_features or data.num_features,
        num_labels=(lambda: len(recipe.label_ids)) if min_label_count else data.num_labels,
        train=lambda: recipe.blocks(data.train),
        test=lambda: recipe.blocks(data.test),
        extra=lambda: {LABEL_IDS: recipe.label_ids} if min_label_count else {},
        propensity=data.propensity,
    )


def check_transform(
    *,
    tf_idf: bool = False,
    l2_norm: bool = False,
    hashed_features: int = 0,
    min_label_count: int = 0,
) -> None:
    """Raises ValueError unless these can be arguments of `transform`."""
    checks.flag("tf_idf", tf_idf)
    checks.flag("l2_norm", l2_norm)
    checks.whole("hashed_features", hashed_features, 0)
    checks.whole("min_label_count", min_label_count, 0)


@dataclass
class _Recipe:
    """The steps of `transform`, and the counts of training rows that they need."""

    data: SparseDataset
    tf_idf: bool
    l2_norm: bool
    hashed_features: int
    min_label_count: int

    @functools.cached_property
    def weights(self) -> np.ndarray:
        counts = np.zeros(self.data.num_features, np.int64)
        for part in self.data.train.blocks():
            counts += row_counts(part.features, len(counts))
        return tf_idf_weights(counts, len(self.data.train))

    @functools.cached_property
    def hashed(self) -> tuple[np.ndarray, np.ndarray]:
        return hash_columns(self.data.num_features, self.hashed_features)

    @functools.cached_property
    def label_ids(self) -> np.ndarray:
        counts = np.zeros(self.data.num_labels, np.int64)
        for part in self.data.train.blocks():
            counts += row_counts(part.labels, len(counts))
        return frequent_labels(counts, self.min_label_count)

    def blocks(self, split: Split) -> Iterator[Block]:
        """The rows of a split, transformed."""
        with tqdm(total=len(split), unit=" rows", desc="transforming", disable=None) as bar:
            for part in split.blocks():
                features, labels = part.features, part.labels
                if self.tf_idf:
                    features = tf_idf_values(features, self.weights)
                if self.hashed_features:
                    features = hash_features(features, *self.hashed, self.hashed_features)
                if self.l2_norm:
                    features = normalize_rows(features)
                if self.min_label_count:
                    labels = keep_labels(labels, self.label_ids, self.data.num_labels)
                yield Block(features, labels)
                bar.update(len(part))
