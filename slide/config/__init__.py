"""From a configuration to a run; the only package that imports Hydra."""

from slide.config.build import build_trainer as build_trainer
from slide.config.compose import read_config as read_config
from slide.config.compose import resumed as resumed
from slide.config.compose import user_errors as user_errors
from slide.config.recipe import build_network as build_network
from slide.config.recipe import build_optimizer as build_optimizer
from slide.config.recipe import fill_in as fill_in
from slide.config.recipe import open_dataset as open_dataset
from slide.utils.sizes import find_conf as find_conf
