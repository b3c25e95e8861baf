"""Limits of what this process may use, and work that it need not do."""

import copy
import os
import resource
from contextlib import contextmanager
from pathlib import Path

import yaml
from numba.core import config

from slide.ranking import final_ranker
from slide.sampling import sketch
from slide.search import row_index

# A re-ranker of a test takes half of the time with these settings of `final_ranker`. Tests of its
# precision have the fixture `all_trees`.
FEW_TREES = {
    "_FEW": {"max_iter": 20, "max_leaf_nodes": 15},
    "_ENOUGH": {"max_iter": 30, "max_leaf_nodes": 31},
    "_MODELS_OF_FEW": 1 if config.DISABLE_JIT else 2,
    "_FOLDS": 2,
}

# As plain Python, a loop over the rows of a large layer takes seconds: a layer is large sooner.
FEW_ROWS = {
    sketch: {"HEAD": 300},
    row_index: {"LEAST_ROWS": 150, "_LEAST_SEEN": 600, "_SEEN_EACH": 10},
}


def wait_for_no_disk():
    """Let `os.fsync` return at once: no test cuts the power, and a tiny run waits 50 times."""
    os.fsync = lambda file: None


def grow_few_trees():
    """Let final rankers of this process, and of its children, have the settings of `FEW_TREES`."""
    for name, number in FEW_TREES.items():
        setattr(final_ranker, name, number)


def loop_over_few_rows():
    """Let kernels that are plain Python have the numbers of `FEW_ROWS`."""
    for module, numbers in FEW_ROWS.items() if config.DISABLE_JIT else ():
        for name, number in numbers.items():
            setattr(module, name, number)


def parse_yaml_once():
    """Let Hydra parse each text once: its parser takes half of the time of `read_config`."""
    whole, known = yaml.load, {}

    def load(stream, Loader):
        if Loader.__name__ != "OmegaConfLoader" or isinstance(stream, str):
            return whole(stream, Loader)
        text = stream.read()
        if text not in known:
            stream.seek(0)  # An error names the file.
            known[text] = whole(stream, Loader)
        return copy.deepcopy(known[text])

    yaml.load = load


@contextmanager
def limited(size):
    """No file may grow beyond ``size`` bytes: the nearest thing to a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def more_memory(size):
    """This process may take ``size`` more bytes of addresses than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
