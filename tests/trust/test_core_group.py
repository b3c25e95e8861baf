"""In a control group with the time of one core, as in a container: one thread, the same results."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from numba.core import config

from slide.utils.resources import core_limit

_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 100_000  # Microseconds.


@contextmanager
def group_of_cores(cores: float) -> Iterator[Path]:
    """Make a group, and remove it. A process joins it by writing 0 into the file that is yielded.

    All processes in it must have ended at the end.

    Args:
        cores: processor seconds in a second.

    Raises:
        OSError: if this user may not make groups, or the system has none.
    """
    name = f"slide-{os.getpid()}"
    first = (_ROOT / "cpu/cpu.cfs_quota_us").exists()  # The first version of control groups.
    group = _ROOT / "cpu" / name if first else _ROOT / name
    if not first and "cpu" not in (_ROOT / "cgroup.subtree_control").read_text().split():
        raise OSError(f"groups below {_ROOT} have no limit of cores")
    group.mkdir()
    try:
        quota = str(round(cores * _PERIOD))
        if first:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(quota)
        else:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


STEPS = """
import json, sys, threading
if len(sys.argv) > 1:
    open(sys.argv[1], "w").write("0")
import torch
torch.manual_seed(0)
import slide
from slide import runtime
layer = slide.SampledLinear(8, 500, slide.ActiveSampler(8, 500, active=64))
optimizer, x = slide.RowSparseAdam(layer.parameters()), torch.randn(16, 8)
labels = slide.Pattern.from_lists([[i] for i in range(16)])
for _ in range(3):
    loss, _ = layer.loss(x, labels, slide.ActiveLoss("bce"))
    loss.backward()
    optimizer.step()
weight, numbers = layer.weight.detach().double(), [runtime.num_threads()]
worker = threading.Thread(target=lambda: numbers.append(runtime.num_threads()))
worker.start()
worker.join()
runtime.set_threads(0)
numbers.append(runtime.num_threads())
print(json.dumps([numbers, weight.sum().item(), weight.square().sum().item()]))
"""


def steps(*words):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STEPS, *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def members():
    """The file of processes of a group with the time of one core."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(group_of_cores(1))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        yield found


def test_one_core(members):
    """In the main thread, in another one, and where all threads are asked for."""
    numbers, *weights = steps(str(members))
    assert numbers == [1, 1, 1]
    most, *expected = steps()
    assert weights == pytest.approx(expected, rel=1e-6)
    if min(config.NUMBA_NUM_THREADS, core_limit() or 2) > 1:
        assert min(most) > 1
