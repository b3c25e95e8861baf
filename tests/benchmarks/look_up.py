"""Samplers compared at equal steps: precision, seconds, and what their look-ups find.

    python tests/benchmarks/look_up.py --root path/to/data
    python tests/benchmarks/look_up.py --root path/to/data --datasets files --samplers lsh recent

A set that a batch shares is compared with `SHARED` samplers. Writes
results/benchmarks/look_up.{json,md}.
"""

import argparse
import math
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from harness import RESULTS, Row, Store, grid, numbers, of, opened, options, origin, spread, table
from hydra.utils import instantiate

from slide.config import build_network, build_optimizer, fill_in, read_config
from slide.training import Trainer
from slide.training.loop import start_biases

# Data set: a number of rows to learn from; None: all but the held-out ones.
SETS = {
    **{"debian": 15_000, "gowalla": None, "fb15k": 15_000, "files": None},
    **{"skip_grams": 100_000, "amazon670k_like": None},
}
GENERATED = [
    *("dataset=amazon670k_like", "dataset.train_samples=60000", "dataset.test_samples=2000"),
    "dataset.cache=datasets/amazon670k_like/cache_60000",
]
# Three kinds of rows, which take minutes; all sets take hours.
DATASETS = ["debian", "fb15k", "amazon670k_like"]
HELD_OUT = 4000
# Sampler: its overrides, beside its own defaults.
SAMPLERS = {
    "uniform": ["sampler=uniform"],
    "lsh": ["sampler=lsh"],
    "lsh, tables": ["sampler=lsh", "hash.num_tables=4"],
    "lsh, DWTA": ["sampler=lsh", "hash=dwta"],
    # Buckets of one row or none: what the head finds alone.
    "lsh, K 30": ["sampler=lsh", "hash.hashes_per_table=30"],
    "index": ["sampler=index"],
    "recent": ["sampler=recent"],
}
SHARED = ["uniform", "lsh", "index", "recent"]
# Sizes of sets: for each sample, and for a batch.
ACTIVE = {"per_sample": 128, "shared": 2048}
EPOCHS = (0.1, 1, 3)
FIGURES = {
    "p_at_1": "P@1",
    "p_at_3": "P@3",
    "p_at_5": "P@5",
    "psp_at_5": "PSP@5",
    "recall_at_10": "recall",
    "chance_recall_at_10": "by chance",
    "rows_seen_share": "rows read",
}


def rows_of(name: str, root: Path) -> list[str]:
    if name == "amazon670k_like":
        return GENERATED
    *known, folder = harness.overrides_of(name, root)
    return [*known, f"dataset.root={root / 'text'}" if name == "skip_grams" else folder]


def figures(root: Path, case: Row) -> Row:
    """Train, and evaluate on the rows that were held out."""
    rows = SETS[case["dataset"]]
    overrides = rows_of(case["dataset"], root)
    sizes = [f"sampler.mode={case['mode']}", f"sampler.active={ACTIVE[case['mode']]}"]
    words = [*overrides, *SAMPLERS[case["sampler"]], *sizes, "ranker=none"]
    words += [f"trainer.epochs={math.ceil(case['epochs'])}"]
    config, data = read_config([*words, f"seed={case['seed']}"]), opened(tuple(overrides))
    # All cases of a seed learn from the same rows.
    order = np.random.default_rng(case["seed"]).permutation(len(data.train))
    rows = min(rows or len(order), len(order) - HELD_OUT)
    chosen = order[:rows], order[-HELD_OUT:]
    train, held_out = (data.train.take(np.sort(part)) for part in chosen)
    data = replace(data, train=train, test=held_out)
    fill_in(config, rows, data.num_labels)
    if case["epochs"] < 1:
        config.trainer.max_steps = math.ceil(case["epochs"] * rows / config.trainer.batch_size)
    torch.manual_seed(case["seed"])
    network = build_network(config, data.num_features, data.num_labels)
    loss, optimizer = instantiate(config.loss), build_optimizer(config, network)
    start_biases(network, loss, train.labels)
    training, schedule = instantiate(config.trainer, holdout=0.0), instantiate(config.lr_schedule)
    with tempfile.TemporaryDirectory() as folder:
        parts = network, optimizer, loss, data, training, Path(folder)
        found = Trainer(*parts, lr_schedule=schedule).fit()
    scores = {name: found[name] for name in FIGURES if name in found}
    upkeep = {"rebuilds": found.get("rebuilds", 0), "upkeep": found["rebuild_seconds"]}
    return scores | upkeep | {"rows": rows, "seconds": found["network_seconds"]}


def page(found: dict[str, Any]) -> str:
    text = harness.prose("look_up", "about", held_out=HELD_OUT, active=ACTIVE)
    rows = found["rows"]
    for name in SETS:
        if own := of(rows, dataset=name):
            seeds = numbers(row["seed"] for row in own)
            text += f"\n## {name}\n\n{own[0]['rows']:,} rows to learn from; seeds {seeds}.\n\n"
            text += table(lines(own))
    return text + origin(rows)


def lines(rows: list[Row]) -> list[dict[str, object]]:
    """A line for each kind of set, number of epochs and sampler."""
    order = {name: i for i, name in enumerate(SAMPLERS)}
    rows = sorted(rows, key=lambda r: (r["mode"] == "shared", r["epochs"], order[r["sampler"]]))
    out = []
    for mode, epochs, sampler in dict.fromkeys(
        (r["mode"], r["epochs"], r["sampler"]) for r in rows
    ):
        own = of(rows, mode=mode, epochs=epochs, sampler=sampler)
        line: dict[str, object] = {
            "sets of": "a batch" if mode == "shared" else "a sample",
            "epochs": f"{epochs:g}",
            "sampler": sampler,
        }
        for name, title in FIGURES.items():
            line[title] = spread([row.get(name, math.nan) for row in own])
        for name, title in {
            "rebuilds": "rebuilds",
            "upkeep": "upkeep, s",
            "seconds": "seconds",
        }.items():
            line[title] = spread([row[name] for row in own], scale=1)
        out.append(line)
    return out


def measure(store: Store, arguments: argparse.Namespace) -> None:
    for name in arguments.datasets:
        for mode in arguments.modes:
            samplers = [s for s in arguments.samplers if mode == "per_sample" or s in SHARED]
            axes = {"epochs": arguments.epochs, "sampler": samplers}
            cases = grid(dataset=[name], seed=arguments.seeds, mode=[mode], **axes)
            store.fill(cases, partial(figures, arguments.root))


def main() -> None:
    parser = options(__doc__, DATASETS, [0], RESULTS)
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--epochs", nargs="+", type=float, choices=EPOCHS, default=EPOCHS)
    parser.add_argument("--modes", nargs="+", choices=ACTIVE, default=list(ACTIVE))
    keys = ("dataset", "seed", "mode", "epochs", "sampler")
    harness.fill_page("look_up", keys, page, measure, parser)


if __name__ == "__main__":
    main()
