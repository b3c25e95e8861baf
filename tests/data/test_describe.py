"""What `describe` counts, and the commands of ``python -m slide.data``."""

import math
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from helpers import job

from slide.config import data_command as __main__
from slide.data import SparseDataset, Split, synthetic
from slide.data.describe import QUANTILES, describe, facts, folder_bytes
from slide.sparse import CSR, Pattern


def make_split(rows, labels, features=5, num_labels=6):
    """Rows with so many features each, and these labels."""
    pattern = Pattern.from_lists([range(count) for count in rows])
    values = np.ones(len(pattern.indices), np.float32)
    return Split(CSR(*pattern, values), Pattern.from_lists(labels), features, num_labels)


def make_data(train, test):
    return SparseDataset("made", train, test, train.num_features, train.num_labels)


@pytest.fixture
def made():
    train = make_split([3, 0, 1, 2], [[0, 1], [0], [], [0, 5, 1]])
    test = make_split([1, 5], [[0, 2, 4], [2, 5]])
    return make_data(train, test)


def test_counts_by_hand(made):
    found = asdict(facts(made))
    assert found.pop("train") == {
        "rows": 4,
        "nonzeros": (1.5, 3),
        "labels": (1.5, 3),
        "without_features": 1,
        "without_labels": 1,
    }
    assert found.pop("test") == {
        "rows": 2,
        "nonzeros": (3.0, 5),
        "labels": (2.5, 3),
        "without_features": 0,
        "without_labels": 0,
    }
    assert found == {
        "num_features": 5,
        "num_labels": 6,
        "quantiles": (0, 0, 0, 2, 2, 3),  # of 0 0 0 1 2 3
        "unseen": 3 / 6,
        "seen_once": 1 / 6,
        "test_unseen": 3 / 5,
        "test_unseen_distinct": 2 / 4,
    }


def test_counts_against_a_naive_twin(tmp_path, monkeypatch):
    monkeypatch.setattr(Split.blocks, "__defaults__", (7, 50))  # many blocks
    data = job.make_data(tmp_path, num_labels=300)
    found = facts(data)
    seen, asked = (Counter(split.labels.indices.tolist()) for split in (data.train, data.test))
    counts = sorted(seen[label] for label in range(300))
    places = [math.floor(q * 299) for q in QUANTILES.values()]
    assert found.quantiles == tuple(counts[place] for place in places)
    assert found.unseen == counts.count(0) / 300 > 0
    assert found.seen_once == counts.count(1) / 300 > 0
    missed = {label: count for label, count in asked.items() if not seen[label]}
    assert found.test_unseen == sum(missed.values()) / sum(asked.values()) > 0
    assert found.test_unseen_distinct == len(missed) / len(asked) > found.test_unseen


def test_the_table(made):
    assert describe(made) == (
        "made                                  train     test\n"
        "rows                                      4        2\n"
        "features                                  5\n"
        "labels                                    6\n"
        "non-zeros a row (most)              1.5 (3)  3.0 (5)\n"
        "labels a row (most)                 1.5 (3)  2.5 (3)\n"
        "rows without features                     1        0\n"
        "rows without labels                       1        0\n"
        "training rows a label, min                0\n"
        "training rows a label, 10 %               0\n"
        "training rows a label, 50 %               0\n"
        "training rows a label, 90 %               2\n"
        "training rows a label, 99 %               2\n"
        "training rows a label, max                3\n"
        "labels never seen in training        50.0 %\n"
        "labels seen once                     16.7 %\n"
        "test labels never seen in training            60.0 %\n"
        "  each label counted once                     50.0 %\n"
    )


def test_empty_sets_can_be_described():
    nothing = make_split([], [], 0, 0)
    assert "0.0 %" in describe(make_data(nothing, nothing))
    assert facts(make_data(nothing, nothing)).quantiles == ()
    rows = make_split([], [])
    assert facts(make_data(rows, rows)).unseen == 1


def test_bytes_of_a_folder(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "one").write_bytes(b"123")
    (tmp_path / "below/two").write_bytes(b"4567")
    assert folder_bytes(tmp_path) == 7


# Commands


def arguments(folder):
    sizes = [f"dataset.{name}={value}" for name, value in job.SIZES.items()]
    return [*sizes, f"dataset.cache={folder}"]


def failure(*words):
    with pytest.raises(SystemExit) as stopped:
        __main__.main(words)
    message = stopped.value.code
    assert isinstance(message, str)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message.removeprefix("error: ")


def test_describe_prints_the_table_of_the_configured_set(tmp_path, capsys):
    __main__.main(["describe", *arguments(tmp_path)])
    sizes = {**job.SIZES, "cache": tmp_path}
    assert capsys.readouterr().out == describe(synthetic(**sizes))


def test_prepare_tells_where_the_transformed_arrays_lie(tmp_path, capsys):
    __main__.main(["prepare", *arguments(tmp_path), "transform.min_label_count=2"])
    path, _, size = capsys.readouterr().out.partition("  ")
    folder = Path(path)
    assert folder.parent == tmp_path
    assert (folder / "label_ids.npy").is_file()
    assert size == f"{folder_bytes(folder) / 1e6:,.1f} MB\n"
    assert len(list(tmp_path.glob("*/meta.json"))) == 2, "the source and the result"


def test_it_opens_what_the_main_job_opens(tmp_path, capsys):
    __main__.main(["prepare", *arguments(tmp_path / "cache"), "transform.l2_norm=true"])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    job.main(*job.tiny(tmp_path, "transform.l2_norm=true", "trainer.max_steps=1"))
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cache/**/*.npy")}
    assert before == after


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prep"], "the command must be describe or prepare, not 'prep'"),
        (["describe", "dataset=nowhere"], "Could not find 'dataset/nowhere' Available options"),
        (["describe", "dataset.size=1"], "Could not override 'dataset.size'"),
        (["describe", "transform.size=1"], "Could not override 'transform.size'"),
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

    monkeypatch.setattr(__main__, "open_dataset", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        __main__.main(["describe"])


@pytest.mark.parametrize("words", [[], ["--help"], ["describe", "-h"]])
def test_the_usage_text(capsys, words):
    __main__.main(words)
    shown = capsys.readouterr().out
    assert shown == __main__.USAGE
    assert all(f"slide.data {command}" in shown for command in __main__.COMMANDS)


def test_configurations_are_found_beside_the_package_or_in_the_working_directory(
    tmp_path, monkeypatch
):
    assert __main__.find_conf() == job.CONF
    monkeypatch.setattr(__main__, "__file__", str(tmp_path / "site/slide/data/__main__.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"no train.yaml in .*site/conf or .*conf; run this"
    ):
        __main__.find_conf()
    shutil.copytree(job.CONF, tmp_path / "conf")
    assert __main__.find_conf() == tmp_path / "conf"
    config = __main__.read_config(["dataset=delicious"])
    assert config.dataset.name == "delicious"


def test_a_process_of_its_own():
    command = [sys.executable, "-m", "slide.data", "describe", "dataset.seed=-1"]
    done = subprocess.run(command, cwd=job.ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: seed must be a whole number of at least 0, not -1\n"
