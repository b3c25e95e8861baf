"""A training step costs the same however many outputs the layer has."""

import os
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.matrices import make_pattern
from helpers.samplers import lsh_sampler
from torch.profiler import ProfilerActivity, profile

import slide
from slide.hashing.simhash import SimHash
from slide.nn import ActiveLoss
from slide.nn.sampled_linear import SampledLinear
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.sampling.schedules import never

B, D, ACTIVE = 16, 16, 200
SIZES = 2**14, 2**20


class Step:
    """One training step of a sampled layer, again and again on the same inputs."""

    def __init__(self, num_outputs, mode, num_samples=B, active=ACTIVE):
        torch.manual_seed(0)
        sampler = lsh_sampler(
            D,
            num_outputs,
            # So few buckets that all of them are full at either size.
            family=partial(SimHash, hashes_per_table=3, num_tables=6),
            bucket_capacity=16,
            norm="cosine",
            active=active,
            mode=mode,
            rebuild=never,
        )
        self.layer = SampledLinear(D, num_outputs, sampler)
        self.optimizer = RowSparseAdam(self.layer.parameters(), correct_skipped=True)
        self.loss = ActiveLoss("softmax")
        self.x = torch.randn(num_samples, D)
        self.labels = make_pattern(np.random.default_rng(0), [3] * num_samples, 2**12)

    def __call__(self):
        self.optimizer.zero_grad()
        loss, active = self.layer.loss(self.x, self.labels, self.loss)
        loss.backward()
        self.optimizer.step()
        return active

    def work(self):
        """Items that a step looks at: ids, touched rows, candidates in the buckets."""
        before = self.layer.weight.detach().clone()
        active = self()
        touched = int((self.layer.weight != before).any(1).sum())
        candidates = len(self.layer.sampler.candidates(self.x).indices)
        return {
            "ids": len(active.ids),
            "touched": touched,
            "distinct": len(np.unique(active.ids)),
            "candidates": candidates,
        }


def array_peak(step):
    """Bytes that Python and numpy hold at once during a step, beyond what they held before."""
    tracemalloc.start()
    try:
        step()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        step()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before


def tensor_bytes(step):
    """Bytes of all tensors that torch allocates during a step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = recorded.profiler.kineto_results.events()
    return sum(max(0, e.nbytes()) for e in events if e.name() == "[memory]")


@pytest.mark.compiled_only
@pytest.mark.parametrize("mode", ["per_sample", "shared"])
def test_a_step_does_not_grow_with_the_number_of_outputs(mode):
    measured = []
    for num_outputs in SIZES:
        step = Step(num_outputs, mode)
        step()
        measured.append((step.work(), array_peak(step), tensor_bytes(step)))
    (small_work, small_arrays, small_tensors), (large_work, large_arrays, large_tensors) = measured
    assert small_work["candidates"] == large_work["candidates"] == B * 6 * 16
    assert (
        small_work["ids"] == large_work["ids"] == (B * ACTIVE if mode == "per_sample" else ACTIVE)
    )
    for work in (small_work, large_work):
        assert work["touched"] == work["distinct"]
    # With fewer outputs the samples' own sets have a few more ids in common.
    assert large_work["distinct"] < 1.2 * small_work["distinct"]
    assert min(small_arrays, small_tensors) > 1_000
    # One byte an output would be a million bytes more.
    assert large_arrays < 1.2 * small_arrays + 20_000
    assert large_tensors < 1.2 * small_tensors + 20_000


@pytest.mark.compiled_only
def test_this_would_tell():
    """A dense gradient, by autograd through a slice, does grow."""
    measured = []
    for num_outputs in SIZES:
        weight = torch.randn(num_outputs, D, requires_grad=True)
        ids = torch.arange(ACTIVE)

        def step(weight=weight, ids=ids):
            (torch.randn(B, D) @ weight[ids].T).sum().backward()

        step()
        measured.append(tensor_bytes(step))
    assert measured[1] > 20 * measured[0]


def count_lines(num_outputs, mode):
    """Lines of the library that a step runs, loops and all, where kernels are plain Python."""
    step = Step(num_outputs, mode, num_samples=3, active=40)
    step()
    library, lines = str(Path(slide.__file__).parent), 0

    def trace(frame, event, argument):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(library):
            return None
        lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(None)
    return lines


@pytest.mark.parametrize("mode", ["per_sample", "shared"])
def test_no_kernel_loops_over_all_outputs(mode):
    here = Path(__file__).parent
    code = f"import test_cost as t; print(*(t.count_lines(n, {mode!r}) for n in (2**12, 2**15)))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=here,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(here.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    small, large = map(int, done.stdout.split())
    assert small > 5_000
    # One loop over the outputs would take 28,672 lines more.
    assert abs(large - small) < 5_000
