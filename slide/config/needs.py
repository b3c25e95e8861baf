"""An estimate of the memory that a run needs, and what to change if there is not so much.

Arrays that are mapped from files do not count: the system can drop them. What compilers take in a
first run does not count either.
"""

import math
from itertools import pairwise

import numpy as np
from omegaconf import DictConfig

from slide import runtime
from slide.config.ranks import ALONE, Ranks
from slide.config.samplers import proposer_has
from slide.data import SparseDataset, Split
from slide.data.dataset import take_labels
from slide.data.kind import kind_of
from slide.data.validation import held_rows
from slide.ranking.associations import MOST_LABELS
from slide.ranking.dense_search import count_as_dense
from slide.ranking.ensemble import ROWS_AT_ONCE
from slide.ranking.evidence import COLUMNS
from slide.ranking.item_regressions import WEIGHTS, num_sharing
from slide.ranking.linear_classifiers import MOST_COPIED, counts_items
from slide.ranking.row_blocks import MOST_ROOM
from slide.utils.progress_bar import log
from slide.utils.resources import free_memory, in_gib, resident_memory

MIB = 1 << 20
LIBRARIES = 75 * MIB  # Python, libraries that are imported later, and compiled kernels.
LIBRARIES_OF_RANKER = 100 * MIB
SKETCH, TABLE_ENTRY = 128, 32  # Bytes of an output: of its sketch, and in each hash table.
ENTRY = 8  # Bytes of an entry of a sparse matrix: its column and its value.
SAMPLED = 300_000  # Pairs of a feature and a label that are looked at to estimate their number.


def memory_needs(
    config: DictConfig, data: SparseDataset, ranks: Ranks = ALONE
) -> dict[str, dict[str, int]]:
    """The bytes of each part of a process, in training (``training``) and in what follows it.

    Args:
        config: after `slide.config.fill_in`.
        data: the data set.
        ranks: the processes that share the rows of features and labels. The first one trains the
            re-ranker.
    """
    processes, trainer, ranker = ranks.group.size, config.trainer, config.ranker
    features, labels = (-(-n // processes) for n in (data.num_features, data.num_labels))
    split, widths = data.train, [*config.network.hidden, labels]
    rows, entries = len(split), len(split.features.indices)
    weights = features * widths[0] + sum(a * b for a, b in pairwise(widths)) + sum(widths)
    states = features + 2 * sum(widths) - widths[0]  # Rows of weights; each bias is one.
    optimizer = config.optimizer
    moments = (optimizer.betas[0] != 0) * weights + (states if optimizer.rowwise else weights)
    kept = bool(ranker) or trainer.epochs == "auto" or trainer.patience or config.dataset.holdout
    always = {
        "weights": 4 * weights,
        "moments": 4 * (moments + bool(optimizer.correct_skipped) * states),
        # The order of an epoch; the rows that are divided are copies.
        "rows": 8 * rows
        + bool(kept) * (ENTRY * entries + 4 * len(split.labels.indices) + 16 * rows),
        "index of the sampler": _sampler_index(config, labels, widths[-2]),
    }
    copies = 0
    if trainer.checkpoint_every and processes == 1:  # Several processes write without a copy.
        copies = sum(always.values()) - always["rows"] + always["index of the sampler"]
    training = {"a step": _step(config, data, labels, processes), "copy for checkpoints": copies}
    ending = {"index for prediction": 0, "re-ranker": 0}
    if trainer.evaluation == "index":
        ending["index for prediction"] = labels * (widths[-2] + 24) + 16 * widths[-2] * int(
            labels**0.5
        )
    libraries = LIBRARIES
    if ranker and ranks.leads:
        kind = kind_of(split) if trainer.kind == "auto" else trainer.kind
        candidates = sum(ranker.get(name, 0) for name in ("depth", "voted", "associated"))
        ending["re-ranker"] = ranker_needs(split, kind, candidates, ranker.negatives)
        libraries += LIBRARIES_OF_RANKER
    return {
        "training": {**always, **training, "libraries": LIBRARIES},
        "ending": {**always, **ending, "libraries": libraries},
    }


def _sampler_index(config: DictConfig, labels: int, inputs: int) -> int:
    every = config.sampler.active == "all" or config.sampler.active >= labels
    if not every and proposer_has(config, "holds_vectors"):
        return 12 * labels * (inputs + 1)  # The rows, as they are added, and room for more.
    tables = (config.sampler.get("proposer") or {}).get("num_tables", 0)
    return labels * (SKETCH + TABLE_ENTRY * tables) if tables and not every else 0


def _step(config: DictConfig, data: SparseDataset, labels: int, processes: int) -> int:
    hidden, batch, active = config.network.hidden, config.trainer.batch_size, config.sampler.active
    active = labels if active == "all" else min(-(-int(active) // processes), labels)
    row = len(data.train.features.indices) // max(len(data.train), 1)
    inputs = (4 + runtime.num_threads()) * labels + batch * (40 * row + 24 * sum(hidden))
    if config.sampler.mode == "shared" or active == labels:
        return inputs + 4 * (2 * batch * active + 3 * active * hidden[-1])
    return inputs + 48 * batch * active


def ranker_needs(split: Split, kind: str, candidates: int, negatives: int) -> int:
    """Bytes of a re-ranker: what stays, and the largest of the phases of its training.

    Args:
        split: the training rows.
        kind: of the rows; see `slide.data.kind_of`.
        candidates: of a row that it looks at.
        negatives: of a row that classifiers learn from.
    """
    rows, features, labels = max(len(split), 1), split.num_features, split.num_labels
    entries, targets = len(split.features.indices), len(split.labels.indices)
    pairs, most_associated = _pairs(split)
    learnt, threads = targets + rows * negatives, runtime.num_threads()
    room = min(MOST_ROOM, entries // rows * learnt, features * labels)
    classifiers, learning = pairs, 12 * learnt + 10 * room + ENTRY * pairs
    learning += threads * ENTRY * min(MOST_COPIED, entries)
    if counts_items(kind, split.weights is not None):
        items = entries + targets
        # Pairs of items that share a row, as if all were equally frequent.
        shared = round(-(labels**2) * math.expm1(-(items**2) / rows / labels**2))
        shared = min(shared, num_sharing(labels) * labels)
        classifiers = min(shared, WEIGHTS * labels)
        learning = 16 * items + ENTRY * (shared + min(MOST_ROOM // 2, shared))
    near, comparing = 12 * entries, 56 * entries
    every = max(rows * features, 1)
    if count_as_dense(entries / every, entries**2 / every):
        near, comparing = 4 * every, 9 * every
    judged = 2 * (held_rows(rows) + ROWS_AT_ONCE) * candidates
    judging = round(2.4 * len(COLUMNS)) * judged
    counting = 16 * entries + ENTRY * (min(MOST_ROOM, most_associated) + 2 * most_associated)
    questions = 115 * entries // rows * targets if kind == "graph" else 0
    answers = 16 * entries + 24 * entries // rows * targets if kind == "graph" else 0
    scratch = threads * (8 * (rows + 2 * labels) + 12 * features)
    kept = near + ENTRY * (most_associated + classifiers) + 4 * (features + labels) + answers
    return kept + scratch + max(comparing, learning, judging, counting, questions)


def _pairs(split: Split) -> tuple[int, int]:
    """Distinct pairs of a feature and a label of one row, by a sample of the features.

    Of the second number, no feature has more than `MOST_LABELS`.
    """
    x, y = split.features, split.labels
    occurrences = int(np.diff(x.indptr) @ np.diff(y.indptr))
    step = -(-occurrences // SAMPLED) or 1
    counts = np.bincount(x.indices, minlength=split.num_features)
    chosen = np.zeros(len(counts), bool)
    chosen[np.argsort(-counts, kind="stable")[step // 2 :: step]] = True  # Frequent and rare ones.
    entries = np.flatnonzero(chosen[x.indices])
    taken = take_labels(y, np.searchsorted(x.indptr, entries, side="right") - 1)
    feature = x.indices[entries].astype(np.int64)[taken.entry_rows()]
    found = np.unique(feature * split.num_labels + taken.indices) // split.num_labels
    capped = np.minimum(np.unique(found, return_counts=True)[1], MOST_LABELS)
    return step * len(found), step * int(capped.sum())


def announce_memory(config: DictConfig, data: SparseDataset, ranks: Ranks = ALONE) -> None:
    """Say how much memory the run needs and how much is free; of several processes, each.

    If it needs more than is free, the line names the largest parts and what makes them smaller. It
    is no error: the numbers are estimates, and a system can move memory to its disk.

    Args:
        config: after `slide.config.fill_in`.
        data: the data set.
        ranks: the processes of the run; those of a machine share what is free there.

    Raises:
        ValueError: if not even the weights fit.
    """
    held, free = resident_memory(), free_memory()
    phases, beside = memory_needs(config, data, ranks), ranks.place.local_size - 1
    parts = max(phases.values(), key=lambda each: sum(each.values()))
    without = {**phases["ending"], "re-ranker": 0, "libraries": LIBRARIES}
    others = max(sum(phases["training"].values()), sum(without.values()))
    needed = sum(parts.values()) + held
    said = f"needs about {in_gib(needed)}"
    if ranks.group.size > 1:
        said = f"each process needs about {in_gib(others + held)}"
        if phases["ending"]["re-ranker"]:
            said += f", and the first one {in_gib(needed)} for the re-ranker"
    if free is None:
        return log(f"memory    {said}")
    # What this process holds is not free, but it is part of what it needs.
    there = max(free // (beside + 1), free - beside * others) + held
    said += f", {in_gib(there)} are free" + (" for it" if ranks.group.size > 1 else "")
    advice = _advice(config, data)
    if parts["weights"] > there:
        raise ValueError(
            f"the weights alone take {in_gib(parts['weights'])}, and {in_gib(there)} are free: "
            f"{advice['weights']}"
        )
    if needed > there:
        largest = sorted(parts, key=lambda name: -parts[name])
        said += ": " + ", ".join(f"{name} {in_gib(parts[name])}" for name in largest[:3])
        helpful = [advice[name] for name in largest if parts[name] and advice.get(name)]
        said += f". To need less: {'; '.join(helpful[:3])}"
    log(f"memory    {said}")


def _advice(config: DictConfig, data: SparseDataset) -> dict[str, str]:
    """What makes each part smaller; empty: nothing does."""
    hidden, kind = list(config.network.hidden), config.trainer.kind
    kind = kind_of(data.train) if kind == "auto" else kind
    regressions = counts_items(kind, data.train.weights is not None)
    return {
        "weights": f"network.hidden={[*hidden[:-1], max(hidden[-1] // 2, 1)]}".replace(" ", ""),
        "moments": "" if config.optimizer.rowwise else "optimizer.rowwise=true",
        "copy for checkpoints": "trainer.checkpoint_every=0",
        "a step": "a smaller trainer.batch_size or sampler.active",
        "re-ranker": "ranker=none" + ("" if regressions else ", or a smaller ranker.negatives"),
        "index of the sampler": "sampler=uniform",
        "index for prediction": "trainer.evaluation=exact",
        "rows": "fewer training rows",
    }
