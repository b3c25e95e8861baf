"""Precision over seconds of training: how soon is slide as good as its peers in the end?

    pip install -e '.[bench]'
    python benchmarks/time_to_precision.py --root path/to/data --pecos-python pecos/bin/python
    python benchmarks/time_to_precision.py --root path/to/data --methods slide omikuji-3

Dense PyTorch and sampled softmax train for `LIMIT` minutes at most. Writes
results/benchmarks/time_to_precision.{json,md,png}.
"""

import argparse
import dataclasses
import hashlib
import math
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import harness
import numpy as np
import peers
import torch
from harness import (
    RESULTS,
    Row,
    Store,
    grid,
    in_process,
    legend_below,
    of,
    opened,
    origin,
    prose,
    table,
    triple,
)
from matplotlib import pyplot as plt
from matplotlib.ticker import NullFormatter
from omegaconf import OmegaConf
from peers import Evaluation, rounded
from plain_torch import NETWORKS, train
from sized import dense_bytes, too_large

from slide import runtime
from slide.config import build_trainer, fill_in, read_config, user_errors
from slide.data import SparseDataset
from slide.sparse import CSR
from slide.utils.resources import peak_memory_mb

DATASETS = ["debian", "gowalla", "fb15k", "bibtex", "files"]
EPOCHS = {"dense": 6, "sampled": 20}
EVALUATED = 2000
# Minutes of dense and sampled: our longest training. An epoch of dense of more labels takes hours.
LIMIT, MOST_OF_DENSE = 0.7, 100_000
# What a network in PyTorch takes from the configuration.
READ = ("network", "optimizer", "trainer.batch_size", "trainer.epochs", "sampler.active", "seed")
# Of a curve's points, beside their seconds.
SHOWN = ("p_at_1", "p_at_5", "psp_at_5")
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


def point(seconds: float, scores: dict[str, float]) -> list[float]:
    return [round(seconds, 3), *(round(scores[name], 6) for name in SHOWN)]


def ours(overrides: list[str], evaluated: int = 0) -> Row:
    """A run of train.py that stops its clock after each epoch to be evaluated on some test rows."""
    with tempfile.TemporaryDirectory() as scratch, user_errors():
        trainer = build_trainer(read_config([*overrides, f"run_dir={scratch}/run"]))
        evaluation, counters = Evaluation(trainer.data, evaluated), trainer.counters
        curve: list[list[float]] = []
        whole_evaluation = trainer.evaluate

        def best(features: CSR, k: int) -> np.ndarray:
            return trainer.network.predict(features, k)[1].numpy()

        def seconds() -> float:
            return counters.network_seconds + counters.validation_seconds

        def note(samples: int = 0, **last: Any) -> dict[str, float]:
            if not samples:  # The last one.
                return whole_evaluation(**last)
            scores = evaluation.of(best)
            curve.append(point(seconds(), scores))
            return scores

        trainer.evaluate = note  # type: ignore[method-assign]
        every = {"eval_every": len(trainer.batches), "eval_samples": len(evaluation.rows)}
        trainer.options = dataclasses.replace(trainer.options, **every)
        summary = trainer.fit()
    curve.append(point(seconds(), evaluation.of(best)))
    whole = Evaluation(trainer.data)
    if trainer.ranker is None:
        scores = whole.of(best)
    else:
        assert trainer.answers is not None
        scores = whole.scores(trainer.answers.ids)
        part = evaluation.scores(trainer.answers.ids[evaluation.rows])
        curve.append(point(summary["train_seconds"], part))
    keep = ("labels", "epochs", "network_seconds", "ranker_seconds", "eval_seconds", "peak_rss_mb")
    found = {name: summary[name] for name in keep} | rounded(scores)
    times = {"train_seconds": round(summary["train_seconds"], 3)}
    return found | times | {"evaluated": len(evaluation.rows), "curve": curve}


def theirs(method: str, overrides: list[str], evaluated: int, limit: float) -> Row:
    """A network in plain PyTorch, evaluated after each epoch, for some seconds at most."""
    config, data = read_config(overrides), opened(tuple(overrides))
    runtime.set_threads(0)
    fill_in(config, len(data.train), data.num_labels)
    found: Row = {"planned": config.trainer.epochs}
    sizes = data.num_features, data.num_labels
    if method == "dense" and (missing := too_large(dense_bytes(*sizes, config))):
        return found | missing
    torch.manual_seed(config.seed)
    network = NETWORKS[method](*sizes, config)
    network.start(data)
    evaluation, curve, last = Evaluation(data, evaluated), [], {}
    for last in train(network, data, config, lambda: evaluation.of(network.best), limit):
        curve.append(point(last["train_seconds"], last))
    scores = Evaluation(data).of(network.best)
    times = {name: round(last[name], 3) for name in ("train_seconds", "epochs")}
    more = {"peak_rss_mb": peak_memory_mb(), "evaluated": len(evaluation.rows)}
    return found | rounded(scores) | times | more | {"curve": curve}


def of_peer(peer: peers.Peer, data: SparseDataset, _: Row) -> Row:
    whole, part = Evaluation(data), Evaluation(data, EVALUATED)
    found = peer.answer(data.train, data.test, whole.left_out)
    scores = rounded(whole.scores(found.ids))
    curve = [point(found.train_seconds, part.scores(found.ids[part.rows]))]
    more = {"labels": data.num_labels, "evaluated": len(part.rows)}
    return more | scores | {"train_seconds": round(found.train_seconds, 3), "curve": curve}


def settings_of(method: str, data: SparseDataset, overrides: list[str]) -> str:
    """The version of a row of plain PyTorch: what it depends on."""
    config = read_config(overrides)
    fill_in(config, len(data.train), data.num_labels)
    read = {name: str(OmegaConf.select(config, name)) for name in READ}
    said = f"{read} {LIMIT} {NETWORKS[method].__name__}"
    return f"torch {torch.__version__}, settings {hashlib.sha1(said.encode()).hexdigest()[:6]}"


def measure(store: Store, arguments: argparse.Namespace) -> None:
    found = peers.installed(arguments.methods, arguments.pecos_python)
    if OURS in arguments.methods:
        harness.warm_up()
    for name in arguments.datasets:
        overrides = harness.overrides_of(name, arguments.root)
        data = opened(tuple(overrides))  # Prepared before a run that is measured.
        for method in arguments.methods:
            cases = grid(dataset=[name], method=[method], seed=[None])
            if method == OURS:
                cases = grid(dataset=[name], method=[OURS], seed=arguments.seeds)
                for case in store.missing(cases):
                    own = [*overrides, f"seed={case['seed']}"]
                    store.add([case | in_process("time_to_precision", "ours", own, EVALUATED)])
            elif method == "dense" and data.num_labels > MOST_OF_DENSE:
                continue
            elif method in NETWORKS:
                own = [*overrides, f"trainer.epochs={EPOCHS[method]}"]
                code = settings_of(method, data, own)
                for case in store.missing(cases, code):
                    how = "theirs", method, own, EVALUATED, 60 * LIMIT
                    row = {"curve": []} | in_process("time_to_precision", *how)
                    more = {"labels": data.num_labels, "limit_minutes": LIMIT}
                    store.add([case | more | row], code)
            elif method in found:
                store.fill(cases, partial(of_peer, found[method], data), found[method].version)


def page(found: dict[str, Any]) -> str:
    rows = in_order(found["rows"])
    sets = list(dict.fromkeys(row["dataset"] for row in rows))
    text = prose("time_to_precision", "about")
    if limits := {f"{row['limit_minutes']:g}" for row in rows if "limit_minutes" in row}:
        text += f"\nDense PyTorch and sampled softmax trained for {' or '.join(sorted(limits))} "
        text += "minutes at most.\n"
    text += f"\n![precision over seconds]({PICTURE})\n"
    best = [line for name in sets for line in against_best(of(rows, dataset=name))]
    if best:
        text += prose("time_to_precision", "best", target=TARGET, large=LARGE) + table(best)
    every = [line for name in sets for line in against_all(of(rows, dataset=name))]
    if every:
        text += prose("time_to_precision", "every") + table(every)
    if tails := [tail(row) for row in rows if row["method"] == OURS and row["ranker_seconds"]]:
        text += prose("time_to_precision", "tails") + table(tails)
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

    def order(row: Row) -> tuple[Any, ...]:
        name = row["dataset"]
        return sizes[name], name, methods.index(row["method"]), row["seed"] or 0

    return sorted(rows, key=order)


def reached(curve: list[list[float]], level: float) -> float | None:
    """Seconds of the first point of a curve whose P@1 is at least ``level``, if there is one."""
    return next((seconds for seconds, p_at_1, *_ in curve if p_at_1 >= level), None)


def ratio(own: Row, peer: Row) -> float | None:
    """Our seconds to a peer's last precision, divided by its seconds; None: never reached."""
    seconds = reached(own["curve"], peer["curve"][-1][1])
    return None if seconds is None else seconds / peer["train_seconds"]


def against_best(rows: list[Row]) -> list[dict[str, str]]:
    """Lines of the first table: ours beside the peer with the highest P@1."""
    peers = [row for row in rows if row["method"] != OURS and row["curve"]]
    own = of(rows, method=OURS)
    if not peers:
        return []
    best = max(peers, key=lambda row: row["p_at_1"])
    lines = []
    for row in own:
        seconds, share = reached(row["curve"], best["curve"][-1][1]), ratio(row, best)
        verdict = "met" if share is not None and share <= TARGET else "**missed**"
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
                "target": verdict if row["labels"] > LARGE else "no target",
            }
        )
    return lines


def against_all(rows: list[Row]) -> list[dict[str, str]]:
    """Lines of the second table: the ratio to each peer."""
    peers = {row["method"]: row for row in rows if row["method"] != OURS and row["curve"]}
    own = of(rows, method=OURS)
    lines = []
    for row in own if peers else []:
        cells = {"data set": row["dataset"], "ours": title(row, own)}
        for method in list(TITLES)[1:]:
            share = ratio(row, peers[method]) if method in peers else math.nan
            cells[TITLES[method]] = NEVER if share is None else f"{share:.2f}".replace("nan", "")
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
        return {"method": f"{name}: does not fit, {why}"}
    ranker = row.get("ranker_seconds")
    return {
        "method": name + stopped(row),
        "P@1 / P@3 / P@5": triple([row], "p"),
        "PSP@1 / PSP@3 / PSP@5": triple([row], "psp"),
        "epochs": f"{row['epochs']:.3g}" if "epochs" in row else "",
        "training, s": f"{row['train_seconds']:.1f}",
        "of it the re-ranker, s": f"{ranker:.1f}" if ranker else "",
        "peak memory, MB": f"{row['peak_rss_mb']:,}" if "peak_rss_mb" in row else "",
    }


def draw(rows: list[Row], folder: Path) -> None:
    rows = in_order([row for row in rows if row["curve"]])
    sets = list(dict.fromkeys(row["dataset"] for row in rows))
    if not sets:
        return
    figure, grid = plt.subplots(
        nrows=len(sets),
        ncols=len(AXES),
        figsize=(10, 2.5 * len(sets) + 1),
        sharex="row",
        squeeze=False,
        layout="constrained",
    )
    for line, name in zip(grid, sets, strict=True):
        own = of(rows, dataset=name)
        for axes, (key, label) in zip(line, AXES.items(), strict=True):
            at = 1 + SHOWN.index(key)
            for row in own:
                points = [(each[0], 100 * each[at]) for each in row["curve"]]
                color = f"C{list(TITLES).index(row['method'])}"
                mark = ".-" if len(points) > 1 else "D"
                title = TITLES[row["method"]].strip("*")
                axes.plot(*zip(*points, strict=True), mark, color=color, label=title)
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.grid(alpha=0.3)
            axes.set(ylabel=f"{label}, %", xlabel="seconds of training")
        line[0].set_title(f"{name}, {own[0]['labels']:,} labels", loc="left")
    legend_below(figure, 3)
    figure.savefig(folder / PICTURE, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = harness.options(__doc__, DATASETS, [0], RESULTS)
    methods = list(TITLES)
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
    peers.add_pecos(parser)
    harness.fill_page(
        "time_to_precision", ("dataset", "method", "seed"), page, measure, parser, draw
    )


if __name__ == "__main__":
    main()
