"""Runs of train.py whose networks and answers a benchmark looks at.

    python tests/benchmarks/runs.py FOLDER dataset=bibtex seed=1

As a program it does what `python train.py dataset=bibtex seed=1` does, and answers the rows that
the run is judged on once more. It writes summary.json and answers.npz into FOLDER.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from train_process import ROOT

from slide.config import build_trainer, read_config, user_errors
from slide.training import Trainer
from slide.training.evaluation import predict_split


def trained(overrides: list[str]) -> tuple[Trainer, dict[str, Any]]:
    """A run of train.py within this process: its trainer and its summary; no folder stays."""
    with tempfile.TemporaryDirectory() as scratch, user_errors():
        trainer = build_trainer(read_config([*overrides, f"run_dir={scratch}/run"]))
        return trainer, trainer.fit()


def answered(overrides: list[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A run of train.py in a process of its own.

    Returns:
        Its summary, and its answers to the rows that it is judged on: ``scores`` and ``ids``
        ``(rows, 5)``, the ``indptr`` and ``indices`` of the true labels, and how many ``seconds``
        the answers took.

    Raises:
        subprocess.CalledProcessError: the run failed; it has said why.
    """
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
    search, judged = trainer.options.evaluation, trainer.eval_split
    found = predict_split(trainer.network, judged, search, trainer.ranker)
    seconds = time.perf_counter() - begin
    arrays = {"scores": found.scores, "ids": found.ids, **judged.labels._asdict()}
    np.savez(Path(folder) / "answers.npz", seconds=seconds, **arrays)
    (Path(folder) / "summary.json").write_text(json.dumps(summary))


if __name__ == "__main__":
    main()
