"""Two ways to run the suite: kernels compiled, or as plain Python with ``NUMBA_DISABLE_JIT=1``."""

import pytest
import torch
from numba.core import config as numba_config

from slide import runtime

COMPILED = not numba_config.DISABLE_JIT


def pytest_configure(config):
    if not COMPILED:
        # The random kernels count on 64-bit integers that wrap, as they do when compiled.
        config.addinivalue_line(
            "filterwarnings", "ignore:overflow encountered in scalar:RuntimeWarning"
        )


def pytest_collection_modifyitems(config, items):
    if not COMPILED:
        large = [item for item in items if item.get_closest_marker("compiled_only")]
        config.hook.pytest_deselected(items=large)
        items[:] = [item for item in items if item not in large]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def threads():
    """Sets the number of threads; all of them again after the test."""
    yield runtime.set_threads
    runtime.set_threads(0)


@pytest.fixture
def one_thread(threads):
    """For tests of many tiny steps, where waking threads would take longer than the work."""
    threads(1)
