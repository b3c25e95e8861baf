"""From a configuration to a run; the only room that imports Hydra."""

from slide.config.build import build_network, build_optimizer, build_trainer, open_dataset
from slide.config.compose import read_config, resumed, user_errors
from slide.config.recipe import fill_in
from slide.utils.sizes import find_conf

__all__ = [
    "build_network",
    "build_optimizer",
    "build_trainer",
    "fill_in",
    "find_conf",
    "open_dataset",
    "read_config",
    "resumed",
    "user_errors",
]
