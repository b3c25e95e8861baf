"""One layer that two threads train: refused, because they would write into each other's arrays."""

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.small_layers import B, D, N, draw_labels, every_mode, make_layer

from slide.active_set import Scratch
from slide.nn import ActiveLoss
from slide.nn.sampled_linear import SampledLinear
from slide.row_gradients import dense_gradient
from slide.sampling import ActiveSampler, Proposer
from slide.sparse import Pattern

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


def test_a_thread_may_enter_again():
    scratch = Scratch(3)
    with scratch.alone(), scratch.alone():
        scratch.slots()


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
@every_mode
def test_a_process_does_not_crash(mode):
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HAMMER, mode],
        cwd=tests,
        env=os.environ | {"PYTHONPATH": str(tests.parent)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.strip() == "refused", (done.returncode, done.stderr)


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
