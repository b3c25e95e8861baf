"""What a transform does to rows, so that rows to come can be treated like training rows."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slide.data.transform_steps import (
    hash_columns,
    hash_features,
    keep_labels,
    normalize_rows,
    tf_idf_values,
)
from slide.sparse import CSR, Pattern

__all__ = ["RowTransform", "old_label_ids"]

# Arrays of a transform, as files beside its rows and in the folder of a model.
STEP_ARRAYS = ("tf_idf_weights", "label_ids")


@dataclass(frozen=True, eq=False)
class RowTransform:
    """The steps of `slide.data.transform`, with what they counted in the training rows.

    Attributes:
        num_features: number of features before the steps.
        num_labels: number of labels before the steps.
        l2_norm: whether rows are divided by their length.
        hashed_features: number of columns after hashing; 0: no hashing.
        tf_idf_weights: ``(num_features,)`` float64 factors of the values; None: no tf-idf.
        label_ids: ``(labels,)`` int32, the old number of each label that is left; None: all are.

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

    @functools.cached_property
    def _hashed(self) -> tuple[np.ndarray, np.ndarray]:
        return hash_columns(self.num_features, self.hashed_features)

    def features(self, features: CSR) -> CSR:
        """Features of B rows after the steps.

        Raises:
            ValueError: a value is negative where tf-idf needs counts, or too large for float32.
        """
        if self.tf_idf_weights is not None:
            features = tf_idf_values(features, self.tf_idf_weights)
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
        return bool(self.hashed_features) or self.label_ids is not None

    @property
    def num_columns(self) -> tuple[int, int]:
        """Numbers of features and of labels after the steps."""
        labels = self.num_labels if self.label_ids is None else len(self.label_ids)
        return self.hashed_features or self.num_features, labels

    def settings(self) -> dict[str, Any]:
        """The numbers; with `arrays`, everything."""
        names = ("num_features", "num_labels", "l2_norm", "hashed_features")
        return {name: getattr(self, name) for name in names}

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are not None, by name."""
        found = {name: getattr(self, name) for name in STEP_ARRAYS}
        return {name: array for name, array in found.items() if array is not None}

    @classmethod
    def restored(
        cls, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> "RowTransform":
        """The object that had these `settings` and `arrays`."""
        options: dict[str, Any] = {**settings, **arrays}
        return cls(**options)


def old_label_ids(steps: Sequence[RowTransform]) -> np.ndarray | None:
    """The number of each label before the first of the steps; None: all labels keep theirs."""
    old = None
    for kept in (step.label_ids for step in steps if step.label_ids is not None):
        old = kept if old is None else old[kept]
    return old
