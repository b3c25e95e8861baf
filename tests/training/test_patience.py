"""Runs that stop early, and the weights that they keep."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers import job
from helpers.ranks import run_ranks, several

from slide.training import TrainingOptions
from slide.training.validation import HeldRows, Patience

SIZES = {"train_samples": 1000}  # A fifth is held out: 50 steps of 16 rows are an epoch.


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return job.make_data(tmp_path_factory.mktemp("data"), **SIZES)


def scripted(monkeypatch, *scores):
    """Let the precision on held-out rows be these numbers, one after the other."""
    left = list(scores)
    monkeypatch.setattr(HeldRows, "precision", lambda *_: left.pop(0))
    return left


def weights(network):
    return {name: each.clone() for name, each in network.named_parameters()}


def trainer_of(folder, data, **options):
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    more = {"epochs": 6, "patience": 2, "recall_every": 0, **options}
    return job.make_trainer(folder, data, **more)


def test_it_ends_and_keeps_the_best(tmp_path, data, monkeypatch, capsys):
    left = scripted(monkeypatch, 0.2, 0.4, 0.4, 0.3, 0.9)
    trainer = trainer_of(tmp_path, data)
    seen = {}
    look = Patience.look

    def noted(self, network, counters, *more):
        look(self, network, counters, *more)
        seen[counters.step] = weights(network)

    monkeypatch.setattr(Patience, "look", noted)
    assert trainer.fit()["steps"] == 200
    assert left == [0.9]
    for name, each in trainer.network.named_parameters():
        assert torch.equal(each, seen[100][name])
        assert name.endswith("bias") or not torch.equal(each, seen[200][name])
    kept = job.checkpoint(tmp_path / "run")
    assert torch.equal(kept["network"]["output.weight"], seen[200]["output.weight"])
    assert job.steps(tmp_path / "run", "held/precision") == [50, 100, 150, 200]
    said = capsys.readouterr().err
    assert "step 200: precision has not risen since step 100: the run ends" in said
    assert "the weights of step 100 are kept" in said


def test_the_last_step_can_be_the_best(tmp_path, data, monkeypatch):
    scripted(monkeypatch, 0.1, 0.2, 0.3)
    trainer = trainer_of(tmp_path, data, epochs=3)
    assert trainer.fit()["steps"] == 150
    last = job.checkpoint(tmp_path / "run")["network"]["output.weight"]
    assert torch.equal(trainer.network.output.weight, last)


@pytest.mark.parametrize(("last", "kept"), [(0.5, 120), (0.4, 100), (0.3, 100)])
def test_steps_after_the_last_evaluation_are_judged(tmp_path, data, monkeypatch, last, kept):
    left = scripted(monkeypatch, 0.2, 0.4, last)
    trainer = trainer_of(tmp_path, data, max_steps=120)
    trainer.fit()
    assert not left
    assert job.steps(tmp_path / "run", "held/precision") == [50, 100, 120]
    assert (trainer.patience.score, trainer.patience.best_step) == (max(0.4, last), kept)
    at_end = job.checkpoint(tmp_path / "run")["network"]["output.weight"]
    assert torch.equal(trainer.network.output.weight, at_end) == (kept == 120)
    again = Patience(trainer.checkpoint, 2, 50, trainer.held_rows, step=120)
    assert again.best_step == kept, "a run that is resumed at its end keeps the same"


def test_a_run_without_an_evaluation_keeps_its_last_weights(tmp_path, data, monkeypatch):
    scripted(monkeypatch)
    trainer_of(tmp_path, data, max_steps=40).fit()
    assert not (tmp_path / "run/best").exists()


def test_a_resumed_run_goes_on_waiting(tmp_path, data, monkeypatch):
    scripted(monkeypatch, 0.5, 0.1, 0.2)
    job.stop_at(monkeypatch, 110)
    trainer = trainer_of(tmp_path, data, checkpoint_every=60)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    resumed = Patience(trainer.checkpoint, 2, 50, trainer.held_rows, step=60)
    assert (resumed.score, resumed.best_step) == (0.5, 50)
    assert not resumed.ended(149)
    assert resumed.ended(150)
    fresh = Patience(trainer.checkpoint, 2, 50, trainer.held_rows, step=40)
    assert (fresh.score, fresh.best_step) == (-1.0, 0), "it is from after the checkpoint"


def test_the_best_of_the_last_checkpoint_stays(tmp_path, data, monkeypatch):
    """The best of step 50 is replaced after the checkpoint of step 120, and the run is killed."""
    scripted(monkeypatch, 0.5, 0.4, 0.6, 0.7)
    job.stop_at(monkeypatch, 210)
    trainer = trainer_of(tmp_path, data, checkpoint_every=120, keep_checkpoints=1)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    resumed = Patience(trainer.checkpoint, 2, 50, trainer.held_rows, step=120)
    assert (resumed.score, resumed.best_step) == (0.5, 50)
    assert not resumed.before.exists()


@pytest.mark.parametrize("left", ["nothing", "a part"])
def test_a_kill_while_the_best_is_replaced(tmp_path, data, monkeypatch, left):
    scripted(monkeypatch, 0.5)
    trainer = trainer_of(tmp_path, data, epochs=1)
    trainer.fit()
    best = tmp_path / "run/best"
    best.rename(tmp_path / "run/best.tmp")
    if left == "a part":
        best.mkdir()
    assert Patience(trainer.checkpoint, 2, 50, trainer.held_rows, step=50).best_step == 50
    assert (best / "best.json").exists()


@pytest.mark.parametrize("done", [0, 1, 2])
def test_kills_while_the_best_of_the_last_checkpoint_is_taken_back(
    tmp_path, data, monkeypatch, done
):
    """A kill after ``done`` renamings, or in the first removal of a folder."""
    scripted(monkeypatch, 0.5, 0.4, 0.6, 0.7)
    job.stop_at(monkeypatch, 210)
    trainer = trainer_of(tmp_path, data, checkpoint_every=120, keep_checkpoints=1)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    begin = trainer.checkpoint, 2, 50, trainer.held_rows
    left, rename, remove = [done], Path.rename, shutil.rmtree

    def killed(*arguments):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return rename(*arguments)

    def killed_within(path, **options):
        if Path(path).exists():
            next(Path(path).glob("*.json")).unlink()
            raise KeyboardInterrupt
        return remove(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        patch.setattr(shutil, "rmtree", killed_within)
        with pytest.raises(KeyboardInterrupt):
            Patience(*begin, step=120)
    resumed = Patience(*begin, step=120)
    assert (resumed.score, resumed.best_step) == (0.5, 50)


def test_best_weights_that_cannot_be_read(tmp_path, data, monkeypatch):
    scripted(monkeypatch, 0.5, 0.4, 0.3)
    trainer = trainer_of(tmp_path, data, epochs=3)
    whole = Patience.restore

    def damaged(self, *more):
        path = self.path / "network.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        whole(self, *more)

    monkeypatch.setattr(Patience, "restore", damaged)
    with pytest.raises(OSError, match=r"the best weights cannot be read: .*network\.safetensors"):
        trainer.fit()


def test_patience_needs_a_number_of_epochs():
    with pytest.raises(ValueError, match="patience=2 needs a number of epochs"):
        TrainingOptions(patience=2)
    with pytest.raises(ValueError, match="patience must be a whole number of at least 0, not -1"):
        TrainingOptions(epochs=2, patience=-1)


def test_by_the_command_line(tmp_path):
    more = ["trainer.epochs=9", "trainer.patience=1", "ranker=none", "trainer.max_steps=60"]
    job.main(*job.tiny(tmp_path, *more))
    log = job.lines(tmp_path / "run", "held/precision")
    assert [line["step"] for line in log] == [56, 60]
    best = max(log, key=lambda line: line["held/precision"])["step"]
    assert json.loads((tmp_path / "run/best/best.json").read_text())["step"] == best
    before = job.files_of(tmp_path / "run/best")
    job.main(f"resume={tmp_path}/run")
    assert job.lines(tmp_path / "run", "held/precision") == log
    assert job.files_of(tmp_path / "run/best") == before


def test_a_run_that_patience_ended_goes_on_with_more(tmp_path, monkeypatch, capsys):
    scripted(monkeypatch, 0.5, 0.4, 0.3, 0.6)
    more = ["trainer.epochs=60", "trainer.patience=1", "ranker=none", "trainer.log_every=56"]
    job.main(*job.tiny(tmp_path, *more))
    run = tmp_path / "run"
    assert job.checkpoint(run)["step"] == 112
    capsys.readouterr()
    job.main(f"resume={run}", "trainer.epochs=70")
    assert job.checkpoint(run)["step"] == 112
    said = "the training of this run has ended; what comes after it is done again"
    assert f"{said}; it goes on with a larger trainer.patience" in capsys.readouterr().err
    job.main(f"resume={run}", "trainer.patience=3", "trainer.max_steps=224")
    assert "has ended" not in capsys.readouterr().err
    assert job.checkpoint(run)["step"] == 224
    assert json.loads((run / "best/best.json").read_text())["step"] == 224
    job.main(f"resume={run}")
    assert f"{said}\n" in capsys.readouterr().err


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
def test_a_resumed_run_keeps_whether_it_is_patient(tmp_path, before, after):
    job.main(*job.tiny(tmp_path, f"trainer.patience={before}", "trainer.max_steps=1"))
    assert job.failure(f"resume={tmp_path}/run", f"trainer.patience={after}") == (
        f"error: trainer.patience={after}: a resumed run keeps trainer.patience={before}; "
        "start a new one instead"
    )


SHARED = """
import pathlib, torch
from slide import FullSampler, RowSparseAdam
from slide.bars import Bar
from slide.distributed import ShardedNetwork
from slide.training.checkpoint import Checkpoint
from slide.training.monitor import SilentMonitor
from slide.training.validation import Patience
from slide.training.validation import HeldRows
from slide.training.monitor import Counters
FOLDER = pathlib.Path("BEST")

def work(group):
    '''Each group finds the best of that before, and writes its own.'''
    network = ShardedNetwork(30, [4], 20, FullSampler, group, seed=group.size)
    scores = [0.1 * group.size, 0.0, 0.05 * group.size]
    HeldRows.precision = lambda *_: scores.pop(0)
    checkpoint = Checkpoint(FOLDER, network, RowSparseAdam(network.parameters()), group=group)
    patience = Patience(checkpoint, 3, 50, object.__new__(HeldRows), 100 * group.size)
    before, found = patience.best_step, []
    if before:
        patience.restore(network, before + 1)
        found = sums(network, group)
    with torch.no_grad():
        for each in network.parameters():
            each.add_(group.size)
    counters = Counters(step=100 * group.size)
    patience.look(network, counters, SilentMonitor(), Bar(disable=True))
    best = sums(network, group)
    with torch.no_grad():
        for each in network.parameters():
            each.zero_()
    counters.step += 50
    patience.look(network, counters, SilentMonitor(), Bar(disable=True))
    counters.step += 7
    patience.finish(network, counters, SilentMonitor())
    checkpoint.close()
    assert not scores
    assert sums(network, group) == best
    return before, found, best

def sums(network, group):
    shared, found = network.shared_rows(), {}
    for name, each in network.named_parameters():
        own = each.detach().double()
        ids = shared[name].ids if name in shared else range(len(own))
        weights = torch.tensor([float(1 + i) for i in ids]).double()
        total = (own.reshape(len(own), -1).sum(1) * weights).sum()[None]
        if name in shared:
            total = group.all_reduce(total)
        found[name] = round(float(total), 3)
    return found
"""


@several
def test_the_best_of_several_processes(tmp_path):
    """Each writes its rows; any number of processes restores them."""
    code = SHARED.replace("BEST", str(tmp_path))
    found = run_ranks(code, tmp_path, 2, 3)
    assert found[1][0][0] == 0
    for size in (2, 3):
        for before, restored, best in found[size]:
            assert before == 100 * (size - 1)
            assert restored == found[size - 1][0][2]
            assert best == found[size][0][2]
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == [
        "best.json",
        *(f"rank-{rank}.safetensors" for rank in range(3)),
    ]
