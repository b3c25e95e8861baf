"""Precision over seconds of training: how soon is slide as good as its peers in the end?

    pip install -e '.[bench]'
    python tests/benchmarks/time_to_precision.py --root path/to/data --pecos-python pecos/bin/python
    python tests/benchmarks/time_to_precision.py --root path/to/data --methods slide omikuji-3

slide is train.py without any setting but the seed. Its peers: omikuji with one and three trees,
PECOS XR-Linear with one and three models (in an environment of its own: xr_linear.py), the default
recipe's network in plain PyTorch with all outputs (dense), and with sampled softmax and SparseAdam
(sampled). The last two train for --limit minutes at most. All on all cores, one after another.
Writes results/benchmarks/time_to_precision.{json,md,png} after each row; rows that there are for
this commit and machine are not measured again (report.py). --quick: two epochs and few test rows,
to see whether all works.
"""

import argparse
import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import peers
import torch
from curves import SHOWN, Task, in_own_process, point
from matplotlib import pyplot as plt
from matplotlib.ticker import NullFormatter
from omegaconf import OmegaConf
from peers import Evaluation
from plain_torch import NETWORKS
from report import RESULTS, ROOT, Row, Store, add_options, origin, parse, table
from runs import opened, place, warm_up

from slide import runtime
from slide.config import read_config
from slide.data import SparseDataset

DATASETS = ["debian", "gowalla", "fb15k", "bibtex", "files"]
EPOCHS = {"dense": 6, "sampled": 20}
EVALUATED, QUICK_EVALUATED = 5000, 200
QUICK = ["trainer.epochs=2"]
OURS = "slide"
TITLES = {
    "slide": "**slide**",
    "omikuji-1": "omikuji, 1 tree",
    "omikuji-3": "omikuji, 3 trees",
    "pecos-1": "PECOS XR-Linear, 1 model",
    "pecos-3": "PECOS XR-Linear, 3 models",
    "dense": "dense PyTorch",
    "sampled": "sampled softmax, PyTorch",
}
PICTURE = "time_to_precision.png"
AXES = dict(zip(SHOWN, ("P@1", "P@5", "PSP@5"), strict=True))
# Sets of more labels have the target: at most this share of the best peer's seconds.
LARGE, TARGET = 30_000, 0.5
NEVER = "not reached"

ABOUT = """\
# Time to precision

How long does training take until the answers are as good as those of the best peer in the end? \
slide is `train.py` without any setting but the seed. omikuji and PECOS XR-Linear have their \
default settings. Dense PyTorch is the default recipe's network with all outputs, its squared \
hinge loss and fused Adam; sampled softmax is the same network with a softmax over the labels of \
the batch and uniform draws, and SparseAdam. Both have the recipe's width, rates, dropout and \
batch size, which were chosen for slide and not for them, and their rates fall to 0 in a straight \
line. No setting is chosen by the test rows. All ran on the same cores, one after another.

**Seconds** are those of all training, reading the rows aside. Ours: all of a step (batches, \
selection, products, gradients, updates, rebuilds), the evaluations on held-out rows \
that decide how long to train, and for the last point the re-ranker with all it \
learns from. The clock stands still while test rows are evaluated, and kernels are compiled \
beforehand. omikuji's seconds hold reading the rows as text; those of PECOS hold the embeddings of \
labels, the clustering and the training of all its models. Dense PyTorch and sampled softmax: \
all steps, and no evaluation.

**Points**: ours after each epoch (the network alone), at the end of the network's training, and \
after re-ranking; dense PyTorch and sampled softmax after each epoch; omikuji and PECOS have one. \
All points of a set are evaluated on the same test rows, spread evenly over it, and seconds to \
reach a peer's precision are those of the first point that is as high as the peer's on these rows. \
The final precision is on the whole test set. Where our default call leaves seen items out of its \
answers (`ranker.known=auto`), they are left out of everyone's.
"""


def of_ours(overrides: list[str], arguments: argparse.Namespace) -> Row:
    quick = QUICK if arguments.quick else []
    return in_own_process(Task(OURS, [*overrides, *quick], arguments.evaluated))


def of_torch(
    method: str, data: SparseDataset, overrides: list[str], arguments: argparse.Namespace
) -> Row:
    """A row of a network in plain PyTorch; without scores if memory does not suffice."""
    found: Row = {"labels": data.num_labels, "limit_minutes": arguments.limit}
    task = Task(method, overrides, arguments.evaluated, 60 * arguments.limit)
    try:
        return found | in_own_process(task)
    except subprocess.CalledProcessError as error:
        if error.returncode >= 0:
            raise
        return found | {"curve": [], "killed": -error.returncode}


def of_peer(peer: peers.Peer, data: SparseDataset, most: int) -> Row:
    whole, part = Evaluation(data), Evaluation(data, most)
    found = peer.answer(data.train, data.test, whole.left_out)
    scores = peers.rounded(whole.scores(found.ids))
    curve = [point(found.train_seconds, part.scores(found.ids[part.rows]))]
    more = {"labels": data.num_labels, "evaluated": len(part.rows)}
    return more | scores | {"train_seconds": round(found.train_seconds, 3), "curve": curve}


@cache
def settings_of(method: str, overrides: tuple[str, ...], limit: float) -> str:
    """The version of a row of plain PyTorch: what it depends on."""
    config = OmegaConf.to_yaml(read_config(list(overrides)))
    said = f"{config} {limit} {NETWORKS[method].__name__}"
    return f"torch {torch.__version__}, settings {hashlib.sha1(said.encode()).hexdigest()[:6]}"


def measure(store: Store, arguments: argparse.Namespace, found: dict[str, peers.Peer]) -> None:
    for name in arguments.datasets:
        overrides = place(name, arguments.root)
        for method in arguments.methods:
            seeds = arguments.seeds if method == OURS else [None]
            cases = [{"dataset": name, "method": method, "seed": seed} for seed in seeds]
            if method == OURS:
                for case in store.missing(cases):
                    opened(tuple(overrides))  # Prepared before a run that is measured.
                    chosen = [*overrides, f"seed={case['seed']}"]
                    store.add([case | of_ours(chosen, arguments)])
            elif method in found:
                for case in store.missing(cases, found[method].version):
                    row = of_peer(found[method], opened(tuple(overrides)), arguments.evaluated)
                    store.add([case | row], found[method].version)
            elif method in NETWORKS:
                epochs = 2 if arguments.quick else EPOCHS[method]
                chosen = [*overrides, f"trainer.epochs={epochs}"]
                code = settings_of(method, tuple(chosen), arguments.limit)
                for case in store.missing(cases, code):
                    data = opened(tuple(overrides))
                    store.add([case | of_torch(method, data, chosen, arguments)], code)


def page(found: dict[str, Any]) -> str:
    rows = in_order(found["rows"])
    sets = list(dict.fromkeys(row["dataset"] for row in rows))
    text = ABOUT
    if limits := {f"{row['limit_minutes']:g}" for row in rows if "limit_minutes" in row}:
        text += f"\nDense PyTorch and sampled softmax trained for {' or '.join(sorted(limits))} "
        text += "minutes at most.\n"
    text += f"\n![precision over seconds]({PICTURE})\n"
    best = [line for name in sets for line in against_best(of(rows, dataset=name))]
    if best:
        text += (
            "\n## Seconds to the best peer's precision\n\n"
            f"The target is a ratio of at most {TARGET:g} on sets above {LARGE:,} labels.\n\n"
            + table(best)
        )
    every = [line for name in sets for line in against_all(of(rows, dataset=name))]
    if every:
        text += (
            "\n## Seconds to each peer's precision\n\nOur seconds divided by the peer's. "
            "A method that was stopped is compared with as far as it came.\n\n" + table(every)
        )
    if tails := [tail(row) for row in rows if row["method"] == OURS and row["ranker_seconds"]]:
        text += (
            "\n## The tail of a run\n\nWhat comes after the steps: the re-ranker with its "
            "candidates and classifiers, and the evaluation on all test rows. The target is that "
            "both together take at most as long as the steps.\n\n" + table(tails)
        )
    text += "\n## All methods\n"
    for name in sets:
        own = of(rows, dataset=name)
        count = " or ".join(sorted({f"{row['evaluated']:,}" for row in own if row["curve"]}))
        text += f"\n### {name}\n\nIts points are evaluated on {count} test rows.\n\n"
        text += table([line_of(row) for row in own])
    return text + origin(rows)


def in_order(rows: list[Row]) -> list[Row]:
    """Sets as they stand, by their number of labels; methods as in `TITLES`."""
    methods = list(TITLES)
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[row["dataset"]] = max(sizes.get(row["dataset"], 0), row.get("labels", 0))

    def place(row: Row) -> tuple[Any, ...]:
        name = row["dataset"]
        return sizes[name], name, methods.index(row["method"]), row["seed"] or 0

    return sorted(rows, key=place)


def of(rows: list[Row], **case: Any) -> list[Row]:
    return [row for row in rows if case.items() <= row.items()]


def finished(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["method"] != OURS and row["curve"]]


def reached(curve: list[list[float]], level: float) -> float | None:
    """Seconds of the first point of a curve whose P@1 is at least ``level``, if there is one."""
    return next((seconds for seconds, p_at_1, *_ in curve if p_at_1 >= level), None)


def ratio(own: Row, peer: Row) -> float | None:
    """Our seconds to a peer's last precision, divided by its seconds; None: never reached."""
    seconds = reached(own["curve"], peer["curve"][-1][1])
    return None if seconds is None else seconds / peer["train_seconds"]


def verdict(share: float | None, labels: int) -> str:
    """Whether the target is met; empty for sets without one."""
    if labels <= LARGE:
        return "no target"
    return "met" if share is not None and share <= TARGET else "**missed**"


def against_best(rows: list[Row]) -> list[dict[str, str]]:
    """Lines of the first table: ours beside the peer with the highest P@1."""
    peers, own = finished(rows), [row for row in rows if row["method"] == OURS]
    if not peers:
        return []
    best = max(peers, key=lambda row: row["p_at_1"])
    lines = []
    for row in own:
        seconds, share = reached(row["curve"], best["curve"][-1][1]), ratio(row, best)
        lines.append(
            {
                "data set": row["dataset"],
                "labels": f"{row['labels']:,}",
                "best peer": TITLES[best["method"]] + stopped(best),
                "its P@1": f"{100 * best['p_at_1']:.1f}",
                "its seconds": f"{best['train_seconds']:.1f}",
                "ours": title(row, own),
                "our P@1": f"{100 * row['p_at_1']:.1f}",
                "seconds to its P@1": NEVER if seconds is None else f"{seconds:.1f}",
                "ratio": "" if share is None else f"{share:.2f}",
                "target": verdict(share, row["labels"]),
            }
        )
    return lines


def against_all(rows: list[Row]) -> list[dict[str, str]]:
    """Lines of the second table: the ratio to each peer."""
    peers = {row["method"]: row for row in finished(rows)}
    own = [row for row in rows if row["method"] == OURS]
    lines = []
    for row in own if peers else []:
        cells = {"data set": row["dataset"], "ours": title(row, own)}
        for method in list(TITLES)[1:]:
            share = ratio(row, peers[method]) if method in peers else None
            shown = NEVER if share is None else f"{share:.2f}"
            cells[TITLES[method]] = shown if method in peers else ""
        lines.append(cells)
    return lines


def tail(row: Row) -> dict[str, str]:
    steps, ranker, last = (row[f"{part}_seconds"] for part in ("network", "ranker", "eval"))
    share = (ranker + last) / steps
    return {
        "data set": row["dataset"],
        "ours": TITLES[row["method"]],
        "labels": f"{row['labels']:,}",
        "steps, s": f"{steps:.1f}",
        "re-ranker, s": f"{ranker:.1f}",
        "evaluation, s": f"{last:.1f}",
        "tail / steps": f"{share:.2f}",
        "target": "met" if share <= 1 else "**missed**",
    }


def title(row: Row, rows: list[Row]) -> str:
    several = len(of(rows, method=row["method"])) > 1
    return TITLES[row["method"]] + (f", seed {row['seed']}" if several else "")


def stopped(row: Row) -> str:
    """How far a method came that was stopped; else empty."""
    if row.get("planned", 0) <= row.get("epochs", 0):
        return ""
    return f", stopped after {row['epochs']:.2g} of {row['planned']} epochs"


def line_of(row: Row) -> dict[str, str]:
    name = TITLES[row["method"]] + (f", seed {row['seed']}" if row["seed"] else "")
    if not row["curve"]:
        why = f"needs {row['needs_gib']} GiB" if "needs_gib" in row else "killed for its memory"
        return dict.fromkeys(line_of(EMPTY), "") | {"method": f"{name}: does not fit, {why}"}

    def triple(kind: str) -> str:
        return " / ".join(f"{100 * row[f'{kind}_at_{k}']:.1f}" for k in (1, 3, 5))

    ranker = row.get("ranker_seconds")
    return {
        "method": name + stopped(row),
        "P@1 / P@3 / P@5": triple("p"),
        "PSP@1 / PSP@3 / PSP@5": triple("psp"),
        "epochs": f"{row['epochs']:.3g}" if "epochs" in row else "",
        "training, s": f"{row['train_seconds']:.1f}",
        "of it the re-ranker, s": f"{ranker:.1f}" if ranker else "",
        "peak memory, MB": f"{row['peak_rss_mb']:,}" if "peak_rss_mb" in row else "",
    }


EMPTY: Row = {"method": "slide", "seed": None, "curve": [[0.0]], "train_seconds": 0.0} | {
    f"{kind}_at_{k}": 0.0 for kind in ("p", "psp") for k in (1, 3, 5)
}


def draw(rows: list[Row], folder: Path) -> None:
    rows = in_order([row for row in rows if row["curve"]])
    sets = list(dict.fromkeys(row["dataset"] for row in rows))
    if not sets:
        return
    size = 4 * len(sets) + 1, 3 * len(AXES)
    figure, grid = plt.subplots(len(AXES), len(sets), figsize=size, sharex="col", squeeze=False)
    figure.set_layout_engine("constrained")
    for column, name in enumerate(sets):
        for line, (key, label) in enumerate(AXES.items()):
            axes, place = grid[line][column], 1 + SHOWN.index(key)
            for row in of(rows, dataset=name):
                points = [(each[0], 100 * each[place]) for each in row["curve"]]
                color = f"C{list(TITLES).index(row['method'])}"
                mark = ".-" if len(points) > 1 else "D"
                axes.plot(
                    *zip(*points, strict=True),
                    mark,
                    color=color,
                    label=TITLES[row["method"]].strip("*"),
                )
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.grid(alpha=0.3)
            axes.set(ylabel=label if not column else None, title=None if line else name)
        grid[-1][column].set_xlabel("seconds of training")
    handles = {}
    for axes in figure.axes:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=2 * len(sets))
    figure.savefig(folder / PICTURE, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, DATASETS, [0])
    methods = list(TITLES)
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
    peers.add_pecos(parser)
    parser.add_argument("--limit", type=float, default=5, help="minutes of dense and sampled")
    parser.add_argument("--evaluated", type=int, default=EVALUATED, help="test rows of a point")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that all works")
    parser.set_defaults(results=RESULTS)
    arguments = parse(parser)
    if arguments.quick and arguments.results == RESULTS:
        parser.error("--quick needs --results: its figures are none for the page")
    if arguments.quick:
        arguments.evaluated = QUICK_EVALUATED
    runtime.set_threads(0)
    keys = ("dataset", "method", "seed")
    store = Store("time_to_precision", keys, page, arguments)
    if not arguments.render:
        found = peers.installed(arguments.methods, arguments.pecos_python)
        os.chdir(ROOT)  # Caches lie in its datasets/.
        if OURS in arguments.methods:
            warm_up()
        measure(store, arguments, found)
    store.render()
    draw(store.rows, store.folder)
    store.report()


if __name__ == "__main__":
    main()
