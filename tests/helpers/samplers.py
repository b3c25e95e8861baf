"""Samplers by one call: options of the assembler and of its proposer side by side."""

import inspect
from functools import partial

import pytest

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
