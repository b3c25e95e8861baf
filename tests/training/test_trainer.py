"""The loop: resuming bit by bit, schedules of what is due, learning."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from helpers import job
from helpers.samplers import lsh_sampler

from slide import FullSampler
from slide.data import SparseDataset
from slide.functional.losses import Loss
from slide.ranking import Ranked
from slide.sparse import Pattern
from slide.training import Trainer, linear
from slide.training.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = {
    "lsh shared": ("sampler=lsh", "sampler.weighting=stratified"),
    "lsh per sample": ("sampler=lsh", "sampler.mode=per_sample", "runtime.threads=0"),
    "dwta": ("hash=dwta", "hash.bin_size=4"),
    "published fifo": (
        *("sampler=slide2020", "hash.hashes_per_table=3", "hash.num_tables=4"),
        *("sampler.proposer.bucket_capacity=4", "sampler.mode=per_sample"),
    ),
    "skipped steps": ("optimizer.correct_skipped=true",),
    "two sampled layers": (
        *("network.hidden=[16,8]", "network.hidden_active=[null,4]", "sampler.mode=per_sample"),
    ),
    "uniform hidden layers": (
        *("network.hidden=[16,8]", "network.hidden_active=[8,4]", "sampler=uniform"),
        "sampler.mode=per_sample",
    ),
    "faiss shared": ("sampler=faiss",),
    "faiss per sample": ("sampler=faiss", "sampler.mode=per_sample"),
    **{
        f"{name} per sample": (f"sampler={name}", "sampler.mode=per_sample")
        for name in ("index", "neighbours", "recent")
    },
    "uniform": ("sampler=uniform",),
    "full": ("sampler=full", "sampler.active=all", "lr_schedule=linear", "lr_schedule.warmup=0.3"),
}


def without_times(lines):
    return [
        {k: v for k, v in line.items() if "seconds" not in k and "speed/" not in k}
        for line in lines
    ]


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path, monkeypatch, capsys, case):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    arguments = [
        *("runtime.deterministic=true", "network.dropout=0.3", "trainer.checkpoint_every=5"),
        *("trainer.log_every=1", "trainer.recall_every=4", "trainer.eval_every=6"),
        *CASES[case],
    ]
    kind = case.split()[0]
    if kind not in ("uniform", "full", "neighbours", "recent"):  # A rebuild every second step.
        arguments += ["schedule=fixed", "schedule.every=32"]
        # New hash functions with every second rebuild.
        arguments += ["schedule.redraw_every=64"] if kind == "published" else []
    job.main(*job.tiny(tmp_path / "a", *arguments))
    job.stop_at(monkeypatch, 7, 13)  # In the middle of both epochs, and after a checkpoint.
    arguments = job.tiny(tmp_path / "b", *arguments)
    resume = f"resume={tmp_path}/b/run"
    assert "after step 7" in job.failure(*arguments)
    assert job.checkpoint(tmp_path / "b/run")["step"] == 5
    torch.manual_seed(123)  # What went on elsewhere does not matter.
    assert "after step 13" in job.failure(resume)
    assert job.checkpoint(tmp_path / "b/run")["step"] == 10
    torch.manual_seed(456)
    job.main(resume)
    expected, found = (job.checkpoint(tmp_path / f"{run}/run") for run in "ab")
    assert expected["step"] == 16
    assert expected["samples"] == 240
    output = expected["network"]["output._extra_state"]
    if "lsh" in case:
        assert output["rebuilds"] == output["proposer"]["rebuilds"] == 8
    elif "published" in case:
        assert (output["rebuilds"], output["proposer"]["draw"]) == (8, 3)
    elif "faiss" in case:
        assert output["rebuilds"] == 8
    job.assert_same(found, expected)
    kept = [without_times(job.lines(tmp_path / run / "run")) for run in "ab"]
    assert kept[0] == kept[1]
    summaries = [json.loads((tmp_path / run / "run/summary.json").read_text()) for run in "ab"]
    for key in ("p_at_1", "psp_at_5", "active_mean", "steps", "samples", "epochs"):
        assert summaries[0][key] == summaries[1][key]


def test_a_deterministic_run_repeats_itself(tmp_path):
    for run in "ab":
        (tmp_path / run).mkdir()
        job.main(*job.tiny(tmp_path / run, "runtime.deterministic=true"))
    job.assert_same(*(job.checkpoint(tmp_path / f"{run}/run") for run in "ab"))


def test_another_seed_gives_another_run(tmp_path):
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        job.main(*job.tiny(tmp_path / str(seed), f"seed={seed}"))
    states = [job.checkpoint(tmp_path / f"{seed}/run") for seed in (1, 2)]
    with pytest.raises(AssertionError, match="checkpoint/network"):
        job.assert_same(*states)


def test_a_finished_run_can_be_prolonged(tmp_path):
    more = ["trainer.log_every=1", "lr_schedule=constant", "optimizer.lr=0.001"]
    job.main(*job.tiny(tmp_path, *more))
    job.main(f"resume={tmp_path}/run", "trainer.epochs=3", "optimizer.lr=0.5")
    assert job.steps(tmp_path / "run", "train/loss") == list(range(1, 25))
    rates = [line["train/learning_rate"] for line in job.lines(tmp_path / "run", "train/loss")]
    assert rates == [0.001] * 16 + [0.5] * 8
    assert job.checkpoint(tmp_path / "run")["step"] == 24


def test_a_checkpoint_on_the_way_knows_the_seconds_of_compilation(tmp_path, monkeypatch):
    job.stop_at(monkeypatch, 7)
    monkeypatch.setattr("slide.training.trainer.compile_seconds", iter(range(100)).__next__)
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), checkpoint_every=3)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert job.checkpoint(tmp_path / "run")["compile_seconds"] == 2


def test_what_is_due_comes_when_it_is_due(tmp_path, monkeypatch):
    saved, evaluated = [], []
    monkeypatch.setattr(Checkpoint, "begin", lambda self, now: saved.append(now.step))
    monkeypatch.setattr(Checkpoint, "write", lambda self, now: saved.append(now.step))
    whole = Trainer.evaluate
    monkeypatch.setattr(
        Trainer, "evaluate", lambda self, n=0: evaluated.append((self.step, n)) or whole(self, n)
    )
    trainer = job.make_trainer(
        *(tmp_path, job.make_data(tmp_path)),
        **{"log_every": 3, "recall_every": 5, "eval_every": 4, "eval_samples": 10},
        **{"checkpoint_every": 7, "max_steps": 15},
    )
    trainer.fit()
    assert trainer.step == 15
    assert saved == [7, 14, 15]
    assert evaluated == [(4, 10), (8, 10), (12, 10), (15, 0)]
    assert job.steps(tmp_path / "run", "train/loss") == [3, 6, 9, 12, 15]
    assert job.steps(tmp_path / "run", "selection/recall") == [5, 10, 15]
    assert job.steps(tmp_path / "run", "eval/p_at_1") == [4, 8, 12, 15]


def test_without_schedules_only_the_end_is_written(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(Trainer, "save", lambda self: saved.append(self.step))
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), recall_every=0, log_every=100)
    assert trainer.fit()["steps"] == 16
    assert saved == [16]
    assert [line["step"] for line in job.lines(tmp_path / "run")] == [16]


def test_evaluation_on_the_way_uses_the_rows_asked_for(tmp_path, monkeypatch):
    sizes = []

    def predict_split(network, split, search, ranker):
        assert ranker is None
        sizes.append((len(split), search))
        nothing = np.full((len(split), 5), -1)
        return Ranked(nothing, nothing, nothing)

    monkeypatch.setattr("slide.training.trainer.predict_split", predict_split)
    trainer = job.make_trainer(
        tmp_path, job.make_data(tmp_path), eval_every=8, eval_samples=30, evaluation="index"
    )
    trainer.fit()
    assert sizes == [(30, "index"), (40, "index")]


class Untouchable:
    """A split that must not be looked at, but to make it smaller."""

    def without_zeros(self):
        return self

    def __getattr__(self, name):
        raise AssertionError(f"the test rows are touched: {name}")

    def __len__(self):
        raise AssertionError("the test rows are counted")


def test_a_holdout_leaves_the_test_rows_alone(tmp_path, monkeypatch):
    data = job.make_data(tmp_path)
    blind = SparseDataset("blind", data.train, Untouchable(), data.num_features, data.num_labels)
    trainer = job.make_trainer(tmp_path, blind, holdout=0.25, eval_every=3)
    assert (len(trainer.train_split), len(trainer.eval_split)) == (90, 30)
    summary = trainer.fit()
    assert summary["evaluated_on"] == "holdout"
    assert summary["samples"] == 2 * 90
    # All rows are on one side or the other, once.
    sides = [trainer.train_split.features.values, trainer.eval_split.features.values]
    np.testing.assert_allclose(
        sum(side.astype(float).sum() for side in sides), data.train.features.values.sum(), rtol=1e-5
    )


def test_a_holdout_does_not_leak_into_the_first_biases(tmp_path, monkeypatch):
    seen = []
    whole = Loss.prior_scores
    monkeypatch.setattr(
        Loss,
        "prior_scores",
        lambda self, labels, n: seen.append(labels.num_rows) or whole(self, labels, n),
    )
    job.main(*job.tiny(tmp_path, "dataset.holdout=0.25"))
    assert seen == [90]


def test_a_resumed_run_keeps_its_biases(tmp_path, monkeypatch):
    job.stop_at(monkeypatch, 3)
    job.failure(*job.tiny(tmp_path, "trainer.checkpoint_every=1"))
    monkeypatch.setattr(Loss, "prior_scores", None)
    job.main(f"resume={tmp_path}/run")


def test_the_rate_reaches_the_optimizer(tmp_path, monkeypatch):
    schedule = partial(linear, warmup=0.25, floor=0.1)
    used = []
    whole = job.RowSparseAdam.step
    monkeypatch.setattr(
        job.RowSparseAdam,
        "step",
        lambda self: used.append([group["lr"] for group in self.param_groups]) or whole(self),
    )
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), lr_schedule=schedule, log_every=1)
    trainer.fit()
    fall = [0.1 + (1 - 0.1) * (1 - (step / 16 - 0.25) / 0.75) for step in range(4, 16)]
    expected = [0.01 * factor for factor in (0, 0.25, 0.5, 0.75, *fall)]
    assert expected[0] == 0
    assert max(expected) == pytest.approx(0.01)
    assert expected[-1] < 0.003
    assert used == [[value] for value in expected]
    logged = [line["train/learning_rate"] for line in job.lines(tmp_path / "run", "train/loss")]
    assert logged == expected


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"train_samples": 0}, "no training rows"), ({"test_samples": 0}, "no rows to evaluate on")],
)
def test_empty_splits(tmp_path, sizes, message):
    with pytest.raises(ValueError, match=message):
        job.make_trainer(tmp_path, job.make_data(tmp_path, **sizes))


def test_rows_without_any_label(tmp_path):
    data = job.make_data(tmp_path)
    none = Pattern(np.zeros(len(data.train) + 1, np.int64), np.empty(0, np.int32))
    data = replace(data, train=replace(data.train, labels=none))
    with pytest.raises(ValueError, match="no training row has a label: in text"):
        job.make_trainer(tmp_path, data)


def test_evaluation_by_an_index_needs_one(tmp_path):
    data = job.make_data(tmp_path)
    message = "evaluation=sampler needs a sampler with an index; this FullSampler has none"
    with pytest.raises(ValueError, match=message):
        job.make_trainer(
            tmp_path, data, network=job.make_network(data, FullSampler), evaluation="sampler"
        )


@pytest.mark.compiled_only
@pytest.mark.parametrize("mode", ["shared", "per_sample"])
def test_it_learns(tmp_path, mode):
    data = job.make_data(
        *(tmp_path,),
        **{"num_features": 500, "num_labels": 500, "nonzeros": 30, "noise": 0.2},
        **{"train_samples": 4000, "test_samples": 500},
    )
    sampler = partial(lsh_sampler, active=100, mode=mode)
    network = job.SlideNetwork(data.num_features, [64], data.num_labels, sampler)
    trainer = job.make_trainer(tmp_path, data, network=network, batch_size=64, epochs=4)
    summary = trainer.fit()
    popular = np.bincount(data.train.labels.indices, minlength=data.num_labels).argmax()
    baseline = np.mean(
        [
            popular in data.test.labels.indices[begin:end]
            for begin, end in zip(
                data.test.labels.indptr[:-1], data.test.labels.indptr[1:], strict=True
            )
        ]
    )
    assert summary["active_mean"] <= 200
    assert summary["p_at_1"] > 4 * baseline > 0, (summary["p_at_1"], baseline)
