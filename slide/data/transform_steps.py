"""The steps of `slide.data.transform`, each on arrays in memory.

References:
    K. Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009.
"""

from typing import TypeVar

import numpy as np

from slide.sparse import CSR, Pattern, row_bounds
from slide.utils.random_keys import random_key

__all__ = [
    "frequent_labels",
    "hash_columns",
    "hash_features",
    "keep_labels",
    "mix_bits",
    "normalize_rows",
    "row_counts",
    "tf_idf_values",
    "tf_idf_weights",
]

_Rows = TypeVar("_Rows", CSR, Pattern)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def row_counts(features: CSR | Pattern, num_columns: int) -> np.ndarray:
    """Counts the rows that use each column, ``(num_columns,)`` int64.

    Columns must be distinct within a row. An entry of value 0 does not count.
    """
    indices = features.indices
    if isinstance(features, CSR):
        indices = indices[features.values != 0]
    return np.bincount(indices, minlength=num_columns)


def tf_idf_weights(counts: np.ndarray, num_rows: int) -> np.ndarray:
    """Returns smoothed inverse document frequencies: ``ln((1 + n) / (1 + n_j)) + 1``.

    Args:
        counts: ``(features,)``, n_j: the rows that use each feature.
        num_rows: n, the number of rows that were counted.

    Returns:
        ``(features,)`` float64, at least 1.
    """
    return np.log((1 + num_rows) / (1 + counts)) + 1


def tf_idf_values(features: CSR, weights: np.ndarray) -> CSR:
    """Multiplies values by the weights of their columns.

    Args:
        features: B rows of counts.
        weights: ``(features,)``, from `tf_idf_weights`.

    Raises:
        ValueError: a value is negative, or too large for float32 afterwards.
    """
    _check_not_negative(features)
    return features._replace(values=_float32(features.values * weights[features.indices]))


def normalize_rows(features: CSR) -> CSR:
    """Divides rows by their L2 norm; rows of zeros stay as they are."""
    squares = np.square(features.values, dtype=np.float64)
    rows = features.entry_rows()
    norms = np.sqrt(np.bincount(rows, squares, features.num_rows))
    norms[norms == 0] = 1
    return features._replace(values=_float32(features.values / norms[rows]))


def hash_columns(num_features: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns a random column and a random sign for each feature.

    Args:
        num_features: features before hashing.
        columns: columns after it, at least 1.
        seed: of the hash function.

    Returns:
        ``(features,)`` int32 in ``[0, columns)``, and ``(features,)`` float32 of 1 and -1.
    """
    bits = mix_bits(np.arange(num_features, dtype=np.uint64) * _GOLDEN + random_key(seed))
    chosen = ((bits >> np.uint64(32)) * np.uint64(columns)) >> np.uint64(32)
    return chosen.astype(np.int32), 1 - 2 * (bits & np.uint64(1)).astype(np.float32)


def mix_bits(words: np.ndarray) -> np.ndarray:
    """64 bits that look random for each word (uint64): SplitMix64 (Steele, Lea and Flood 2014)."""
    z = words + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_features(features: CSR, columns: np.ndarray, signs: np.ndarray, width: int) -> CSR:
    """Sums the signed values of each hashed column.

    Args:
        features: B rows.
        columns, signs: column and sign of each feature, from `hash_columns`.
        width: number of columns after hashing.

    Returns:
        B rows with distinct, ascending columns. Sums of 0 are left out.
    """
    places = features.entry_rows() * width + columns[features.indices]
    places, owner = np.unique(places, return_inverse=True)
    values = features.values.astype(np.float64) * signs[features.indices]
    sums = _float32(np.bincount(owner, values, len(places)))
    places, sums = places[sums != 0], sums[sums != 0]
    rows, kept = np.divmod(places, width)
    indptr = row_bounds(np.bincount(rows, minlength=features.num_rows))
    return CSR(indptr, kept.astype(np.int32), sums)


def frequent_labels(counts: np.ndarray, least: int) -> np.ndarray:
    """Returns the numbers, int32, of the labels whose count is at least ``least``.

    Args:
        counts: ``(labels,)`` rows of each label.
        least: the smallest count that is enough.

    Raises:
        ValueError: no label has enough.
    """
    kept = np.flatnonzero(counts >= least).astype(np.int32)
    if not len(kept):
        most = counts.max(initial=0)
        raise ValueError(f"min_label_count must be at most {most}, or no label is left: {least}")
    return kept


def keep_labels(labels: _Rows, kept: np.ndarray, num_labels: int) -> _Rows:
    """Leaves out the labels that are not in ``kept``.

    Args:
        labels: B rows with a column for each label.
        kept: ascending label numbers; label ``kept[i]`` becomes label i.
        num_labels: number of labels before.
    """
    numbers = np.full(num_labels, -1, np.int32)
    numbers[kept] = np.arange(len(kept), dtype=np.int32)
    renumbered = numbers[labels.indices]
    return labels._replace(indices=renumbered).keep(renumbered >= 0)


def _check_not_negative(features: CSR) -> None:
    least = features.values.min(initial=0)
    if least < 0:
        raise ValueError(f"tf-idf needs counts, values of at least 0, not {least}")


def _float32(values: np.ndarray) -> np.ndarray:
    """Converts values to float32; raises ValueError if one is not finite there."""
    limit = np.finfo(np.float32).max
    most = np.abs(values).max(initial=0)
    if not most <= limit:
        raise ValueError(f"a transformed value must be at most {limit}, not {most}")
    return values.astype(np.float32)
