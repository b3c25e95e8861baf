"""Cost over size: time and memory of a step over outputs, features, hidden units and threads.

    python benchmarks/scaling.py

Each size is measured in a process of its own (sized.py). Writes
results/benchmarks/scaling.{json,md,png} and scaling_more.png.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from harness import (
    RESULTS,
    Row,
    Store,
    fill_page,
    in_process,
    legend_below,
    options,
    origin,
    prose,
    table,
)
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter
from sized import BATCHES, LABELS, NONZEROS, Size, settings

BASE = Size()
# Case: outputs beyond which it is not measured; a dense step takes seconds.
LIMITS = {
    "default": 2**22,
    "uniform, batch": 2**22,
    "lsh, sample": 2**22,
    "sampled softmax, PyTorch": 2**20,
    "dense PyTorch": 2**18,
}
PICTURE, MORE = "scaling.png", "scaling_more.png"
TITLES = {"outputs": "outputs", "features": "features", "hidden": "hidden units"}


def sizes() -> Iterator[Size]:
    for power in range(14, 25, 2):
        yield from (Size(case, 2**power) for case, limit in LIMITS.items() if 2**power <= limit)
    for features in (10**4, 10**6, 10**7):
        yield BASE._replace(features=features)
    for hidden in (64, 128, 512, 1024):
        yield BASE._replace(hidden=hidden)


def page(found: dict[str, Any]) -> str:
    rows = found["rows"]
    sizes = {"nonzeros": NONZEROS, "labels": LABELS, "batches": BATCHES, "base": BASE}
    text = (
        prose("scaling", "about", **sizes)
        + "\n"
        + "".join(f"* {in_words(case)}\n" for case in LIMITS)
    )
    done = [row for row in rows if row.get("ms")]
    if done:
        times = [row["product_ms"] for row in done]
        text += (
            f"\nA fixed product, timed beside each size, took {min(times):.1f} to {max(times):.1f} "
            f"ms, {statistics.median(times):.1f} in the median: so uneven was the machine.\n"
        )
    text += f"\n![time of a step against the number of outputs]({PICTURE})\n"
    text += f"\n![time over features and hidden units, and memory over outputs]({MORE})\n"
    threads = threads_of(done)
    for axis in TITLES:
        if own := along(done, axis):
            lines = [line(row, axis, threads) for row in own]
            text += f"\n## Over {TITLES[axis]}\n\n" + table(lines)
    if missing := [row for row in rows if not row.get("ms")]:
        lines = [
            {"": row["case"], **{TITLES[axis]: f"{row[axis]:,}" for axis in TITLES}}
            | {"why": f"needs {row['needs_gib']} GiB" if "needs_gib" in row else "killed"}
            for row in missing
        ]
        text += "\n## Where memory ended\n\n" + table(lines)
    return text + origin(rows, "case")


def in_words(case: str) -> str:
    """A case with its batch and the size of its sets."""
    config = settings(case, BASE.outputs)
    active = "all outputs" if case == "dense PyTorch" else f"{config.sampler.active:,} outputs"
    of = {"grouped": "for 16 samples", "per_sample": "for each sample", "shared": "for the batch"}
    each = of[config.sampler.mode]
    return f"{case}: batch {config.trainer.batch_size}, {active} {each}"


def along(rows: list[Row], axis: str) -> list[Row]:
    """The rows that differ from `BASE` in ``axis`` at most, by case and size."""
    others = [name for name in TITLES if name != axis]
    own = [row for row in rows if all(row[name] == getattr(BASE, name) for name in others)]
    return sorted(own, key=lambda row: (list(LIMITS).index(row["case"]), row[axis]))


def threads_of(rows: list[Row]) -> list[str]:
    return sorted({each for row in rows for each in row["ms"]}, key=int)


def line(row: Row, axis: str, threads: list[str]) -> dict[str, str]:
    """A line of a table of times, with columns for these numbers of threads."""
    cells = {"": row["case"], TITLES[axis]: f"{row[axis]:,}"}
    for each in threads:
        time, spread = row["ms"].get(each), row["spread_ms"].get(each)
        shown = f"{time:.2f} ({spread[0]:.2f} to {spread[1]:.2f})" if time else ""
        cells[f"ms a step, threads: {each}"] = shown
    ends = [row["ms"].get(each) for each in (threads[0], threads[-1])]
    if len(threads) > 1:
        cells["one thread to all"] = f"{ends[0] / ends[1]:.2f}" if all(ends) else ""
    cells["samples/s"] = f"{1e3 * row['batch'] / ends[1]:,.0f}" if ends[1] else ""
    cells["rebuild, ms"] = f"{row['rebuild_ms']:,.0f}" if "rebuild_ms" in row else ""
    return cells | {"memory, GiB": f"{row['bytes'] / 2**30:.2f}"}


def draw(rows: list[Row], folder: Path) -> None:
    """Time against outputs, and in the other picture time against the rest, and memory."""
    rows = [row for row in rows if row.get("ms")]
    if not rows:
        return

    def last_ms(row: Row) -> float:
        return row["ms"][threads_of([row])[-1]]

    def others(axis: str) -> str:
        fixed = [name for name in TITLES if name != axis]
        return ", ".join(f"{getattr(BASE, name):,} {TITLES[name]}" for name in fixed)

    figure, axes = plt.subplots(figsize=(7, 5.5), layout="constrained")
    lines_of(axes, along(rows, "outputs"), "outputs", last_ms)
    title = f"A training step\n{others('outputs')}, {threads_of(rows)[-1]} threads"
    axes.set(title=title, ylabel="ms a step")
    legend_below(figure, 1)
    saved(figure, folder / PICTURE)
    figure, grid = plt.subplots(1, 3, figsize=(10.5, 4.5), layout="constrained")
    grid[0].sharey(grid[1])
    for axes, axis in zip(grid, ("features", "hidden"), strict=False):
        own = [row for row in along(rows, axis) if row["case"] == BASE.case]
        lines_of(axes, own, axis, last_ms)
        axes.set_ylabel("ms a step")
        axes.set_title(f"A training step\n{others(axis)}", fontsize="medium")
    lines_of(grid[2], along(rows, "outputs"), "outputs", lambda row: row["bytes"] / 2**30)
    grid[2].set_ylabel("memory, GiB")
    grid[2].set_title(f"Memory of the process\n{others('outputs')}", fontsize="medium")
    legend_below(figure, 2)
    saved(figure, folder / MORE)


def lines_of(axes: Any, rows: list[Row], axis: str, value: Callable[[Row], float]) -> None:
    for case in LIMITS:
        points = [(row[axis], value(row)) for row in rows if row["case"] == case]
        if points:
            color = f"C{list(LIMITS).index(case)}"
            axes.plot(*zip(*points, strict=True), "o-", color=color, label=in_words(case))
    axes.set_xscale("log", base=10 if axis == "features" else 2)
    axes.set_yscale("log")
    # Some panels span less than a decade.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(TITLES[axis])
    axes.grid(alpha=0.3)


def saved(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=120)
    plt.close(figure)


def measure(store: Store, arguments: argparse.Namespace) -> None:
    batch = {"batch": settings(BASE.case, BASE.outputs).trainer.batch_size}
    chosen = [
        size._asdict() | batch
        for size in sizes()
        if size.case in arguments.cases and max(size[1:]) <= arguments.largest
    ]
    store.fill(
        chosen, lambda case: in_process("sized", "measured", *(case[n] for n in Size._fields))
    )


def main() -> None:
    parser = options(__doc__, folder=RESULTS)
    parser.add_argument("--largest", type=int, default=2**24, help="most outputs or features")
    parser.add_argument("--cases", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    fill_page("scaling", (*Size._fields, "batch"), page, measure, parser, draw)


if __name__ == "__main__":
    main()
