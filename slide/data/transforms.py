"""Data sets made from data sets: tf-idf, hashed features, rows of length 1, frequent labels alone.

`transform` reads the rows of a cached data set in blocks and caches the result beside it. The other
functions do one step each, on arrays in memory.

References:
    K. Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from slide import checks, runtime
from slide.data.cache import cached
from slide.data.dataset import Block, SparseDataset, Split
from slide.sparse import CSR, Pattern

__all__ = [
    "LABEL_IDS",
    "check_transform",
    "frequent_labels",
    "hash_columns",
    "hash_features",
    "keep_labels",
    "normalize_rows",
    "row_counts",
    "tf_idf",
    "tf_idf_weights",
    "transform",
]

# Part of the cache's key: raised when the same arguments give other rows.
TRANSFORM_VERSION = 1
# In the folder of a set with ``min_label_count``: which label of the source each label is.
LABEL_IDS = "label_ids"


def transform(
    data: SparseDataset,
    *,
    tf_idf: bool = False,
    l2_norm: bool = False,
    hashed_features: int = 0,
    min_label_count: int = 0,
) -> SparseDataset:
    """Opens a transformed data set, computing it the first time.

    The steps that are asked for are taken in the order of the paragraphs; memory is bounded by a
    block of rows and a few numbers a column.

    tf-idf: the value of feature j becomes ``value * (ln((1 + n) / (1 + n_j)) + 1)``, where n_j of
    the n training rows have it. The values are meant to be counts. Rows that a run holds out of the
    training rows later count as training rows here.

    Hashing: feature j is added, with a random sign, to a random one of fewer columns (Weinberger et
    al. 2009, section 2). Features of a row stand in ascending order then; those whose sum is 0 are
    left out.

    L2 norm: rows are divided by their length; rows without features stay as they are.

    Labels: those of fewer than n training rows are left out, and the others numbered anew, in
    order. All rows stay, even without labels, so metrics are about the labels that are left.
    ``label_ids.npy`` in the folder of the result, int32, says which label of ``data`` each one is.

    Args:
        data: from a cache folder.
        tf_idf: weight counts.
        l2_norm: bring rows to length 1.
        hashed_features: number of columns after hashing; 0: no hashing.
        min_label_count: n, the fewest training rows of a label; 0: all labels stay.

    Returns:
        The data set over memory-mapped arrays; ``data`` itself where nothing is asked for.

    Raises:
        ValueError: an argument is out of range; a value is negative and tf-idf is asked for; no
            label is frequent enough; ``data`` lies in memory.
    """
    arguments = {
        "tf_idf": tf_idf,
        "l2_norm": l2_norm,
        "hashed_features": hashed_features,
        "min_label_count": min_label_count,
    }
    check_transform(**arguments)
    if not any(arguments.values()):
        return data
    if data.folder is None:
        raise ValueError(f"{data.name} is not in a cache folder, beside which it could be put")
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
    """Raise ValueError unless these can be arguments of `transform`."""
    checks.flag("tf_idf", tf_idf)
    checks.flag("l2_norm", l2_norm)
    checks.whole("hashed_features", hashed_features, 0)
    checks.whole("min_label_count", min_label_count, 0)


def row_counts(features: CSR | Pattern, num_columns: int) -> np.ndarray:
    """In how many rows each column is used, ``(num_columns,)`` int64.

    Columns must be distinct within a row; those whose value is 0 do not count.
    """
    indices = features.indices
    if isinstance(features, CSR):
        indices = indices[features.values != 0]
    return np.bincount(indices, minlength=num_columns)


def tf_idf_weights(counts: np.ndarray, num_rows: int) -> np.ndarray:
    """Inverse document frequencies, smoothed: ``ln((1 + n) / (1 + n_j)) + 1``.

    Args:
        counts: ``(features,)`` rows that use each feature.
        num_rows: n, of the rows that were counted.

    Returns:
        ``(features,)`` float64, at least 1.
    """
    return np.log((1 + num_rows) / (1 + counts)) + 1


def tf_idf(features: CSR, weights: np.ndarray) -> CSR:
    """Values times the weights of their columns.

    Args:
        features: B rows of counts.
        weights: ``(features,)``, from `tf_idf_weights`.

    Raises:
        ValueError: a value is negative, or too large for float32 afterwards.
    """
    _check_not_negative(features)
    return features._replace(values=_float32(features.values * weights[features.indices]))


def normalize_rows(features: CSR) -> CSR:
    """Rows divided by their L2 norm; rows of zeros stay as they are."""
    squares = np.square(features.values, dtype=np.float64)
    rows = _rows_of(features)
    norms = np.sqrt(np.bincount(rows, squares, features.num_rows))
    norms[norms == 0] = 1
    return features._replace(values=_float32(features.values / norms[rows]))


def hash_columns(num_features: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A random column and a random sign for each feature.

    Args:
        num_features: features to be hashed.
        columns: at least 1.
        seed: another one gives another hash function.

    Returns:
        ``(features,)`` int32 in ``[0, columns)``, and ``(features,)`` float32 of 1 and -1.
    """
    # SplitMix64 over the numbers, as in `slide.kernels.random`.
    bits = np.arange(1, num_features + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits += runtime.random_key(seed)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    chosen = ((bits >> np.uint64(32)) * np.uint64(columns)) >> np.uint64(32)
    return chosen.astype(np.int32), 1 - 2 * (bits & np.uint64(1)).astype(np.float32)


def hash_features(features: CSR, columns: np.ndarray, signs: np.ndarray, width: int) -> CSR:
    """The sum of signed values in each hashed column.

    Args:
        features: B rows.
        columns, signs: of each feature, from `hash_columns`.
        width: number of columns.

    Returns:
        B rows with distinct, ascending columns; those whose sum is 0 are left out.
    """
    places = _rows_of(features) * width + columns[features.indices]
    places, owner = np.unique(places, return_inverse=True)
    values = features.values.astype(np.float64) * signs[features.indices]
    sums = _float32(np.bincount(owner, values, len(places)))
    places, sums = places[sums != 0], sums[sums != 0]
    rows, kept = np.divmod(places, width)
    return CSR(_indptr(rows, features.num_rows), kept.astype(np.int32), sums)


def frequent_labels(counts: np.ndarray, least: int) -> np.ndarray:
    """Numbers, int32, of the labels with at least ``least`` of ``counts`` ``(labels,)``.

    Raises:
        ValueError: there is none.
    """
    kept = np.flatnonzero(counts >= least).astype(np.int32)
    if not len(kept):
        most = counts.max(initial=0)
        raise ValueError(f"min_label_count must be at most {most}, or no label is left: {least}")
    return kept


def keep_labels(labels: Pattern, kept: np.ndarray, num_labels: int) -> Pattern:
    """Rows without the labels that are not in ``kept``.

    Args:
        labels: B rows in ``[0, num_labels)``.
        kept: ascending label numbers; label ``kept[i]`` becomes label i.
        num_labels: before.
    """
    numbers = np.full(num_labels, -1, np.int32)
    numbers[kept] = np.arange(len(kept), dtype=np.int32)
    renumbered = numbers[labels.indices]
    rows = _rows_of(labels)[renumbered >= 0]
    return Pattern(_indptr(rows, labels.num_rows), renumbered[renumbered >= 0])


@dataclass
class _Recipe:
    """The steps of `transform`, with what they need to know of the training rows."""

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
                    features = tf_idf(features, self.weights)
                if self.hashed_features:
                    features = hash_features(features, *self.hashed, self.hashed_features)
                if self.l2_norm:
                    features = normalize_rows(features)
                if self.min_label_count:
                    labels = keep_labels(labels, self.label_ids, self.data.num_labels)
                yield Block(features, labels)
                bar.update(len(part))


def _rows_of(part: CSR | Pattern) -> np.ndarray:
    """The row of each entry, int64."""
    return np.repeat(np.arange(part.num_rows), np.diff(part.indptr))


def _indptr(rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Where rows end, for entries of ascending ``rows``."""
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_rows))])


def _check_not_negative(features: CSR) -> None:
    least = features.values.min(initial=0)
    if least < 0:
        raise ValueError(f"tf-idf needs counts, values of at least 0, not {least}")


def _float32(values: np.ndarray) -> np.ndarray:
    """Raise ValueError unless all values are finite in float32."""
    limit = np.finfo(np.float32).max
    most = np.abs(values).max(initial=0)
    if not most <= limit:
        raise ValueError(f"a transformed value must be at most {limit}, not {most}")
    return values.astype(np.float32)
