"""A sampler belongs to one layer: its index holds the rows of that layer."""

import copy
import gc
import pickle

import pytest
import torch
from helpers.samplers import lsh_sampler, uniform_sampler

from slide.nn.sampled_conv2d import SampledConv2d
from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_input_linear import SparseInputLinear
from slide.sampling import FullSampler

D, N = 6, 40
SECOND = {
    "linear": lambda sampler: SampledLinear(D, N, sampler),
    "sparse input": lambda sampler: SparseInputLinear(D, N, sampler),
    "convolution": lambda sampler: SampledConv2d(D, N, 1, sampler=sampler),
}


@pytest.mark.parametrize("make", [lsh_sampler, uniform_sampler])
@pytest.mark.parametrize("second", SECOND)
def test_a_second_layer_is_refused(second, make):
    sampler = make(D, N, active=8)
    layer = SampledLinear(D, N, sampler)
    with pytest.raises(ValueError, match=r"another layer, SampledLinear\(6, 40.* for each layer"):
        SECOND[second](sampler)
    layer(torch.randn(2, D))


def test_a_sampler_is_free_when_its_layer_is_gone():
    sampler = lsh_sampler(D, N, active=8)
    for _ in range(2):
        layer = SampledLinear(D, N, sampler)
        del layer
        gc.collect()


def test_a_replaced_sampler_is_free():
    first, second = (lsh_sampler(D, N, active=8) for _ in range(2))
    layer = SampledLinear(D, N, first)
    layer.sampler = second
    SampledLinear(D, N, first)


def test_copies_have_samplers_of_their_own():
    layer = SampledLinear(D, N, lsh_sampler(D, N, active=8))
    for twin in (copy.deepcopy(layer), copy.deepcopy(layer)):
        assert twin.sampler is not layer.sampler
        twin(torch.randn(2, D))
    pickle.loads(pickle.dumps(SampledLinear(D, N, uniform_sampler(D, N, active=8))))


def test_layers_that_compute_all_outputs_may_share():
    sampler = FullSampler(D, N)
    SampledLinear(D, N, sampler)(torch.randn(2, D))
    SampledLinear(D, N, sampler)(torch.randn(2, D))


def test_another_width():
    with pytest.raises(ValueError, match=r"inputs of 7 numbers does not fit .* inputs of 6"):
        SampledLinear(D, N, lsh_sampler(7, N, active=8))
