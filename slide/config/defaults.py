"""Values of settings that the user left open: they follow from the data and the other settings."""

from collections.abc import Collection

import torch
from omegaconf import DictConfig, OmegaConf, open_dict

from slide import checks
from slide.backend import find_device

# What sampler=full builds. It means all outputs, whatever a recipe says of their number.
FULL = "slide.FullSampler"
_MANY_LABELS = 100_000
# How keys begin that only matter where outputs are looked up.
_OF_TABLES = ("hash", "schedule", "sampler.candidate_share", "sampler.proposer")


def fill_in(config: DictConfig, num_rows: int, num_labels: int) -> None:
    """Replace settings that are null, and ``sampler=auto``, by what follows from the others.

    Args:
        config: from `slide.config.read_config`; changed in place.
        num_rows: number of training rows.
        num_labels: number of labels.

    Example:
        >>> from slide.config import fill_in, read_config
        >>> config = read_config([])
        >>> fill_in(config, num_rows=40_000, num_labels=20_000)
        >>> config.trainer.batch_size, config.sampler.active, config.sampler.proposer
        (256, 2048, None)
    """
    sampler = config.sampler
    with open_dict(sampler):
        auto = sampler.pop("look_up", None) == "auto"
    if auto and not looks_up(config):
        sampler.proposer = None
    if config.trainer.batch_size is None:
        config.trainer.batch_size = batch_size(num_rows)
    if sampler._target_ == FULL:
        sampler.active = "all"
    if sampler.active is None:
        sampler.active = active_outputs(num_labels)
    if config.network.hidden is None:
        config.network.hidden = [hidden_width(num_labels)]
    if config.trainer.evaluation is None:
        by_index = bool(config.ranker) and run_device(config).type == "cpu"
        config.trainer.evaluation = search(num_labels, by_index)
    if config.network.output_scale is None:
        shared = sampler.mode != "per_sample" or sampler.active == "all"
        config.network.output_scale = output_scale(num_labels, shared)


def run_device(config: DictConfig) -> torch.device:
    """Where a run computes: ``runtime.device``.

    Raises:
        ValueError: for a device that there is not.
    """
    # Runs of earlier versions have no such key.
    return find_device(config.runtime.get("device", "cpu"))


def looks_up(config: DictConfig) -> bool:
    """Whether looked-up outputs pay, or an index is asked for: what ``sampler=auto`` goes by.

    With a good recipe, looked-up outputs in a set for the whole batch teach no more than uniform
    draws, and cost time; in the small sets of single samples they are what makes a network learn.
    """
    sizes = config.network.hidden_active
    hidden = OmegaConf.is_list(sizes) and any(size is not None for size in sizes)
    asked = config.trainer.evaluation == "sampler" or config.sampler.mode == "per_sample"
    return hidden or asked


def check_used(config: DictConfig, given: Collection[str]) -> None:
    """Raises ValueError for a setting of tables if ``sampler=auto`` will not build any.

    Args:
        config: from `slide.config.read_config`, before `fill_in`.
        given: the keys that a user set.
    """
    if config.sampler.get("look_up") != "auto" or looks_up(config):
        return
    for key in given:
        if key.startswith(_OF_TABLES):
            raise ValueError(
                f"{key} would have no effect: outputs are drawn uniformly for a set that the batch "
                "shares; add sampler=lsh"
            )


def batch_size(num_rows: int) -> int:
    """Rows in a step: a power of two in [64, 512]; an epoch has at least 128 steps if it can.

    A network learns in steps, so small data sets need small batches. On large data sets, large
    batches save time.
    """
    checks.whole("num_rows", num_rows, 0)
    return min(max(1 << max(num_rows // 128, 1).bit_length() - 1, 64), 512)


def active_outputs(num_labels: int) -> int:
    """Outputs in an active set: a quarter of all, in [64, 2048]."""
    checks.whole("num_labels", num_labels, 1)
    return min(max(num_labels // 4, 64), 2048)


def hidden_width(num_labels: int) -> int:
    """Width of the hidden layer: 512, and 256 for more than 100,000 labels.

    With a re-ranker the wider one gains little, and with so many labels it takes twice the time
    and memory.
    """
    checks.whole("num_labels", num_labels, 1)
    return 256 if num_labels > _MANY_LABELS else 512


def search(num_labels: int, ranked: bool) -> str:
    """How the best outputs are found: by an index for more than 100,000 labels and a re-ranker.

    An index misses few of the best and is many times as fast. A network alone is scored exactly.
    """
    return "index" if ranked and num_labels > _MANY_LABELS else "exact"


def output_scale(num_labels: int, shared: bool) -> float:
    """Size of the first weights of the outputs, 1 as in ``nn.Linear``.

    It is 0.1 for more than 100,000 labels and shared sets. Most of these labels still have their
    first weights when the hidden layer has already learnt. Each shared set has thousands of them,
    and the hidden layer would learn to avoid their noise. Sets per sample have only few of them.

    Args:
        num_labels: number of outputs.
        shared: whether a set is for a whole batch.
    """
    checks.whole("num_labels", num_labels, 1)
    return 0.1 if shared and num_labels > _MANY_LABELS else 1.0
