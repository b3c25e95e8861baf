"""Says before a run how much memory it will need, and what to change if there is not so much."""

from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from slide import runtime
from slide.bars import say
from slide.config.ranks import ALONE, Ranks
from slide.config.samplers import proposer_has
from slide.data import SparseDataset
from slide.data.kind import kind_of
from slide.hashing.tables import bucket_count
from slide.limits import free_memory, in_gib, resident_memory
from slide.training.needs import RankerSizes, RunSizes, TableSizes, memory_needs, peak_memory

_CANDIDATES = ("depth", "voted", "associated")


def run_sizes(config: DictConfig, data: SparseDataset, ranks: Ranks = ALONE) -> RunSizes:
    """What the memory of a process of a run depends on.

    Args:
        config: after `slide.config.fill_in`.
        data: the data set.
        ranks: the processes that share the rows of features and labels. The first one trains the
            re-ranker.
    """
    processes = ranks.group.size
    trainer, sampler, ranker, split = config.trainer, config.sampler, config.ranker, data.train
    hidden, labels = tuple(config.network.hidden), -(-data.num_labels // processes)
    every = sampler.active == "all" or sampler.active >= data.num_labels
    proposer = None if every else sampler.get("proposer")
    copied = bool(ranker) or trainer.epochs == "auto" or trainer.patience or config.dataset.holdout
    return RunSizes(
        rows=len(split),
        features=-(-data.num_features // processes),
        labels=labels,
        entries=len(split.features.indices),
        targets=len(split.labels.indices),
        hidden=hidden,
        batch=trainer.batch_size,
        active=labels if every else -(-int(sampler.active) // processes),
        shared=every or sampler.mode == "shared",
        first_moment=config.optimizer.betas[0] != 0,
        rowwise=bool(config.optimizer.rowwise),
        last_steps=bool(config.optimizer.correct_skipped),
        copied=bool(copied),
        # Several processes write without a copy.
        checkpoints=bool(trainer.checkpoint_every) and processes == 1,
        row_index=trainer.evaluation == "index",
        tables=_table_sizes(proposer, hidden[-1], labels),
        vectors=not every and proposer_has(config, "holds_vectors"),
        ranker=_ranker_sizes(ranker if ranks.leads else None, data, trainer.kind),
        threads=runtime.num_threads(),
    )


def announce_memory(config: DictConfig, data: SparseDataset, ranks: Ranks = ALONE) -> None:
    """Say how much memory the run needs and how much is free; of several processes, each.

    If it needs more than is free, the line names the largest parts and what makes them smaller. It
    is no error: parts of the prediction are bounds, and a system can move memory to its disk.

    Args:
        config: after `slide.config.fill_in`.
        data: the data set.
        ranks: the processes of the run; those of a machine share what is free there.

    Raises:
        ValueError: if not even the weights fit.
    """
    # First: looking for the sizes loads libraries, which are among the parts.
    held, free = resident_memory(), free_memory()
    sizes, beside = run_sizes(config, data, ranks), ranks.place.local_size - 1
    parts, others = memory_needs(sizes), peak_memory(sizes._replace(ranker=None))
    needed = sum(parts.values()) + held
    said = f"needs about {in_gib(needed)}"
    if ranks.group.size > 1:
        said = f"each process needs about {in_gib(others + held)}"
        if sizes.ranker is not None:
            said += f", and the first one {in_gib(needed)} for the re-ranker"
    if free is None:
        say(f"memory    {said}")
        return
    # What this process holds is not free, but it is part of what it needs.
    there = max(free // (beside + 1), free - beside * others) + held
    said += f", {in_gib(there)} are free" + (" for it" if ranks.group.size > 1 else "")
    if parts["weights"] > there:
        raise ValueError(
            f"the weights alone take {in_gib(parts['weights'])}, and {in_gib(there)} are free: "
            f"{_advice({'weights': parts['weights']}, config, sizes)[0]}"
        )
    if needed <= there:
        say(f"memory    {said}")
        return
    largest = sorted(parts, key=lambda name: -parts[name])[:3]
    told = ", ".join(f"{name} {in_gib(parts[name])}" for name in largest)
    say(f"memory    {said}: {told}. To need less: {'; '.join(_advice(parts, config, sizes))}")


def _advice(parts: dict[str, int], config: DictConfig, sizes: RunSizes) -> list[str]:
    """What makes the largest parts smaller, the largest one first."""
    hidden = list(config.network.hidden)
    width = f"network.hidden={[*hidden[:-1], max(hidden[-1] // 2, 1)]}".replace(" ", "")
    rowwise = "" if config.optimizer.rowwise else "optimizer.rowwise=true"
    regressions = sizes.ranker is not None and sizes.ranker.regressions
    known = {
        "weights": width,
        "moments": rowwise,
        "copy for checkpoints": "trainer.checkpoint_every=0",
        "a step": "a smaller trainer.batch_size or sampler.active",
        "re-ranker": "ranker=none" + ("" if regressions else ", or a smaller ranker.negatives"),
        "index of the sampler": "sampler=uniform, or a smaller hash.num_tables",
        "index for prediction": "trainer.evaluation=exact",
        "rows": "fewer training rows",
    }
    ordered = sorted(parts, key=lambda name: -parts[name])
    found = [known[name] for name in ordered if known.get(name)]
    return found[:3]


def _table_sizes(proposer: Any, inputs: int, labels: int) -> TableSizes | None:
    if proposer is None or "bucket_capacity" not in proposer:
        return None
    # The size of the tables does not depend on the width, so a narrow family is made: a wide one
    # would draw large random matrices. Bins are not wider than their inputs.
    least = proposer.family.get("bin_size") or 0
    family = instantiate(proposer.family)(min(inputs, max(1024, least)) + 2, num_vectors=labels)
    buckets, capacity = bucket_count(family.num_buckets, labels), proposer.bucket_capacity
    return TableSizes(family.num_tables, buckets, labels if capacity is None else capacity)


def _ranker_sizes(ranker: Any, data: SparseDataset, kind: str) -> RankerSizes | None:
    if not ranker:
        return None
    candidates = sum(ranker.get(name, 0) for name in _CANDIDATES)
    sizes = data.num_features, data.num_labels
    kind = kind_of(data.train) if kind == "auto" else kind
    weighted = data.train.weights is not None
    return RankerSizes(candidates, ranker.negatives, *sizes, kind, weighted)
