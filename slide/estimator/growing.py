"""A classifier that gets labels and features, or loses labels."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from slide.estimator.targets import check_class_names, check_same_kind, label_names, name_array
from slide.model import Model
from slide.sampling import ActiveSampler
from slide.utils.sizes import active_outputs


class GrowingMixin:
    """What changes the labels and features of a classifier with ``model_`` and ``classes_``."""

    model_: Model
    classes_: np.ndarray
    active: Any
    n_features_in_: int

    def add_labels(self, labels: Sequence[Any]) -> Any:
        """Add labels, which come last in `classes_` and which `partial_fit` then learns.

        They begin with small weights and the bias of rare labels, so they hardly ever are answers
        before they are learnt; see `slide.Model.add_labels`.

        Args:
            labels: their names, of the same type as those of `classes_`.

        Raises:
            ValueError: for a name that there is already, or a text where the others are numbers.
        """
        check_is_fitted(self, "model_")
        check_same_kind(labels, self.classes_)
        known = self.classes_.tolist()
        there = set(known)
        names = [name for name in labels if name in there]
        if names or len(set(labels)) < len(labels):
            raise ValueError(f"names of labels must differ; {(names or [labels])[0]!r} is not new")
        classes = name_array([*known, *labels])
        check_class_names(classes)
        sampler = self.model_.network.output.sampler
        if self.active is None and isinstance(sampler, ActiveSampler):
            sampler.active = active_outputs(len(classes))
        with self._unnamed():
            self.model_.add_labels(len(labels))
        self._name(classes)
        return self

    def remove_labels(self, labels: Sequence[Any]) -> Any:
        """Remove labels from `classes_` and from the model.

        Args:
            labels: their names.

        Raises:
            ValueError: for a name that is not among the classes, or if none would be left.
        """
        check_is_fitted(self, "model_")
        gone = np.isin(self.classes_, name_array(labels))
        if gone.sum() < len(set(labels)):
            unknown = set(labels) - set(self.classes_.tolist())
            raise ValueError(f"label {min(unknown, key=str)!r} is not among the classes")
        with self._unnamed():
            self.model_.remove_labels(np.flatnonzero(gone).tolist())
        self._name(self.classes_[~gone])
        return self

    def add_features(self, features: Any) -> Any:
        """Add features, the last columns of rows to come, which `partial_fit` then learns.

        Args:
            features: how many; or their names, if X had names.

        Raises:
            ValueError: for a number where X had names, or names where it had none.
        """
        check_is_fitted(self, "model_")
        self.model_.add_features(features)
        self.n_features_in_ = self.model_.num_features
        if self.model_.feature_names is not None:
            self.feature_names_in_ = np.array(list(self.model_.feature_names), object)
        return self

    @contextmanager
    def _unnamed(self) -> Iterator[None]:
        """The labels of the model are numbers; after an error they have their names again."""
        names, self.model_.label_names = self.model_.label_names, None
        try:
            yield
        except BaseException:
            self.model_.label_names = names
            raise

    def _name(self, classes: np.ndarray) -> None:
        """Call the outputs of the model by these names."""
        self.classes_ = classes
        self.model_.rename_labels(label_names(classes))
