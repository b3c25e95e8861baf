"""Samplers by one call: options of the assembler and of its proposer side by side."""

import copy
import inspect
from functools import partial

import numpy as np
import pytest
import torch

from helpers.layers import D, N, draw_layer, draw_queries
from slide.sampling import (
    ActiveSampler,
    FaissProposer,
    FullSampler,
    LSHProposer,
    PublishedLSHProposer,
    RecentProposer,
    SketchProposer,
)
from slide.sampling.sampler import MODES
from slide.sparse import Pattern

all_modes = pytest.mark.parametrize("mode", MODES)


def _sampler(proposer, in_features, out_features, **options):
    known = inspect.signature(proposer).parameters
    own = {key: options.pop(key) for key in list(options) if key in known and key != "seed"}
    return ActiveSampler(in_features, out_features, partial(proposer, **own), **options)


lsh_sampler = partial(_sampler, LSHProposer)
published_sampler = partial(_sampler, PublishedLSHProposer)
sketch_sampler = partial(_sampler, SketchProposer)
faiss_sampler = partial(_sampler, FaissProposer)
recent_sampler = partial(_sampler, RecentProposer)
uniform_sampler = ActiveSampler
full_sampler = FullSampler


def assert_goes_on(make, pause, end):
    """A sampler with the state of another draws the same sets, while the weights change.

    It takes the state after ``pause`` steps. Returns both samplers after ``end`` steps.
    """
    sampler, other = make(), make()
    weight, bias = draw_layer()

    def step(each, number):
        queries = draw_queries(20, number)
        each.update(weight, bias, queries)
        labels = np.random.default_rng(number).integers(0, N, (20, 1)).tolist()
        return each.select(queries, Pattern.from_lists(labels)).ids

    for number in range(end):
        if number == pause:
            other.load_state_dict(copy.deepcopy(sampler.state_dict()))
        found = step(sampler, number)
        if number >= pause:
            np.testing.assert_array_equal(found, step(other, number))
        weight += torch.randn(N, D, generator=torch.Generator().manual_seed(number))
    return sampler, other
