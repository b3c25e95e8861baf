"""Runs whose length precision on held-out samples decides: automatic and early stopping."""

import copy
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import job
from helpers.ranks import run_ranks, several
from helpers.splits import split_of
from omegaconf import OmegaConf

from slide import FullSampler
from slide.data import SparseDataset, kind_of
from slide.ranking import EnsembleRanker
from slide.training import lr_schedules, stopping
from slide.training.checkpoint import find_folders, step_of
from slide.training.evaluation import precision_at_k
from slide.training.monitor import Monitor
from slide.training.stopping import BEST_NETWORK, EarlyStopping, HeldOutSamples
from slide.utils.files import json_digest

pytestmark = pytest.mark.usefixtures("one_thread")
AUTO = ["trainer.epochs=auto", "runtime.deterministic=true", "trainer.log_every=1", "ranker=none"]


@pytest.fixture
def two_epochs(monkeypatch):
    """Validation steps after each epoch of 8 steps; the second one ends the stable phase."""
    monkeypatch.setattr(lr_schedules, "FEWEST_STEPS", 8)
    monkeypatch.setattr(lr_schedules, "LEAST_GAIN", 100.0)


def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path, monkeypatch, two_epochs):
    stops = 5, 13, 17, 23  # Before a checkpoint, before the rate falls, and while it falls.
    for run in "ab":
        (tmp_path / run).mkdir()
    arguments = [*AUTO, "trainer.checkpoint_every=6", "network.input_dropout=0.2"]
    arguments += ["network.dropout=0.3", "sampler=sketch"]
    job.main(*job.tiny(tmp_path / "a", *arguments))
    job.stop_at(monkeypatch, *stops)
    words = job.tiny(tmp_path / "b", *arguments)
    for stop in stops:
        assert f"after step {stop}" in job.failure(*words)
        torch.manual_seed(123)
        words = [f"resume={tmp_path}/b/run"]
    job.main(*words)
    expected, found = (job.checkpoint(tmp_path / f"{run}/run") for run in "ab")
    assert expected["plan"]["steps"] == [8, 16]
    assert (expected["plan"]["decay_from"], expected["plan"]["total"]) == (16, 24)
    assert expected["step"] == 24
    job.assert_same(found, expected)
    rates = [
        [line["train/learning_rate"] for line in job.lines(tmp_path / run / "run", "train/loss")]
        for run in "ab"
    ]
    assert rates[0] == rates[1]
    assert rates[0][-1] < 0.2 * max(rates[0])
    one, other = (job.lines(tmp_path / run / "run", "held/precision") for run in "ab")
    assert one == other
    assert {8, 16, 24} < {line["step"] for line in one}, "validation, the end, points between"


def test_limits_may_change_when_a_run_is_resumed(tmp_path, monkeypatch, capsys):
    job.stop_at(monkeypatch, 9)
    job.failure(*job.tiny(tmp_path, *AUTO, "trainer.checkpoint_every=1"))
    job.main(f"resume={tmp_path}/run", "trainer.max_epochs=3")
    assert job.checkpoint(tmp_path / "run")["step"] == 24
    rates = [line["train/learning_rate"] for line in job.lines(tmp_path / "run", "train/loss")]
    assert rates[16:] == sorted(rates[16:], reverse=True)
    capsys.readouterr()
    job.main(f"resume={tmp_path}/run", "trainer.max_epochs=9")
    assert job.checkpoint(tmp_path / "run")["step"] == 24, "the rate has fallen"
    said = capsys.readouterr().err
    assert "the rate falls until step 24; higher limits come too late" in said
    assert "the training of this run has ended" in said


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [("epochs", "auto", 3), ("patience", 0, 2)],
)
def test_a_resumed_run_keeps_its_way_to_end(tmp_path, key, before, after):
    (tmp_path / "run").mkdir()
    config = job.compose(*job.tiny(tmp_path, f"trainer.{key}={before}"))
    OmegaConf.save(config, tmp_path / "run/config.yaml", resolve=True)
    message = job.failure(f"resume={tmp_path}/run", f"trainer.{key}={after}")
    assert message == (
        f"error: trainer.{key}={after}: a resumed run keeps trainer.{key}={before}; "
        "start a new one instead"
    )


@pytest.mark.parametrize(
    ("options", "ranker", "sizes"),
    [
        ({"epochs": 2}, None, (150, None, 40)),
        ({"epochs": 2}, EnsembleRanker(), (120, 30, 40)),
        ({"epochs": "auto"}, None, (120, 30, 40)),
        ({"epochs": "auto", "holdout": 0.25}, None, (90, 22, 38)),
        ({"epochs": 2, "holdout": 0.25}, None, (112, None, 38)),
    ],
)
def test_samples_are_held_out_if_something_is_chosen(tmp_path, options, ranker, sizes):
    data = job.make_data(tmp_path, **job.WITH_HELD)
    trainer = job.idle_trainer(tmp_path, data, ranker=ranker, **options)
    splits = trainer.train_split, trainer.held_split, trainer.eval_split
    assert tuple(split and len(split) for split in splits) == sizes
    assert trainer.total_steps == (None if options["epochs"] == "auto" else 2 * -(-sizes[0] // 16))
    used = [split.features.values for split in splits if split is not None]
    if "holdout" in options:
        total = data.train.features.values.sum(dtype=float)
        assert sum(part.sum(dtype=float) for part in used) == pytest.approx(total)


def test_the_kind_is_that_of_all_samples(tmp_path, monkeypatch):
    """Where two of six copies of samples are held out, the others look like a graph."""
    count = 1100
    numbers = [*range(count - 6), *range(count - 12, count - 6)]
    rows = [[row % 30, 30 + row // 30, 67] for row in numbers]
    split = split_of(rows, [[row % 12, 12] for row in numbers], 68, 13)
    data = SparseDataset("nearly", split, split, 68, 13)
    assert kind_of(split) == "other"
    parts = split.take(np.arange(count - 2)), split.take(np.arange(count - 2, count))
    assert kind_of(parts[0]) == "graph"
    monkeypatch.setattr("slide.training.trainer.validation_split", lambda *_: parts)
    network = job.make_network(data, FullSampler)
    assert job.idle_trainer(tmp_path, data, network=network, epochs="auto").held_out.known is None


def test_known_labels_are_left_out_of_predictions(tmp_path):
    """Samples of two features, all different, with five labels; held-out pairs repeat them."""
    rng = np.random.default_rng(0)
    rows = [[row // 10, 20 + row % 10] for row in range(60)]
    every = split_of(rows, [rng.permutation(12)[:5].tolist() for _ in rows], 30, 12)
    data = SparseDataset("graph", every, every, 30, 12)
    torch.manual_seed(0)
    network = job.make_network(data, FullSampler)
    trainer = job.idle_trainer(tmp_path, data, network=network, epochs="auto")
    train, held = trainer.train_split, trainer.held_split
    known = {tuple(row): set() for row in train.features.indices.reshape(-1, 2).tolist()}
    for row in range(len(train)):
        part = train.take(np.array([row]))
        known[tuple(part.features.indices.tolist())].update(part.labels.indices.tolist())
    scores = network(held.features).to_dense().detach().numpy()
    best = np.full((len(held), 5), -1)
    for row, name in enumerate(held.features.indices.reshape(-1, 2).tolist()):
        others = known.get(tuple(name), ())
        best[row] = [label for label in np.argsort(-scores[row]) if label not in others][:5]
    expected = np.mean([precision_at_k(best, held.labels, k) for k in (1, 3, 5)])
    samples = HeldOutSamples(train, held, "graph")
    assert samples.known is not None
    network.train()
    assert samples.precision(network) == pytest.approx(expected)
    assert network.training


def test_other_samples_are_evaluated_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "_BATCH", 7)
    monkeypatch.setattr(stopping, "HELD_SAMPLES", 11)
    data = job.make_data(tmp_path)
    network = job.make_network(data, partial(FullSampler))
    samples = HeldOutSamples(data.train, data.test, "other")
    assert samples.known is None
    assert len(samples.split) == 11
    best = network.predict(samples.split.features, 5)[1].numpy()
    expected = np.mean([precision_at_k(best, samples.split.labels, k) for k in (1, 3, 5)])
    assert samples.precision(network) == pytest.approx(expected)


@pytest.mark.parametrize("num_labels", [2, 4, 9])
def test_the_baseline_names_the_most_frequent_labels(num_labels):
    rng = np.random.default_rng(0)
    labels = np.minimum(rng.geometric(0.4, 90) - 1, num_labels - 1)
    split = split_of([[row] for row in range(90)], labels[:, None].tolist(), 90, num_labels)
    held = HeldOutSamples(split, split, "other")
    order = np.argsort(-np.bincount(labels, minlength=num_labels), kind="stable")
    # As many answers as there are labels are always right.
    assert held.cutoffs == [k for k in (1, 3, 5) if k < num_labels]
    expected = np.mean([np.isin(labels, order[:k]).mean() / k for k in held.cutoffs])
    assert held.baseline == pytest.approx(expected)


def test_known_labels_are_left_out_of_the_baseline():
    rows = [[0, 5], [0, 6], [1, 5], [0, 5], [1, 6]]
    split = split_of(rows, [[2], [2], [2], [0], [2]], 7, 4)
    held = HeldOutSamples(split.take(np.arange(3)), split.take(np.arange(3, 5)), "graph")
    # 0 comes next after 2, which is known for the first sample; it is right for the other one.
    assert held.cutoffs == [1, 3]
    assert held.baseline == pytest.approx(np.mean([1.0, 2 / 6]))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A fifth is held out: 50 steps of 16 samples are an epoch."""
    return job.make_data(tmp_path_factory.mktemp("data"), train_samples=1000)


@pytest.fixture
def scripted(monkeypatch):
    """Lets the precision on held-out samples be these numbers, one after the other."""

    def script(*scores):
        left = list(scores)
        monkeypatch.setattr(HeldOutSamples, "precision", lambda *_: left.pop(0))
        return left

    return script


def patient(folder, data, **options):
    torch.manual_seed(0)
    more = {"epochs": 6, "patience": 2, "recall_every": 0, **options}
    return job.make_trainer(folder, data, **more)


def again(trainer, step):
    """Early stopping of a run that goes on from ``step``."""
    return EarlyStopping(trainer.checkpoint, 2, 50, trainer.held_out, step=step)


def stopped_trainer(folder, data, monkeypatch, step, every):
    """A trainer that was killed at a step."""
    job.stop_at(monkeypatch, step)
    trainer = patient(folder, data, checkpoint_every=every, keep_checkpoints=1)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    return trainer


def test_it_ends_and_keeps_the_best(tmp_path, data, monkeypatch, scripted, capsys):
    left, seen = scripted(0.2, 0.4, 0.4, 0.3, 0.9), {}
    trainer, validate = patient(tmp_path, data), EarlyStopping.validate

    def noted(self, network, counters, *more):
        validate(self, network, counters, *more)
        seen[counters.step] = {name: each.clone() for name, each in network.named_parameters()}

    monkeypatch.setattr(EarlyStopping, "validate", noted)
    assert trainer.fit()["steps"] == 200
    assert left == [0.9]
    for name, each in trainer.network.named_parameters():
        assert torch.equal(each, seen[100][name])
        assert name.endswith("bias") or not torch.equal(each, seen[200][name])
    kept = job.checkpoint(tmp_path / "run")
    assert torch.equal(kept["network"]["output.weight"], seen[200]["output.weight"])
    assert job.steps(tmp_path / "run", "held/precision") == [50, 100, 150, 200]
    said = capsys.readouterr().err
    assert "step 200: mean of P@1, P@3 and P@5 has not risen since step 100: the run ends" in said
    assert "the weights of step 100 are kept" in said


@pytest.mark.parametrize(("steps", "last", "kept"), [(150, 0.5, 150), (120, 0.4, 100)])
def test_steps_after_the_last_validation_step_count(tmp_path, data, scripted, steps, last, kept):
    left = scripted(0.2, 0.4, last)
    trainer = patient(tmp_path, data, max_steps=steps)
    trainer.fit()
    assert not left
    assert job.steps(tmp_path / "run", "held/precision") == [50, 100, steps]
    stopping = trainer.early_stopping
    assert (stopping.score, stopping.best_step) == (max(0.4, last), kept)
    at_end = job.checkpoint(tmp_path / "run")["network"]["output.weight"]
    assert torch.equal(trainer.network.output.weight, at_end) == (kept == steps)
    assert again(trainer, steps).best_step == kept, "a run resumed at its end keeps the same"


def test_a_resumed_run_goes_on_waiting(tmp_path, data, monkeypatch, scripted):
    scripted(0.5, 0.1, 0.2)
    trainer = stopped_trainer(tmp_path, data, monkeypatch, step=110, every=60)
    resumed = again(trainer, 60)
    assert (resumed.score, resumed.best_step) == (0.5, 50)
    assert not resumed.ended(149)
    assert resumed.ended(150)
    fresh = again(trainer, 40)
    assert (fresh.score, fresh.best_step) == (-1.0, 0), "it is from after the checkpoint"


def test_the_best_of_the_last_checkpoint_is_taken_back(tmp_path, data, monkeypatch, scripted):
    """The best of step 50 was replaced after the checkpoint of step 120, and the run was killed.

    It is killed again within the removal of a folder.
    """
    scripted(0.5, 0.4, 0.6, 0.7)
    trainer = stopped_trainer(tmp_path, data, monkeypatch, step=210, every=120)
    best = trainer.early_stopping.path
    assert [path.name for path in find_folders(best)] == ["1-step-50", "3-step-200"]

    def killed_within(path, **options):
        next(Path(path).glob("*.json")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed_within)
        with pytest.raises(KeyboardInterrupt):
            again(trainer, 120)
    resumed = again(trainer, 120)
    assert (resumed.score, resumed.best_step) == (0.5, 50)
    assert [path.name for path in find_folders(best)] == ["1-step-50"]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A trainer after three epochs, of which the first one was the best."""
    scores = [0.3, 0.4, 0.5]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldOutSamples, "precision", lambda *_: scores.pop())
        trainer = patient(tmp_path_factory.mktemp("trained"), data, epochs=3)
        trainer.fit()
    return trainer


@pytest.fixture
def stopping_of_copy(trained, tmp_path):
    """Its early stopping, whose best weights are a copy."""
    found = copy.copy(trained.early_stopping)
    found.path = tmp_path / "best"
    shutil.copytree(trained.early_stopping.path, found.path)
    return found


@pytest.mark.parametrize("gone", [False, True])
def test_best_weights_that_cannot_be_read(trained, stopping_of_copy, gone):
    path = find_folders(stopping_of_copy.path)[-1] / "network.safetensors"
    if gone:
        shutil.rmtree(stopping_of_copy.path)
    else:
        path.write_bytes(path.read_bytes()[:-1])
    said = "best has none any more" if gone else r"network\.safetensors"
    with pytest.raises(OSError, match=f"the best weights cannot be read: .*{said}"):
        stopping_of_copy.finish(trained.network, trained.counters, Monitor(None))


@pytest.mark.parametrize("score", [2, "0.5"])
def test_a_score_that_no_network_has(trained, stopping_of_copy, score):
    """No later weights would be better, or none would end the run."""
    path = find_folders(stopping_of_copy.path)[-1] / BEST_NETWORK.list_file
    content = json.loads(path.read_text()) | {"score": score}
    del content["sha256"]
    path.write_text(json.dumps(content | {"sha256": json_digest(content)}))
    checkpoint = copy.copy(trained.checkpoint)
    checkpoint.run = stopping_of_copy.path.parent
    with pytest.raises(ValueError, match=r"best\.json is damaged: score must be .* in \[0, 1\]"):
        EarlyStopping(checkpoint, 2, 50, trained.held_out, step=150)


def test_a_run_that_patience_ended_goes_on_with_more(tmp_path, scripted, capsys):
    scripted(0.5, 0.4, 0.3, 0.6)
    more = ["trainer.epochs=60", "trainer.patience=1", "ranker=none", "trainer.recall_every=0"]
    job.main(*job.tiny(tmp_path, *more))
    run = tmp_path / "run"
    said = "the training of this run has ended; what comes after it is done again"
    helps = f"{said}; it goes on with a larger trainer.patience"
    for words, steps, expected in (
        (["trainer.epochs=70"], 112, helps),
        (["trainer.patience=3", "trainer.max_steps=224"], 224, ""),
        ([], 224, f"{said}\n"),
    ):
        capsys.readouterr()
        job.main(f"resume={run}", *words)
        err = capsys.readouterr().err
        assert expected in err
        assert ("has ended" in err) == bool(expected)
        assert job.checkpoint(run)["step"] == steps
    assert [step_of(path) for path in find_folders(run / "best")] == [224]


SHARED = """
from slide.utils.progress_bar import ProgressBar
from slide.training.checkpoint import Checkpoint
from slide.training.monitor import Counters, Monitor
from slide.training.stopping import EarlyStopping, HeldOutSamples
FOLDER = pathlib.Path("BEST")

def work(group):
    '''Each group finds the best of that before, and writes its own.'''
    network = ShardedNetwork(30, [4], 20, FullSampler, group, seed=group.size)
    scores = [0.1 * group.size, 0.0, 0.05 * group.size]
    HeldOutSamples.precision = lambda *_: scores.pop(0)
    checkpoint = Checkpoint(FOLDER, network, RowSparseAdam(network.parameters()), group=group)
    held = object.__new__(HeldOutSamples)
    held.measure = "P@1"
    stopping = EarlyStopping(checkpoint, 3, 50, held, 100 * group.size)
    before, found = stopping.best_step, []
    if before:
        stopping.finish(network, Counters(step=before + 50), Monitor(None))
        found = sums(network, group)
    with torch.no_grad():
        for each in network.parameters():
            each.add_(group.size)
    counters = Counters(step=100 * group.size)
    stopping.validate(network, counters, Monitor(None), ProgressBar(disable=True))
    best = sums(network, group)
    with torch.no_grad():
        for each in network.parameters():
            each.zero_()
    counters.step += 50
    stopping.validate(network, counters, Monitor(None), ProgressBar(disable=True))
    counters.step += 7
    stopping.finish(network, counters, Monitor(None))
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
    found = run_ranks(SHARED.replace("BEST", str(tmp_path)), tmp_path, 2, 3)
    assert found[1][0][0] == 0
    for size in (2, 3):
        for before, restored, best in found[size]:
            assert before == 100 * (size - 1)
            assert restored == found[size - 1][0][2]
            assert best == found[size][0][2]
    (best,) = find_folders(tmp_path / "best")
    names = sorted(path.name for path in best.iterdir())
    assert names == ["best.json", *(f"rank-{rank}.safetensors" for rank in range(3))]
