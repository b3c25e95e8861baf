"""Layers in torch's DistributedDataParallel: refused, because it would not average their rows."""

import pickle
import re

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.matrices import make_csr
from helpers.ranks import run_ranks, several
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
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_wrapped_layer_is_refused(sparse):
    model = DistributedDataParallel(Model(make_layer(sparse_grad=sparse)))
    with pytest.raises(RuntimeError, match=r"does not .*take the layer out of the .*all_reduce"):
        model(torch.randn(B, 3), draw_labels())
    model.eval()  # Without gradients there is nothing to average.
    with torch.no_grad():
        model(torch.randn(B, 3), draw_labels())


def test_a_layer_that_is_left_out_is_not_refused():
    model = Model(make_layer())
    names = ["output.weight", "output.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    DistributedDataParallel(model)(torch.randn(B, 3), draw_labels()).backward()
    assert model.encoder.weight.grad.any()
    assert model.output.weight.grad.is_sparse


def test_a_wrapper_from_a_file():
    wrapped = DistributedDataParallel(Model(SampledLinear(D, N)))
    again = pickle.loads(pickle.dumps(wrapped))
    with pytest.raises(RuntimeError, match="DistributedDataParallel does not"):
        again(torch.randn(B, 3), draw_labels())


class Hidden(Model):
    """Its forward pass ends before the output layer, which the program calls by itself."""

    def forward(self, x):
        return self.encoder(x)


ACTIVE = ActiveSet(N, np.array([5, 1], np.int32), targets=Pattern.from_lists([[0]] * B))
CALLS = {
    "loss": lambda layer, x: layer.loss(x, draw_labels(), ActiveLoss("bce")),
    "active_linear": lambda layer, x: active_linear(x, layer.weight, None, ACTIVE),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_it_is_refused_outside_of_the_forward_pass_too(call):
    model = DistributedDataParallel(Hidden(make_layer(sparse_grad=False)))
    layer, hidden = model.module.output, model(torch.randn(B, 3))
    with pytest.raises(RuntimeError, match=r"DistributedDataParallel does not .*all_reduce"):
        call(layer, hidden)
    with torch.no_grad():
        call(layer, hidden)
    layer.requires_grad_(False)  # Then it does not learn.
    call(layer, hidden)


def test_wrappers_of_others_and_those_that_are_gone_are_not_meant():
    model = Hidden(make_layer())
    encoder = DistributedDataParallel(model.encoder)
    CALLS["loss"](model.output, encoder(torch.randn(B, 3)))
    wrapped = DistributedDataParallel(model)
    wrapped.itself = [wrapped]  # Python frees a cycle later.
    del wrapped
    CALLS["loss"](model.output, model(torch.randn(B, 3)))


def test_other_layers_outside_of_the_forward_pass():
    first, second, tail = SparseInputLinear(N, D), SampledConv2d(3, 4, 2), SampledLinear(D, N)
    tail.weight = first.weight  # Tied: the layer itself is not wrapped, its weight is.
    model = DistributedDataParallel(nn.ModuleList([first, second]))
    features = make_csr(np.random.default_rng(0), [2, 3], N)
    images = torch.randn(2, 3, 5, 5)
    calls = [
        (first.weight, lambda: first(features)),
        (second.weight, lambda: second(images)),
        (first.weight, lambda: tail(torch.randn(2, D))),
        (second.weight, lambda: active_conv2d(images, second.weight)),
        (first.weight, lambda: sparse_linear(features, first.weight, None)),
    ]
    for weight, call in calls:
        shape = re.escape(str(tuple(weight.shape)))
        with pytest.raises(RuntimeError, match=f"gradients of a weight {shape}, so the processes"):
            call()
    del model
    for _, call in calls:
        call()


def test_rows_that_processes_share_out():
    """Those of each process are others: a wrapper would give all the rows of the first one."""
    layer = ShardedSampledLinear(D, N, group=Group.alone())
    model = Hidden(layer)
    encoder = DistributedDataParallel(model.encoder)
    layer.loss(encoder(torch.randn(B, 3)), draw_labels(), ActiveLoss("bce"))[0].backward()
    wrapped = DistributedDataParallel(model)
    with pytest.raises(RuntimeError, match="DistributedDataParallel does not"):
        layer.loss(wrapped(torch.randn(B, 3)), draw_labels(), ActiveLoss("bce"))


ADVICE = f"""
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from slide import RowSparseAdam, SampledLinear

def work(group):
    if group.size == 1:
        return None
    torch.manual_seed(0)
    encoder = DistributedDataParallel(torch.nn.Linear(3, {D}))
    output = SampledLinear({D}, {N}, sparse_grad=True)
    sgd = torch.optim.SGD(encoder.parameters(), lr=0.1)
    optimizers = [sgd, RowSparseAdam(output.parameters(), lr=0.1)]
    x = torch.randn(2, {B}, 3)
    for step in range(3):
        output(encoder(x[group.rank])).values.square().mean().backward()
        for parameter in output.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return [p.tolist() for p in (*encoder.module.parameters(), *output.parameters())]
"""


@several
def test_what_the_message_advises(tmp_path):
    first, second = run_ranks(ADVICE, tmp_path, 2)[2]
    assert first == second
    torch.manual_seed(0)
    encoder = nn.Linear(3, D)
    output = SampledLinear(D, N, sparse_grad=True)
    begin = [p.tolist() for p in (*encoder.parameters(), *output.parameters())]
    assert all(one != old for one, old in zip(first, begin, strict=True))
