"""What a training step costs: the bytes that it allocates, and the lines that it runs."""

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

import slide
from helpers.matrices import make_pattern
from helpers.samplers import published_sampler
from slide.hashing.families import SimHash
from slide.nn import ActiveLoss
from slide.nn.sampled_linear import SampledLinear
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.sampling.schedules import never

B, D, ACTIVE = 16, 16, 200
# Samples that share a set in mode "grouped", of which two look up.
GROUP = 4


class Step:
    """One training step of a sampled layer, again and again on the same inputs."""

    def __init__(self, num_outputs, mode, num_samples=B, active=ACTIVE):
        torch.manual_seed(0)
        sampler = published_sampler(
            D,
            num_outputs,
            # So few buckets that all of them are full at either size.
            family=SimHash,
            hashes_per_table=3,
            num_tables=6,
            bucket_capacity=16,
            fill=0,
            active=active,
            mode=mode,
            group_size=GROUP,
            lookups=2,
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
            "ids": active.computed,
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


def count_lines(num_outputs, mode):
    """Lines of the library that a step runs, loops and all, where kernels are plain Python."""
    step = Step(num_outputs, mode, num_samples=GROUP + 1, active=40)
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
