"""The examples run, briefly, on a little data made up here, and print what they say they do."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from helpers import job
from helpers.idx_files import write
from helpers.serving import serving_model

import slide
from slide.data import Split, write_xmc
from slide.sparse import CSR, Pattern

ROOT = Path(__file__).parents[1]
PROGRAMS = [path for path in (ROOT / "examples").glob("*.py") if path.name != "common.py"]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Imports an example by name, its folder being that of the script, as when it is run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = import_module(name)
        assert Path(module.__file__).parent == ROOT / "examples"
        return module

    return load


def test_the_guide_says_how_long_they_are():
    said, page = {}, (ROOT / "docs/whole-programs.md").read_text()
    for names, lines in re.findall(r"^\| (\[.*?) \| ([\d, ]+) \|", page, re.MULTILINE):
        said |= dict(
            zip(re.findall(r"\[(\w+\.py)\]", names), map(int, lines.split(",")), strict=True)
        )
    assert said == {path.name: len(path.read_text().splitlines()) for path in PROGRAMS}


@pytest.mark.parametrize(
    ("name", "options"),
    [("mnist", ["--sampler", "lsh"]), ("mixer", ["--sampler", "uniform", "--validate"])],
)
def test_digits(name, options, example, tmp_path, capsys):
    write(tmp_path, rows=(300, 40))
    arguments = ["--data", str(tmp_path), "--epochs", "1", "--limit", "200", *options]
    rows = example(name).main(arguments)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "%"
    assert [line.split()[:3] for line in lines] == [
        ["dense", "all", "all"],
        [options[1], "20%", "all"],
        [options[1], "20%", "20%"],
    ]
    assert [f"{row['accuracy %']:.2f}" for row in rows] == [line.split()[-1] for line in lines]
    assert all(0 <= row["accuracy %"] <= 100 for row in rows)


def test_packages(example, tmp_path, capsys):
    entry = "Package: p{0}\nDescription: the number {0}\n and more\nDepends: a (>= 1) | b, c{0}\n"
    entries = [entry.format(i) for i in range(20)]
    (tmp_path / "Packages").write_text("\n".join([*entries, "Package: alone\nDescription: x\n"]))
    counts = example("packages").main([str(tmp_path / "Packages"), str(tmp_path / "out")])
    assert sum(counts) == 20
    assert min(counts) > 0
    rows = [
        json.loads(line)
        for name in ("train", "test")
        for line in (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()
    ]
    found = {row["text"]: row["labels"] for row in rows}
    assert found["the number 7 and more"] == ["a", "b", "c7"]
    assert "training rows and" in capsys.readouterr().out


def write_skip_grams(folder):
    """Of 40 words, each is followed by the first of its four."""
    words = np.arange(400, dtype=np.int32) % 40
    indptr = np.arange(401)
    features = CSR(indptr, words, np.ones(400, np.float32))
    for name in ("train.txt", "test.txt"):
        write_xmc(folder / name, Split(features, Pattern(indptr, words // 4 * 4), 40, 40))
    (folder / "vocab.txt").write_text("".join(f"word{i} 10\n" for i in range(40)))
    return folder


def test_word2vec(example, tmp_path, capsys):
    arguments = ["--data", str(write_skip_grams(tmp_path)), "--sampler", "lsh", "--epochs", "15"]
    arguments += ["--active", "3", "--batch", "16", "--size", "16", "--lr", "0.01"]
    rows = example("word2vec").main([*arguments, "--words", "nowhere", "word7"])
    loss, nearest, head, *lines = capsys.readouterr().out.splitlines()
    before, after = (float(part.split()[-1]) for part in loss.split(", after"))
    word, _, others = nearest.partition(": ")
    assert head.split("  ")[-1] == "times faster"
    assert [line.split()[0] for line in lines] == ["lsh", "dense"]
    assert after < before - 1
    assert word.strip() == "word7"
    assert set(others.split(", ")[:3]) == {"word4", "word5", "word6"}
    assert [row["outputs a step"] for row in rows] == [3, 40]


def test_language_model(example, tmp_path, capsys):
    module = example("language_model")
    lines = [" ".join(words) for words in module.made_up(300, 40)]
    (tmp_path / "lines.txt").write_text("\n".join([*lines, "alone", ""]))
    before, after = module.main(["--text", "lines.txt", "--active", "20", "--epochs", "12"])
    assert after < min(12, before)
    assert f"perplexity {after:.1f} of 40 words" in capsys.readouterr().out


def test_recommender(example, tmp_path, capsys):
    module = example("recommender")
    pairs = module.made_up(300, 100)
    (tmp_path / "pairs.txt").write_text("".join(f"{user} {item} 5\n" for user, item in pairs))
    recall, base = module.main(["--active", "64", "--epochs", "15", "--pairs", "pairs.txt"])
    assert recall > 0.3 > 2 * base
    assert f"recall at 10: {recall:.1%}" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # Of lightning: the number of workers, and others.
def test_lightning(example):
    pytest.importorskip("lightning")
    assert example("lightning_module").main(["--epochs", "2"]) > 0.5


def test_from_csv(example, tmp_path, capsys):
    """To the folder, and from there to an answer over HTTP."""
    fruits, kinds = ("pear", "quince"), ("old", "red", "big")
    lines = [f'"a {b} {a}, {n % 7}",{a};{b}\n' for n in range(20) for a in fruits for b in kinds]
    (tmp_path / "rows.csv").write_text("".join(["\ufefftext,labels\n", *lines]), "utf-8")
    score = example("from_csv").main([str(tmp_path / "rows.csv"), str(tmp_path / "model")])
    assert score > 0.9
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"P@1 {score:.4f} on 12 texts that were set aside"
    assert second.startswith("a ")
    with serving_model(slide.load(tmp_path / "model")) as client:
        (answer,) = client.post(json={"rows": [{"text": "a quince"}], "k": 1}).json()["answers"]
    assert answer["labels"] == ["quince"]


def test_optuna_search(example, tmp_path, capsys):
    pytest.importorskip("optuna").logging.set_verbosity(40)
    words = job.tiny(tmp_path, "trainer.max_steps=2")
    kept = [word for word in words if not word.startswith(("run_dir", "network.hidden"))]
    study = example("optuna_search").main(["--trials", "2", *kept])
    assert f"P@5 {study.best_value:.4f}: optimizer.lr=" in capsys.readouterr().out
    assert len(list((tmp_path / "results/synthetic").iterdir())) == 2
