"""Runs of train.py that benchmarks look at, and the data sets that they run on.

    python tests/benchmarks/runs.py FOLDER dataset=bibtex seed=1

As a program it does what `python train.py dataset=bibtex seed=1` does, and answers the rows that
the run is evaluated on once more. It writes summary.json and answers.npz into FOLDER.

debian: packages and what they depend on. bibtex, delicious: tags. fb15k: a knowledge graph,
FB15k-237. gowalla: places that a user visits, and later ones. files: directories and their files.
"""

import json
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from report import ROOT

from slide.config import build_trainer, find_conf, open_dataset, read_config, user_errors
from slide.data import SparseDataset
from slide.ranking import Ranked
from slide.training import Trainer
from slide.training.evaluation import TOP, predict_split

# Share of the training rows that is held out where settings are compared.
HELD_OUT = {
    "debian": 0.1,
    "bibtex": 0.15,
    "delicious": 0.15,
    "fb15k": 0.05,
    "gowalla": 0.1,
    "files": 0.03,
}


def place(name: str, root: Path) -> list[str]:
    """Overrides that choose a set; an unknown name is a folder with files in XMC text."""
    known = (find_conf() / "dataset" / f"{name}.yaml").is_file()
    chosen = [f"dataset={name}"] if known else ["dataset=xmc", f"dataset.name={name}"]
    return [*chosen, f"dataset.root={root / name}"]


@cache
def opened(overrides: tuple[str, ...]) -> SparseDataset:
    with user_errors():
        return open_dataset(read_config(overrides))


def run_train(*overrides: str, folder: Path | None = None) -> dict[str, Any]:
    """The summary of a run of train.py as a process of its own; without a folder none stays."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = folder or Path(scratch) / "run"
        command = [sys.executable, str(ROOT / "train.py"), *overrides, f"run_dir={folder}"]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return json.loads((folder / "summary.json").read_text())


def seconds_of(summary: dict[str, Any]) -> float:
    """Seconds of all training of a run: network, held-out evaluations, and re-ranker."""
    return summary["train_seconds"]


def warm_up() -> None:
    """A short run, after which no other run on this machine pays for compiling kernels."""
    with tempfile.TemporaryDirectory() as cache:
        sizes = ["train_samples=2000", "test_samples=100", "num_labels=4000", f"cache={cache}"]
        short = "trainer.max_steps=2"
        run_train("dataset=synthetic", *(f"dataset.{size}" for size in sizes), short)


def trained(overrides: list[str]) -> tuple[Trainer, dict[str, Any]]:
    """A run of train.py within this process: its trainer and its summary; no folder stays."""
    with tempfile.TemporaryDirectory() as scratch, user_errors():
        trainer = build_trainer(read_config([*overrides, f"run_dir={scratch}/run"]))
        return trainer, trainer.fit()


def process(file: str, *words: str) -> dict[str, Any]:
    """What ``python file found.json words`` writes into its first argument, as JSON."""
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch) / "found.json"
        command = [sys.executable, file, str(found), *words]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return json.loads(found.read_text())


def answered(overrides: list[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, __file__, scratch, *overrides]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        summary = json.loads((Path(scratch) / "summary.json").read_text())
        with np.load(Path(scratch) / "answers.npz") as arrays:
            return summary, dict(arrays)


def main() -> None:
    folder, *overrides = sys.argv[1:]
    trainer, summary = trained(overrides)
    begin = time.perf_counter()
    search, rows = trainer.options.evaluation, trainer.eval_split
    found = predict_split(trainer.network, rows, search, trainer.ranker)
    seconds = time.perf_counter() - begin
    found = Ranked.of(TOP, *found)
    arrays = {"scores": found.scores, "ids": found.ids, **rows.labels._asdict()}
    np.savez(Path(folder) / "answers.npz", seconds=seconds, **arrays)
    (Path(folder) / "summary.json").write_text(json.dumps(summary))


if __name__ == "__main__":
    main()
