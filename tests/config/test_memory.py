"""Memory that the system does not give: a sentence, and the last checkpoint stays."""

import numpy as np
import pytest
import torch
from helpers import job

from slide.config import command
from slide.config.compose import user_errors
from slide.training.checkpoint import Checkpoint

SAID = "error: there is not enough memory ("


@pytest.mark.parametrize(
    ("argument", "begin"),
    [
        ("network.hidden=[10000000000000]", "error: the weights alone take "),
        ("network.hidden=[8,10000000000]", "error: the weights alone take "),
        ("dataset.num_features=999999999999999", "error: dataset.num_features must be in "),
        ("hash.num_tables=100000000000", SAID),
    ],
)
def test_impossible_sizes(tmp_path, argument, begin):
    said = job.failure(*job.tiny(tmp_path, argument, "ranker=none"))
    assert "\n" not in said
    assert said.startswith(begin)


@pytest.mark.parametrize(
    "ask",
    [lambda: torch.empty(2**50), lambda: np.empty(2**50), lambda: np.zeros((1 << 40, 1 << 9))],
)
def test_both_libraries(ask):
    said = r"not enough memory \(.*(GiB|PiB|EiB|allocate)"
    with pytest.raises(SystemExit, match=said), user_errors():
        ask()


def test_the_memory_of_a_device():
    told = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 7.79 GiB"
    said = r"not enough memory \(20.00 GiB were asked for at once on the device\): lower"
    with pytest.raises(SystemExit, match=said), user_errors():
        raise torch.cuda.OutOfMemoryError(told)


@pytest.mark.parametrize("part", ["write_run_model", "write_run_report"])
def test_after_training(tmp_path, monkeypatch, part):
    def full(trainer):
        raise MemoryError

    monkeypatch.setattr(command, part, full)
    said = job.failure(*job.tiny(tmp_path, "ranker=none", "report=true"))
    assert said.startswith(SAID)
    assert said.endswith("goes on from the last checkpoint")


def test_other_errors_of_torch_pass_through():
    with pytest.raises(RuntimeError, match="shape"), user_errors():
        torch.zeros(2).view(3)


def test_in_training(tmp_path, monkeypatch):
    begin = Checkpoint.begin

    def full(self, counters):
        begin(self, counters)
        if counters.step == 4:
            raise MemoryError

    monkeypatch.setattr(Checkpoint, "begin", full)
    more = ["trainer.checkpoint_every=2", "trainer.max_steps=6", "ranker=none"]
    said = job.failure(*job.tiny(tmp_path, *more))
    assert said.startswith(SAID)
    assert said.endswith(f"resume={tmp_path}/run goes on from the last checkpoint")
    monkeypatch.undo()
    job.main(f"resume={tmp_path}/run")
    assert job.steps(tmp_path / "run", "eval/p_at_1") == [6]
