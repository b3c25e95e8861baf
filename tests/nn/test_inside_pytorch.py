"""Layers in programs: nn.Sequential, torch.compile, odd types, forks and threads."""

import copy
import os
import threading
from functools import partial

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr
from helpers.programs import output_of
from helpers.samplers import uniform_sampler
from helpers.small_layers import B, D, N, draw_labels, make_layer, train_briefly
from helpers.sparse_layers import every_mode
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
from slide.row_gradients import dense_gradient
from slide.sampling import ActiveSampler, Proposer
from slide.sparse import CSR, Pattern


@pytest.mark.compiled_only
def test_an_export_names_the_way():
    with pytest.raises(TypeError, match=r"export what its to_linear\(\) gives"):
        torch.export.export(make_layer().eval(), (torch.randn(B, D),))


@pytest.mark.compiled_only
@pytest.mark.filterwarnings(r"ignore:The \.grad attribute")  # Of the compiler; it ignores it, too.
class TestCompile:
    """Graph breaks at our layers, the same results, and no warnings."""

    @staticmethod
    def train(model, x, labels, steps=3):
        optimizer, losses = RowSparseAdam(model.parameters(), lr=0.05), []
        for _ in range(steps):
            loss = model(x, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def test_training(self):
        """A shared set behind one for each sample."""

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder, self.output = nn.Linear(3, D), make_layer("shared")
                self.hidden, self.loss = make_layer("per_sample", D, D), ActiveLoss("softmax")

            def forward(self, x, labels):
                h = torch.relu(self.encoder(x) * 2)
                h = torch.relu(self.hidden(h + 1).to_dense())
                out = self.output(h, labels)
                return self.loss(out.values, out.active) + self.output.loss(h, labels, self.loss)[0]

        torch._dynamo.reset()
        torch.manual_seed(0)
        model, x, labels = Model(), torch.randn(B, 3), draw_labels()
        twin = copy.deepcopy(model)
        compiled = torch.compile(model, backend="aot_eager")
        found, wanted = self.train(compiled, x, labels), self.train(twin, x, labels)
        assert found == pytest.approx(wanted, rel=1e-5)
        torch.testing.assert_close(model.output.weight, twin.output.weight)

    def test_a_whole_step(self):
        """Backward pass and optimizer within the compiled function; warnings are errors."""
        torch._dynamo.reset()
        torch.manual_seed(0)
        encoder, output = nn.Linear(3, D), make_layer("shared")
        optimizer = RowSparseAdam([*encoder.parameters(), *output.parameters()], lr=0.01)

        def step(x, labels):
            loss, _ = output.loss(torch.relu(encoder(x)), labels, "softmax")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        x, labels, compiled = torch.randn(B, 3), draw_labels(), torch.compile(step, backend="eager")
        before = output.weight.detach().clone()
        first = compiled(x, labels)
        assert (output.weight != before).any()
        for _ in range(10):
            last = compiled(x, labels)
        assert last < first

    def test_other_layers(self):
        torch._dynamo.reset()
        features = make_csr(np.random.default_rng(0), [3, 0, 7, 1, 2], N)
        network = SlideNetwork(N, [D], N, lambda d, n: uniform_sampler(d, n, active=10))
        twin = copy.deepcopy(network)
        found = torch.compile(network, backend="eager")(features, draw_labels())
        wanted = twin(features, draw_labels())
        torch.testing.assert_close(found.values, wanted.values)
        layer = SparseWeightLinear(CSRMatrix(make_csr(np.random.default_rng(0), [3] * N, D), D))
        x = torch.randn(B, D)
        torch.testing.assert_close(torch.compile(layer, backend="eager")(x), layer(x))


class TestUnsupported:
    @every_mode
    def test_devices(self, mode):
        layer, x = make_layer(mode), torch.randn(B, D)
        for moved, inputs in ((copy.deepcopy(layer).to("meta"), x), (layer, x.to("meta"))):
            message = f"input or bias is on {inputs.device} but the weight is on"
            for call in (moved, partial(moved.top_k, k=2), moved.eval()):
                with pytest.raises(ValueError, match=message):
                    call(inputs)
            with pytest.raises(ValueError, match=message):
                moved.loss(inputs, draw_labels(), ActiveLoss("bce"))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.complex64])
    def test_types(self, dtype):
        layer, x = make_layer(), torch.randn(B, D)
        with pytest.raises(TypeError, match=f"input is {dtype} but weight is torch.float32"):
            layer(x.to(dtype))
        weight, active = torch.ones(N, D).to(dtype), ActiveSet(N, np.arange(3, dtype=np.int32))
        with pytest.raises(TypeError, match=f"must be float32, bfloat16 or float64, not {dtype}"):
            active_linear(x.to(dtype), weight, None, active)

    def test_shapes_and_kinds(self):
        for x in (torch.zeros(()), torch.zeros(2, 3, D + 1), torch.zeros(B, D + 1)):
            with pytest.raises(ValueError, match="does not fit weight"):
                make_layer()(x)
        with pytest.raises(TypeError, match="the input must be a tensor, not list"):
            make_layer()([[0.0] * D])
        with pytest.raises(ValueError, match="sparse_grad must be true or false, not 1"):
            SampledLinear(D, N, sparse_grad=1)


class WithRows(Dataset):
    """Samples that a layer was asked about in a worker process, with rows and labels."""

    def __init__(self, layer, features, labels):
        self.layer, self.features, self.labels = layer, features, labels

    def __len__(self):
        return 6

    def __getitem__(self, i):
        rows = (each.slice(i, i + 1) for each in (self.features, self.labels))
        x = torch.full((1, D), float(i))
        return self.layer(x, draw_labels(1)).to_dense()[0].detach(), *rows


@pytest.mark.compiled_only
def test_spawned_workers_of_a_data_loader():
    """Layers, rows and labels are pickled for them, and batches on the way back."""
    layer, features = make_layer(), make_csr(np.random.default_rng(0), [3, 0, 5] * 2, 30)
    layer(torch.randn(B, D), draw_labels())
    samples = WithRows(layer, features, draw_labels(6))
    loader = DataLoader(samples, None, num_workers=1, multiprocessing_context="spawn")
    copied = copy.deepcopy(samples)  # A copy of the layer goes on from here, as the worker's.
    for found, wanted in zip(loader, (copied[i] for i in range(6)), strict=True):
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
from helpers.small_layers import draw_labels, make_layer
from slide import ActiveSampler, RowSparseAdam, SlideNetwork, runtime
layer = make_layer("per_sample", 64, 5000)
network = SlideNetwork(300, [32], 60, lambda d, n: ActiveSampler(d, n, active=10))
x, big = torch.randn(64, 64), torch.randn(700, 700)
features = make_csr(np.random.default_rng(0), [20] * 64, 300)
optimizer = RowSparseAdam([*layer.parameters(), *network.parameters()])
def step():
    layer(x).values.square().mean().backward()
    network(features, draw_labels(64)).values.square().mean().backward()
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


ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # As taskset does.
import torch
from helpers.small_layers import train_briefly
from slide import runtime
runtime.set_threads(0)
assert runtime.num_threads() == torch.get_num_threads() == 1, runtime.num_threads()
print(train_briefly())
"""


@pytest.mark.compiled_only
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
def test_on_one_core():
    """A process of one core takes one thread, and trains as one with all threads does."""
    unset = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS")
    variables = {name: value for name, value in os.environ.items() if name not in unset}
    assert output_of("-c", ONE_CORE, variables=variables) == f"{train_briefly()}\n"


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
    """Notes rebuilds, which a thread named "ask" begins and ends late, and look-ups."""

    def __init__(self, *sizes, seed=0):
        super().__init__(*sizes, seed=seed)
        self.entered, self.go, self.order = threading.Event(), threading.Event(), []

    def rebuild(self, weight, bias):
        if threading.current_thread().name == "ask":
            self.entered.set()
            assert self.go.wait(60)
            self.order.append("rebuilt")

    def candidates(self, queries):
        self.order.append("searched")
        return Pattern.from_lists([[i] for i in range(len(queries))])


@every_mode
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


def test_the_look_up_of_a_step_waits_for_a_rebuild_of_a_prediction():
    sampler = ActiveSampler(D, N, Rebuilt, active=12, rebuild=lambda samples: samples)
    layer, x, proposer = SampledLinear(D, N, sampler), torch.randn(B, D), sampler.proposer
    sampler.update(layer.weight, layer.bias, x)  # A step begins, and a rebuild is due again.
    ask = threading.Thread(target=lambda: layer.top_k(x, 3, "sampler"), name="ask")
    ask.start()
    assert proposer.entered.wait(60)
    threading.Timer(0.1, proposer.go.set).start()
    sampler.select(x, draw_labels())
    ask.join()
    assert proposer.order[0] == "rebuilt"


def test_a_prediction_waits_for_the_update_of_a_step():
    layer, x, order = make_layer("shared"), torch.randn(B, D), []
    layer.loss(x, draw_labels(), ActiveLoss("bce"))
    proposer, entered, go = layer.sampler.proposer, threading.Event(), threading.Event()
    refresh, candidates = proposer.refresh, proposer.candidates

    def slow(*rows):
        if threading.current_thread().name == "step":
            entered.set()
            assert go.wait(60)
            order.append("updated")
        refresh(*rows)

    def noted(queries):
        order.append("searched")
        return candidates(queries)

    step = threading.Thread(target=lambda: layer(x, draw_labels()), name="step")
    ask = threading.Thread(target=lambda: layer.top_k(x, 3, "sampler"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proposer, "refresh", slow)
        step.start()
        assert entered.wait(60)
        patch.setattr(proposer, "candidates", noted)
        ask.start()
        ask.join(0.1)
        assert order == []
        go.set()
        for thread in (step, ask):
            thread.join()
    assert order[0] == "updated"
    assert "searched" in order


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


HAMMER = """
import sys, threading, torch
from helpers.small_layers import B, D, draw_labels, make_layer
from slide import ActiveLoss, RowSparseAdam
layer, said = make_layer(sys.argv[1], 256, 20_000), []
optimizer, loss = RowSparseAdam(layer.parameters()), ActiveLoss("bce")
x, stop = torch.randn(64, 256), threading.Event()
def train():
    try:
        for _ in range(400):
            if stop.is_set():
                return
            layer.loss(x, draw_labels(64), loss)[0].backward()
            optimizer.step()
    except RuntimeError as error:
        said.append(str(error))
        stop.set()
threads = [threading.Thread(target=train) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert said and all("another thread is training this layer" in text for text in said), said
print("refused")
"""


@pytest.mark.compiled_only
def test_a_process_does_not_crash():
    assert output_of("-c", HAMMER, "per_sample") == "refused\n"


@every_mode
def test_a_lock_makes_it_right(mode):
    layer, lock, x = make_layer(mode), threading.Lock(), torch.randn(B, D)
    failed = []

    def train():
        try:
            for _ in range(10):
                with lock:
                    layer(x, draw_labels()).values.square().sum().backward()
        except RuntimeError as error:
            failed.append(error)

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(layer.weight.row_gradients) == 30
    assert dense_gradient(layer.weight).isfinite().all()
