"""Layers in torch's DistributedDataParallel: refused, because it would not average their rows."""

import gc
import pickle
import re

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.matrices import make_csr
from helpers.sparse_layers import B, D, N, draw_labels, make_layer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slide.active_set import ActiveSet
from slide.distributed import Group, ShardedSampledLinear
from slide.functional import active_conv2d, active_linear, sparse_linear
from slide.nn import ActiveLoss, SampledConv2d, SparseInputLinear
from slide.nn.sampled_linear import SampledLinear
from slide.sparse import Pattern

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="needs torch.distributed"),
    pytest.mark.compiled_only,
    pytest.mark.usefixtures("one_process"),
    # Of PyTorch.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Model(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.encoder, self.output = nn.Linear(3, D), output

    def forward(self, x, labels):
        return self.output.loss(self.encoder(x), labels, ActiveLoss("bce"))[0]


@pytest.fixture
def one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    gc.freeze()  # Each refusal collects garbage first: here, only that of the test.
    yield
    gc.unfreeze()
    dist.destroy_process_group()


def test_a_wrapped_layer_is_refused():
    model = DistributedDataParallel(Model(make_layer(sparse_grad=True)))
    # A copy from a file is not known from its constructor.
    for each in (model, pickle.loads(pickle.dumps(model))):
        with pytest.raises(
            RuntimeError, match=r"does not .*take the layer out of the .*all_reduce"
        ):
            each(torch.randn(B, 3), draw_labels())
    with torch.no_grad():  # There is nothing to average.
        model(torch.randn(B, 3), draw_labels())


def test_a_layer_that_is_left_out_is_not_refused():
    model = Model(make_layer())
    names = ["output.weight", "output.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    DistributedDataParallel(model)(torch.randn(B, 3), draw_labels()).backward()
    assert model.encoder.weight.grad.any()
    assert model.output.weight.grad.is_sparse


def test_wrappers_of_others_and_those_that_are_gone_are_not_meant():
    model = Model(make_layer())
    encoder = DistributedDataParallel(model.encoder)
    loss = ActiveLoss("bce")
    model.output.loss(encoder(torch.randn(B, 3)), draw_labels(), loss)
    wrapped = DistributedDataParallel(model)
    wrapped.itself = [wrapped]  # Python frees a cycle later.
    del wrapped
    model.output.loss(torch.randn(B, D), draw_labels(), loss)


def test_all_layers_and_operations_outside_of_the_forward_pass():
    linear, first = make_layer(sparse_grad=False), SparseInputLinear(N, D)
    second, tail = SampledConv2d(3, 4, 2), SampledLinear(D, N)
    tail.weight = first.weight  # Tied: the layer itself is not wrapped, its weight is.
    shared = ShardedSampledLinear(D, N, group=Group.alone())  # Other rows in each process.
    model = DistributedDataParallel(nn.ModuleList([linear, first, second, shared]))
    active = ActiveSet(N, np.array([5, 1], np.int32), targets=Pattern.from_lists([[0]] * B))
    features, images = make_csr(np.random.default_rng(0), [2, 3], N), torch.randn(2, 3, 5, 5)
    x = torch.randn(B, D)
    calls = [
        (linear.weight, lambda: linear.loss(x, draw_labels(), ActiveLoss("bce"))),
        (first.weight, lambda: first(features)),
        (second.weight, lambda: second(images)),
        (first.weight, lambda: tail(x)),
        (next(shared.parameters()), lambda: shared.loss(x, draw_labels(), ActiveLoss("bce"))),
        (linear.weight, lambda: active_linear(x, linear.weight, None, active)),
        (second.weight, lambda: active_conv2d(images, second.weight)),
        (first.weight, lambda: sparse_linear(features, first.weight, None)),
    ]
    for weight, call in calls:
        shape = re.escape(str(tuple(weight.shape)))
        with pytest.raises(RuntimeError, match=f"gradients of a weight {shape}, so the processes"):
            call()
    linear.requires_grad_(False)  # Then it does not learn.
    calls[0][1]()
    del model
    for _, call in calls:
        call()
