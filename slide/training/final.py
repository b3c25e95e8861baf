"""The end of a run: the last scores and the summary."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slide import files
from slide.data import SparseDataset, Split
from slide.nn import SlideNetwork
from slide.ranking import LinearRanker, fit_ranker
from slide.runtime import peak_memory_mb, versions
from slide.training.evaluation import majority_precision
from slide.training.progress import Counters

SUMMARY = "summary.json"
RANKER = "ranker.pt"


def final_scores(
    evaluate: Callable[..., dict[str, float]],
    ranker: LinearRanker | None,
    network: SlideNetwork,
    train: Split,
    search: str,
    folder: Path,
    counters: Counters,
    held: Split | None = None,
) -> dict[str, float]:
    """The last scores of a run: trains the ranker, if there is one, and evaluates.

    Args:
        evaluate: `slide.training.Trainer.evaluate`.
        ranker: the ranker to train and to write into the folder; None: no ranker.
        network: the trained network.
        train: training rows of the ranker.
        search: see `slide.SlideNetwork.predict`.
        folder: folder of the run.
        counters: counters of the run; the training time of the ranker is added.
        held: training rows that neither network nor ranker learns from, for choices; None: none.

    Returns:
        Without a ranker, the scores of the network. With a ranker, the re-ranked scores, the scores
        of the network as ``network_...``, and the share of the ranker in the final score.
    """
    scores = evaluate()
    if ranker is None:
        return scores
    begin = time.perf_counter()
    fit_ranker(ranker, network, train, search)
    counters.ranker_seconds = time.perf_counter() - begin
    files.write_tensors(folder / RANKER, ranker.state_dict())
    alone = {f"network_{name}": value for name, value in scores.items()}
    return evaluate(ranker=ranker) | alone | {"ranker_share": ranker.fitted_share}


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
