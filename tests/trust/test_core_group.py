"""In a control group with the time of one core, as in a container: one thread, the same results."""

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.programs import output_of
from numba.core import config

from slide.utils.resources import core_limit

_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 100_000  # Microseconds.


@pytest.fixture
def members():
    """The file by which processes join a group with the time of one core."""
    name, first = f"slide-{os.getpid()}", (_ROOT / "cpu/cpu.cfs_quota_us").exists()
    group = _ROOT / "cpu" / name if first else _ROOT / name  # Of the first version, or the second.
    limits = {"cpu.cfs_period_us": _PERIOD, "cpu.cfs_quota_us": _PERIOD}
    with ExitStack() as stack:
        try:
            if not first and "cpu" not in (_ROOT / "cgroup.subtree_control").read_text().split():
                pytest.skip(f"groups below {_ROOT} have no limit of cores")
            group.mkdir()
            stack.callback(group.rmdir)  # All processes in it have ended then.
            for file, text in (limits if first else {"cpu.max": f"{_PERIOD} {_PERIOD}"}).items():
                (group / file).write_text(str(text))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        yield group / "cgroup.procs"


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


def test_one_core(members, monkeypatch, capsys, threads):
    """In the main thread, in another one, and where all threads are asked for."""
    numbers, *weights = json.loads(output_of("-c", STEPS, str(members)))
    assert numbers == [1, 1, 1]
    monkeypatch.setattr("sys.argv", ["steps"])
    threads(0)
    exec(STEPS, {})  # In this process, which has all cores.
    most, *expected = json.loads(capsys.readouterr().out)
    assert weights == pytest.approx(expected, rel=1e-6)
    if min(config.NUMBA_NUM_THREADS, core_limit() or 2) > 1:
        assert min(most) > 1
