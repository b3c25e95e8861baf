"""Precision over seconds of one method on one data set, as a process of its own.

    python tests/benchmarks/curves.py FILE '{"method": "slide", "overrides": ["dataset=bibtex"]}'

Writes into FILE what `measured` returns. The process begins empty, so its memory is its own.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from dense import DenseNetwork, train
from judged import Judged
from peers import rounded
from plain_torch import SampledSoftmax
from train_process import ROOT, seconds_of

from slide import runtime
from slide.config import build_trainer, fill_in, open_dataset, read_config, user_errors
from slide.sparse import CSR
from slide.utils.resources import peak_memory_mb

NETWORKS = {"dense": DenseNetwork, "sampled": SampledSoftmax}
# Of a curve's points, beside their seconds.
SHOWN = ("p_at_1", "p_at_5", "psp_at_5")
# Copies of all weights that dense training holds: weights, gradients, and two moments.
_COPIES = 4
# Dense arrays of a score for each row of a batch and each output.
_SCORES = 6


class Task(NamedTuple):
    """What to measure.

    Attributes:
        method: ``"slide"``, or a key of `NETWORKS`.
        overrides: of train.py.
        judged: at most so many test rows for the points of the curve.
        seconds: largest training time of networks in plain PyTorch.
    """

    method: str
    overrides: list[str]
    judged: int = 0
    seconds: float = float("inf")


def point(seconds: float, scores: dict[str, float]) -> list[float]:
    """A point of a curve: seconds, and `SHOWN`."""
    return [round(seconds, 3), *(round(scores[name], 6) for name in SHOWN)]


def measured(task: Task) -> dict[str, Any]:
    """The curve of a method, its last scores on the whole test set, and its seconds."""
    with user_errors():
        return ours(task) if task.method == "slide" else theirs(task)


def ours(task: Task) -> dict[str, Any]:
    """A run of train.py that stops its clock after each epoch to be judged."""
    with tempfile.TemporaryDirectory() as scratch:
        trainer = build_trainer(read_config([*task.overrides, f"run_dir={scratch}/run"]))
        judged, counters, curve = Judged(trainer.data, task.judged), trainer.counters, []
        whole_evaluation = trainer.evaluate

        def best(features: CSR, k: int) -> np.ndarray:
            return trainer.network.predict(features, k)[1].numpy()

        def seconds() -> float:
            return counters.network_seconds + counters.validation_seconds

        def note(samples: int = 0, **last: Any) -> dict[str, float]:
            if not samples:  # The last one.
                return whole_evaluation(**last)
            scores = judged.judge(best)
            curve.append(point(seconds(), scores))
            return scores

        trainer.evaluate = note  # type: ignore[method-assign]
        every = {"eval_every": len(trainer.batches), "eval_samples": len(judged.rows)}
        trainer.options = dataclasses.replace(trainer.options, **every)
        summary = trainer.fit()
    curve.append(point(seconds(), judged.judge(best)))
    whole = Judged(trainer.data)
    if trainer.ranker is None:
        scores = whole.judge(best)
    else:
        assert trainer.answers is not None
        scores = whole.scores(trainer.answers.ids)
        part = judged.scores(trainer.answers.ids[judged.rows])
        curve.append(point(seconds_of(summary), part))
    keep = ("labels", "epochs", "ranker_seconds", "eval_seconds", "peak_rss_mb")
    found = {name: summary[name] for name in keep} | rounded(scores)
    found["network_seconds"] = summary["network_seconds"]
    times = {"train_seconds": round(seconds_of(summary), 3)}
    return found | times | {"judged": len(judged.rows), "curve": curve}


def theirs(task: Task) -> dict[str, Any]:
    """A network in plain PyTorch, judged after each epoch."""
    config = read_config(task.overrides)
    runtime.set_threads(config.runtime.threads)
    data = open_dataset(config)
    fill_in(config, len(data.train), data.num_labels)
    found: dict[str, Any] = {"planned": config.trainer.epochs}
    if task.method == "dense":
        needed = dense_bytes(data.num_features, data.num_labels, config)
        if needed > available_bytes():
            return found | {"needs_gib": round(needed / 2**30, 1), "curve": []}
    torch.manual_seed(config.seed)
    network = NETWORKS[task.method].from_config(data, config)
    judged, curve, last = Judged(data, task.judged), [], {}
    steps = train(network, data, config, lambda: judged.judge(network.best), task.seconds)
    for last in steps:
        curve.append(point(last["train_seconds"], last))
    scores = Judged(data).judge(network.best)
    times = {name: round(last[name], 3) for name in ("train_seconds", "epochs")}
    more = {"peak_rss_mb": peak_memory_mb(), "judged": len(judged.rows)}
    return found | rounded(scores) | times | more | {"curve": curve}


def dense_bytes(features: int, labels: int, config: Any) -> int:
    """Bytes that dense training holds at least: `_COPIES` of all weights, and scores."""
    (hidden,) = config.network.hidden
    weights = _COPIES * (features + labels) * hidden
    return 4 * (weights + _SCORES * config.trainer.batch_size * labels)


def available_bytes() -> int:
    """Memory that is free, or that the system can free at once."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/meminfo has no MemAvailable")


def in_own_process(task: Task) -> dict[str, Any]:
    """What `measured` returns, of a process of its own.

    Raises:
        subprocess.CalledProcessError: it failed; it has said why.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "found.json"
        command = [sys.executable, __file__, str(file), json.dumps(task._asdict())]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return json.loads(file.read_text())


def main() -> None:
    file, task = sys.argv[1:]
    Path(file).write_text(json.dumps(measured(Task(**json.loads(task)))))


if __name__ == "__main__":
    main()
