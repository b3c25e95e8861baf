"""Models that know more labels and features: names, and what is done to rows."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slide.data import RowTransform
from slide.ranking.base_scorer import padded
from slide.utils import checks
from slide.utils.names import Names


def with_label_ids(
    steps: Sequence[RowTransform], ids: np.ndarray, num_labels: int, num_features: int
) -> tuple[RowTransform, ...]:
    """The same steps, whose outputs are other labels; the first of them renumbers all.

    Args:
        steps: of a model.
        ids: the number of each output among the labels before the steps.
        num_labels: number of these labels.
        num_features: number of features before the steps.
    """
    renumbers = len(ids) != num_labels or bool((ids != np.arange(num_labels)).any())
    if not steps:
        steps = [RowTransform(num_features, num_labels)] if renumbers else []
    kept = ids.astype(np.int32) if renumbers else None
    return tuple(
        replace(step, num_labels=len(ids) if place else num_labels, label_ids=None)
        if place or not renumbers
        else replace(step, num_labels=num_labels, label_ids=kept)
        for place, step in enumerate(steps)
    )


def with_features(
    steps: Sequence[RowTransform], count: int
) -> tuple[tuple[RowTransform, ...], int]:
    """The steps for rows with more features, and how many more the network sees.

    A new feature weighs in tf-idf as much as the rarest one. Where features are hashed, the network
    sees no more of them.
    """
    found = []
    for step in steps:
        weights = step.tf_idf_weights
        if weights is not None:
            weights = padded(weights, count, weights.max(initial=0))
        found.append(replace(step, num_features=step.num_features + count, tf_idf_weights=weights))
        count = 0 if step.hashed_features else count
    return tuple(found), count


def extended_names(known: Names | None, new: Any, what: str) -> tuple[Names | None, int]:
    """Names with further ones, and how many these are."""
    if known is None:
        if not isinstance(new, int | np.integer):
            raise ValueError(f"the {what} have no names: say how many are new, not {new!r}")
        checks.whole(what, new, 1)
        return None, int(new)
    if isinstance(new, int | np.integer | str) or not isinstance(new, Iterable | Sequence):
        raise ValueError(f"the {what} have names: give a list of new names, not {new!r}")
    found = known.extended(new, what)
    if len(found) == len(known):
        raise ValueError(f"add_{what} needs at least one name")
    return found, len(found) - len(known)
