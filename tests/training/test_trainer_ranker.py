"""The main job with a ranker, and with another learning rate for the first layer."""

import json
from dataclasses import replace

import pytest
from helpers import job

from slide.data import validation_split
from slide.ranking import EnsembleRanker
from slide.training import evaluate
from slide.training.loop import Learner

pytestmark = pytest.mark.usefixtures("one_thread")


def finished(folder, ranker, **options):
    """A trainer after its `fit`, and the summary; the same network and training rows each time."""
    folder.mkdir(exist_ok=True)
    job.torch.manual_seed(0)
    data = job.make_data(folder, **job.WITH_HELD)
    if ranker is None:  # A ranker has rows held out.
        data = replace(data, train=validation_split(data.train, seed=0)[0])
    trainer = job.make_trainer(folder, data, ranker=ranker, **options)
    return trainer, trainer.fit()


def comparable(scores):
    """Propensities are those of all training rows, also of the held-out ones."""
    others = ("psp", "maj", "recall")  # Recall is that of active sets.
    return {k: v for k, v in scores.items() if "_at_" in k and not any(o in k for o in others)}


@pytest.mark.parametrize("evaluation", ["exact", "index", "sampler"])
def test_the_summary_holds_both_rankings(tmp_path, evaluation):
    alone, plain = finished(tmp_path / "a", None, evaluation=evaluation)
    ranker = EnsembleRanker(depth=20)
    trainer, summary = finished(tmp_path / "b", ranker, evaluation=evaluation)
    assert comparable(plain)
    for name, value in comparable(plain).items():
        assert summary[f"network_{name}"] == value
    scores = evaluate(trainer.network, trainer.eval_split, trainer.inverse, evaluation, ranker)
    for name, value in scores.items():
        assert summary[name] == pytest.approx(value, abs=1e-6)
    assert summary["p_at_1"] != summary["network_p_at_1"]
    assert summary["majority_p_at_1"] == plain["majority_p_at_1"] > 0
    assert not any(name.startswith("network_") for name in plain)
    assert json.loads((tmp_path / "b/run/summary.json").read_text()) == summary
    job.assert_same(trainer.network.state_dict(), alone.network.state_dict())


def test_the_network_s_time_and_the_ranker_s_are_told_apart(tmp_path):
    trainer, summary = finished(tmp_path, EnsembleRanker(), log_every=1)
    counters = trainer.counters
    assert summary["ranker_seconds"] == pytest.approx(counters.ranker_seconds, abs=1e-3)
    assert counters.ranker_seconds > 0
    assert summary["train_seconds"] == pytest.approx(counters.train_seconds, abs=1e-3)
    assert job.lines(tmp_path / "run", "train/loss")[-1]["train/seconds"] == counters.train_seconds
    assert summary["samples_per_second"] == round(summary["samples"] / counters.train_seconds, 1)


def test_evaluations_on_the_way_are_the_network_s(tmp_path):
    finished(tmp_path / "a", None, eval_every=5)
    finished(tmp_path / "b", EnsembleRanker(), eval_every=5)
    plain, ranked = (job.lines(tmp_path / run / "run", "eval/p_at_1") for run in "ab")
    assert [line["step"] for line in plain] == [5, 10, 15, 16]
    for one, other in zip(plain, ranked, strict=True):
        assert comparable(one) == comparable(other) != {}
    assert job.steps(tmp_path / "b/run", "reranked/p_at_1") == [16]
    assert not job.steps(tmp_path / "a/run", "reranked/p_at_1")


def test_a_holdout_does_not_leak_into_the_ranker(tmp_path, monkeypatch):
    rows = []
    whole = EnsembleRanker.fit

    def fit(self, network, train, held, *arguments):
        rows.append((len(train), len(held)))
        return whole(self, network, train, held, *arguments)

    monkeypatch.setattr(EnsembleRanker, "fit", fit)
    finished(tmp_path, EnsembleRanker(), holdout=0.25)
    assert rows == [(90, 22)]


def test_without_a_ranker(tmp_path):
    job.main(*job.tiny(tmp_path, "ranker=none"))
    assert not (tmp_path / "run" / "ranker.safetensors").exists()
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["ranker_seconds"] == 0
    assert "network_p_at_1" not in summary


def used_rates(monkeypatch):
    """The rates of all groups, a list that grows with each step."""
    used = []
    whole = Learner.update

    def update(self, loss):
        rates = [group["lr"] for group in self.optimizer.param_groups]
        whole(self, loss)
        used.append(rates)

    monkeypatch.setattr(Learner, "update", update)
    return used


def test_a_resumed_run_keeps_the_rates_of_all_groups(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    used = used_rates(monkeypatch)
    settings = ["optimizer.input_rate=3", "optimizer.lr=0.01", "lr_schedule.warmup=0.25"]
    settings += ["trainer.checkpoint_every=4"]
    job.main(*job.tiny(tmp_path / "a", *settings))
    expected = used.copy()
    assert len(expected) == 16
    assert max(rest for rest, _ in expected) == pytest.approx(0.01)
    assert expected[0] == [0, 0]
    assert all(first == pytest.approx(3 * rest) for rest, first in expected)
    used.clear()
    job.stop_at(monkeypatch, 7)
    job.failure(*job.tiny(tmp_path / "b", *settings))
    del used[4:]  # Done again: the checkpoint is of step 4.
    job.main(f"resume={tmp_path}/b/run")
    assert used == expected


def test_a_new_rate_on_resume_is_that_of_all_groups(tmp_path, monkeypatch):
    settings = ["optimizer.input_rate=3", "lr_schedule=constant"]
    job.main(*job.tiny(tmp_path, *settings))
    used = used_rates(monkeypatch)
    job.main(f"resume={tmp_path}/run", "trainer.epochs=3", "optimizer.lr=0.5")
    assert used == [[0.5, 1.5]] * 8


def test_a_trainer_evaluates_after_it_has_trained_but_trains_once(tmp_path):
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), ranker=EnsembleRanker())
    trainer.fit()
    expected = job.lines(tmp_path / "run", "eval/p_at_1")[0]["eval/p_at_1"]
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"step": 1000, "train/loss": 0.5}\n')  # The run goes on in another process.
    before = job.files_of(tmp_path / "run")
    assert trainer.evaluate()["p_at_1"] == expected
    assert job.files_of(tmp_path / "run") == before
    with pytest.raises(
        RuntimeError, match="this trainer has trained: make a new one with resume=True"
    ):
        trainer.fit()
    assert job.files_of(tmp_path / "run") == before
