"""What weights, moments and a re-ranker take, the least that a run needs, against free memory."""

from dataclasses import replace
from itertools import pairwise

from omegaconf import DictConfig

from slide.config.ranks import ALONE, Ranks
from slide.data import SparseDataset
from slide.data.kind import kind_of
from slide.nn.answers import Reranker
from slide.utils.progress_bar import log
from slide.utils.resources import free_memory, in_gib


def memory_needs(
    config: DictConfig,
    data: SparseDataset,
    ranker: Reranker | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, int]:
    """The bytes of weights, of moments and, in the main process, of the re-ranker."""
    widths, optimizer = _widths(config, data, ranks.group.size), config.optimizer
    weights = _num_weights(widths)
    states = widths[0] + 2 * sum(widths[1:]) - widths[1]  # Rows of weights; each bias is one.
    first = optimizer.get("betas", [0])[0] != 0  # Other optimizers may have no such keys.
    inputs = widths[0] * widths[1]  # Weights of the first layer.
    second = states - widths[0] if optimizer.get("rowwise", False) else weights - inputs
    second += widths[0] if optimizer.get("input_rowwise", False) else inputs
    moments = first * weights + second
    moments += optimizer.get("correct_skipped", False) * states
    needs = {"weights": 4 * weights, "moments": 4 * moments}
    if ranker and ranks.group.is_main_process:
        kind = kind_of(data.train) if config.trainer.kind == "auto" else config.trainer.kind
        split = replace(data.train, kind=kind)  # Its kind is found once.
        needs["re-ranker"] = ranker.bytes_needed(split, kind)
    return needs


def _widths(config: DictConfig, data: SparseDataset, processes: int) -> list[int]:
    """The features, hidden units and labels of a process."""
    features, labels = (-(-n // processes) for n in (data.num_features, data.num_labels))
    return [features, *config.network.hidden, labels]


def _num_weights(widths: list[int]) -> int:
    return sum(a * b for a, b in pairwise(widths)) + sum(widths[1:])


def announce_memory(
    config: DictConfig,
    data: SparseDataset,
    ranker: Reranker | None = None,
    ranks: Ranks = ALONE,
) -> None:
    """Say what the run needs at least and what is free; ValueError if the weights do not fit."""
    processes, free = ranks.info.local_size, free_memory()
    hidden = list(config.network.hidden)
    narrower = str([*hidden[:-1], max(hidden[-1] // 2, 1)]).replace(" ", "")
    weights = 4 * _num_weights(_widths(config, data, ranks.group.size))
    # Before anything has a number for each feature or label: the header of a file may lie.
    if free is not None and processes * weights > free:
        raise ValueError(
            f"the weights alone take {in_gib(processes * weights)}, and {in_gib(free)} are free: "
            f"network.hidden={narrower}"
        )
    needs = memory_needs(config, data, ranker, ranks)
    needed = sum(needs.values())
    every = needed + (processes - 1) * (needs["weights"] + needs["moments"])
    said = f"needs at least {in_gib(every)}"
    if processes > 1:
        said += f" for {processes} processes"
    said += ": " + ", ".join(f"{name} {in_gib(size)}" for name, size in needs.items())
    if free is not None:
        said += f"; {in_gib(free)} are free"
        if every > free:
            rowwise = config.optimizer.get("rowwise", True)
            advice = [
                f"network.hidden={narrower}",
                *([] if rowwise else ["optimizer.rowwise=true"]),
            ]
            said += f". To need less: {', '.join(advice + ['ranker=none'] * bool(ranker))}"
    log(f"memory    {said}")
