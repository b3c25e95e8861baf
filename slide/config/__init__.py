"""From a configuration to a run; the only room that imports Hydra."""

from slide.config.build import build_trainer, open_dataset
from slide.config.compose import find_conf, read_config, user_errors
from slide.config.defaults import fill_in
from slide.config.parts import build_network, build_optimizer
from slide.config.resume import resumed

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
