"""Layers in programs: nn.Sequential, torch.compile, odd types, forks and threads."""

import copy
import os
import pickle
import threading
from functools import partial

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr
from helpers.programs import output_of
from helpers.samplers import all_modes, uniform_sampler
from helpers.sparse_layers import B, D, N, draw_labels, make_layer
from torch import nn
from torch.utils.data import DataLoader, Dataset

from slide.active_set import ActiveSet
from slide.functional.linear import active_linear
from slide.nn import ActiveLoss
from slide.nn.network import SlideNetwork
from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_linear import SparseWeightLinear
from slide.ops.csr import CSRMatrix
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.sampling import ActiveSampler, Proposer
from slide.sparse import CSR, Pattern


@pytest.mark.compiled_only
def test_an_export_names_the_way():
    with pytest.raises(TypeError, match=r"export what its to_linear\(\) gives"):
        torch.export.export(make_layer().eval(), (torch.randn(B, D),))


def learn(encoder, hidden, output, optimizer, x, labels):
    """A step with a set for each sample, and a shared one behind it."""
    h = torch.relu(encoder(x) * 2)
    h = torch.relu(hidden(h + 1).to_dense())
    loss, _ = output.loss(h, labels, "softmax")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@pytest.mark.compiled_only
@pytest.mark.filterwarnings(r"ignore:The \.grad attribute")  # Of the compiler; it ignores it, too.
class TestCompile:
    """Graph breaks at our layers, the same results, and no warnings."""

    def test_a_whole_step(self):
        torch._dynamo.reset()
        x, found = torch.randn(B, 3), []
        for step in (torch.compile(learn, backend="aot_eager"), learn):
            torch.manual_seed(0)
            hidden = SampledLinear(D, D, uniform_sampler(D, D, active=4, mode="per_sample"))
            layers = nn.Linear(3, D), hidden, make_layer("shared", sparse_grad=False)
            optimizer = RowSparseAdam(nn.ModuleList(layers).parameters(), lr=0.05)
            losses = [step(*layers, optimizer, x, draw_labels()) for _ in range(3)]
            found.append([*losses, layers[-1].weight])
        torch.testing.assert_close(*found)
        assert losses[0] != losses[1]

    def test_other_layers(self):
        torch._dynamo.reset()
        features = make_csr(np.random.default_rng(0), [3, 0, 7, 1, 2], N)
        network = SlideNetwork(N, [D], N, partial(uniform_sampler, active=10))
        twin = copy.deepcopy(network)
        found = torch.compile(network, backend="eager")(features, draw_labels())
        torch.testing.assert_close(found.values, twin(features, draw_labels()).values)
        layer = SparseWeightLinear(CSRMatrix(make_csr(np.random.default_rng(0), [3] * N, D), D))
        x = torch.randn(B, D)
        torch.testing.assert_close(torch.compile(layer, backend="eager")(x), layer(x))


class TestUnsupported:
    def test_devices(self):
        layer, x = make_layer(), torch.randn(B, D)
        for moved, inputs in ((copy.deepcopy(layer).to("meta"), x), (layer, x.to("meta"))):
            message = f"input or bias is on {inputs.device} but the weight is on"
            for call in (moved, partial(moved.top_k, k=2), moved.eval()):
                with pytest.raises(ValueError, match=message):
                    call(inputs)
            with pytest.raises(ValueError, match=message):
                moved.loss(inputs, draw_labels(), ActiveLoss("bce"))

    def test_types_shapes_and_kinds(self):
        layer, half = make_layer(), torch.randn(B, D).half()
        with pytest.raises(TypeError, match=r"input is torch\.float16 but weight is torch\.f"):
            layer(half)
        weight, active = torch.ones(N, D).half(), ActiveSet(N, np.arange(3, dtype=np.int32))
        with pytest.raises(TypeError, match=r"must be float32, bfloat16 or float64, not torch\."):
            active_linear(half, weight, None, active)
        for x in (torch.zeros(()), torch.zeros(2, 3, D + 1)):
            with pytest.raises(ValueError, match="does not fit weight"):
                layer(x)
        with pytest.raises(TypeError, match="the input must be a tensor, not list"):
            layer([[0.0] * D])
        with pytest.raises(ValueError, match="sparse_grad must be true or false, not 1"):
            SampledLinear(D, N, sparse_grad=1)


class WithRows(Dataset):
    """Answers of a layer, with rows and labels, as a worker process may make them."""

    def __init__(self, layer, features, labels):
        self.layer, self.features, self.labels = layer, features, labels

    def __len__(self):
        return 5

    def __getitem__(self, i):
        rows = (each.slice(i, i + 1) for each in (self.features, self.labels))
        return self.layer(torch.full((1, D), float(i))).to_dense()[0].detach(), *rows


def test_a_data_loader_and_pickles_of_what_its_workers_take():
    features, layer = make_csr(np.random.default_rng(0), [3, 0, 5, 1, 2], 30), make_layer()
    layer(torch.randn(B, D), draw_labels())
    samples = WithRows(layer, features, draw_labels())
    pickled = pickle.loads(pickle.dumps(samples))  # Goes on from here, as the first one does.
    for i, found in enumerate(DataLoader(pickled, None)):
        wanted = samples[i]
        torch.testing.assert_close(found[0], wanted[0])
        assert [type(each) for each in found[1:]] == [CSR, Pattern]
        for one, other in zip((*found[1], *found[2]), (*wanted[1], *wanted[2]), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.compiled_only
def test_a_forked_child_trains_as_its_parent_does():
    """OpenMP's threads do not live on in a child; kernels are serial there."""
    code = """
import os, signal, sys, torch
import numpy as np
from helpers.matrices import make_csr
from slide import ActiveSampler, LSHProposer, RowSparseAdam, SampledLinear, SlideNetwork, runtime
sampler = ActiveSampler(64, 5000, LSHProposer, active=12, mode="per_sample")
layer = SampledLinear(64, 5000, sampler)
network = SlideNetwork(300, [32], 60, lambda d, n: ActiveSampler(d, n, active=10))
x, big = torch.randn(64, 64), torch.randn(700, 700)
features = make_csr(np.random.default_rng(0), [20] * 64, 300)
optimizer = RowSparseAdam([*layer.parameters(), *network.parameters()])
def step():
    layer(x).values.square().mean().backward()
    network(features).values.square().mean().backward()
    optimizer.step()
    # Absolute values in float64: sums that cancel would show each thread count's rounding.
    found = layer.weight, network.output.weight, big @ big
    return sum(float(values.double().abs().mean()) for values in found)
step()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(100)
    assert torch.get_num_threads() == runtime.num_threads() == 1
    runtime.set_threads(0)
    os.write(writer, repr(step()).encode())
    os._exit(0)
wanted = step()
assert os.waitpid(child, 0)[1] == 0
found = float(os.read(reader, 100))
assert abs(found - wanted) <= 1e-5 * abs(wanted), (found, wanted)
try:
    os.getpid() == child or runtime.set_threads(0)
finally:
    print("done")
"""
    assert output_of("-c", code) == "done\n"


REFUSED = r"another thread is training this layer now.* a lock around forward"


class Slow(Proposer):
    """Waits in the middle of a step, until another thread has tried to make one."""

    def __init__(self, *sizes, seed=0):
        super().__init__(*sizes, seed=seed)
        self.entered, self.tried = threading.Event(), threading.Event()

    def rebuild(self, weight, bias):
        pass

    def candidates(self, queries):
        self.entered.set()
        assert self.tried.wait(60)
        return Pattern.from_lists([[i] for i in range(len(queries))])


class Rebuilt(Proposer):
    """Notes look-ups, and rebuilds, which a thread named "slow" begins and ends late."""

    def __init__(self, *sizes, seed=0):
        super().__init__(*sizes, seed=seed)
        self.entered, self.go, self.order = threading.Event(), threading.Event(), []

    def rebuild(self, weight, bias):
        if threading.current_thread().name == "slow":
            self.entered.set()
            assert self.go.wait(60)
            self.order.append("rebuilt")

    def candidates(self, queries):
        self.order.append("searched")
        return Pattern.from_lists([[i] for i in range(len(queries))])


@all_modes
def test_the_second_thread_is_refused(mode):
    layer = SampledLinear(D, N, ActiveSampler(D, N, Slow, active=12, mode=mode))
    slow, x, done = layer.sampler.proposer, torch.randn(B, D), []
    loss = ActiveLoss("bce")
    first = threading.Thread(target=lambda: done.append(layer.loss(x, draw_labels(), loss)[0]))
    first.start()
    assert slow.entered.wait(60)
    for call in (layer, partial(layer.loss, loss=loss)):
        with pytest.raises(RuntimeError, match=REFUSED):
            call(x, labels=draw_labels())
    slow.tried.set()
    first.join()
    done[0].backward()
    assert layer.weight.row_gradients
    layer(x, draw_labels())  # Afterwards any thread may go on.


@pytest.mark.parametrize("slow", ["step", "prediction"])
def test_the_look_up_of_another_thread_waits_for_a_rebuild(slow):
    sampler = ActiveSampler(D, N, Rebuilt, active=12, rebuild=lambda samples: samples)
    layer, x, proposer = SampledLinear(D, N, sampler), torch.randn(B, D), sampler.proposer
    first, second = partial(layer, x, draw_labels()), partial(layer.top_k, x, 3, "sampler")
    if slow == "prediction":
        sampler.update(layer.weight, layer.bias, x)  # A step begins, and a rebuild is due again.
        first, second = second, partial(sampler.select, x, draw_labels())
    thread = threading.Thread(target=first, name="slow")
    thread.start()
    assert proposer.entered.wait(60)
    threading.Timer(0.1, proposer.go.set).start()
    second()
    thread.join()
    assert proposer.order[0] == "rebuilt"


def test_a_prediction_between_does_not_hide_what_a_step_touches():
    layer, x, touched = make_layer("shared"), torch.randn(B, D), []
    sampler = layer.sampler
    sampler.update(layer.weight, layer.bias, x)
    ask = threading.Thread(target=lambda: layer.top_k(x, 3, "sampler"))
    ask.start()
    ask.join()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler.proposer, "touched", touched.append)
        active = sampler.select(x, draw_labels())
    assert touched == [active]
