"""Runs of the main job, in this process and on tiny generated data, and what they leave behind."""

import json
import sys
from contextlib import contextmanager, redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from helpers.samplers import lsh_sampler
from slide import ActiveLoss, RowSparseAdam, SlideNetwork, runtime
from slide.config import command, read_config
from slide.data import synthetic
from slide.training import Trainer, TrainingOptions, constant
from slide.training.checkpoint import last_checkpoint, read_states
from slide.training.loop import TrainingLoop

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
SIZES = {
    "num_features": 60,
    "num_labels": 80,
    "train_samples": 120,  # 8 steps of 16 rows, of which the last has 8
    "test_samples": 40,
    "nonzeros": 8,
    "labels_per_row": 2,
}
# Exit statuses after Ctrl-C and SIGTERM.
STOPPED = (130, 143)
WITH_HELD = {"train_samples": 150}
# Arguments of `tiny` for a run without a re-ranker, which learns from as many rows.
UNRANKED = ["ranker=none", "dataset.train_samples=120"]


def tiny(folder, *more):
    """Arguments for a run that takes a moment and goes to ``folder/run``; later ones win."""
    # A fifth of the rows is held out for the ranker: 120 are left, as in `SIZES`.
    sizes = [f"dataset.{name}={value}" for name, value in {**SIZES, **WITH_HELD}.items()]
    # Sets must be smaller than the number of labels, or nothing is sampled at all.
    shape = ["network.hidden=[8]", "trainer.batch_size=16", "trainer.epochs=2"]
    shape.append("sampler.active=32")
    if not any(word.startswith("sampler=") for word in more):
        shape.append("sampler=lsh")
    if "sampler=lsh" in (*shape, *more):  # Other samplers have no use for tables.
        shape += ["hash.hashes_per_table=3", "hash.num_tables=4"]
    threads = ["runtime.threads=1"]  # Waking threads would take longer than the work.
    folders = [f"dataset.cache={folder}/cache", f"run_dir={folder}/run"]
    return [*sizes, *shape, *threads, *folders, "report=false", *more]


def raw(group, choice):
    """A file of ``conf/`` with the files of its group that it builds on."""
    page = OmegaConf.load(CONF / group / f"{choice}.yaml")
    below = [raw(group, name) for name in page.pop("defaults", []) if isinstance(name, str)]
    return OmegaConf.merge(*below, page)


@contextmanager
def global_state_put_back():
    argv = sys.argv
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        sys.argv = argv
        GlobalHydra.instance().clear()
        runtime.set_threads(0)
        runtime.set_deterministic(False, 0)


def main(*arguments):
    """``python train.py arguments``, in this process."""
    with global_state_put_back():
        sys.argv = ["train.py", *arguments]
        command.train()


def data(*arguments):
    """``python -m slide.data arguments``, in this process."""
    with global_state_put_back():
        sys.argv = ["slide/data/__main__.py", *arguments]
        command.data()


def failure(*arguments, run=main):
    """What a run says that ends with an error or an interrupt."""
    return ended(*arguments, run=run)[1]


def ended(*arguments, run=main):
    """The exit status of a run that does not end well, and what it says last."""
    said = StringIO()
    with pytest.raises(SystemExit) as stopped, redirect_stderr(said):
        run(*arguments)
    sys.stderr.write(said.getvalue())  # For tests that look at it.
    if stopped.value.code in STOPPED:
        return stopped.value.code, said.getvalue().splitlines()[-1]
    assert isinstance(stopped.value.code, str), "the exit has no message"
    return 1, stopped.value.code


def compose(*overrides):
    """The configuration that a command line with these ``overrides`` gives."""
    return read_config(overrides)


def lines(folder, name=None):
    """What ``metrics.jsonl`` holds; only lines with the scalar ``name``, if it is given."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if name is None or name in line]


def steps(folder, name):
    """The steps at which a scalar was written."""
    return [line["step"] for line in lines(folder, name)]


def checkpoint(folder):
    """The state in the newest checkpoint of a run."""
    (state,) = read_states(last_checkpoint(folder))
    return state


def files_of(folder):
    """The content of all files in a folder, by their path in it."""
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def stop_at(monkeypatch, *steps):
    """Break off where a step is to be made, without a chance to save anything."""
    whole, left = TrainingLoop.update, list(steps)

    def update(self, loss):
        if left and self.counters.step == left[0]:
            del left[0]
            raise KeyboardInterrupt
        return whole(self, loss)

    monkeypatch.setattr(TrainingLoop, "update", update)


def make_data(folder, **sizes):
    """A generated data set, of `SIZES` where nothing else is asked for."""
    return synthetic(cache=folder / "cache", **{**SIZES, **sizes})


def make_trainer(
    folder, data, loss=None, lr_schedule=constant, network=None, ranker=None, betas=None, **options
):
    """A trainer put together without a configuration."""
    if network is None:
        network = make_network(data)
    (folder / "run").mkdir(exist_ok=True)
    return Trainer(
        network,
        RowSparseAdam(network.parameters(), lr=0.01, betas=betas or (0.9, 0.999)),
        loss or ActiveLoss("softmax"),
        data,
        TrainingOptions(**{"batch_size": 16, "epochs": 2, **options}),
        folder / "run",
        lr_schedule,
        ranker=ranker,
    )


def idle_trainer(folder, data=None, **options):
    """A trainer that is not to run."""
    trainer = make_trainer(folder, make_data(folder) if data is None else data, **options)
    trainer.monitor.close()
    return trainer


def make_network(data, sampler=None):
    """Eight hidden neurons and outputs sampled by hash tables."""
    if sampler is None:
        sampler = partial(lsh_sampler, active=32)
    return SlideNetwork(data.num_features, [8], data.num_labels, sampler)


def assert_same(found, expected, path="checkpoint"):
    """Nested states agree bit by bit; measured times do not count."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for key in expected:
            if not str(key).endswith("_seconds"):
                assert_same(found[key], expected[key], f"{path}/{key}")
    elif isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), path
        # Bytes, because of NaN, and because of -0.0; an empty tensor may have a stride of 0.
        flat = (torch.cat([each.flatten()]) for each in (found, expected))
        one, other = (each.view(torch.uint8) for each in flat)
        assert torch.equal(one, other), f"{path}: {(found != expected).sum()} of {found.numel()}"
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{path}/{i}")
    else:
        assert found == expected, path
