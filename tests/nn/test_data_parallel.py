"""Layers in torch's DistributedDataParallel: refused, because it would not average their rows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.sparse_layers import B, D, N, draw_labels, make_layer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slide.nn import ActiveLoss
from slide.nn.sampled_linear import SampledLinear

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="needs torch.distributed"),
    pytest.mark.compiled_only,
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


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("sparse", [False, True])
def test_a_wrapped_layer_is_refused(sparse):
    model = DistributedDataParallel(Model(make_layer(sparse_grad=sparse)))
    with pytest.raises(RuntimeError, match=r"DistributedDataParallel does not .*all_reduce"):
        model(torch.randn(B, 3), draw_labels())
    model.eval()  # Without gradients there is nothing to average.
    with torch.no_grad():
        model(torch.randn(B, 3), draw_labels())


@pytest.mark.usefixtures("one_process")
def test_a_layer_that_is_left_out_is_not_refused():
    model = Model(make_layer())
    names = ["output.weight", "output.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    DistributedDataParallel(model)(torch.randn(B, 3), draw_labels()).backward()
    assert model.encoder.weight.grad.any()
    assert model.output.weight.grad.is_sparse


ADVICE = f"""
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from slide import RowSparseAdam, SampledLinear
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
encoder = DistributedDataParallel(torch.nn.Linear(3, {D}))
output = SampledLinear({D}, {N}, sparse_grad=True)
sgd = torch.optim.SGD(encoder.parameters(), lr=0.1)
optimizers = [sgd, RowSparseAdam(output.parameters(), lr=0.1)]
x = torch.randn(2, {B}, 3)
for step in range(3):
    output(encoder(x[rank])).values.square().mean().backward()
    for parameter in output.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
torch.save([*encoder.module.parameters(), *output.parameters()], sys.argv[2] + sys.argv[1])
dist.destroy_process_group()
"""


def test_what_the_message_advises(tmp_path):
    root = Path(__file__).parents[2]
    options = {"cwd": root, "env": os.environ | {"PYTHONPATH": str(root)}}
    command = [sys.executable, "-W", "ignore", "-c", ADVICE]
    workers = [subprocess.Popen([*command, str(r), f"{tmp_path}/s"], **options) for r in (0, 1)]
    assert [worker.wait(timeout=200) for worker in workers] == [0, 0]
    first, second = (torch.load(tmp_path / f"s{rank}") for rank in (0, 1))
    torch.manual_seed(0)
    encoder = nn.Linear(3, D)
    output = SampledLinear(D, N, sparse_grad=True)
    begin = [p.detach().clone() for p in (*encoder.parameters(), *output.parameters())]
    for one, other, old in zip(first, second, begin, strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, old)
