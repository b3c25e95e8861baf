"""The samplers of a configuration: that of the output layer, and those of the hidden layers."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

from hydra.utils import get_object, instantiate
from omegaconf import DictConfig

from slide.nn.network import SamplerFactory
from slide.sampling import FullSampler, IndexProposer, Sampler
from slide.utils import checks

# Growth of the intervals between rebuilds, if schedule.growth is null. Hash tables are made anew;
# lists of near rows are made for the rows that moved, which takes a small part of the time.
_GROWTH, INDEX_GROWTH = 0.7, 0.3


def build_sampler(config: DictConfig) -> partial[Sampler]:
    """A function that makes a sampler from the numbers of inputs and outputs of a layer."""
    if config.sampler.active == "all":
        return partial(FullSampler)
    config = copy.deepcopy(config)
    rebuild = config.sampler.get("rebuild")
    if isinstance(rebuild, DictConfig) and rebuild.get("growth", _GROWTH) is None:
        lists = proposer_class(config) is IndexProposer
        rebuild.growth = INDEX_GROWTH if lists else _GROWTH
    return _unguarded(instantiate(config.sampler))


def proposer_class(config: DictConfig) -> Any:
    """The class of the proposer of the output layer; None: it has none."""
    proposer = config.sampler.get("proposer")
    return proposer and get_object(proposer._target_)


def proposer_has(config: DictConfig, attribute: str) -> bool:
    """Whether the proposer of the output layer, if there is one, has an attribute that is true."""
    return bool(getattr(proposer_class(config), attribute, False))


def _unguarded(made: Any) -> Any:
    """A partial of Hydra as a plain partial, if its function is slide's own; also in settings.

    Hydra's partials check their function at each call. That takes longer than a schedule, which is
    called in each step.
    """
    if not isinstance(made, partial) or not made.func.__module__.startswith("slide."):
        return made
    keywords = {name: _unguarded(value) for name, value in made.keywords.items()}
    return partial(made.func, *made.args, **keywords)


def hidden_samplers(
    sampler: partial[Sampler], hidden: Sequence[int], active: Sequence[int | None], seed: int
) -> list[SamplerFactory | None]:
    """Samplers for the hidden layers; they differ from the sampler of the output layer in size.

    Their seeds differ, too, and they do not weight the set.

    Args:
        sampler: makes the sampler of the output layer from its numbers of inputs and outputs.
        hidden: widths of the hidden layers.
        active: number of neurons that each hidden layer computes; None: all of that layer. An empty
            list: all of all layers.
        seed: seed of the sampler of the output layer.

    Raises:
        ValueError: for numbers that do not fit.
    """
    checks.listing("hidden", hidden)
    checks.listing("hidden_active", active)
    if active and len(active) != len(hidden):
        raise ValueError(
            f"hidden_active must have {len(hidden)} entries, as hidden has, not {list(active)}"
        )
    factories: list[SamplerFactory | None] = []
    for i, size in enumerate(active):
        if size is not None:
            checks.whole("hidden_active", size, 1)
        options = {"active": size, "weighting": "none", "seed": seed + 1 + i}
        factories.append(None if size is None else partial(sampler, **options))
    return factories
