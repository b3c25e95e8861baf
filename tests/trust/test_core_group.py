"""In a control group with the time of one core, as in a container: one thread, the same results."""

import json
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from benchmarks.core_group import group_of_cores

STEPS = """
import json, sys
if len(sys.argv) > 1:
    open(sys.argv[1], "w").write("0")
import numpy as np, torch
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
weight, own = layer.weight.detach().double(), runtime.num_threads()
runtime.set_threads(0)
print(json.dumps([own, runtime.num_threads(), weight.sum().item(), weight.square().sum().item()]))
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


def test_one_core():
    everything = steps()
    try:
        with group_of_cores(1) as members:
            own, chosen, *weights = steps(str(members))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    assert (own, chosen) == (1, 1)
    assert weights == pytest.approx(everything[2:], rel=1e-6)
    if numba.config.NUMBA_NUM_THREADS > 1:
        assert everything[0] > 1
