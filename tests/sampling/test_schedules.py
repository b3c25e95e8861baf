"""When rebuilds are due, against naive rules; and the progress that samplers report."""

import copy
import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from helpers.layers import D, N, draw_layer, draw_queries
from helpers.samplers import MODES, all_modes, published_sampler, uniform_sampler

from slide.sampling import ActiveSampler, Proposer, by_updates, schedules
from slide.sampling.schedules import Progress
from slide.sparse import Pattern

pytestmark = pytest.mark.usefixtures("one_thread")


def test_fixed():
    assert [schedules.fixed(s, 10) for s in (0, 9, 10, 19, 20, 105)] == [0, 0, 1, 1, 2, 10]
    assert schedules.fixed(10**9, 0) == 0
    assert [schedules.fixed(s, 10, first=4) for s in (0, 3, 4, 13, 14)] == [0, 0, 1, 1, 2]
    assert schedules.fixed(10**9, 0, first=4) == 0


def naive_backoff(samples, first, growth):
    """Rebuild t comes ``first * exp(growth * t)`` samples after the one before it."""
    due, at = 0, 0.0
    while True:
        at += first * math.exp(growth * due)
        if at > samples + 1e-6:
            return due
        due += 1


@pytest.mark.parametrize("growth", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("first", [1, 7, 6_400])
def test_backoff(first, growth):
    for samples in [0, first - 1, first, first + 1, *range(0, 40 * first, 1 + 3 * first // 7)]:
        assert schedules.backoff(samples, first, growth) == naive_backoff(samples, first, growth)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: schedules.fixed(5, -1), "every"),
        (lambda: schedules.backoff(5, 0), "first"),
        (lambda: schedules.backoff(5, 5, -0.1), "growth"),
        (lambda: schedules.backoff(5, 5, math.nan), "growth"),
        (lambda: by_updates(5, per_output=0), "per_output"),
        (lambda: by_updates(5, per_output=math.nan), "per_output"),
        (lambda: by_updates(5, at_least=0), "at_least"),
        (lambda: by_updates(5, early=0), "early"),
    ],
)
def test_numbers_out_of_range(call, name):
    with pytest.raises(ValueError, match=f"{name} must be "):
        call()


def progress(samples=640, **more):
    some = {"scheduled": 3, "rebuilds": 4, "steps": 20, "computed": 0, "out_features": 100}
    return Progress(samples, **(some | more))


class TestByUpdates:
    def test_one_is_due_when_each_output_was_computed_so_often(self):
        assert by_updates(progress(computed=199)) == 3
        assert by_updates(progress(computed=200)) == 4
        assert by_updates(progress(computed=10**9)) == 4, "one at a time"
        assert by_updates(progress(computed=50), per_output=0.5) == 4
        assert by_updates(progress(computed=50, out_features=101), per_output=0.5) == 3

    def test_steps_lie_between_two(self):
        assert by_updates(progress(computed=10**9, steps=15)) == 3
        assert by_updates(progress(computed=10**9, steps=16)) == 4
        assert by_updates(progress(computed=10**9, steps=16), at_least=17) == 3

    def test_the_second_one_comes_after_few_steps(self):
        assert by_updates(progress(rebuilds=1, steps=7)) == 3
        assert by_updates(progress(rebuilds=1, steps=8)) == 4
        assert by_updates(progress(rebuilds=2, steps=8)) == 3
        assert by_updates(progress(rebuilds=1, steps=8), early=9) == 3

    def test_a_number_of_samples_alone_says_nothing(self):
        assert [by_updates(samples) for samples in (0, 10**9)] == [0, 0]


class Counted(Proposer):
    """Proposes the same few outputs, and keeps when it was rebuilt."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.steps, self.rebuilt = 0, []

    def rebuild(self, weight, bias):
        self.rebuilt.append(self.steps)

    def observe(self, inputs):
        self.steps += 1

    def candidates(self, queries):
        return Pattern.from_lists([[1, 2, 3]] * len(queries))


def naive_rebuilds(sizes, outputs, per_output, at_least, first):
    """The steps before which there is a rebuild, if each step computes so many outputs."""
    rebuilt, computed, steps = [0], 0, 0
    for step, size in enumerate(sizes):
        early = len(rebuilt) == 1 and steps >= first
        if early or (computed >= per_output * outputs and steps >= at_least):
            rebuilt.append(step)
            computed = steps = 0
        computed, steps = computed + size, steps + 1
    return rebuilt


@all_modes
@pytest.mark.parametrize(("per_output", "at_least", "first"), [(1.0, 2, 5), (0.1, 4, 3)])
def test_a_sampler_is_rebuilt_by_updates(mode, per_output, at_least, first):
    """Each set counts once, whether one sample has it, or several."""
    schedule = partial(by_updates, per_output=per_output, at_least=at_least, early=first)
    sampler = ActiveSampler(D, N, Counted, active=40, mode=mode, group_size=2, rebuild=schedule)
    counts = [5, 1, 7, 2, 5, 5, 3, 1, 1, 8, 4, 4, 2, 6, 1, 9, 9, 5, 3, 3]
    for seed, count in enumerate(counts):
        queries = draw_queries(count, seed=seed)
        sampler.update(*draw_layer(), queries)
        sampler.select(queries, None)
        # What is not a step does not count.
        sampler.update(*draw_layer(), None)
        sampler.select(queries, None)
    sets = {"per_sample": counts, "shared": [1] * 20, "grouped": [-(-n // 2) for n in counts]}
    sizes = [40 * number for number in sets[mode]]
    expected = naive_rebuilds(sizes, N, per_output, at_least, first)
    assert len(expected) > 2
    # A prediction may be the first to see that a rebuild is due, which then comes before the step.
    assert sampler.proposer.rebuilt == expected


def test_progress():
    """A sampler tells a schedule how far training is; a schedule may take it as a number."""
    asked = []

    def schedule(samples):
        asked.append(samples)
        return 0

    sampler = ActiveSampler(D, N, Counted, active=40, mode="shared", rebuild=schedule)
    for seed in range(3):
        queries = draw_queries(5, seed=seed)
        sampler.update(*draw_layer(), queries)
        sampler.select(queries, None)
    assert asked[1:] == [0, 5, 10]
    last = asked[-1]
    assert vars(last) == {
        "scheduled": 0,
        "rebuilds": 1,
        "steps": 2,
        "computed": 80,
        "out_features": N,
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["state", "deepcopy", "pickle"])
def test_progress_goes_on_in_copies(mode, way):
    """A copy is rebuilt at the same steps as the sampler would have been."""
    make = partial(
        published_sampler, D, N, hashes_per_table=1, num_tables=2, fill=0, active=40, mode=mode
    )
    schedule = partial(by_updates, per_output=0.5, at_least=3, early=2)
    sampler, rebuilds = make(rebuild=schedule), []

    def step(each, seed):
        queries = draw_queries(2, seed=seed)
        each.update(*draw_layer(), queries)
        each.select(queries, None)
        return each.rebuilds

    for seed in range(4):
        step(sampler, seed)
    if way == "state":
        other = make(rebuild=schedule)
        other.load_state_dict(copy.deepcopy(sampler.state_dict()))
    else:
        other = copy.deepcopy(sampler) if way == "deepcopy" else pickle.loads(pickle.dumps(sampler))
    for seed in range(4, 20):
        rebuilds.append((step(sampler, seed), step(other, seed)))
    found = np.array(rebuilds)
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    assert found[-1, 0] > found[0, 0]


def test_no_rebuild_without_an_index():
    sampler = uniform_sampler(D, N, active=40, rebuild=partial(by_updates, per_output=0.01))
    for _ in range(30):
        sampler.update(*draw_layer(), torch.zeros(2, D))
        sampler.select(torch.zeros(2, D), None)
    assert (sampler.rebuilds, sampler.rebuild_seconds) == (0, 0)
