"""The steps of `slide.data.transform`, kept for rows to come."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from slide.data.bins import bin_features, num_bins
from slide.sparse import CSR, Pattern, row_bounds
from slide.utils.array_checks import Expected, Stored
from slide.utils.random_keys import random_key

_Rows = TypeVar("_Rows", CSR, Pattern)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

# More than the weight of a column of no row among 2^63 rows; `tf_idf_weights` gives at most that.
_MOST_WEIGHT = 64
# Arrays of a transform, as files beside its rows and in the folder of a model.
STEP_ARRAYS = ("tf_idf_weights", "label_ids", "feature_means", "feature_scales")
STEP_ARRAYS += ("bin_edges", "bin_bounds")


def row_counts(features: CSR | Pattern, num_columns: int) -> np.ndarray:
    """Counts the rows that use each column; an entry of value 0 does not count."""
    indices = features.indices
    if isinstance(features, CSR):
        indices = indices[features.values != 0]
    return np.bincount(indices, minlength=num_columns)


def tf_idf_weights(counts: np.ndarray, num_rows: int) -> np.ndarray:
    """Returns smoothed inverse document frequencies: ``ln((1 + n) / (1 + n_j)) + 1``."""
    return np.log((1 + num_rows) / (1 + counts)) + 1


def tf_idf_values(features: CSR, weights: np.ndarray) -> CSR:
    """Multiplies values by the weights of their columns."""
    least = features.values.min(initial=0)
    if least < 0:
        raise ValueError(f"tf-idf needs counts, values of at least 0, not {least}")
    return features._replace(values=_float32(features.values * weights[features.indices]))


def normalize_rows(features: CSR) -> CSR:
    """Divides rows by their L2 norm; rows of zeros stay as they are."""
    squares = np.square(features.values, dtype=np.float64)
    rows = features.entry_rows()
    norms = np.sqrt(np.bincount(rows, squares, features.num_rows))
    norms[norms == 0] = 1
    return features._replace(values=_float32(features.values / norms[rows]))


def standardize_rows(features: CSR, means: np.ndarray, scales: np.ndarray) -> CSR:
    """Brings features to mean 0 and deviation 1, and adds a constant one.

    Without it, rows of length 1 would have lost how far they lie from the mean.
    """
    rows, width = features.num_rows, len(means)
    dense = dense_rows(features, width + 1)
    dense[:, :width] = (dense[:, :width] - means) * scales
    # The length of an average row: the constant weighs as much as all features together.
    dense[:, width] = max(np.count_nonzero(scales), 1) ** 0.5
    indices = np.tile(np.arange(width + 1, dtype=np.int32), rows)
    indptr = np.arange(rows + 1, dtype=np.int64) * (width + 1)
    return CSR(indptr, indices, _float32(dense.ravel()))


def dense_rows(features: CSR, width: int) -> np.ndarray:
    """The features ``(B, width)`` float64, 0 where there is none."""
    dense = np.zeros((features.num_rows, width))
    dense[features.entry_rows(), features.indices] = features.values
    return dense


def hash_columns(num_features: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns a random column and a random sign for each feature."""
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
    """Sums the signed values of each hashed column."""
    cells = features.entry_rows() * width + columns[features.indices]
    cells, owner = np.unique(cells, return_inverse=True)
    values = features.values.astype(np.float64) * signs[features.indices]
    sums = _float32(np.bincount(owner, values, len(cells)))
    cells, sums = cells[sums != 0], sums[sums != 0]
    rows, kept = np.divmod(cells, width)
    indptr = row_bounds(np.bincount(rows, minlength=features.num_rows))
    return CSR(indptr, kept.astype(np.int32), sums)


def keep_labels(labels: _Rows, kept: np.ndarray, num_labels: int) -> _Rows:
    """Leaves out the labels that are not in ``kept``."""
    numbers = np.full(num_labels, -1, np.int32)
    numbers[kept] = np.arange(len(kept), dtype=np.int32)
    renumbered = numbers[labels.indices]
    return labels._replace(indices=renumbered).keep(renumbered >= 0)


def _float32(values: np.ndarray) -> np.ndarray:
    """Converts values to float32; raises ValueError if one is not finite there."""
    limit = np.finfo(np.float32).max
    most = np.abs(values).max(initial=0)
    if not most <= limit:
        raise ValueError(f"a transformed value must be at most {limit}, not {most}")
    return values.astype(np.float32)


@dataclass(frozen=True, eq=False)
class RowTransform:
    """The steps of `slide.data.transform`, with what they counted in the training rows.

    Attributes:
        num_features, num_labels: their numbers before the steps.
        l2_norm: whether rows are divided by their length.
        hashed_features: number of columns after hashing; 0: no hashing.
        tf_idf_weights: ``(num_features,)`` float64 factors of the values; None: no tf-idf.
        label_ids: ``(labels,)`` int32, the old number of each label that is left; None: all are.
        feature_means, feature_scales: ``(num_features,)`` float64, what is subtracted from each
            feature, and its factor then; None: features are not standardized.
        bin_edges, bin_bounds: float64 edges of the bins of all features (`slide.data.bins`), and
            ``(num_features + 1,)`` int64, where those of each begin; None: values stay values.

    Example:
        >>> import numpy as np
        >>> from slide.data import RowTransform
        >>> from slide.sparse import CSR
        >>> steps = RowTransform(num_features=3, num_labels=9, l2_norm=True)
        >>> row = CSR(np.array([0, 2]), np.array([0, 2], np.int32), np.array([3, 4], np.float32))
        >>> steps.features(row).values
        array([0.6, 0.8], dtype=float32)
    """

    num_features: int
    num_labels: int
    l2_norm: bool = False
    hashed_features: int = 0
    tf_idf_weights: np.ndarray | None = None
    label_ids: np.ndarray | None = None
    feature_means: np.ndarray | None = None
    feature_scales: np.ndarray | None = None
    bin_edges: np.ndarray | None = None
    bin_bounds: np.ndarray | None = None

    @functools.cached_property
    def _edges(self) -> list[np.ndarray] | None:
        """The edges of each feature."""
        if self.bin_edges is None or self.bin_bounds is None:
            return None
        return np.split(self.bin_edges, self.bin_bounds[1:-1])

    @functools.cached_property
    def _hashed(self) -> tuple[np.ndarray, np.ndarray]:
        return hash_columns(self.num_features, self.hashed_features)

    def features(self, features: CSR) -> CSR:
        """Features of B rows after the steps; values must fit tf-idf and float32."""
        if self.tf_idf_weights is not None:
            features = tf_idf_values(features, self.tf_idf_weights)
        if self.feature_means is not None and self.feature_scales is not None:
            features = standardize_rows(features, self.feature_means, self.feature_scales)
        if self._edges is not None:
            features = bin_features(dense_rows(features, self.num_features), self._edges)
        if self.hashed_features:
            features = hash_features(features, *self._hashed, self.hashed_features)
        return normalize_rows(features) if self.l2_norm else features

    def labels(self, labels: Pattern) -> Pattern:
        """Labels of B rows after the steps: new numbers, without the labels that are left out."""
        if self.label_ids is None:
            return labels
        return keep_labels(labels, self.label_ids, self.num_labels)

    @property
    def renumbers(self) -> bool:
        """Whether features or labels have other numbers after the steps."""
        return bool(self.hashed_features) or self.makes_bins or self.label_ids is not None

    @property
    def standardizes(self) -> bool:
        """Whether features are standardized, and a constant one added."""
        return self.feature_means is not None

    @property
    def makes_bins(self) -> bool:
        """Whether features become bins."""
        return self.bin_edges is not None

    @property
    def num_columns(self) -> tuple[int, int]:
        """Numbers of features and of labels after the steps."""
        labels = self.num_labels if self.label_ids is None else len(self.label_ids)
        features = self.num_features + self.standardizes
        if self._edges is not None:
            features = num_bins(self._edges)
        return self.hashed_features or features, labels

    def settings(self) -> dict[str, Any]:
        """The numbers; with `arrays`, everything."""
        names = ("num_features", "num_labels", "l2_norm", "hashed_features")
        return {name: getattr(self, name) for name in names}

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are not None, by name."""
        found = {name: getattr(self, name) for name in STEP_ARRAYS}
        return {name: array for name, array in found.items() if array is not None}

    @classmethod
    def restored(cls, stored: Stored) -> "RowTransform":
        """The object that had these `settings` and `arrays`."""
        features, labels = (stored.count(name, 1, 2**31) for name in ("num_features", "num_labels"))
        expected = {
            "tf_idf_weights": Expected((features,), "float64", 0, _MOST_WEIGHT),
            "label_ids": Expected((None,), "int", 0, labels - 1),
            "feature_means": Expected((features,), "float64"),
            "feature_scales": Expected((features,), "float64", 0),
            "bin_edges": Expected((None,), "float64"),
            "bin_bounds": Expected((features + 1,), "int64"),
        }
        wanted = {each for each in expected if each in stored}
        for pair in (("feature_means", "feature_scales"), ("bin_edges", "bin_bounds")):
            if wanted.intersection(pair):  # Neither is there without the other.
                wanted.update(pair)
        arrays = {name: stored.array(name, expected[name]) for name in expected if name in wanted}
        ids = arrays.get("label_ids", np.empty(0))
        if len(np.unique(ids)) < len(ids):
            stored.refuse_array("label_ids", "differ")
        if "bin_edges" in arrays:
            edges, bounds = arrays["bin_edges"], arrays["bin_bounds"]
            if bounds[0] != 0 or bounds[-1] != len(edges) or (np.diff(bounds) < 0).any():
                stored.refuse_array("bin_bounds", f"rise from 0 to {len(edges)}")
            if any((np.diff(own) <= 0).any() for own in np.split(edges, bounds[1:-1])):
                stored.refuse_array("bin_edges", "ascend within a feature")
        l2_norm = stored.flag("l2_norm")
        hashed = stored.count("hashed_features", 0, 2**31)
        return cls(features, labels, l2_norm, hashed, **arrays)


def old_label_ids(steps: Sequence[RowTransform]) -> np.ndarray | None:
    """The number of each label before the first of the steps; None: all labels keep theirs."""
    old = None
    for kept in (step.label_ids for step in steps if step.label_ids is not None):
        old = kept if old is None else old[kept]
    return old
