"""Settings that the user left open, which follow from the data, and settings without an effect."""

from collections.abc import Collection
from typing import Any

import torch
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf, open_dict

from slide.distributed.launch import find_place, find_rank_device
from slide.utils import sizes

# What sampler=full builds. It means all outputs, whatever number a recipe has.
FULL = "slide.FullSampler"
# How keys begin that only matter where sets do not hold all outputs; where outputs are looked up.
_OF_SETS = ("sampler.active", "sampler.mode", "sampler.weighting")
_OF_TABLES = ("hash", "schedule", "sampler.candidate_share", "sampler.proposer")
_OWN_REBUILDS = ("schedule",), "sampler=lsh measures when its tables must be rebuilt"


def fill_in(config: DictConfig, num_rows: int, num_labels: int) -> None:
    """Replace settings that are null, and ``sampler=auto``, by what follows from the others.

    Example:
        >>> from slide.config import fill_in, read_config
        >>> config = read_config([])
        >>> fill_in(config, num_rows=40_000, num_labels=20_000)
        >>> config.trainer.batch_size, config.sampler.active, config.sampler.proposer
        (256, 2048, None)
    """
    sampler, network, trainer = config.sampler, config.network, config.trainer
    with open_dict(sampler):
        auto = sampler.pop("look_up", None) == "auto"
    if auto and not looks_up(config):
        recent = OmegaConf.load(sizes.find_conf() / "sampler" / "recent.yaml")
        sampler.proposer = recent.proposer if sampler.mode == "per_sample" else None
    if trainer.batch_size is None:
        trainer.batch_size = sizes.batch_size(num_rows)
    if sampler._target_ == FULL:
        sampler.active = "all"
    if sampler.active is None:
        sampler.active = sizes.active_outputs(num_labels)
    if network.hidden is None:
        network.hidden = [sizes.hidden_width(num_labels)]
    if trainer.evaluation is None:
        by_index = bool(config.ranker) and run_device(config).type == "cpu"
        trainer.evaluation = sizes.default_search(num_labels, by_index)
    if network.output_scale is None:
        shared = sampler.mode != "per_sample" or sampler.active == "all"
        network.output_scale = sizes.output_scale(num_labels, shared)


def run_device(config: DictConfig) -> torch.device:
    """Where a run, or this process of it, computes; ValueError: there is no such device."""
    # Runs of earlier versions have no such key.
    return find_rank_device(config.runtime.get("device", "cpu"), find_place())


def looks_up(config: DictConfig) -> bool:
    """Whether ``sampler=auto`` builds hash tables: where something must be found by inputs alone.

    Neurons of hidden layers are found so, and answers. With a good recipe, looked-up outputs in a
    set for the whole batch teach no more than uniform draws, and cost time; for the small sets of
    single samples the labels of recent samples are the better source.
    """
    widths = config.network.hidden_active
    hidden = OmegaConf.is_list(widths) and any(width is not None for width in widths)
    return hidden or config.trainer.evaluation == "sampler"


def proposer_class(config: DictConfig) -> Any:
    """The class of the proposer of the output layer; None: it has none."""
    proposer = config.sampler.get("proposer")
    return proposer and get_object(proposer._target_)


def check_used(config: DictConfig, given: Collection[str]) -> None:
    """Raise ValueError for a key that a user set and that nothing will use."""
    rates = [key for key in given if key.startswith("lr_schedule")]
    if rates and config.trainer.epochs == "auto":
        raise ValueError(
            f"{rates[0]} would have no effect: trainer.epochs=auto chooses the rates; give a "
            "number of epochs"
        )
    unused, why = _unused(config)
    if config.sampler.active in (None, "all"):  # It means the same as sampler=full.
        given = set(given) - {"sampler.active"}
    for key in given:
        if key.startswith(unused):
            # Many keys need look-ups, which both samplers have; sampler=lsh has no schedule.
            other = "index" if key.startswith("schedule") else "lsh"
            raise ValueError(f"{key} would have no effect: {why.format(other)}")


def _unused(config: DictConfig) -> tuple[tuple[str, ...], str]:
    sampler, other = config.sampler, "choose sampler={}"
    if sampler._target_ == FULL:
        return (*_OF_SETS, *_OF_TABLES), f"all outputs are computed; {other}"
    if sampler.active == "all":
        why = "sampler.active=all computes all outputs; give it a number"
        return (*_OF_SETS, *_OF_TABLES), why
    if sampler.get("look_up") == "auto":
        if looks_up(config):
            return _OWN_REBUILDS
        if sampler.mode == "per_sample":
            why = "sets of each sample have labels of recent samples; add sampler={}"
            return ("hash", "schedule", "sampler.proposer"), why
        why = "outputs are drawn uniformly for a set that the batch shares; add sampler={}"
        return _OF_TABLES, why
    if sampler.get("proposer") is None:
        return _OF_TABLES, f"outputs are drawn uniformly; {other}"
    kind = sampler.proposer._target_.rpartition(".")[2]
    if kind == "LSHProposer":
        return _OWN_REBUILDS
    if kind == "PublishedLSHProposer":
        return ("hash.probes",), f"the published method has nothing of it; {other}"
    if kind in ("RecentProposer", "NeighbourProposer"):
        return ("hash", "schedule"), f"no index is built; {other}"
    return ("hash", "schedule.redraw_every"), f"candidates do not come from hash tables; {other}"
