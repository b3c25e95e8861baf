"""A sampler belongs to one layer: its index holds the rows of that layer."""

import copy
import gc
import pickle

import numpy as np
import pytest
import torch
from helpers.samplers import lsh_sampler, uniform_sampler

from slide.active_set import ActiveSet
from slide.nn.losses import ActiveLoss
from slide.nn.sampled_conv2d import SampledConv2d
from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_input_linear import SparseInputLinear
from slide.nn.stored_layers import StoredLinear
from slide.sampling import ActiveSampler, FullSampler, LSHProposer
from slide.utils.quantized import QuantizedRows

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


USES = {
    "forward": lambda layer: layer(torch.randn(2, D)),
    "loss": lambda layer: layer.loss(torch.randn(2, D), [[1], [2]], ActiveLoss("bce")),
    "search": lambda layer: layer.top_k(torch.randn(2, D), 3, search="sampler"),
}


def use_both(use, second, first):
    use(second)
    use(first)  # If no layer had used the sampler before, the second one now has it.


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("given", ["by the constructor", "by assignment", "by a copy"])
def test_an_assigned_sampler_of_another_layer(use, used, given):
    if given == "by the constructor":
        first = SampledLinear(D, N, lsh_sampler(D, N, active=8))
    elif given == "by assignment":
        first = SampledLinear(D, N)
        first.sampler = lsh_sampler(D, N, active=8)
    else:
        first = copy.deepcopy(SampledLinear(D, N, lsh_sampler(D, N, active=8)))
    second = SampledLinear(D, N, lsh_sampler(D, N, active=8))
    if used:
        USES[use](first)
    second.sampler = first.sampler
    with pytest.raises(ValueError, match=r"another layer, SampledLinear\(6, 40.* for each layer"):
        use_both(USES[use], second, first)


def test_an_assigned_sampler_of_another_width():
    layer = SampledLinear(D, N)
    layer.sampler = lsh_sampler(7, N, active=8)
    with pytest.raises(ValueError, match=r"inputs of 7 numbers does not fit .* inputs of 6"):
        layer(torch.randn(2, D))


def test_a_sampler_may_be_taken_over():
    first, second = (SampledLinear(D, N, lsh_sampler(D, N, active=8)) for _ in range(2))
    first(torch.randn(2, D))
    second.sampler, first.sampler = first.sampler, FullSampler(D, N)
    first.sampler = first.sampler
    for use in USES.values():
        use(second)


def test_a_layer_of_stored_rows_hands_its_sampler_on():
    rows = QuantizedRows.of(torch.randn(N, D), "bfloat16")
    stored, x = StoredLinear(rows, torch.randn(N)), torch.randn(2, D)
    stored.sampler = lsh_sampler(D, N, active=8)
    found = stored.top_k(x, 3, search="sampler")
    layer = stored.trainable()  # The other one, which searches by the same rows, stays.
    for one, other in zip(found, layer.top_k(x, 3, search="sampler"), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(stored.to_linear().weight, layer.weight)
    layer(x)


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


@pytest.mark.parametrize("proposer", [None, LSHProposer])
@pytest.mark.parametrize("mode", ["per_sample", "shared"])
def test_a_loss_in_eval_mode_does_not_move_the_draws_of_training(mode, proposer):
    def make():
        torch.manual_seed(0)
        sampler = ActiveSampler(D, N, proposer, active=12, mode=mode)
        return SampledLinear(D, N, sampler)

    layer, other, found = make(), make(), []
    x, labels, kind = torch.randn(3, D), [[1], [2], [3]], ActiveLoss("bce")
    for step in range(3):
        sets = [each.loss(x, labels, kind)[1].ids.tolist() for each in (layer, other)]
        assert sets[0] == sets[1]
        layer.eval()
        found += [layer.loss(x, labels, kind)[1].ids.tolist() for _ in range(step + 1)]
        layer.train()
    assert len({tuple(ids) for ids in found}) == len(found), "each loss draws a set of its own"
    before, after = (each.sampler.state_dict() for each in (other, layer))
    assert before["selections"] == after["selections"] == 3
    assert before.keys() == after.keys()


def test_a_sampler_that_chooses_by_itself_does_so_in_eval_mode():
    class Last(ActiveSampler):
        def select(self, queries, labels):
            return ActiveSet(N, np.arange(N - 5, N, dtype=np.int32))

    layer = SampledLinear(D, N, Last(D, N, active=5)).eval()
    assert layer(torch.randn(3, D), [[1], [2], [3]]).active.ids.tolist() == [*range(N - 5, N)]
