"""Precision against training time: the default recipe, other ways to choose sets, and the peers.

    pip install -e '.[bench]'
    python tests/benchmarks/accuracy.py --root path/to/data

Ours: train.py with the default recipe as a process of its own, but for what a row's name says.
omikuji: its defaults, with one tree and with three. Dense: the same network, loss and rates in
plain PyTorch, all outputs, without a re-ranker. All on whole test sets, on all cores, one
after another. No setting was chosen by these rows. Writes results/accuracy.{json,md} and a plot a
data set.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import dense
import matplotlib

matplotlib.use("Agg")
import omikuji as trees  # tests/benchmarks/omikuji.py
import torch
from judged import TOP, Judged
from matplotlib import pyplot as plt
from report import RESULTS, last, publish, table
from train_process import run_train, seconds_of
from workload import job

from slide import runtime, sizes
from slide.config import fill_in, open_dataset, read_config, user_errors
from slide.data import SparseDataset

PAGES = RESULTS.parent
DATASETS = ("debian", "bibtex", "delicious")
OURS = {
    "default recipe (uniform, shared)": [],
    "lsh, shared": ["sampler=lsh"],
    "full": ["sampler=full"],
}
SMALL = "default recipe, half width, half set"


def train(dataset: str, root: Path | None, overrides: list[str]) -> tuple[dict, list[dict]]:
    """Train once: the summary, and the lines of the log."""
    place = [f"dataset.root={root / dataset}"] if root else []
    summary, log = run_train(f"dataset={dataset}", *place, *overrides)
    # Training is that of the network, with the choice of its length, and that of the re-ranker.
    summary["train_seconds"] = seconds_of(summary)
    return summary, log


def curve_of(log: list[dict]) -> list[tuple[float, float]]:
    """Seconds of training and P@1 wherever a run logged both at one step."""
    by_step: dict[int, dict] = {}
    for line in log:
        by_step.setdefault(line["step"], {}).update(line)
    return [
        (line["train/seconds"], line["eval/p_at_1"])
        for line in by_step.values()
        if "train/seconds" in line and "eval/p_at_1" in line
    ]


def ours(data: SparseDataset, root: Path, name: str, overrides: list[str]) -> dict[str, Any]:
    """A row of results: with the re-ranker, and the network alone."""
    if name == SMALL:
        active = sizes.active_outputs(data.num_labels) // 2
        overrides = ["network.hidden=[256]", f"sampler.active={active}"]
    steps = -(-len(data.train) // sizes.batch_size(len(data.train)))
    every = [f"trainer.eval_every={steps}", f"trainer.log_every={steps}"]
    summary, log = train(data.name, root, [*overrides, *every])
    keep = ("p", "psp", "network_p", "network_psp")
    scores = {f"{n}_at_{k}": summary[f"{n}_at_{k}"] for n in keep for k in TOP}
    times = {key: summary[key] for key in ("train_seconds", "ranker_seconds", "active_mean")}
    return {"dataset": data.name, "method": name, "curve": curve_of(log)} | scores | times


def measure(root: Path, name: str, package: Any, dense_epochs: int) -> list[dict[str, Any]]:
    """All rows of a data set."""
    with user_errors(), tempfile.TemporaryDirectory() as cache:
        overrides = [f"dataset={name}", f"dataset.root={root / name}"]
        normal = open_dataset(read_config([*overrides, "transform.l2_norm=true"]))
        begin = time.perf_counter()
        data = open_dataset(read_config([*overrides, f"dataset.cache={cache}"]))
        reading = time.perf_counter() - begin
        data = open_dataset(read_config(overrides))
    rows = []
    for method, choice in {**OURS, SMALL: []}.items():
        rows.append(ours(data, root, method, choice) | {"reading_seconds": reading})
        print(cells(rows[-1]), flush=True)
    for count in (1, 3):
        row = trees.measure(package, data, 0.0, 0, count) | {"method": f"omikuji, trees: {count}"}
        rows.append(row | {"curve": [(row["train_seconds"], row["p_at_1"])]})
        print(cells(rows[-1]), flush=True)
    config = job.compose(f"dataset={name}", f"trainer.epochs={dense_epochs}")
    fill_in(config, len(normal.train), normal.num_labels)
    torch.manual_seed(config.seed)
    network, whole = dense.DenseNetwork.from_config(normal, config), Judged(normal)
    epochs = list(dense.train(network, normal, config, lambda: whole.judge(network.best)))
    curve = [(each["train_seconds"], each["p_at_1"]) for each in epochs]
    title = f"dense PyTorch, epochs: {dense_epochs}"
    rows.append({"dataset": name, "method": title, "curve": curve} | epochs[-1])
    print(cells(rows[-1]), flush=True)
    return rows


def triple(row: dict[str, Any], name: str) -> str:
    if f"{name}_at_1" not in row:
        return ""
    return " / ".join(f"{100 * row[f'{name}_at_{k}']:.1f}" for k in TOP)


def cells(row: dict[str, Any]) -> dict[str, str]:
    """A row of results in words."""
    return {
        "data set": row["dataset"],
        "method": row["method"],
        "P@1 / P@3 / P@5": triple(row, "p"),
        "PSP@1 / 3 / 5": triple(row, "psp"),
        "network alone, P": triple(row, "network_p"),
        "network alone, PSP": triple(row, "network_psp"),
        "outputs a set": f"{row['active_mean']:.0f}" if "active_mean" in row else "",
        "reading, s": f"{row['reading_seconds']:.1f}" if "reading_seconds" in row else "",
        "training, s": f"{row['train_seconds']:.1f}",
        "of it the re-ranker, s": f"{row['ranker_seconds']:.1f}" if "ranker_seconds" in row else "",
    }


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    plots = "".join(
        f"\n![P@1 on {name} against training seconds](accuracy_{name}.png)\n"
        for name in dict.fromkeys(row["dataset"] for row in found["rows"])
    )
    return (
        "# Precision against training time\n\n"
        f"omikuji {found['omikuji']}, {found['threads']} threads. One run a row, seed 0, on whole "
        "test sets with exact search. Training seconds of ours hold all of a step (batch, "
        "selection, products, gradients, updates, rebuilds), the evaluations on held-out rows, and "
        "the re-ranker; omikuji's hold reading the rows as text, which "
        "we do once, both splits, into a cache (reading, s). "
        "PSP: propensity-scored. A set also holds the labels of its samples (shared: of the whole "
        "batch), so with few labels shared sets are nearly full, however they are chosen.\n\n"
        + table([cells(row) for row in found["rows"]])
        + "\nThe plots show the network alone after each epoch, the last point with the "
        "re-ranker.\n" + plots
    )


def plot(name: str, rows: list[dict[str, Any]]) -> None:
    """P@1 against seconds, a line a method."""
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for row in rows:
        curve = [*row["curve"]]
        if "ranker_seconds" in row:
            curve.append((row["train_seconds"], row["p_at_1"]))
        seconds, precision = zip(*curve, strict=True)
        axes.plot(seconds, [100 * p for p in precision], ".-", label=row["method"])
    best = max(100 * row["p_at_1"] for row in rows)
    axes.set(xscale="log", xlabel="seconds of training", ylabel="P@1", title=name)
    axes.set_ylim(best - 20, best + 1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(PAGES / f"accuracy_{name}.png", dpi=120)
    plt.close(figure)


def write(found: dict[str, Any]) -> None:
    """The page and the plots."""
    publish("accuracy", found, page, PAGES)
    for name in dict.fromkeys(row["dataset"] for row in found["rows"]):
        plot(name, [row for row in found["rows"] if row["dataset"] == name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="folder with a folder a data set")
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS))
    parser.add_argument("--dense-epochs", type=int, default=6, help="of dense PyTorch, the slowest")
    parser.add_argument("--render", action="store_true", help="pages anew from the last figures")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.render:
        return write(last("accuracy", PAGES))
    package, epochs = trees.import_omikuji(), arguments.dense_epochs
    runtime.set_threads(0)
    # A warm-up, so that no row pays for the compilation of kernels; the set with the most labels,
    # as those with few need none of the tables.
    for choice in OURS.values():
        train(DATASETS[0], root, [*choice, "trainer.max_steps=2"])
    rows = [row for name in arguments.dataset for row in measure(root, name, package, epochs)]
    version = trees.metadata.version("omikuji")
    threads = runtime.num_threads()
    write({"omikuji": version, "threads": threads, "rows": rows})


if __name__ == "__main__":
    main()
