"""Models that get more or fewer labels and features: network, names, transforms."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from slide.data import RowTransform
from slide.nn import SlideNetwork
from slide.nn.stored_layers import StoredLinear
from slide.sampling import FullSampler
from slide.utils import checks
from slide.utils.names import Names


def with_label_ids(
    steps: Sequence[RowTransform], ids: np.ndarray, num_labels: int, num_features: int
) -> tuple[RowTransform, ...]:
    """The same steps, whose outputs are other labels; the first of them renumbers all."""
    renumbers = len(ids) != num_labels or bool((ids != np.arange(num_labels)).any())
    if not steps:
        steps = [RowTransform(num_features, num_labels)] if renumbers else []
    kept = ids.astype(np.int32) if renumbers else None
    return tuple(
        replace(step, num_labels=len(ids) if number else num_labels, label_ids=None)
        if number or not renumbers
        else replace(step, num_labels=num_labels, label_ids=kept)
        for number, step in enumerate(steps)
    )


def with_features(
    steps: Sequence[RowTransform], count: int
) -> tuple[tuple[RowTransform, ...], int]:
    """The steps for rows with ``count`` more features, and how many more the network sees.

    A new feature weighs in tf-idf as the rarest one; standardized or binned ones have no new ones.
    """
    found = []
    for step in steps:
        if step.standardizes or step.makes_bins:
            how = "in bins" if step.makes_bins else "standardized"
            raise ValueError(f"features are {how}, so there can be no new ones: train anew")
        weights = step.tf_idf_weights
        if weights is not None:
            weights = np.pad(weights, (0, count), constant_values=weights.max(initial=0))
        found.append(replace(step, num_features=step.num_features + count, tf_idf_weights=weights))
        count = 0 if step.hashed_features else count
    return tuple(found), count


def extended_names(known: Names | None, new: Any, what: str) -> tuple[Names | None, int]:
    """Names with further ones, and the number of new ones."""
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


def kept_network(network: SlideNetwork, kept: np.ndarray) -> SlideNetwork:
    """A network with some of the outputs; the other layers are shared."""
    small, at = copy.copy(network), torch.from_numpy(kept.astype(np.int64))
    small._modules = dict(network._modules)
    if isinstance(network.output, StoredLinear):
        small._modules["output"] = network.output.kept(at)
        return small
    layer = copy.copy(network.output)
    layer._modules, layer._parameters = dict(layer._modules), dict(layer._parameters)
    for name in ("weight", "bias"):
        values = network.output.get_parameter(name).detach()[at]
        setattr(layer, name, nn.Parameter(values, requires_grad=False))
    layer.out_features, layer.sampler = len(kept), FullSampler(layer.in_features, len(kept))
    small.output = layer
    return small
