"""Precision of the default call beside its peers, on real data sets; are its scores right?

    pip install -e '.[bench]'
    python benchmarks/precision.py --root path/to/data --pecos-python pecos/bin/python
    python benchmarks/precision.py --root path/to/data --datasets bibtex --methods slide

PECOS XR-Linear needs an environment of its own (docs/benchmarks.md says how to make it); without
--pecos-python its rows are left out. Writes results/precision.{json,md},
results/precision_reliability.png and the table of the README.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import harness
import numpy as np
import peers
from harness import HELD_OUT, PAGES, ROOT, SCORES, Row, Store, of, origin, spread, table, triple
from matplotlib import pyplot as plt
from peers import LEFT_OUT

from slide.ranking import Ranked
from slide.sparse import Pattern, hits
from slide.training.evaluation import TOP, predict_split

KEYS = ("dataset", "method", "seed")
# Bins of equal width, as in slide.training.calibration_error.
BINS = 10
OURS = "slide"
TITLES = {"slide": "**slide**", "omikuji": "omikuji, 3 trees", "pecos": "PECOS XR-Linear, 3 models"}
PICTURE = "precision_reliability.png"
# Bins of fewer answers are not drawn.
LEAST = 50


def ours(overrides: list[str]) -> Row:
    """The figures of a run of train.py, whose answers are given once more for their time."""
    trainer, summary = harness.trained(overrides)
    rows = trainer.eval_split
    begin = time.perf_counter()
    found = predict_split(trainer.network, rows, trainer.options.evaluation, trainer.ranker)
    seconds, found = time.perf_counter() - begin, Ranked.of(TOP, *found)
    keep = (*SCORES, *(f"network_{name}" for name in SCORES), "peak_rss_mb")
    keep += ("calibration_error", "calibration_error_at_1", "chance_calibration_error_at_1")
    times = {name: summary[name] for name in ("train_seconds", "ranker_seconds")}
    times["predict_rows_per_second"] = len(rows) / seconds
    bins = reliability(found.scores, found.ids, rows.labels)
    return {name: summary[name] for name in keep} | peers.rounded(times) | {"reliability": bins}


def reliability(scores: np.ndarray, ids: np.ndarray, labels: Pattern) -> dict[str, list[float]]:
    known = ids >= 0
    sure, right = scores[known], hits(ids, labels)[known]
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    sums = {"answers": np.bincount(bins, minlength=BINS), "right": np.bincount(bins, right, BINS)}
    sums["scores"] = np.bincount(bins, sure, BINS).round(3)
    return {name: values.tolist() for name, values in sums.items()}


def measure(store: Store, arguments: argparse.Namespace) -> None:
    found = peers.installed(arguments.methods, arguments.pecos_python)
    harness.warm_up()
    for name in arguments.datasets:
        overrides = harness.overrides_of(name, arguments.root)
        if OURS in arguments.methods:
            cases = harness.grid(dataset=[name], method=[OURS], seed=arguments.seeds)
            for case in store.missing(cases):
                harness.opened(tuple(overrides))  # Prepared before a run whose memory is measured.
                own = [*overrides, f"seed={case['seed']}"]
                store.add([case | harness.in_process("precision", "ours", own)])
        for method, peer in found.items():
            case = {"dataset": name, "method": method, "seed": None}
            for _ in store.missing([case], peer.version):
                rows = peers.measure(peer, method, harness.opened(tuple(overrides)))
                store.add([case | row for row in rows], peer.version)


def page(found: dict[str, Any]) -> str:
    rows = in_order(found["rows"])
    text = harness.prose("precision", "about")
    if filtered := dict.fromkeys(r["dataset"] for r in rows if r["method"].endswith(LEFT_OUT)):
        text += harness.prose("precision", "filtered", sets=", ".join(filtered))
    if not any(row["method"].startswith("pecos") for row in rows):
        text += "\nPECOS was not measured: `--pecos-python` was not given.\n"
    sets = list(dict.fromkeys(row["dataset"] for row in rows))
    compared = [cells for name in sets for cells in comparisons(name, of(rows, dataset=name))]
    if compared:
        text += harness.prose("precision", "best") + table(compared)
    text += harness.prose("precision", "all")
    for name in sets:
        own = of(rows, dataset=name)
        methods = dict.fromkeys(row["method"] for row in own)
        text += f"\n### {name}\n\n" + table([line(each, of(own, method=each)) for each in methods])
    text += harness.prose("precision", "reliable", least=LEAST, picture=PICTURE)
    return text + origin(rows)


def in_order(rows: list[Row]) -> list[Row]:
    """Data sets as in `HELD_OUT`, then others; methods as in `TITLES`."""
    sets, methods = list(HELD_OUT), list(TITLES)

    def order(row: Row) -> tuple[Any, ...]:
        name, method = row["dataset"], row["method"].removesuffix(LEFT_OUT)
        known = sets.index(name) if name in sets else len(sets)
        return known, name, methods.index(method), row["method"], row["seed"] or 0

    return sorted(rows, key=order)


def comparisons(name: str, rows: list[Row]) -> list[dict[str, str]]:
    """Lines of the first table: a data set, ours and the best peer; none without one of them."""
    own = of(rows, method=OURS)
    left_out = [row for row in rows if row["method"].endswith(LEFT_OUT)]
    theirs = left_out or [row for row in rows if row["method"] != OURS]
    if not own or not theirs:
        return []
    lines = []
    for k in (1, 3, 5):
        cells = {"data set": name, "k": str(k)}
        for kind, title in (("p", "P@k"), ("psp", "PSP@k")):
            values = [row[f"{kind}_at_{k}"] for row in own]
            best = max(theirs, key=lambda row: row[f"{kind}_at_{k}"])
            most = best[f"{kind}_at_{k}"]
            cells[f"{title}, ours"] = spread(values)
            short = best["method"].removesuffix(LEFT_OUT)
            cells[f"{title}, best peer"] = f"{100 * most:.1f} ({short})"
            cells[f"{title}, difference"] = f"{100 * (sum(values) / len(values) - most):+.1f}"
        lines.append(cells)
    return lines


def line(method: str, rows: list[Row]) -> dict[str, str]:
    short = method.removesuffix(LEFT_OUT)
    title = TITLES[short] + method[len(short) :]
    if method == OURS:
        title += f", seeds {harness.numbers(row['seed'] for row in rows)}"

    def mean(name: str, digits: int, scale: float = 1) -> str:
        values = [scale * row[name] for row in rows if name in row]
        return f"{sum(values) / len(values):,.{digits}f}" if values else ""

    cells = {
        "method": title,
        "P@1 / P@3 / P@5": triple(rows, "p"),
        "PSP@1 / PSP@3 / PSP@5": triple(rows, "psp"),
        "training, s": mean("train_seconds", 1),
        "prediction, rows/s": mean("predict_rows_per_second", 0),
        "peak memory, MB": mean("peak_rss_mb", 0),
        "calibration error of 1 / of 5, points": " / ".join(
            mean(name, 1, 100) for name in ("calibration_error_at_1", "calibration_error")
        ).strip(" /"),
    }
    if by_chance := mean("chance_calibration_error_at_1", 1, 100):
        cells["calibration error of 1 by chance, points"] = by_chance
    return cells


def summary(rows: list[Row]) -> str:
    """The README's table: P@1 / P@3 / P@5 and seconds of training, a line a set of `HELD_OUT`."""
    lines, sets = [], dict.fromkeys(row["dataset"] for row in in_order(rows))
    for name in filter(HELD_OUT.__contains__, sets):
        cells = {"": name}
        for method, title in TITLES.items():
            own = of(rows, dataset=name, method=method + LEFT_OUT)
            own = own or of(rows, dataset=name, method=method)
            cells[title] = summary_cell([(row, "", row["train_seconds"]) for row in own])
            if method == OURS:
                alone = [(r, "network_", r["train_seconds"] - r["ranker_seconds"]) for r in own]
                cells["slide, network alone"] = summary_cell(alone)
        lines.append(cells)
    return table(lines)


def summary_cell(scores: list[tuple[Row, str, float]]) -> str:
    """Means over rows, each with the prefix of the names of its scores and with seconds."""
    if not scores:
        return ""
    means = [np.mean([row[f"{prefix}p_at_{k}"] for row, prefix, _ in scores]) for k in (1, 3, 5)]
    seconds = np.mean([seconds for *_, seconds in scores])
    return " / ".join(f"{100 * mean:.1f}" for mean in means) + f", {seconds:.0f} s"


def draw(rows: list[Row], folder: Path) -> None:
    """The picture of scores against shares of right answers, a line a data set."""
    figure, axes = plt.subplots(figsize=(6, 5.5))
    axes.plot([0, 1], [0, 1], "--", color="gray", linewidth=1)
    own = of(in_order(rows), method=OURS)
    for name in dict.fromkeys(row["dataset"] for row in own):
        bins = [row["reliability"] for row in of(own, dataset=name)]
        answers, scores, right = (
            np.sum([each[key] for each in bins], axis=0) for key in ("answers", "scores", "right")
        )
        drawn = answers >= LEAST
        axes.plot(scores[drawn] / answers[drawn], right[drawn] / answers[drawn], ".-", label=name)
        axes.lines[-1].set_clip_on(False)  # A point at 1 is whole.
    axes.set(xlabel="mean score of the answers", ylabel="share of right answers")
    axes.set_title("Scores of the re-ranker, whole test sets")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.grid(alpha=0.3)
    if own:
        axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(folder / PICTURE, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = harness.options(__doc__, HELD_OUT, [0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=TITLES, default=list(TITLES))
    peers.add_pecos(parser)
    store = harness.fill_page("precision", KEYS, page, measure, parser, draw)
    if store.folder == PAGES:
        harness.insert(ROOT / "README.md", "precision", summary(store.rows))


if __name__ == "__main__":
    main()
