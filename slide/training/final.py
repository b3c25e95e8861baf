"""The end of a run: the last scores and the summary."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from slide import files
from slide.data import SparseDataset, Split
from slide.nn import SlideNetwork
from slide.ranking import EnsembleRanker
from slide.runtime import peak_memory_mb, versions
from slide.training.evaluation import majority_precision
from slide.training.progress import Counters

SUMMARY = "summary.json"
RANKER = "ranker.pt"


def final_scores(
    evaluate: Callable[..., dict[str, float]],
    ranker: EnsembleRanker | None,
    network: SlideNetwork,
    rows: tuple[Split, Split | None],
    search: str,
    folder: Path,
    counters: Counters,
) -> dict[str, float]:
    """The last scores of a run: trains the ranker, if there is one, and evaluates.

    Args:
        evaluate: `slide.training.Trainer.evaluate`.
        ranker: the ranker to train and to write into the folder; None: no ranker.
        network: the trained network.
        rows: training rows of the ranker, and held-out rows.
        search: see `slide.SlideNetwork.predict`.
        folder: folder of the run.
        counters: counters of the run; the training time of the ranker is added.

    Returns:
        Without a ranker, the scores of the network. With a ranker, the re-ranked scores, and the
        scores of the network as ``network_...``.
    """
    if ranker is None:
        return evaluate()
    train, held = rows
    assert held is not None
    begin = time.perf_counter()
    ranker.fit(network, train, held, search)
    counters.ranker_seconds = time.perf_counter() - begin
    for note in ranker.notes:
        tqdm.write(note)
    files.write_tensors(folder / RANKER, ranker.state_dict())
    return evaluate(ranker=ranker)


def write_summary(
    folder: Path,
    data: SparseDataset,
    splits: tuple[Split, Split],
    counters: Counters,
    steps_per_epoch: int,
    scores: dict[str, float],
) -> dict[str, Any]:
    """Writes ``summary.json``, and returns what it holds.

    Args:
        folder: of the run.
        data: the data set.
        splits: rows that the run trained on, and rows that it was evaluated on.
        counters: at the end of the run. ``train_seconds`` are those of the network, as in the log;
            ``ranker_seconds`` come on top.
        steps_per_epoch: number of batches in a pass over the rows.
        scores: of the last evaluation.
    """
    train, judged = splits
    summary = {
        "dataset": data.name,
        "samples": counters.samples,
        "features": data.num_features,
        "labels": data.num_labels,
        "epochs": counters.step / steps_per_epoch,
        "steps": counters.step,
        "train_seconds": round(counters.train_seconds, 3),
        "ranker_seconds": round(counters.ranker_seconds, 3),
        "eval_seconds": round(counters.eval_seconds, 3),
        "rebuild_seconds": round(counters.rebuild_seconds, 3),
        "samples_per_second": round(counters.samples / counters.train_seconds, 1),
        **{name: round(value, 6) for name, value in scores.items()},
        "majority_p_at_1": round(majority_precision(train, judged), 6),
        "evaluated_on": "test" if judged is data.test else "holdout",
        "active_mean": round(counters.active_total / counters.step, 1),
        "peak_rss_mb": peak_memory_mb(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions(),
    }
    files.write_json(folder / SUMMARY, summary)
    return summary
