"""Samplers compared at equal steps: precision, seconds, and what their look-ups find.

    python tests/benchmarks/look_up.py --root path/to/data
    python tests/benchmarks/look_up.py --root path/to/data --datasets files --samplers lsh recent
    python tests/benchmarks/look_up.py --root path/to/data --datasets debian --sections parts
    python tests/benchmarks/look_up.py --root path/to/data --datasets debian --sections heads

A set that a batch shares is compared with `SHARED` samplers. A part of `sampler=lsh` is taken away
in one epoch with sets of each sample. Writes results/benchmarks/look_up.{json,md}.
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
from causes import BATCH, BEST, HEADS, HIDDEN, PARTS, SIZES, WHERE, changed, cost
from harness import (
    RESULTS,
    Row,
    Store,
    grid,
    in_process,
    numbers,
    of,
    opened,
    options,
    origin,
    spread,
    table,
)
from hydra.utils import instantiate

from slide.config import build_network, build_optimizer, fill_in, read_config
from slide.data import Split
from slide.nn import SlideNetwork
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
    "full": ["sampler=full"],
}
SHARED = ["uniform", "lsh", "index", "recent", "full"]
# Sets with few outputs, all of which a step can compute.
FULL = ["debian", "gowalla", "fb15k"]
# Sizes of sets: for each sample, and for a batch.
ACTIVE = {"per_sample": 128, "shared": 2048}
EPOCHS = (0.1, 1, 3)
SECTIONS = ("samplers", "parts", "heads", "sizes")
# Sets where heads of few rows are compared, and for how many epochs.
HEADED = {"debian": 1, "gowalla": 1, "files": 0.1}
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
    """Train, and evaluate on the rows that were held out; "<sampler>: <part>" lacks a part."""
    sampler, _, part = case["sampler"].partition(": ")
    with changed(PARTS[sampler][part] if part else {}):
        return trained(root, case, SAMPLERS[sampler])[0]


def head_figures(root: Path, case: Row) -> Row:
    """The same with a head of another size, and what its look-ups cost at the end."""
    change, chosen = HEADS[case["sampler"]]
    with changed(change):
        found, network, train = trained(
            root, case | {"mode": "per_sample"}, [*SAMPLERS["lsh"], *chosen]
        )
        network.eval()
        with torch.no_grad():
            inputs = network.encode(train.slice(0, BATCH).features)
        return found | cost(network.output.sampler.proposer, inputs)


def trained(root: Path, case: Row, sampler: list[str]) -> tuple[Row, SlideNetwork, Split]:
    """Figures of a training, its network and its rows."""
    rows = SETS[case["dataset"]]
    overrides = rows_of(case["dataset"], root)
    sizes = [f"sampler.mode={case['mode']}", f"sampler.active={ACTIVE[case['mode']]}"]
    words = [*overrides, *sampler, *sizes, "ranker=none"]
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
    found = scores | upkeep | {"rows": rows, "seconds": found["network_seconds"]}
    return found, network, train


def page(found: dict[str, Any]) -> str:
    text = harness.prose("look_up", "about", held_out=HELD_OUT, active=ACTIVE)
    rows = found["rows"]
    of_sets = {name: own for name in SETS if (own := of(rows, dataset=name))}
    for name, own in of_sets.items():
        if compared := [row for row in own if row["sampler"] in SAMPLERS]:
            seeds = numbers(row["seed"] for row in compared)
            text += f"\n## {name}\n\n{own[0]['rows']:,} rows to learn from; seeds {seeds}.\n\n"
            text += table(lines(compared))
    if parts := {name: found for name, own in of_sets.items() if (found := part_lines(own))}:
        text += harness.prose("look_up", "parts", **ACTIVE)
        text += "".join(f"\n### {name}\n\n{table(own)}" for name, own in parts.items())
    if headed := of(rows, mode="heads"):
        text += harness.prose("look_up", "heads", batch=BATCH, **ACTIVE)
        for name in HEADED:
            if own := of(headed, dataset=name):
                text += f"\n### {name}\n\n" + table(head_lines(own))
    if own := of(rows, mode="look_up"):
        text += harness.prose("look_up", "sizes", batch=BATCH, best=BEST, hidden=HIDDEN)
        text += "\n" + table(size_lines(own))
    return text + origin(rows)


def lines(rows: list[Row]) -> list[dict[str, object]]:
    """A line for each kind of set, number of epochs and sampler."""
    order = {name: i for i, name in enumerate(SAMPLERS)}
    rows = sorted(rows, key=lambda r: (r["mode"] == "shared", r["epochs"], order[r["sampler"]]))
    out = []
    for mode, epochs, sampler in dict.fromkeys(
        (r["mode"], r["epochs"], r["sampler"]) for r in rows
    ):
        line: dict[str, object] = {
            "sets of": "a batch" if mode == "shared" else "a sample",
            "epochs": f"{epochs:g}",
            "sampler": sampler,
        }
        out.append(line | cells(of(rows, mode=mode, epochs=epochs, sampler=sampler)))
    return out


def part_lines(rows: list[Row]) -> list[dict[str, object]]:
    """A line for each sampler as it is, and for each of its parts that was taken away."""
    out, rows = [], of(rows, mode="per_sample", epochs=1)
    for sampler, without in PARTS.items():
        names = [f"{sampler}: {part}" for part in without]
        seeds = {row["seed"] for row in rows if row["sampler"] in names}
        for name in (sampler, *names):
            if own := [row for row in of(rows, sampler=name) if row["seed"] in seeds]:
                out.append({"": name} | cells(own))
    return out


def cells(rows: list[Row]) -> dict[str, object]:
    """Means of the rows of a case."""
    found = {t: spread([row.get(name, math.nan) for row in rows]) for name, t in FIGURES.items()}
    times = {"rebuilds": "rebuilds", "upkeep": "upkeep, s", "seconds": "seconds"}
    return found | {t: spread([row[name] for row in rows], scale=1) for name, t in times.items()}


def head_lines(rows: list[Row]) -> list[dict[str, object]]:
    """A line for each size of the head, alone and with tables."""
    out = []
    for name in HEADS:
        if own := of(rows, sampler=name):
            line: dict[str, object] = {
                "epochs": f"{own[0]['epochs']:g}",
                "an input looks at": name,
                "rows of the head": f"{own[0]['head']:,}",
            }
            costs = {"in_buckets": "in buckets", "megabytes": "MB read", "milliseconds": "ms"}
            line |= {t: spread([row[key] for row in own], scale=1) for key, t in costs.items()}
            out.append(line | cells(own))
    return out


def size_lines(rows: list[Row]) -> list[dict[str, object]]:
    """A line for each number of rows and for what an input looks at."""
    order = list(WHERE)
    return [
        {
            "rows": f"{row['outputs']:,}",
            "an input looks at": row["sampler"],
            "rows of the head": f"{row['head']:,}",
            "in buckets": f"{row['in_buckets']:,.0f}",
            "MB read": f"{row['megabytes']:,.0f}",
            "ms": f"{row['milliseconds']:,.0f}",
            "recall": spread([row["recall"]]),
            "rebuild, s": f"{row['rebuild']:.2f}",
        }
        for row in sorted(rows, key=lambda row: (row["outputs"], order.index(row["sampler"])))
    ]


def measure(store: Store, arguments: argparse.Namespace) -> None:
    for name in arguments.datasets:
        cases, seeds = [], arguments.seeds
        for mode in arguments.modes if "samplers" in arguments.sections else []:
            kinds = SHARED if mode == "shared" else SAMPLERS.keys() - {"full"}
            kinds = set(kinds) - ({"full"} if name not in FULL else set())
            samplers = [s for s in arguments.samplers if s in kinds]
            axes = {"epochs": arguments.epochs, "sampler": samplers}
            cases += grid(dataset=[name], seed=seeds, mode=[mode], **axes)
        if "parts" in arguments.sections:
            parts = [f"{s}: {part}" for s, without in PARTS.items() for part in without]
            axes = {"mode": ["per_sample"], "epochs": [1], "sampler": [*PARTS, *parts]}
            cases += grid(dataset=[name], seed=seeds, **axes)
        store.fill(cases, partial(figures, arguments.root))
        if "heads" in arguments.sections and name in HEADED:
            axes = {"mode": ["heads"], "epochs": [HEADED[name]], "sampler": HEADS}
            cases = grid(dataset=[name], seed=seeds, **axes)
            store.fill(cases, partial(head_figures, arguments.root))
    for outputs in SIZES if "sizes" in arguments.sections else []:
        name = f"{outputs:,} generated rows"
        cases = grid(dataset=[name], seed=[0], epochs=[0], mode=["look_up"], sampler=WHERE)
        if missing := list(store.missing(cases)):
            # Their memory is free again at the end of the process.
            found = in_process("causes", "look_ups", outputs, [each["sampler"] for each in missing])
            store.add([each | found[each["sampler"]] for each in missing])


def main() -> None:
    parser = options(__doc__, DATASETS, [0], RESULTS)
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--epochs", nargs="+", type=float, choices=EPOCHS, default=EPOCHS)
    parser.add_argument("--modes", nargs="+", choices=ACTIVE, default=list(ACTIVE))
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    keys = ("dataset", "seed", "mode", "epochs", "sampler")
    harness.fill_page("look_up", keys, page, measure, parser)


if __name__ == "__main__":
    main()
