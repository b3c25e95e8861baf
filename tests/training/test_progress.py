"""Counters, and what the log says of the steps between two of them."""

from dataclasses import asdict, fields, replace

import pytest
from helpers import job

from slide.training.monitor import Counters, log_scalars


def test_scalars_are_about_the_steps_since_the_last_log():
    before = Counters(step=10, samples=100, active_total=50, loss_total=20, train_seconds=4)
    now = replace(before, step=14, samples=160, active_total=90, loss_total=22)
    now = replace(now, train_seconds=6.0, rebuild_seconds=0.5)
    assert log_scalars(now, before, rate=0.25, steps_per_epoch=7) == {
        "train/loss": 0.5,
        "train/learning_rate": 0.25,
        "train/epoch": 2,
        "train/seconds": 6,
        "speed/samples_per_second": 30,
        "speed/rebuild_share": 0.25,
        "selection/active_mean": 10,
    }


def test_rebuilds_are_counted_over_interruptions(tmp_path, monkeypatch):
    arguments = ["trainer.checkpoint_every=1", "schedule=fixed", "schedule.every=32"]
    job.stop_at(monkeypatch, 5)
    job.failure(*job.tiny(tmp_path, *arguments))
    before = job.checkpoint(tmp_path / "run")
    assert 0 < before["rebuild_seconds"] < before["train_seconds"]
    job.main(f"resume={tmp_path}/run")
    after = job.checkpoint(tmp_path / "run")
    assert before["rebuild_seconds"] < after["rebuild_seconds"] < after["train_seconds"]


def test_a_difference_is_that_of_each_counter():
    number = len(fields(Counters))
    one = Counters(*range(number))
    assert set(asdict(one - one).values()) == {0}
    assert (one - Counters()) == one
    with pytest.raises(TypeError):
        Counters(*range(number + 1))


@pytest.mark.parametrize("options", [{"epochs": 5}, {"epochs": "auto", "max_steps": 100}])
def test_curves_of_a_short_run_have_twenty_points(tmp_path, options):
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), **options)
    trainer.fit()
    for name in ("train/loss", "selection/recall"):
        assert 20 <= len(job.steps(tmp_path / "run", name)) <= 40
