"""What a checkpoint holds, and what keeps the last one: divergence, a full disk."""

import copy
import errno
import gc
import math
import shutil
import threading
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock, Timeout
from helpers import job
from helpers.damage import BINARY, REPEAT, damage, rng_of

from slide import ActiveLoss
from slide.training import DivergenceError, checkpoint
from slide.training import trainer as trainer_module
from slide.training.checkpoint import read_states
from slide.training.monitor import Counters
from slide.utils import tensor_folder
from slide.utils.run_folders import RUN_LOCK

pytestmark = pytest.mark.usefixtures("one_thread")


def fitted(folder, **options):
    trainer = job.make_trainer(folder, job.make_data(folder), **options)
    trainer.fit()
    return trainer


def test_a_checkpoint_holds_all_counters(tmp_path, monkeypatch):
    trainer = job.idle_trainer(tmp_path, max_steps=3)
    values = {field.name: number for number, field in enumerate(fields(Counters))}
    trainer.checkpoint.write(Counters(**values))
    state = job.checkpoint(tmp_path / "run")
    assert {name: state[name] for name in values} == values
    assert trainer.checkpoint.read() == Counters(**values)
    del state["network_seconds"]  # Not taken for 0.
    monkeypatch.setattr(checkpoint, "read_states", lambda *_: [state])
    with pytest.raises(ValueError, match="it lacks network_seconds"):
        trainer.checkpoint.read()


@pytest.mark.parametrize(("value", "checkpoint_every"), [(math.nan, 0), (-math.inf, 2)])
def test_a_loss_that_is_not_finite_ends_the_run(tmp_path, value, checkpoint_every):
    data = job.make_data(tmp_path)
    trainer = job.make_trainer(tmp_path, data, checkpoint_every=checkpoint_every, log_every=1)
    output, optimizer = trainer.network.output, trainer.loop.optimizer
    good, whole = output.loss, trainer.loop.forward

    def loss(x, labels, *rest):
        found, active = good(x, labels, *rest)
        return found * (value if trainer.step == 3 else 1), active

    def forward(batch):
        torch.save((trainer.network.state_dict(), optimizer.state_dict()), tmp_path / "before.pt")
        return whole(batch)

    output.loss, trainer.loop.forward = loss, forward
    with pytest.raises(DivergenceError, match=r"loss is (nan|-?inf) at step 4") as error:
        trainer.fit()
    network, expected = torch.load(tmp_path / "before.pt", weights_only=True)
    job.assert_same(optimizer.state_dict(), expected)
    for name, weight in trainer.network.named_parameters():
        assert torch.equal(weight, network[name])
    assert trainer.step == 3
    assert job.steps(tmp_path / "run", "train/loss") == [1, 2, 3]
    if checkpoint_every:
        last = tmp_path / "run/checkpoints/1-step-2"
        assert f"last good checkpoint is {last}" in str(error.value)
        assert job.checkpoint(tmp_path / "run")["step"] == 2
    else:
        assert "there is no checkpoint yet" in str(error.value)
        assert not (tmp_path / "run/checkpoints").exists()


def test_weights_that_are_not_finite_do_not_replace_a_checkpoint(tmp_path):
    trainer = fitted(tmp_path, max_steps=1)
    before = job.files_of(tmp_path / "run/checkpoints")
    trainer.network.output.weight.data[3, 2] = math.nan
    with pytest.raises(DivergenceError, match=r"output.weight .* step 1: .* last good checkpoint"):
        trainer.save()
    assert job.files_of(tmp_path / "run/checkpoints") == before


def test_a_folder_that_was_removed_is_not_made_again(tmp_path):
    trainer = job.idle_trainer(tmp_path)
    shutil.rmtree(trainer.folder)
    with pytest.raises(OSError, match=r"cannot write the checkpoint .*No such file"):
        trainer.checkpoint.write(Counters(step=1))
    trainer.checkpoint.close()
    assert not trainer.folder.exists()


@pytest.mark.parametrize("when", ["at once", "at the end"])
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch, when):
    """Whether the error comes while the run goes on, or when it waits for the last one."""
    every = 2 if when == "at once" else 8
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), checkpoint_every=every)
    whole = tensor_folder._save

    def save(tensors, path):
        if trainer.checkpoint.found():
            path.write_bytes(b"begun")
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(tensors, path)

    monkeypatch.setattr(tensor_folder, "_save", save)
    first = tmp_path / f"run/checkpoints/1-step-{every}"
    with pytest.raises(OSError, match=r"cannot write the checkpoint .*No space") as e:
        trainer.fit()
    assert str(e.value).endswith(f"{first} is kept")
    assert list(first.parent.iterdir()) == [first]
    assert job.checkpoint(tmp_path / "run")["step"] == every


def test_a_checkpoint_is_of_the_moment_when_it_was_begun(tmp_path, monkeypatch):
    """The run goes on while it is written."""
    trainer = fitted(tmp_path, max_steps=3)
    expected = copy.deepcopy(trainer.network.state_dict())
    go_on, whole = threading.Event(), tensor_folder._save

    def save(tensors, path):
        assert go_on.wait(60)
        whole(tensors, path)

    monkeypatch.setattr(tensor_folder, "_save", save)
    trainer.counters.step = 4
    trainer.checkpoint.begin(trainer.counters)
    begun = torch.get_rng_state()
    for weight in trainer.network.parameters():
        weight.data.zero_()
    trainer.counters.step = 5
    torch.rand(3)
    go_on.set()
    trainer.checkpoint.wait()
    found = job.checkpoint(tmp_path / "run")
    assert found["step"] == 4
    assert torch.equal(found["random"], begun)
    job.assert_same(found["network"]["output.weight"], expected["output.weight"])


def test_the_memory_of_copies_is_there_before(tmp_path):
    """It is asked for after the first step, and used by each checkpoint."""
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), checkpoint_every=4, max_steps=9)
    places, whole = [], trainer.checkpoint.begin

    def begin(counters):
        trainer.checkpoint.wait()
        room = trainer.checkpoint._room
        places.append({name: room[name].data_ptr() for name in ("output.weight", "random")})
        whole(counters)

    trainer.checkpoint.begin = begin
    trainer.fit()
    assert len(places) == 2
    assert places[0] == places[1]
    assert not trainer.checkpoint._room, "the end of a run has no copies"


@pytest.mark.parametrize(
    ("every", "keep", "names"),
    [
        (3, 3, ["4-step-12", "5-step-15", "6-step-16"]),  # The last one is of the end.
        (8, 3, ["1-step-8", "2-step-16"]),  # After the last step it is not written again.
    ],
)
def test_the_newest_ones_stay(tmp_path, every, keep, names):
    fitted(tmp_path, checkpoint_every=every, keep_checkpoints=keep)
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == names


@pytest.mark.parametrize("first", [True, False])
def test_processes_agree_on_whether_to_write(tmp_path, first):
    trainer = job.idle_trainer(tmp_path, max_steps=3)
    trainer.checkpoint.write(trainer.counters)
    # The other process has compiled something since it wrote, and this one has not, or vice versa.
    other, told = [None, True], []
    trainer.checkpoint.group = SimpleNamespace(
        size=2, gather=lambda own: told.append(own) or ([other, own] if first else [own, other])
    )
    assert trainer.checkpoint._is_new(trainer.counters) == first
    assert told == [[None, False]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels_per_row": 3}, "its checksum of the training rows is ........, not ........"),
        ({"test_samples": 41}, "its number of evaluation rows is 40, not 41"),
        ({"seed": 3}, "its seed is 0, not 3"),
        ({"loss": ActiveLoss("bce")}, "its loss is softmax, not bce"),
        (
            {"loss": ActiveLoss("softmax", hard_fraction=0.5)},
            "its share of hard samples is 1.0, not 0.5",
        ),
        ({"betas": (0.5, 0.5)}, r"its betas of the optimizer is \[\[0.9, 0.999\]\], not .*"),
    ],
)
def test_a_checkpoint_of_another_run(tmp_path, change, said):
    fitted(tmp_path, max_steps=1)
    sizes = {name: value for name, value in change.items() if name in job.SIZES}
    options = {name: value for name, value in change.items() if name not in job.SIZES}
    other = job.idle_trainer(tmp_path, job.make_data(tmp_path, **sizes), **options)
    with pytest.raises(ValueError, match=f"1-step-1 is of another run: {said}$"):
        other.checkpoint.read()


def test_facts_that_an_older_version_did_not_note(tmp_path):
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), max_steps=1)
    del trainer.checkpoint.facts["share of hard samples"]
    trainer.fit()
    other = job.idle_trainer(tmp_path, max_steps=1)
    with pytest.raises(ValueError, match="an older version of slide, which did not note its share"):
        other.checkpoint.read()


def is_free(folder):
    """Whether another process could hold the folder of a run."""
    try:
        with FileLock(folder / RUN_LOCK, blocking=False):
            return True
    except Timeout:
        return False


def test_the_folder_is_held_until_the_summary_is_written(tmp_path, monkeypatch):
    seen, write = [], trainer_module.write_summary

    def look(folder, summary):
        seen.append(is_free(folder))
        write(folder, summary)

    monkeypatch.setattr(trainer_module, "write_summary", look)
    fitted(tmp_path, max_steps=1)
    assert seen == [False]
    assert is_free(tmp_path / "run")
    trainer = job.idle_trainer(tmp_path, max_steps=1)
    assert not is_free(tmp_path / "run")
    del trainer  # It never ran.
    gc.collect()
    assert is_free(tmp_path / "run")


def test_damaged_checkpoints_are_never_read(tmp_path):
    """Flipped bits, and files that are cut, moved or mixed up: an error that names a file."""
    trainer = fitted(tmp_path, max_steps=1)
    folder, rng = trainer.checkpoint.last(), rng_of("checkpoints")
    whole = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    expected = read_states(folder)
    for _ in range(int(300 * REPEAT)):
        path = rng.choice(list(whole))
        content = damage(rng, whole[path], BINARY)
        if content == whole[path]:
            continue
        path.write_bytes(content)
        found, said = None, ""
        try:
            found = read_states(folder)
        except ValueError as error:
            said = str(error)
        if found is None:
            assert str(folder) in said
            assert "\n" not in said
        else:  # White space in JSON.
            assert path.suffix == ".json"
            job.assert_same(found, expected)
        path.write_bytes(whole[path])
