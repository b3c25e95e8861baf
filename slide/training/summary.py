"""The summary that a finished run leaves."""

import time
from pathlib import Path
from typing import Any

from slide.data import SparseDataset, Split
from slide.distributed import Group
from slide.nn import SlideNetwork
from slide.runtime import versions
from slide.training.evaluation import majority_precision
from slide.training.progress import Counters
from slide.training.selection import selection_figures, selection_warnings
from slide.utils import files
from slide.utils.resources import peak_memory_mb

SUMMARY = "summary.json"


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Writes ``summary.json``."""
    files.write_json(folder / SUMMARY, summary)


def summary_of(
    data: SparseDataset,
    splits: tuple[Split, Split],
    counters: Counters,
    steps_per_epoch: int,
    scores: dict[str, float],
    group: Group,
) -> dict[str, Any]:
    """What ``summary.json`` holds.

    Args:
        data: the data set.
        splits: rows that the run trained on, and rows that it was evaluated on.
        counters: at the end of the run. ``train_seconds`` are those of the network, as in the log;
            ``held_seconds`` and ``ranker_seconds`` come on top.
            ``compile_seconds``, in which kernels were compiled, are in none of them.
        steps_per_epoch: number of batches in a pass over the rows.
        scores: of the last evaluation.
        group: the processes of the run. Of several, the summary says how many they were and how
            long this one exchanged numbers with the others, and waited for them, in steps.
    """
    train, judged = splits
    exchanged = round(counters.exchange_seconds, 3)
    several = {"processes": group.size, "exchange_seconds": exchanged}
    return {
        "dataset": data.name,
        "samples": counters.samples,
        "features": data.num_features,
        "labels": data.num_labels,
        "epochs": counters.step / steps_per_epoch,
        "steps": counters.step,
        "train_seconds": round(counters.train_seconds, 3),
        "ranker_seconds": round(counters.ranker_seconds, 3),
        "held_seconds": round(counters.held_seconds, 3),
        "eval_seconds": round(counters.eval_seconds, 3),
        "rebuild_seconds": round(counters.rebuild_seconds, 3),
        "compile_seconds": round(counters.compile_seconds, 3),
        "samples_per_second": round(counters.samples / counters.train_seconds, 1),
        **{name: round(value, 6) for name, value in scores.items()},
        "majority_p_at_1": round(majority_precision(train, judged), 6),
        "evaluated_on": "test" if judged is data.test else "holdout",
        "active_mean": round(counters.active_total / counters.step, 1),
        "peak_rss_mb": peak_memory_mb(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions(),
        **(several if group.size > 1 else {}),
    }


def add_selection(
    summary: dict[str, Any], log: list[dict[str, float]], network: SlideNetwork
) -> None:
    """Add what the log says of the choice of outputs, and ``warnings``, a list of sentences.

    Args:
        summary: from `summary_of`; changed in place.
        log, network: see `slide.training.selection.selection_figures`.
    """
    summary |= selection_figures(log, network)
    summary["warnings"] = selection_warnings(log)
    if summary["p_at_1"] < summary["majority_p_at_1"]:
        summary["warnings"].append(
            f"P@1 is below {summary['majority_p_at_1']:.4f}, that of always naming the most "
            "frequent label: is the learning rate too large?"
        )
