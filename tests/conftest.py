"""Which tests run kernels, and two ways to run them: compiled, or with ``NUMBA_DISABLE_JIT=1``.

Tests in the folders and files of `KERNEL_TESTS` get the marker ``kernels``. Continuous integration
runs them once more as plain Python, where an index beyond its array is an error. Tests that are too
slow there have the marker ``compiled_only``, or ``not_as_python`` if they are only slow, or run no
kernels. ``NUMBA_BOUNDSCHECK=1`` checks indices of compiled kernels, too.

Processes of xdist take the files of `FIRST` before all others, so that none of them is left alone
with a slow file at the end.
"""

import importlib
import os
from pathlib import Path

# Threads of one process that spin would hold the cores that the others need. OpenMP reads this when
# it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import pytest
import torch
from helpers import damage, limits
from numba.core import config as numba_config

from slide import runtime
from slide.backend import uses_reference
from slide.ranking import final_ranker
from slide.utils import profiling

profiling._WATCH.told = True  # Where kernels compile, tests do not read that they do.
COMPILED = not numba_config.DISABLE_JIT
TESTS = Path(__file__).parent
# Relative to the folder of tests; a new file in one of the folders belongs to them by itself.
KERNEL_TESTS = (
    "data/test_row_files.py",
    "data/test_fuzz_row_files.py",
    "data/sources/test_synthetic.py",
    "data/sources/test_text.py",
    "data/sources/test_xmc.py",
    "data/test_dataset.py",
    "functional",
    "hashing",
    "nn",
    "ops",
    "optim",
    "ranking",
    "sampling",
    "search",
    "test_active_set.py",
    "test_beyond_int32.py",
    "test_boundaries.py",
    "test_edges.py",
    "test_row_gradients.py",
    "test_testing.py",
)
# Slow files. While the first one compiles most kernels, the next ones have no use for them: two
# processes would compile the same. The last ones are slow as plain Python.
FIRST = (
    "test_docstrings.py",
    "config/test_wheel.py",
    "test_imports.py",
    "config/test_mistakes.py",
    "data/test_fetching.py",
    "config/test_help.py",
    "test_cost.py",
    "test_benchmarks.py",
    "distributed/test_runs.py",
    "estimator/test_classifier.py",
    "distributed/test_processes.py",
    "nn/test_inside_pytorch.py",
    "test_docs.py",
    "trust/test_kills.py",
    "model/test_edited_folders.py",
    "training/test_edited_runs.py",
    "search/test_row_index.py",
    "sampling/test_lsh.py",
    "ranking/test_ensemble.py",
)
ALL_TREES = {name: getattr(final_ranker, name) for name in limits.FEW_TREES}


def pytest_configure(config):
    limits.wait_for_no_disk()
    limits.grow_few_trees()
    limits.loop_over_few_rows()
    limits.parse_yaml_once()
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # xdist would begin with files of many tests.
    if not COMPILED:
        # The random kernels count on 64-bit integers that wrap, as they do when compiled.
        config.addinivalue_line(
            "filterwarnings", "ignore:overflow encountered in scalar:RuntimeWarning"
        )


def pytest_terminal_summary(terminalreporter):
    if damage.REPEAT > 1:
        words = f"SLIDE_FUZZ={damage.REPEAT:g} SLIDE_FUZZ_SEED={damage.SEED}"
        terminalreporter.write_line(f"{words} draws the same damaged files again")


def turn(item):
    """The position of a test's file in `FIRST`, or behind all of them."""
    file = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
    return FIRST.index(file) if file in FIRST else len(FIRST)


def runs_kernels(path):
    """Whether a test file, or one of its folders, is among `KERNEL_TESTS`."""
    if not path.is_relative_to(TESTS):
        return False
    file = path.relative_to(TESTS)
    return any(part.as_posix() in KERNEL_TESTS for part in (file, *file.parents))


def pytest_ignore_collect(collection_path, config):
    """Leave out files without tests of kernels: importing them takes 13 s a process."""
    only_kernels = config.option.markexpr.split(" and ")[0] == "kernels"
    if only_kernels and collection_path.suffix == ".py" and not runs_kernels(collection_path):
        return True


# Before pytest selects by marker.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    items.sort(key=turn)
    for item in items:
        if runs_kernels(item.path):
            item.add_marker("kernels")
    if not COMPILED:
        names = ("compiled_only", "not_as_python")
        others = [item for item in items if any(map(item.get_closest_marker, names))]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    if uses_reference():
        special = [item for item in items if item.get_closest_marker("kernels_only")]
        config.hook.pytest_deselected(items=special)
        items[:] = [item for item in items if item not in special]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def all_trees(monkeypatch):
    """The final ranker has its own settings, and not `limits.FEW_TREES`."""
    if COMPILED:  # Sums of trees are slow in plain Python.
        for name, number in ALL_TREES.items():
            monkeypatch.setattr(final_ranker, name, number)


@pytest.fixture
def threads():
    """Sets the number of threads; all of them again after the test."""
    yield runtime.set_threads
    runtime.set_threads(0)


@pytest.fixture
def one_thread(threads):
    """For tests of many tiny steps, where waking threads would take longer than the work."""
    threads(1)


@pytest.fixture(scope="module")
def bench():
    """Gives a module of `benchmarks`; they import each other by their plain names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TESTS.parent / "benchmarks")
        yield importlib.import_module
