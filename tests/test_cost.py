"""A training step costs the same however many outputs the layer has."""

import pytest
import torch
from helpers.cost import ACTIVE, GROUP, B, D, Step, array_peak, tensor_bytes
from helpers.programs import output_of
from helpers.samplers import all_modes, lsh_sampler, recent_sampler, sketch_sampler

from slide.sampling import head, never, sketch
from slide.sparse import Pattern

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = 2**14, 2**18


@pytest.mark.compiled_only
@all_modes
def test_a_step_does_not_grow_with_the_number_of_outputs(mode):
    measured = []
    for num_outputs in SIZES:
        step = Step(num_outputs, mode)
        step()
        measured.append((step.work(), array_peak(step), tensor_bytes(step)))
    (small_work, small_arrays, small_tensors), (large_work, large_arrays, large_tensors) = measured
    assert small_work["candidates"] == large_work["candidates"] == B * 6 * 16
    sets = {"per_sample": B, "grouped": B // GROUP, "shared": 1}[mode]
    assert small_work["ids"] == large_work["ids"] == sets * ACTIVE
    for work in (small_work, large_work):
        assert work["touched"] == work["distinct"]
    # With fewer outputs the samples' own sets have a few more ids in common.
    assert large_work["distinct"] < 1.2 * small_work["distinct"]
    assert min(small_arrays, small_tensors) > 1_000
    # One byte an output would be a quarter of a million bytes more.
    assert large_arrays < 1.2 * small_arrays + 20_000
    assert large_tensors < 1.2 * small_tensors + 20_000


def assert_no_array_of_all_outputs(sampler, mode, steps=2):
    """Sets and the changes that they bring need no memory of N, after a number of steps."""
    labels, peaks = Pattern.from_lists([[3, 5 + b] for b in range(B)]), []
    for num_outputs in SIZES:
        options = {"active": ACTIVE, "mode": mode, "group_size": GROUP, "rebuild": never}
        own = sampler(D, num_outputs, **options)
        weight, x = torch.randn(num_outputs, D), torch.randn(B, D)

        def step(own=own, weight=weight, x=x):
            own.update(weight, None, x)
            active = own.select(x, labels)
            weight[torch.from_numpy(active.ids).long()] += 0.1

        for _ in range(steps):
            step()
        peaks.append(array_peak(step))
    assert peaks[0] > 1_000
    # One byte an output would be a quarter of a million bytes more.
    assert peaks[1] < 1.2 * peaks[0] + 20_000


@pytest.mark.compiled_only
@pytest.mark.parametrize("mode", ["per_sample", "grouped"])
def test_candidates_by_labels_do_not_grow_either(mode):
    assert_no_array_of_all_outputs(recent_sampler, mode)


@pytest.mark.compiled_only
@pytest.mark.parametrize("mode", ["per_sample", "grouped"])
@pytest.mark.parametrize("steps", [2, 7])
def test_neither_do_look_ups_in_hash_tables(mode, steps):
    """Nor the step in which the rows that eight steps changed move to other buckets."""
    assert_no_array_of_all_outputs(lsh_sampler, mode, steps)


@pytest.mark.compiled_only
def test_neither_do_look_ups_by_sketches(monkeypatch):
    """They read the head, which has as many rows in both layers."""
    monkeypatch.setattr(sketch, "HEAD", 4096)
    monkeypatch.setattr(head, "_PRODUCTS", 2**14)
    assert_no_array_of_all_outputs(sketch_sampler, "per_sample")


@pytest.mark.kernels_only
def test_no_kernel_loops_over_all_outputs():
    code = (
        "from helpers.cost import count_lines; modes = ('per_sample', 'grouped', 'shared');"
        "print(*(count_lines(n, m) for m in modes for n in (2**12, 2**14)))"
    )
    counts = [int(count) for count in output_of("-c", code, NUMBA_DISABLE_JIT="1").split()]
    assert len(counts) == 6
    for small, large in zip(counts[::2], counts[1::2], strict=True):
        assert small > 5_000
        # One loop over the outputs would take 12,288 lines more.
        assert abs(large - small) < 5_000
