"""Precision over seconds of one method on one data set."""

import dataclasses
import tempfile
from typing import Any, NamedTuple

import numpy as np
import torch
from peers import Evaluation, rounded
from plain_torch import NETWORKS, train
from sized import dense_bytes, too_large

from slide import runtime
from slide.config import build_trainer, fill_in, open_dataset, read_config, user_errors
from slide.sparse import CSR
from slide.utils.resources import peak_memory_mb

# Of a curve's points, beside their seconds.
SHOWN = ("p_at_1", "p_at_5", "psp_at_5")


class Task(NamedTuple):
    method: str
    overrides: list[str]
    evaluated: int = 0
    seconds: float = float("inf")


def point(seconds: float, scores: dict[str, float]) -> list[float]:
    return [round(seconds, 3), *(round(scores[name], 6) for name in SHOWN)]


def measured(*task: Any) -> dict[str, Any]:
    """The curve of a `Task`, its last scores on the whole test set, and its seconds."""
    task = Task(*task)
    with user_errors():
        return ours(task) if task.method == "slide" else theirs(task)


def ours(task: Task) -> dict[str, Any]:
    """A run of train.py that stops its clock after each epoch to be evaluated."""
    with tempfile.TemporaryDirectory() as scratch:
        trainer = build_trainer(read_config([*task.overrides, f"run_dir={scratch}/run"]))
        evaluation, counters = Evaluation(trainer.data, task.evaluated), trainer.counters
        curve: list[list[float]] = []
        whole_evaluation = trainer.evaluate

        def best(features: CSR, k: int) -> np.ndarray:
            return trainer.network.predict(features, k)[1].numpy()

        def seconds() -> float:
            return counters.network_seconds + counters.validation_seconds

        def note(samples: int = 0, **last: Any) -> dict[str, float]:
            if not samples:  # The last one.
                return whole_evaluation(**last)
            scores = evaluation.of(best)
            curve.append(point(seconds(), scores))
            return scores

        trainer.evaluate = note  # type: ignore[method-assign]
        every = {"eval_every": len(trainer.batches), "eval_samples": len(evaluation.rows)}
        trainer.options = dataclasses.replace(trainer.options, **every)
        summary = trainer.fit()
    curve.append(point(seconds(), evaluation.of(best)))
    whole = Evaluation(trainer.data)
    if trainer.ranker is None:
        scores = whole.of(best)
    else:
        assert trainer.answers is not None
        scores = whole.scores(trainer.answers.ids)
        part = evaluation.scores(trainer.answers.ids[evaluation.rows])
        curve.append(point(summary["train_seconds"], part))
    keep = ("labels", "epochs", "ranker_seconds", "eval_seconds", "peak_rss_mb")
    found = {name: summary[name] for name in keep} | rounded(scores)
    found["network_seconds"] = summary["network_seconds"]
    times = {"train_seconds": round(summary["train_seconds"], 3)}
    return found | times | {"evaluated": len(evaluation.rows), "curve": curve}


def theirs(task: Task) -> dict[str, Any]:
    """A network in plain PyTorch, evaluated after each epoch."""
    config = read_config(task.overrides)
    runtime.set_threads(config.runtime.threads)
    data = open_dataset(config)
    fill_in(config, len(data.train), data.num_labels)
    found: dict[str, Any] = {"planned": config.trainer.epochs}
    if task.method == "dense":
        needed = dense_bytes(data.num_features, data.num_labels, config)
        if missing := too_large(needed):
            return found | missing
    torch.manual_seed(config.seed)
    network = NETWORKS[task.method](data.num_features, data.num_labels, config)
    network.start(data)
    evaluation, curve, last = Evaluation(data, task.evaluated), [], {}
    for last in train(network, data, config, lambda: evaluation.of(network.best), task.seconds):
        curve.append(point(last["train_seconds"], last))
    scores = Evaluation(data).of(network.best)
    times = {name: round(last[name], 3) for name in ("train_seconds", "epochs")}
    more = {"peak_rss_mb": peak_memory_mb(), "evaluated": len(evaluation.rows)}
    return found | rounded(scores) | times | more | {"curve": curve}
