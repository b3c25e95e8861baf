"""Layers in processes made by fork, and in several threads."""

import copy
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.small_layers import (
    B,
    D,
    draw_labels,
    every_mode,
    make_layer,
    train_briefly,
)
from torch.utils.data import DataLoader, Dataset

from slide import runtime
from slide.optim.row_sparse_adam import RowSparseAdam

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


class Hashed(Dataset):
    """Samples that a layer was asked about, in a worker process."""

    def __init__(self, layer):
        self.layer = layer

    def __len__(self):
        return 6

    def __getitem__(self, i):
        x = torch.full((1, D), float(i))
        return self.layer(x, draw_labels(1)).to_dense()[0].detach()


@needs_fork
@pytest.mark.compiled_only
class TestFork:
    """OpenMP's threads do not live on in a child; kernels are serial there."""

    @pytest.mark.filterwarnings("ignore:This DataLoader will create")  # A machine of one core.
    @every_mode
    def test_data_loader_workers(self, mode):
        layer = make_layer(mode)
        layer(torch.randn(B, D))  # Threads of this process are busy from now on.
        loader = DataLoader(Hashed(layer), 3, num_workers=2, multiprocessing_context="fork")
        found = torch.cat(list(loader))
        # Each worker's copy goes on from here, as this one does at its first sample.
        torch.testing.assert_close(found[0], Hashed(copy.deepcopy(layer))[0])

    @every_mode
    def test_a_child_trains_as_its_parent_does(self, mode):
        code = f"""
import os, signal, sys, torch
import numpy as np
from helpers.matrices import make_csr
from helpers.small_layers import draw_labels, make_layer
from slide import ActiveSampler, RowSparseAdam, SlideNetwork, runtime
layer = make_layer({mode!r}, 64, 5000)
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
        tests = Path(__file__).parents[1]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=tests,
            env=os.environ | {"PYTHONPATH": str(tests.parent)},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.stdout.strip() == "done", done.stderr

    def test_threads_of_a_child(self):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                runtime.set_threads(2)
            except ValueError as error:
                os._exit(0 if "between 0 (all) and 1" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


class TestThreads:
    @staticmethod
    def run(*calls):
        failed = []

        def guarded(call):
            try:
                call()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed

    def test_prediction_with_one_layer(self):
        layer = make_layer().eval()
        x = torch.randn(4, B, D)
        wanted = [(layer(part).values, layer.top_k(part, 3)[1]) for part in x]

        def predict(i):
            for _ in range(20):
                torch.testing.assert_close(layer(x[i]).values, wanted[i][0])
                assert torch.equal(layer.top_k(x[i], 3)[1], wanted[i][1])

        self.run(*(partial(predict, i) for i in range(4)))

    @every_mode
    def test_training_of_a_layer_each(self, mode):
        layers = [make_layer(mode) for _ in range(3)]
        layers = [copy.deepcopy(layers[0]) for _ in layers]
        x = torch.randn(B, D)

        def train(layer):
            optimizer = RowSparseAdam(layer.parameters(), lr=0.05)
            for _ in range(10):
                layer(x, draw_labels()).values.square().sum().backward()
                optimizer.step()

        self.run(*(partial(train, layer) for layer in layers))
        for other in layers[1:]:
            torch.testing.assert_close(other.weight, layers[0].weight)


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
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(tests.parent)}
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ONE_CORE],
        cwd=tests,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert not done.returncode, done.stderr
    assert done.stdout.strip() == str(train_briefly())
