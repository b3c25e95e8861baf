"""An estimate of the memory that a run needs, and what to change if there is not so much.

Neither mapped files, which the system can drop, nor compilers of a first run count.
"""

from dataclasses import replace
from itertools import pairwise

from hydra.utils import get_object
from omegaconf import DictConfig

from slide import runtime
from slide.config.ranks import ALONE, Ranks
from slide.data import SparseDataset
from slide.data.kind import kind_of
from slide.nn.answers import Reranker
from slide.sampling import SketchProposer
from slide.sampling.lsh import NUM_TABLES
from slide.utils.progress_bar import log
from slide.utils.resources import free_memory, in_gib, resident_memory

MIB = 1 << 20
LIBRARIES = 75 * MIB  # Python, libraries that are imported later, and compiled kernels.
LIBRARIES_OF_RANKER = 100 * MIB
# Bytes of an output: of its sketch, without and with hash tables, and in each table, with its part
# of the buckets by default; and bytes of a bucket.
SKETCH, SHORT_SKETCH, TABLE_ENTRY, BUCKET = 128, 64, 18, 44
ENTRY = 8  # Bytes of an entry of a sparse matrix: its column and its value.


def memory_needs(
    config: DictConfig,
    data: SparseDataset,
    ranker: Reranker | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, dict[str, int]]:
    """The bytes of each part of a process, in training (``training``) and in what follows it."""
    processes, trainer = ranks.group.size, config.trainer
    sampler, optimizer, hidden = config.sampler, config.optimizer, config.network.hidden
    features, *widths = _widths(config, data, processes)
    split, labels = data.train, widths[-1]
    rows, entries = len(split), len(split.features.indices)
    batch = min(trainer.batch_size, rows)
    weights = _num_weights(config, data, processes)
    states = features + 2 * sum(widths) - widths[0]  # Rows of weights; each bias is one.
    first = optimizer.get("betas", [0])[0] != 0  # Other optimizers may have no such keys.
    inputs = features * widths[0]  # Weights of the first layer.
    second = states - features if optimizer.get("rowwise", False) else weights - inputs
    second += features if optimizer.get("input_rowwise", False) else inputs
    moments = first * weights + second
    always = {
        "weights": 4 * weights,
        "moments": 4 * (moments + optimizer.get("correct_skipped", False) * states),
        "rows": 8 * rows,  # The order of an epoch.
        "index of the sampler": 0,
    }
    if ranker or trainer.epochs == "auto" or trainer.patience or config.dataset.holdout:
        # Rows that are divided are copies.
        always["rows"] += ENTRY * entries + 4 * len(split.labels.indices) + 16 * rows
    copied = 0
    chosen = data.num_labels if sampler.active == "all" else int(sampler.active)
    active = min(-(-chosen // processes), labels)
    proposer = sampler.get("proposer") or {}
    kind = get_object(proposer["_target_"]) if proposer else None
    if active < labels and getattr(kind, "holds_vectors", False):
        always["index of the sampler"] = 12 * labels * (widths[-2] + 1)  # And room for more.
    elif active < labels and "num_tables" in proposer:
        tables, entry = proposer.get("num_tables") or NUM_TABLES, TABLE_ENTRY
        if hashes := proposer.get("hashes_per_table"):
            buckets = min(config.hash.get("bin_size", 2) ** hashes, 2 * labels)
            entry = 12 + BUCKET * buckets // labels
        always["index of the sampler"] = labels * (SHORT_SKETCH + entry * tables)
        copied = labels * (SHORT_SKETCH + (entry - 4) * tables)  # All but the codes.
    elif active < labels and kind is SketchProposer:
        always["index of the sampler"] = copied = labels * SKETCH
    step = (4 + runtime.num_threads()) * labels
    step += batch * (40 * entries // max(rows, 1) + 24 * sum(hidden))
    if sampler.mode == "shared" or active == labels:
        step += 4 * (2 * batch * active + 3 * active * hidden[-1])
    else:
        step += 48 * batch * active
    training = {**always, "a step": step, "libraries": LIBRARIES}
    if trainer.checkpoint_every and processes == 1:  # Several processes write without a copy.
        training["copy for checkpoints"] = always["weights"] + always["moments"] + copied
    ending = {**always, "re-ranker": 0, "libraries": LIBRARIES}
    if trainer.evaluation == "index":
        lists = 16 * widths[-2] * int(labels**0.5)
        ending["index for prediction"] = labels * (widths[-2] + 24) + lists
    if ranker and ranks.group.is_main_process:
        kind = kind_of(split) if trainer.kind == "auto" else trainer.kind
        ending["re-ranker"] = ranker.bytes_needed(split, kind)
        ending["libraries"] += LIBRARIES_OF_RANKER
    return {"training": training, "ending": ending}


def _widths(config: DictConfig, data: SparseDataset, processes: int) -> list[int]:
    """The features, hidden units and labels of a process."""
    features, labels = (-(-n // processes) for n in (data.num_features, data.num_labels))
    return [features, *config.network.hidden, labels]


def _num_weights(config: DictConfig, data: SparseDataset, processes: int) -> int:
    widths = _widths(config, data, processes)
    return sum(a * b for a, b in pairwise(widths)) + sum(widths[1:])


def announce_memory(
    config: DictConfig,
    data: SparseDataset,
    ranker: Reranker | None = None,
    ranks: Ranks = ALONE,
) -> None:
    """Say how much memory the run needs and what is free; ValueError if not even weights fit."""
    held, free, group = resident_memory(), free_memory(), ranks.group
    hidden, beside = list(config.network.hidden), ranks.info.local_size - 1
    narrower = str([*hidden[:-1], max(hidden[-1] // 2, 1)]).replace(" ", "")
    weights = 4 * _num_weights(config, data, group.size)
    # Before anything has a number for each feature or label: the header of a file may lie.
    if free is not None and weights > free // (beside + 1) + held:
        raise ValueError(
            f"the weights alone take {in_gib(weights)}, and "
            f"{in_gib(free // (beside + 1) + held)} are free: network.hidden={narrower}"
        )
    kind = kind_of(data.train) if config.trainer.kind == "auto" else config.trainer.kind
    data = replace(data, train=replace(data.train, kind=kind))  # Its rows are counted once.
    phases = memory_needs(config, data, ranker, ranks)
    reranking = phases["ending"]["re-ranker"]
    sums = {name: sum(phase.values()) for name, phase in phases.items()}
    parts = phases[max(sums, key=lambda name: sums[name])]
    alone = sums["ending"] - reranking - phases["ending"]["libraries"] + LIBRARIES
    others, needed = max(sums["training"], alone), sum(parts.values()) + held
    said = f"needs about {in_gib(needed)}"
    if group.size > 1:
        said = f"each process needs about {in_gib(others + held)}"
        said += f", and the first one {in_gib(needed)} for the re-ranker" if reranking else ""
    if free is None:
        return log(f"memory    {said}")
    # What this process holds is not free, but it is part of what it needs.
    there = max(free // (beside + 1), free - beside * others) + held
    said += f", {in_gib(there)} are free" + (" for it" if group.size > 1 else "")
    smaller = ranker and reranking and ranker.smaller(data.train, kind)
    advice = {
        "weights": f"network.hidden={narrower}",
        "moments": "" if config.optimizer.get("rowwise", True) else "optimizer.rowwise=true",
        "copy for checkpoints": "trainer.checkpoint_every=0",
        "a step": "a smaller trainer.batch_size or sampler.active",
        "re-ranker": "ranker=none" + (f", or {smaller}" if smaller else ""),
        "index of the sampler": "sampler=uniform",
        "index for prediction": "trainer.evaluation=exact",
        "rows": "fewer training rows",
    }
    if needed > there:
        largest = sorted(parts, key=lambda name: -parts[name])
        said += ": " + ", ".join(f"{name} {in_gib(parts[name])}" for name in largest[:3])
        helpful = [advice[name] for name in largest if parts[name] and advice.get(name)]
        said += f". To need less: {'; '.join(helpful[:3])}"
    log(f"memory    {said}")
