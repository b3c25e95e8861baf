"""Samplers compared at equal steps: precision, seconds, and what their look-ups find.

    python tests/benchmarks/look_up.py --root path/to/data
    python tests/benchmarks/look_up.py --root path/to/data --datasets debian --samplers lsh recent

The network of the default recipe without a re-ranker; precision on held-out training rows, never on
test rows. Writes results/benchmarks/look_up.{json,md}.
"""

import argparse
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from report import RESULTS, ROOT, Row, Store, add_options, numbers, origin, parse, spread, table

from slide import runtime
from slide.config import build_network, build_optimizer, fill_in, open_dataset, read_config
from slide.training import Trainer
from slide.training.loop import start_biases

# Data set: its overrides, its folder among the data sets, and a number of rows to learn from; None:
# all but the held-out ones.
SETS: dict[str, tuple[list[str], str | None, int | None]] = {
    "debian": (["dataset=debian"], "debian", None),
    "gowalla": (["dataset=xmc", "dataset.name=gowalla"], "gowalla", None),
    "fb15k": (["dataset=xmc", "dataset.name=fb15k"], "fb15k", 40_000),
    "files": (["dataset=files"], "files", None),
    "skip_grams": (["dataset=xmc", "dataset.name=skip_grams"], "text", 100_000),
    "amazon670k_like": (
        [
            "dataset=amazon670k_like",
            "dataset.train_samples=60000",
            "dataset.test_samples=10",
            "dataset.cache=datasets/amazon670k_like/cache_60000",
        ],
        None,
        None,
    ),
}
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
    "neighbours": ["sampler=neighbours"],
    "recent": ["sampler=recent"],
}
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
    "rows_seen_share": "rows looked at",
}


def measure(root: Path, case: Row) -> Row:
    """Train, and evaluate on the rows that were held out."""
    overrides, folder, rows = SETS[case["dataset"]]
    where = [f"dataset.root={root / folder}"] if folder else []
    sizes = [f"sampler.mode={case['mode']}", f"sampler.active={ACTIVE[case['mode']]}"]
    training = [f"trainer.epochs={math.ceil(case['epochs'])}", "ranker=none"]
    words = [*overrides, *where, *SAMPLERS[case["sampler"]], *sizes, *training]
    config = read_config([*words, f"seed={case['seed']}"])
    data = open_dataset(config)
    # All cases of a seed learn from the same rows.
    order = np.random.default_rng(case["seed"]).permutation(len(data.train))
    rows = len(order) - HELD_OUT if rows is None else rows
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
    options, schedule = instantiate(config.trainer, holdout=0.0), instantiate(config.lr_schedule)
    with tempfile.TemporaryDirectory() as folder:
        parts = network, optimizer, loss, data, options, Path(folder)
        found = Trainer(*parts, lr_schedule=schedule).fit()
    scores = {name: found[name] for name in FIGURES if name in found}
    upkeep = {"rebuilds": found.get("rebuilds", 0), "upkeep": found["rebuild_seconds"]}
    return scores | upkeep | {"rows": rows, "seconds": found["network_seconds"]}


def page(found: dict[str, Any]) -> str:
    text = (
        "# How outputs are chosen: samplers compared\n\n"
        "The network of the default recipe without a re-ranker, each sampler with its own "
        f"defaults; precision in points on {HELD_OUT:,} held-out training rows, mean of the seeds. "
        "Each number of epochs is a run of its own, whose learning rate falls to 0; 0.1 is the "
        "start of a training. Sets of a sample have "
        f"{ACTIVE['per_sample']} outputs, sets of a batch {ACTIVE['shared']:,}. Recall: the share "
        "of the ten largest products of a training sample, without those of its labels, that its "
        "set holds, in the second half of the run; by chance: what equally many uniform draws "
        "would hold. Rows looked at: the share of the rows whose sketch, rounded row or weight an "
        "input reads. Seconds are those of training, with all upkeep and measurements of recall; "
        "seconds of different days do not compare.\n"
    )
    rows = found["rows"]
    for name in SETS:
        if own := [row for row in rows if row["dataset"] == name]:
            seeds = numbers(row["seed"] for row in own)
            text += f"\n## {name}\n\n{own[0]['rows']:,} rows to learn from; seeds {seeds}.\n\n"
            text += table(lines(own))
    return text + origin(rows)


def lines(rows: list[Row]) -> list[dict[str, object]]:
    """A line for each kind of set, number of epochs and sampler."""
    order = {name: i for i, name in enumerate(SAMPLERS)}
    rows = sorted(rows, key=lambda r: (r["mode"] == "shared", r["epochs"], order[r["sampler"]]))
    cases = dict.fromkeys((row["mode"], row["epochs"], row["sampler"]) for row in rows)
    out = []
    for mode, epochs, sampler in cases:
        own = [r for r in rows if (r["mode"], r["epochs"], r["sampler"]) == (mode, epochs, sampler)]
        line: dict[str, object] = {
            "sets of": "a batch" if mode == "shared" else "a sample",
            "epochs": epochs,
            "sampler": sampler,
        }
        for name, title in FIGURES.items():
            line[title] = spread([row.get(name, math.nan) for row in own])
        line["rebuilds"] = spread([row["rebuilds"] for row in own], scale=1)
        line["upkeep, s"] = spread([row["upkeep"] for row in own], scale=1)
        line["seconds"] = spread([row["seconds"] for row in own], scale=1)
        out.append(line)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, list(SETS), [0])
    parser.set_defaults(results=RESULTS)
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--epochs", nargs="+", type=float, choices=EPOCHS, default=EPOCHS)
    parser.add_argument("--modes", nargs="+", choices=ACTIVE, default=list(ACTIVE))
    arguments = parse(parser)
    runtime.set_threads(0)
    keys = ("dataset", "seed", "mode", "epochs", "sampler")
    store = Store("look_up", keys, page, arguments)
    if arguments.render:
        return store.render()
    os.chdir(ROOT)  # Caches lie in its datasets/.
    for dataset in arguments.datasets:
        cases = [
            {"dataset": dataset, "seed": seed, "mode": mode, "epochs": epochs, "sampler": sampler}
            for seed in arguments.seeds
            for mode in arguments.modes
            for epochs in arguments.epochs
            for sampler in arguments.samplers
        ]
        for case in store.missing(cases):
            store.add([case | measure(arguments.root, case)])
    store.render()
    store.report()


if __name__ == "__main__":
    main()
