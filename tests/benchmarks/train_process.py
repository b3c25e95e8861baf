"""train.py as a process of its own, as users call it."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_train(*overrides: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary of a run with these overrides, and the lines of its log; no folder stays.

    Raises:
        subprocess.CalledProcessError: the run failed; it has said why.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        command = [sys.executable, str(ROOT / "train.py"), *overrides, f"run_dir={folder}"]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        log = (folder / "metrics.jsonl").read_text().splitlines()
        return json.loads((folder / "summary.json").read_text()), [json.loads(x) for x in log]


def seconds_of(summary: dict[str, Any]) -> float:
    """Seconds of all training of a run: network, held-out evaluations, and re-ranker."""
    return summary["train_seconds"]


def warm_up() -> None:
    """A short run, after which no other run on this machine pays for compiling kernels."""
    with tempfile.TemporaryDirectory() as cache:
        sizes = ["train_samples=2000", "test_samples=100", "num_labels=4000", f"cache={cache}"]
        short = "trainer.max_steps=2"
        run_train("dataset=synthetic", *(f"dataset.{size}" for size in sizes), short)
