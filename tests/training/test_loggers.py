"""Further logs of a run; wandb and mlflow are tried where they are installed."""

import csv
from contextlib import closing

import pytest
from helpers import job

from slide.config import read_config, resumed
from slide.config.compose import asked_for
from slide.training import Monitor
from slide.training.loggers import make_loggers

SETTINGS = {"seed": 3, "optimizer": {"lr": 0.1, "betas": [0.9, 0.999]}}
LINES = [(1, {"train/loss": 0.5}), (2, {"train/loss": 0.25, "eval/p_at_1": 1.0})]


def write(folder, logger):
    """A run that begins with a line of the part before, and ends."""
    folder.mkdir(exist_ok=True)
    monitor = Monitor(folder)
    monitor.write(*LINES[0])
    monitor.add(logger, SETTINGS)
    monitor.write(*LINES[1])
    monitor.close()


def test_csv(tmp_path):
    (logger,) = make_loggers("csv")
    write(tmp_path / "run", logger)
    with (tmp_path / "run/metrics.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    assert lines[0] == ["step", "name", "value"]
    expected = [[f"{step}", name, f"{x}"] for step, line in LINES for name, x in line.items()]
    assert lines[1:] == expected


def test_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    (logger,) = make_loggers(["wandb"])
    write(tmp_path / "run", logger)
    write(tmp_path / "other", *make_loggers("wandb"))
    files = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    written = b"".join(file.read_bytes() for file in files)
    assert all(each in written for each in (b"train/loss", b"eval/p_at_1", b"betas"))


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    try:
        write(tmp_path / "run", *make_loggers("mlflow"))
        client = mlflow.MlflowClient()
        (run,) = client.search_runs([client.get_experiment_by_name("slide").experiment_id])
        assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
        assert run.data.params["optimizer.lr"] == "0.1"
        found = client.get_metric_history(run.info.run_id, "train/loss")
        assert [(each.step, each.value) for each in found] == [(1, 0.5), (2, 0.25)]
    finally:
        mlflow.set_tracking_uri(before)


class Failing:
    def __init__(self, at):
        self.at, self.seen = at, []

    def begin(self, folder, settings):
        self.note("begin")

    def log(self, step, values):
        self.note(step)

    def close(self):
        self.note("close")

    def note(self, what):
        self.seen.append(what)
        if what == self.at:
            raise ConnectionError("the server is gone")


def test_a_log_that_fails_does_not_end_a_run(tmp_path, capsys):
    late = Failing(2)
    write(tmp_path / "run", late)
    assert late.seen == ["begin", 1, 2]
    assert "warning   Failing has ended: the server is gone" in capsys.readouterr().err
    assert len(job.lines(tmp_path / "run")) == 2
    last = Failing("close")
    write(tmp_path / "last", last)
    assert last.seen == ["begin", 1, 2, "close"]
    (tmp_path / "none").mkdir()
    with (
        closing(Monitor(tmp_path / "none")) as monitor,
        pytest.raises(ValueError, match="begin: the"),
    ):
        monitor.add(Failing("begin"), SETTINGS)


def test_logs_are_named_and_a_resumed_run_names_them_anew(tmp_path):
    said = job.failure(*job.tiny(tmp_path, "logger=[csv,tensorbord]"))
    assert "logger must be one of csv, wandb, mlflow, not 'tensorbord'" in said
    job.main(*job.tiny(tmp_path, "logger=csv", "ranker=none", "trainer.max_steps=2"))
    assert "eval/p_at_1" in (tmp_path / "run/metrics.csv").read_text()
    for words, expected in (([], []), (["logger=[csv]"], ["csv"])):
        words = [f"resume={tmp_path}/run", *words]
        assert resumed(read_config(asked_for(words)), words).logger == expected
