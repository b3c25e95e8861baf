"""Sampler comparison: precision over seconds, what look-ups find, and recall over K and L.

    python benchmarks/look_up.py --root path/to/data
    python benchmarks/look_up.py --root path/to/data --datasets files --cases "uniform, batch"
    python benchmarks/look_up.py --root path/to/data --datasets debian --sections map

Precision is that of held-out training rows. Writes results/benchmarks/look_up.{json,md,png} and
recall_map.png.
"""

import argparse
import math
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import harness
import matplotlib

matplotlib.use("Agg")
import numpy as np
import torch
from harness import (
    RESULTS,
    Row,
    Store,
    grid,
    legend_below,
    numbers,
    of,
    opened,
    options,
    origin,
    spread,
    table,
)
from hydra.utils import instantiate
from matplotlib import pyplot
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from slide.config import build_network, build_optimizer, fill_in, read_config
from slide.training import Trainer
from slide.training.loop import start_biases

GENERATED = [
    *("dataset=amazon670k_like", "dataset.train_samples=60000", "dataset.test_samples=2000"),
    "dataset.cache=datasets/amazon670k_like/cache_60000",
]
DATASETS = ["debian", "gowalla", "wordnet", "files", "amazon670k_like"]
HELD_OUT = 4000
GROUPED, SAMPLE, BATCH = (f"sampler.mode={each}" for each in ("grouped", "per_sample", "shared"))
AT_PRIOR = "network.prior_margin=0"
# What chooses, and for whom: the overrides.
CASES = {
    "lsh, group": ["sampler=lsh", GROUPED],
    "sketch, group": ["sampler=sketch", GROUPED],
    "faiss, group": ["sampler=faiss", GROUPED],
    "uniform, group": ["sampler=uniform", GROUPED],
    "lsh, sample": ["sampler=lsh", SAMPLE],
    "lsh, batch": ["sampler=lsh", BATCH],
    "uniform, batch": ["sampler=uniform", BATCH],
    "uniform, batch, biases at the prior": ["sampler=uniform", BATCH, AT_PRIOR],
    "lsh, group, biases at the prior": ["sampler=lsh", GROUPED, AT_PRIOR],
    "all outputs": ["sampler=full"],
}
# Sets of groups of several sizes, with a fourth of the samples looking up; and other look-ups.
SETS = {
    **{
        f"{size} samples, {active:,} outputs": [
            *(f"sampler.group_size={size}", f"sampler.active={active}"),
            f"sampler.lookups={max(1, size // 4)}",
        ]
        for size, active in ((1, 64), (4, 96), (16, 192), (64, 512), (256, 1600), (512, 2800))
    },
    "16 samples, no look-ups": ["sampler.lookups=0"],
    "16 samples, 1 looks up": ["sampler.lookups=1"],
    "16 samples, all look up": ["sampler.lookups=16"],
    "16 samples, 96 outputs": ["sampler.active=96"],
    "16 samples, 512 outputs": ["sampler.active=512"],
}
MARGINS = (0.0, 0.1, 0.3)
# Sets with few outputs, all of which a step can compute.
FULL = ["debian", "gowalla"]
SETS_ON = MAP_ON = ["debian", "files"]
EPOCHS = (0.3, 1, 3)
SECTIONS = ("samplers", "sets", "map")
# The sizes of tables on the map.
HASHES, TABLES = (8, 10, 12, 14), (2, 4, 8, 16)
FIGURES = {
    "p_at_1": "P@1",
    "p_at_3": "P@3",
    "p_at_5": "P@5",
    "psp_at_1": "PSP@1",
    "psp_at_5": "PSP@5",
    "recall_at_10": "recall",
    "chance_recall_at_10": "by chance",
    "rows_seen_share": "rows read",
}
COUNTS = {
    "active_mean": "outputs",
    "candidates": "candidates",
    "filled": "drawn",
    "rebuild_seconds": "upkeep, s",
    "network_seconds": "seconds",
}


def figures(root: Path, case: Row) -> Row:
    """Train, and evaluate on the rows that were held out."""
    words = [*(CASES | SETS)[case["case"]], *(f"hash.{x}={case[x]}" for x in "KL" if case[x])]
    words += [f"network.prior_margin={case['margin']}"] if case["case"] in SETS else []
    name = case["dataset"]
    overrides = GENERATED if name == "amazon670k_like" else harness.overrides_of(name, root)
    words = [*overrides, *words, "ranker=none", f"trainer.epochs={math.ceil(case['epochs'])}"]
    config, data = read_config([*words, f"seed={case['seed']}"]), opened(tuple(overrides))
    # All cases of a seed learn from the same rows.
    order = np.random.default_rng(case["seed"]).permutation(len(data.train))
    parts = order[HELD_OUT:], order[:HELD_OUT]
    train, held_out = (data.train.take(np.sort(part)) for part in parts)
    data = replace(data, train=train, test=held_out)
    fill_in(config, len(train), data.num_labels)
    if case["epochs"] < 1:
        steps = case["epochs"] * len(train) / config.trainer.batch_size
        config.trainer.max_steps = math.ceil(steps)
    torch.manual_seed(case["seed"])
    network = build_network(config, data.num_features, data.num_labels)
    loss, optimizer = instantiate(config.loss), build_optimizer(config, network)
    start_biases(network, loss, train.labels, config.network.prior_margin)
    training, schedule = instantiate(config.trainer, holdout=0.0), instantiate(config.lr_schedule)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            network, optimizer, loss, data, training, Path(folder), lr_schedule=schedule
        )
        found = trainer.fit()
    kept = {name: found[name] for name in (*FIGURES, *COUNTS) if name in found}
    return kept | {"rows": len(train), "labels": data.num_labels}


def page(found: dict[str, Any]) -> str:
    rows, text = found["rows"], harness.prose("look_up", "about", held_out=HELD_OUT)
    text += "\n![precision over seconds](look_up.png)\n"
    compared = of(rows, K=0, L=0)
    for name in DATASETS:
        if own := of(compared, dataset=name):
            about = f"{own[0]['rows']:,} rows to learn from, {own[0]['labels']:,} labels"
            text += f"\n## {name}\n\n{about}; seeds {numbers(row['seed'] for row in own)}.\n\n"
            text += table(lines(own))
    of_groups = [row for row in rows if row["case"] in SETS]
    if of_groups:
        text += harness.prose("look_up", "sets")
        for name in dict.fromkeys(row["dataset"] for row in of_groups):
            text += f"\n### {name}, one epoch\n\n" + table(set_lines(of(of_groups, dataset=name)))
    mapped = [row for row in rows if row["K"]]
    if mapped:
        text += harness.prose("look_up", "map") + "\n![recall over K and L](recall_map.png)\n"
        for name in dict.fromkeys(row["dataset"] for row in mapped):
            text += f"\n### {name}\n\n" + table(map_lines(of(mapped, dataset=name)))
    return text + origin(rows)


def lines(rows: list[Row]) -> list[dict[str, object]]:
    """A line for each number of epochs and case."""
    out = []
    for epochs in EPOCHS:
        for name in CASES:
            if own := of(rows, epochs=epochs, case=name):
                out.append({"epochs": f"{epochs:g}", "sampler, set for": name} | cells(own))
    return out


def cells(rows: list[Row]) -> dict[str, object]:
    """Means of the rows of a case."""
    return {
        title: spread([row.get(name, math.nan) for row in rows], scale=scale)
        for names, scale in ((FIGURES, 100), (COUNTS, 1))
        for name, title in names.items()
    }


def set_lines(rows: list[Row]) -> list[dict[str, object]]:
    """A line for each kind of set, a column for each margin."""
    out = []
    for name in SETS:
        line: dict[str, object] = {"set of": name}
        for margin in MARGINS:
            if own := of(rows, case=name, margin=margin):
                scores = [spread([row[each] for row in own]) for each in ("p_at_1", "psp_at_5")]
                line[f"P@1, PSP@5; margin {margin:g}"] = ", ".join(scores)
        out.append(line)
    return out


def map_lines(rows: list[Row]) -> list[dict[str, object]]:
    """A line for each K, a column for each L: recall, and the share of the rows that it takes."""
    out = []
    for hashes in HASHES:
        line: dict[str, object] = {"K": hashes}
        for tables in TABLES:
            if own := of(rows, K=hashes, L=tables):
                shown = [spread([row[each] for row in own]) for each in ("p_at_1", "recall_at_10")]
                read = spread([row["rows_seen_share"] for row in own])
                line[f"L {tables}"] = f"{shown[1]} by {read} % of the rows; P@1 {shown[0]}"
        out.append(line)
    return out


def draw(rows: list[Row], folder: Path) -> None:
    draw_map([row for row in rows if row["K"]], folder)
    draw_precision(of(rows, K=0, L=0), folder)


def draw_map(rows: list[Row], folder: Path) -> None:
    """Recall and the share of rows read over K and L, a line for each data set."""
    names = [name for name in MAP_ON if of(rows, dataset=name)]
    if not names:
        return
    titles = {"recall_at_10": "recall, %", "rows_seen_share": "rows read, %"}
    figure, axes = pyplot.subplots(
        len(names), 2, squeeze=False, figsize=(7.4, 3.3 * len(names)), layout="constrained"
    )
    for line, name in zip(axes, names, strict=True):
        for ax, (key, title) in zip(line, titles.items(), strict=True):
            own = of(rows, dataset=name)
            cells = [[[r[key] for r in of(own, K=k, L=l)] for l in TABLES] for k in HASHES]
            means = 100 * np.array([[np.mean(cell or [math.nan]) for cell in row] for row in cells])
            ax.imshow(means, cmap="Blues", aspect="auto")
            for (k, l), value in np.ndenumerate(means):
                dark = value > (np.nanmin(means) + np.nanmax(means)) / 2
                color = "white" if dark else "black"
                ax.text(l, k, f"{value:.1f}", ha="center", va="center", color=color)
            ax.set_xticks(range(len(TABLES)), TABLES)
            ax.set_yticks(range(len(HASHES)), HASHES)
            ax.set(title=f"{name}: {title}", xlabel="L, tables", ylabel="K, hashes in a code")
    figure.savefig(folder / "recall_map.png", dpi=110)
    pyplot.close(figure)


def draw_precision(rows: list[Row], folder: Path) -> None:
    """P@1 and PSP@5 over seconds of training, a column for each data set."""
    names = [name for name in DATASETS if of(rows, dataset=name)]
    if not names:
        return
    figure, axes = pyplot.subplots(
        2, len(names), squeeze=False, figsize=(3.4 * len(names), 6.4), layout="constrained"
    )
    for column, name in enumerate(names):
        for row, figure_name in enumerate(("p_at_1", "psp_at_5")):
            ax = axes[row][column]
            for number, case in enumerate(CASES):
                own = [of(rows, dataset=name, case=case, epochs=each) for each in EPOCHS]
                points = [
                    [
                        float(np.mean([r[key] for r in each]))
                        for key in ("network_seconds", figure_name)
                    ]
                    for each in own
                    if each
                ]
                if points:
                    x, y = np.array(points).T
                    style = "--" if "uniform" in case else "-"
                    ax.plot(x, 100 * y, style, marker=".", color=f"C{number}", label=case)
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set_xlabel("seconds of training")
            ax.set_title(f"{name}, {FIGURES[figure_name]}", fontsize=10)
            ax.grid(alpha=0.3)
    legend_below(figure, columns=5)
    figure.savefig(folder / "look_up.png", dpi=110)
    pyplot.close(figure)


def measure(store: Store, arguments: argparse.Namespace) -> None:
    for name in arguments.datasets:
        kinds = [c for c in arguments.cases if name in FULL or c != "all outputs"]
        axes: dict[str, Any] = {"dataset": [name], "seed": arguments.seeds}
        cases = []
        if "samplers" in arguments.sections:
            cases += grid(**axes, epochs=arguments.epochs, case=kinds, K=[0], L=[0], margin=[None])
        if "sets" in arguments.sections and name in SETS_ON:
            cases += grid(**axes, epochs=[1], case=SETS, K=[0], L=[0], margin=MARGINS)
        if "map" in arguments.sections and name in MAP_ON:
            sizes = {"K": HASHES, "L": TABLES, "margin": [None]}
            cases += grid(**axes, epochs=[1], case=["lsh, group"], **sizes)
        store.fill(cases, partial(figures, arguments.root))


def main() -> None:
    parser = options(__doc__, DATASETS, [0], RESULTS)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--epochs", nargs="+", type=float, choices=EPOCHS, default=EPOCHS)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    keys = ("dataset", "seed", "case", "epochs", "K", "L", "margin")
    harness.fill_page("look_up", keys, page, measure, parser, draw)


if __name__ == "__main__":
    main()
