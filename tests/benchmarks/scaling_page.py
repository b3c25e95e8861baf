"""The page and the pictures of scaling.py."""

import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from cost_model import BYTES, Fit, fit, largest_outputs, on_cores
from matplotlib import pyplot as plt
from report import table
from rows import Row, origin
from sized import BATCHES, CASES, LABELS, NONZEROS, Size

BASE = Size()
PICTURE, MORE = "scaling.png", "scaling_more.png"
PREDICTED = (16, 64)
MEMORIES = (8, 16, 32, 64, 256)
WIDTHS = (64, 256)
MODEL = "uniform, shared"
TITLES = {"outputs": "outputs", "features": "features", "hidden": "hidden units"}

ABOUT = f"""\
# Cost over size

A step: input layer, selection, products, loss, gradients and both sparse Adams; not the making of \
the batch, and no rebuilds. The rows are random, with {NONZEROS} features and {LABELS} labels, all \
drawn uniformly, which is the worst case for caches; {BATCHES} batches take turns. Where a size is \
not named it is {BASE.outputs:,} outputs, {BASE.features:,} features and {BASE.hidden} hidden \
units. Each size is a process of its own, which takes turns between one thread and all cores; the \
table has the medians of the turns, and those of the fastest and the slowest turn. Memory is that \
of the whole process once all weights and moments were written to, as steps do sooner or later. \
Dense PyTorch: the same network, fused Adam.
"""


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    rows = found["rows"]
    text = ABOUT + sets_in_words() + machine_in_words(rows)
    text += f"\n![time of a step against the number of outputs]({PICTURE})\n"
    text += f"\n![time over features and hidden units, and memory over outputs]({MORE})\n"
    threads = threads_of(measured(rows))
    for axis in TITLES:
        if own := along(measured(rows), axis):
            text += f"\n## Over {TITLES[axis]}\n\n" + table(
                [line(row, axis, threads) for row in own]
            )
    if missing := [row for row in rows if not row.get("ms")]:
        text += "\n## Where memory ended\n\n" + table([missed(row) for row in missing])
    text += model_in_words(measured(rows)) + memory_in_words(measured(rows))
    return text + origin(rows, "case")


def sets_in_words() -> str:
    """What the cases are."""
    lines = "".join(
        f"* {name}: batch {case.batch}, "
        + (f"{case.active:,} outputs in a set" if case.active else "all outputs")
        + (", weights of the outputs in bfloat16, one second moment a row" if case.rounded else "")
        + "\n"
        for name, case in CASES.items()
    )
    return f"\n{lines}"


def machine_in_words(rows: list[Row]) -> str:
    """How even the machine was."""
    times = [row["product_ms"] for row in measured(rows)]
    if not times:
        return ""
    return (
        f"\nA fixed product, timed beside each size, took {min(times):.1f} to {max(times):.1f} ms, "
        f"{statistics.median(times):.1f} in the median: so uneven was the machine.\n"
    )


def measured(rows: list[Row]) -> list[Row]:
    """The rows that have times."""
    return [row for row in rows if row.get("ms")]


def along(rows: list[Row], axis: str) -> list[Row]:
    """The rows that differ from `BASE` in ``axis`` at most, by case and size."""
    others = [name for name in TITLES if name != axis]
    own = [row for row in rows if all(row[name] == getattr(BASE, name) for name in others)]
    order = list(CASES)
    return sorted(own, key=lambda row: (order.index(row["case"]), row[axis]))


def threads_of(rows: list[Row]) -> list[str]:
    """All numbers of threads, ascending."""
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
    cells["rebuild, ms"] = f"{row['rebuild_ms']:,.0f}" if "rebuild_ms" in row else ""
    return cells | {"memory, GiB": f"{row['bytes'] / 2**30:.2f}"}


def missed(row: Row) -> dict[str, str]:
    """A line of a size that was not measured."""
    why = f"needs {row['needs_gib']} GiB" if "needs_gib" in row else "killed for its memory"
    return {"": row["case"]} | {TITLES[axis]: f"{row[axis]:,}" for axis in TITLES} | {"why": why}


def model(rows: list[Row], case: str, threads: str) -> tuple[Fit, list[Row], list[Row]] | None:
    """The fit of a case, the rows that it was fitted to, and those that check it; None: too few."""
    own = [row for row in rows if row["case"] == case and threads in row["ms"]]
    learnt = [row for row in own if not row["check"]]
    checks = [row for row in own if row["check"]]
    if len(learnt) < 3:
        return None
    return fit(learnt, lambda row: row["ms"][threads]), learnt, checks


def model_in_words(rows: list[Row]) -> str:
    """The cost model, its error, and what it predicts."""
    lines, most = [], int(max(threads_of(rows), key=int, default="1"))
    for case in CASES:
        for threads in map(str, sorted({1, most})):
            if (found := model(rows, case, threads)) is None:
                continue
            fitted, learnt, checks = found
            errors = fitted.errors(learnt, lambda row, t=threads: row["ms"][t])
            others = fitted.errors(checks, lambda row, t=threads: row["ms"][t])
            terms = zip(fitted.terms, fitted.factors, strict=True)
            lines.append(
                {
                    "": case,
                    "threads": threads,
                    "ms a step": " + ".join(written(*each) for each in terms if each[1]),
                    "sizes": str(len(learnt)),
                    "error, median": f"{statistics.median(errors):.0%}",
                    "error, largest": f"{max(errors):.0%}",
                    "error on other sizes, largest": f"{max(others):.0%}" if others else "",
                }
            )
    if not lines:
        return ""
    text = (
        "\n## Cost model\n\n"
        "For N outputs, D features and H hidden units, fitted to the measured sizes (least squares "
        "of relative errors, no factor below 0). Terms whose sizes do not vary in a case are part "
        "of the others. The last column has the sizes at which several of them vary at once; the "
        "fit has not seen them.\n\n" + table(lines)
    )
    if most == 1:
        return text
    lines = []
    for row in predicted_rows(rows):
        one, several = row["ms"]["1"], row["ms"][str(most)]
        cells = {"": row["case"]} | {TITLES[axis]: f"{row[axis]:,}" for axis in TITLES}
        cells |= {"1 core, measured": f"{one:.2f}", f"{most} cores, measured": f"{several:.2f}"}
        for cores in PREDICTED:
            time = on_cores(one, several, most, cores)
            cells[f"{cores} cores, predicted"] = f"{time:.2f}"
        lines.append(cells)
    return text + (
        f"\n## {PREDICTED[0]} and {PREDICTED[1]} cores: a prediction\n\n"
        f"Nothing here was measured on more than {most} cores. A step that takes s + w / p ms on p "
        f"cores has s and w from its times on 1 and {most} cores. It is a prediction that more "
        "cores bring as much more memory bandwidth as arithmetic; where they do not, w falls less, "
        "so these are the least times to expect.\n\n" + table(lines)
    )


def predicted_rows(rows: list[Row]) -> list[Row]:
    """Of each case the smallest and the largest number of outputs, with times on several cores."""
    found = []
    for case in CASES:
        own = [row for row in along(rows, "outputs") if row["case"] == case and len(row["ms"]) > 1]
        found += own[:1] + own[1:][-1:]
    return found


def written(term: str, factor: float) -> str:
    """A term with its factor: ``0.0123 H``."""
    _, _, rest = term.partition(" ")
    return f"{factor:.3g} {rest}".strip()


def memory_in_words(rows: list[Row]) -> str:
    """How many outputs fit into which memory."""
    lines = []
    for case in CASES:
        own = [row for row in rows if row["case"] == case]
        if len(own) < 3:
            continue
        fitted = fit(own, lambda row: row["bytes"], BYTES)
        error = max(fitted.errors(own, lambda row: row["bytes"]))
        for hidden in WIDTHS if len({row["hidden"] for row in own}) > 1 else (BASE.hidden,):
            cells = {"": case, "hidden units": str(hidden), "largest error": f"{error:.0%}"}
            for memory in MEMORIES:
                count = largest_outputs(fitted, memory * 2**30, BASE.features, hidden)
                cells[f"{memory} GiB"] = f"{count / 1e6:.1f} million" if count else "none"
            lines.append(cells)
    if not lines:
        return ""
    return (
        "\n## Where memory ends\n\n"
        f"So many outputs fit into a memory, with {BASE.features:,} features: from bytes a "
        "process, an output and a weight, fitted to the measured sizes. What evaluation, a "
        "re-ranker and the data take is not in it.\n\n" + table(lines)
    )


def draw(rows: list[Row], folder: Path) -> None:
    """Time against outputs, and in the other picture time against the rest, and memory."""
    rows = measured(rows)
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(7, 4.5))
    lines_of(
        axes, along(rows, "outputs"), "outputs", lambda row: row["ms"][max(row["ms"], key=int)]
    )
    axes.set(title="Time of a training step", ylabel="ms a step")
    axes.legend(fontsize="small")
    saved(figure, folder / PICTURE)
    figure, grid = plt.subplots(1, 3, figsize=(14, 4))
    for axes, axis in zip(grid, ("features", "hidden"), strict=False):
        for threads in threads_of(rows):
            own = [row for row in along(rows, axis) if threads in row["ms"]]
            own = [row for row in own if row["case"] == MODEL]
            points = [(row[axis], row["ms"][threads]) for row in own]
            if points:
                axes.loglog(*zip(*points, strict=True), "o-", label=f"threads: {threads}")
        axes.set(xlabel=TITLES[axis], ylabel="ms a step", title=MODEL)
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    lines_of(grid[2], along(rows, "outputs"), "outputs", lambda row: row["bytes"] / 2**30)
    grid[2].set(ylabel="memory, GiB", title="Memory of the process")
    grid[2].legend(fontsize="small")
    saved(figure, folder / MORE)


def lines_of(axes: Any, rows: list[Row], axis: str, value: Any) -> None:
    """A line for each case."""
    for case in CASES:
        points = [(row[axis], value(row)) for row in rows if row["case"] == case]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", label=case)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(TITLES[axis])
    axes.grid(alpha=0.3)


def saved(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
