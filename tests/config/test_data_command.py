"""``python -m slide.data``: what the commands print, and what they say of mistakes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import job

from slide.config import command
from slide.data import synthetic
from slide.data.describe import describe, folder_bytes


def arguments(folder):
    sizes = [f"dataset.{name}={value}" for name, value in job.SIZES.items()]
    return [*sizes, f"dataset.cache={folder}"]


def failure(*words):
    message = job.failure(*words, run=job.data)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message.removeprefix("error: ")


def test_describe_prints_the_table_of_the_configured_set(tmp_path, capsys):
    job.data("describe", *arguments(tmp_path))
    sizes = {**job.SIZES, "cache": tmp_path}
    assert capsys.readouterr().out == describe(synthetic(**sizes))


def test_prepare_tells_where_the_transformed_arrays_lie(tmp_path, capsys):
    job.data("prepare", *arguments(tmp_path), "transform.min_label_count=2")
    path, _, size = capsys.readouterr().out.partition("  ")
    folder = Path(path)
    assert folder.parent == tmp_path
    assert (folder / "label_ids.npy").is_file()
    assert size == f"{folder_bytes(folder) / 1e6:,.1f} MB\n"
    assert len(list(tmp_path.glob("*/meta.json"))) == 2, "the source and the result"


def test_it_opens_what_the_main_job_opens(tmp_path, capsys):
    job.data("prepare", *arguments(tmp_path / "cache"), "transform.l2_norm=true")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    rows = f"dataset.train_samples={job.SIZES['train_samples']}"
    job.main(*job.tiny(tmp_path, rows, "transform.l2_norm=true", "trainer.max_steps=1"))
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cache/**/*.npy")}
    assert before == after


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prep"], "the command must be describe or prepare, not 'prep'"),
        (["describe", "dataset=nowhere"], "no dataset=nowhere; the choices of dataset are ama"),
        (["describe", "dataset.size=1"], "there is no key dataset.size "),
        (["describe", "transform.size=1"], "there is no key transform.size "),
        (["prepare", "transform.tf_idf=3"], "tf_idf must be true or false, not 3"),
        (["prepare", "dataset.noise=3"], r"noise must be in \[0, 1\), not 3"),
        (["prepare", "dataset=xmc", "dataset.root=nowhere"], "nowhere/train.txt is missing"),
        (["prepare", "transform.hashed_features=70"], "hashed_features must be below .* 60, not"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, words, message):
    sizes = [] if "dataset=xmc" in words else arguments(tmp_path)
    assert re.search(message, failure(*words[:1], *sizes, *words[1:]))


def test_bugs_are_not_hidden(monkeypatch):
    def broken(config):
        raise RuntimeError("a bug")

    monkeypatch.setattr(command, "open_dataset", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        job.data("describe")


@pytest.mark.parametrize("words", [[], ["--help"], ["describe", "-h"]])
def test_the_usage_text(capsys, words):
    job.data(*words)
    shown = capsys.readouterr().out
    assert "python train.py --help explains" in shown
    assert all(f"python -m slide.data {name}" in shown for name in command.DATA_COMMANDS)


def test_a_process_of_its_own():
    words = [sys.executable, "-m", "slide.data", "describe", "dataset.seed=-1"]
    done = subprocess.run(words, cwd=job.ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: dataset.seed must be a whole number of at least 0, not -1\n"


def test_keys_of_a_run_are_refused():
    with pytest.raises(SystemExit, match=r"^error: optimizer.lr=1: describe takes keys of dataset"):
        job.data("describe", "dataset.nonzeros=3", "optimizer.lr=1")


def test_a_key_may_be_removed(tmp_path, capsys):
    job.data("describe", *arguments(tmp_path), "~transform.l2_norm")
    assert "labels never seen in training" in capsys.readouterr().out
