"""What a checkpoint holds, and what keeps the last one: divergence, a full disk."""

import errno
import math
from dataclasses import fields

import pytest
import torch
from helpers import job

from slide.files import read_tensors
from slide.training import DivergenceError
from slide.training.progress import Counters

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_checkpoint_holds_all_counters(tmp_path):
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), max_steps=3)
    trainer.monitor.close()
    values = {field.name: number for number, field in enumerate(fields(Counters))}
    trainer.checkpoint.write(Counters(**values))
    state = read_tensors(trainer.checkpoint.path)
    assert {name: state[name] for name in values} == values
    assert trainer.checkpoint.read() == Counters(**values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("checkpoint_every", [0, 2])
def test_a_loss_that_is_not_finite_ends_the_run(tmp_path, value, checkpoint_every):
    data = job.make_data(tmp_path)
    trainer = job.make_trainer(tmp_path, data, checkpoint_every=checkpoint_every, log_every=1)
    output, optimizer, states = trainer.network.output, trainer.learner.optimizer, []
    good = output.loss

    def loss(x, labels, kind):
        found, active = good(x, labels, kind)
        return found * (value if len(states) == 4 else 1), active

    output.loss = loss
    whole = trainer.learner.forward

    def forward(batch):
        states.append((trainer.network.state_dict(), optimizer.state_dict()))
        states[-1] = torch.save(states[-1], tmp_path / "before.pt")
        return whole(batch)

    trainer.learner.forward = forward
    with pytest.raises(DivergenceError, match=r"loss is (nan|-?inf) at step 4") as error:
        trainer.fit()
    network, expected = torch.load(tmp_path / "before.pt", weights_only=True)
    job.assert_same(optimizer.state_dict(), expected)
    for name, weight in trainer.network.named_parameters():
        assert torch.equal(weight, network[name])
    assert trainer.step == 3
    assert job.steps(tmp_path / "run", "train/loss") == [1, 2, 3]
    checkpoint = tmp_path / "run/checkpoint.pt"
    if checkpoint_every:
        assert f"last good checkpoint is {checkpoint}" in str(error.value)
        assert read_tensors(checkpoint)["step"] == 2
    else:
        assert "there is no checkpoint yet" in str(error.value)
        assert not checkpoint.exists()


def test_weights_that_are_not_finite_do_not_replace_a_checkpoint(tmp_path):
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), max_steps=1)
    trainer.fit()
    before = (tmp_path / "run/checkpoint.pt").read_bytes()
    trainer.network.output.weight.data[3, 2] = math.nan
    with pytest.raises(DivergenceError, match=r"output.weight .* step 1: .* last good checkpoint"):
        trainer.save()
    assert (tmp_path / "run/checkpoint.pt").read_bytes() == before


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), checkpoint_every=2)
    whole = torch.save

    def save(state, file):
        if state["step"] == 4:
            file.write(b"begun")
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(state, file)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(OSError, match=r"cannot write .*checkpoint.pt.*No space left.* is kept"):
        trainer.fit()
    assert read_tensors(tmp_path / "run/checkpoint.pt")["step"] == 2
    assert not list(tmp_path.glob("run/*.tmp"))
