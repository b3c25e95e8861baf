"""The C++ program released with Chen et al. 2020 and recipe=slide2020, side by side.

    python benchmarks/slide_cpp.py --binary path/to/runme --config path/to/Config_amz.csv \
        --root path/to/data
    python benchmarks/slide_cpp.py ... --datasets debian --seeds 0 --cases today
    python benchmarks/slide_cpp.py ... --datasets debian --lr 0.001

The program is github.com/keroro824/HashingDeepLearning, built by whoever calls this; no part of it
is here. It tests on its first 20 batches, so both answer 2,560 test rows. Where it has more buckets
than its codes reach (9,556 for K = 6), which take memory and time, --range-pow sets their number to
a power of two. --lr is another rate than that of the configuration file, for both. A seed is one
order of rows, and of our draws; the draws of the program cannot be set. The large set has one seed,
and fewer iterations. Writes results/benchmarks/as_published.{json,md}, and a table of the README.
"""

import argparse
import hashlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import (
    RESULTS,
    ROOT,
    Row,
    Store,
    fill_page,
    grid,
    insert,
    numbers,
    of,
    opened,
    options,
    origin,
    prose,
    table,
)

from slide.config import build_network, build_optimizer, fill_in, read_config
from slide.data import Split
from slide.data.row_files import write_xmc
from slide.nn import ActiveLoss

# The program evaluates on 20 batches; evaluations before the end.
EVALUATED, POINTS = 20, 2
# Data set: its overrides, iterations of training, and how many of the seeds. The program computes
# all scores of 2,560 rows in each evaluation, so there is a tenth of the large set, too.
LIKE = ["dataset=amazon670k_like", "dataset.train_samples=50000", "dataset.test_samples=5000"]
TENTH = [*LIKE, "dataset.num_features=13591", "dataset.num_labels=67009"]
SETS = {
    "debian": (["dataset=debian"], 356, 3),
    "a tenth of amazon670k_like": (TENTH, 390, 3),
    "amazon670k_like": (LIKE, 100, 1),
}
CASES = {
    "released": "the C++ program",
    "one_thread": "the C++ program, one thread",
    "published": "slide, as published",
    "today": "slide, today",
}
# The table of the README.
SHORT, SHORT_SET, SHORT_RATE = ("released", "published", "today"), "debian", 0.0001
KEYS = ("set", "lr", "iterations", "seed", "case")
Settings = dict[str, str]


def read_settings(path: Path) -> Settings:
    """Lines ``name = value`` of the program's configuration file."""
    lines = (line.partition("#")[0].partition("=") for line in path.read_text().splitlines())
    return {name.strip(): value.strip() for name, _, value in lines if name.strip()}


Rows = tuple[Split, Split]  # What both train on and answer: rows in order, and test rows.


def draw_rows(root: Path, name: str, seed: int, iterations: int, batch: int) -> Rows:
    """Rows with labels, pass after pass over a shuffled order."""

    def shuffled(split: Split, count: int) -> Split:
        rows = np.flatnonzero(np.diff(split.labels.indptr))
        order = np.random.default_rng(seed).permutation(rows)
        return split.take(np.resize(order, count))

    words = ["transform.l2_norm=false", *SETS[name][0]]
    data = opened((*words, *([f"dataset.root={root / name}"] if name == "debian" else [])))
    return shuffled(data.train, iterations * batch), shuffled(data.test, EVALUATED * batch)


def most_frequent(rows: Rows) -> float:
    """The share of test rows that have the most frequent label of the training rows, in percent."""
    train, test = rows
    label = np.bincount(train.labels.indices).argmax()
    return round(100 * float((test.labels.indices == label).sum()) / len(test), 2)


def released(binary: Path, settings: Settings, rows: Rows, threads: str | None = None) -> Row:
    """The curve of the program, what it retrieves, and its seconds."""
    environment = os.environ | ({"OMP_NUM_THREADS": threads} if threads else {})
    train, test = rows
    iterations = len(train) // int(settings["Batchsize"])
    width = settings["sizesOfLayers"].split(",")[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = {"trainData": folder / "train.txt", "testData": folder / "test.txt"}
        for name, split in zip(files, rows, strict=True):
            write_xmc(files[name], split)
        own = settings | {
            **files,
            "InputDim": train.num_features,
            "totRecords": len(train),
            "totRecordsTest": len(test),
            "Epoch": 1,
            "Stepsize": iterations // POINTS,
            "sizesOfLayers": f"{width},{train.num_labels}",
            "logFile": folder / "log.txt",
            "savedweight": folder / "weights.npz",
        }
        lines = (f"{name} = {value}\n\n" for name, value in own.items())
        (folder / "settings.csv").write_text("".join(lines))
        command = [str(binary.resolve()), str(folder / "settings.csv")]
        said = subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, env=environment
        )
        lines = (line.split() for line in (folder / "log.txt").read_text().splitlines())
        found = [(int(i), float(s), float(p)) for i, s, p in (w for w in lines if len(w) == 3)]
    retrieved = [float(x) for x in re.findall(r"Avg sample size = \S+ (\S+)", said.stdout)]
    return {
        "curve": [[i, round(100 * p, 2)] for i, _, p in found],
        "retrieved": retrieved,
        "fill": [round(max(1000 - x, 0), 1) for x in retrieved],
        "seconds": round(found[-1][1] / iterations, 4),
    }


def words_of(case: str, settings: Settings) -> list[str]:
    """Settings of train.py for a case, with what the configuration file says."""
    batch = f"trainer.batch_size={settings['Batchsize']}"
    if case == "today":
        return ["sampler.mode=per_sample", "ranker=none", batch]
    return [
        *("recipe=slide2020", batch),
        f"network.hidden=[{settings['sizesOfLayers'].split(',')[0]}]",
        f"optimizer.lr={settings['Lr']}",
        f"hash.hashes_per_table={settings['K'].rpartition(',')[2]}",
        f"hash.num_tables={settings['L'].rpartition(',')[2]}",
        f"schedule.every={settings['Rehash']}",
        f"schedule.redraw_every={settings['Rebuild']}",
        f"schedule.redraw_first={settings['Rehash']}",
    ]


def precision(network: Any, test: Split) -> float:
    """The share of rows whose best answer is right, in percent."""
    best = network.predict(test.features, 1)[1].numpy()[:, 0]
    own = (test.labels.slice(b, b + 1).indices for b in range(len(test)))
    return round(100 * float(np.mean([i in ids for i, ids in zip(best, own, strict=True)])), 2)


def ours(case: str, settings: Settings, rows: Rows, seed: int) -> Row:
    torch.manual_seed(seed)
    batch, (train, test) = int(settings["Batchsize"]), rows
    config = read_config([*words_of(case, settings), f"seed={seed}"])
    iterations, rehash = len(train) // batch, 6400 // batch
    fill_in(config, len(train), train.num_labels)
    network = build_network(config, train.num_features, train.num_labels)
    optimizer = build_optimizer(config, network)
    loss, sampler = ActiveLoss(config.loss._args_[0]), network.output.sampler
    curve, retrieved, fill, seconds = [], [], [], 0.0
    for i, part in enumerate(train.blocks(batch)):
        if i % (iterations // POINTS) == 0:
            curve.append([i, precision(network, test)])
        begin = time.perf_counter()
        value, active = network.output.loss(network.encode(part.features), part.labels, loss)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - begin if i >= 2 else 0.0  # These compile kernels.
        if i % rehash == rehash - 1:
            retrieved.append(round(sampler.statistics().get("look_up/rows_seen", 0.0), 3))
            fill.append(round(max(active.mean_size() - retrieved[-1], 0), 1))
    curve.append([iterations, precision(network, test)])
    found = {"curve": curve, "retrieved": retrieved, "fill": fill}
    return found | {"seconds": round(seconds / (iterations - 2), 4)}


def page(found: dict) -> str:
    rows = found["rows"]
    text = prose("as_published", "about") + origin(rows, "case") + "\n"
    kinds = sorted({(row["set"], row["lr"], row["iterations"]) for row in rows})
    for name, lr, iterations in kinds:
        own = of(rows, set=name, lr=lr, iterations=iterations)
        text += f"\n## {name}, rate {lr}, {iterations:,} iterations\n\n"
        text += table([_cells(case, of(own, case=case)) for case in CASES if of(own, case=case)])
    return text


def summary(rows: list[Row]) -> str:
    """The table of the README: seconds, and P@1 at the end, on one set."""
    iterations = SETS[SHORT_SET][1]
    rows = of(rows, set=SHORT_SET, lr=SHORT_RATE, iterations=iterations)
    rows = [row for row in rows if row["case"] in SHORT]
    machines = dict.fromkeys(f"{row['machine']}, {row['threads']} threads" for row in rows)
    seeds = numbers(row["seed"] for row in rows)
    title = f"{SHORT_SET}, {iterations} iterations, seeds {seeds}; {'; '.join(machines)}"
    lines = []
    for case in SHORT:
        if own := of(rows, case=case):
            cells = _cells(case, own)
            kept = ("s an iteration", f"P@1 at {iterations:,}")
            lines.append({title: cells[""]} | {name: cells[name] for name in kept})
    return table(lines)


def _cells(case: str, own: list[Row]) -> dict[str, object]:
    cells: dict[str, object] = {"": CASES[case], "seeds": len(own)}
    for name in ("retrieved", "fill"):
        values = [statistics.fmean(row[name]) for row in own if row[name]]
        cells["filled" if name == "fill" else name] = _span(values, ".0f")
    cells["s an iteration"] = _span([row["seconds"] for row in own], ".3f")
    for at, (i, _) in enumerate(own[0]["curve"]):
        if i:
            cells[f"P@1 at {i:,}"] = _span([row["curve"][at][1] for row in own], ".1f")
    if known := [row["most_frequent"] for row in own if "most_frequent" in row]:
        cells["P@1 of the most frequent label"] = _span(known, ".1f")
    return cells


def _span(values: list[float], digits: str) -> str:
    if not values:
        return ""
    mean, least, most = (f"{f(values):{digits}}" for f in (statistics.fmean, min, max))
    return mean if least == most else f"{mean} ({least} to {most})"


def measure(store: Store, arguments: argparse.Namespace) -> None:
    if not (arguments.binary and arguments.config):
        sys.exit("--binary and --config are needed: the C++ program and its configuration file")
    settings = read_settings(arguments.config)
    if arguments.range_pow:
        powers = settings["RangePow"].rpartition(",")[0]
        settings["RangePow"] = f"{powers},{arguments.range_pow}"
    version = hashlib.sha1(arguments.binary.read_bytes()).hexdigest()[:10]
    settings["Lr"] = str(arguments.lr or settings["Lr"])
    lr, batch = float(settings["Lr"]), int(settings["Batchsize"])
    for name in arguments.datasets:
        _, iterations, seeds = SETS[name]
        iterations = arguments.iterations or iterations
        of_set = {"set": [name], "lr": [lr], "iterations": [iterations]}
        for case in grid(**of_set, seed=arguments.seeds[:seeds], case=arguments.cases):
            kind, seed = case["case"], case["seed"]
            if kind == "one_thread" and seeds == 1:
                continue
            code = version if kind in ("released", "one_thread") else None
            for _ in store.missing([case], code):
                rows = draw_rows(arguments.root, name, seed, iterations, batch)
                case |= {"most_frequent": most_frequent(rows)}
                if code:
                    threads = "1" if kind == "one_thread" else None
                    how = settings, rows, threads
                    store.add([case | released(arguments.binary, *how)], code)
                else:
                    store.add([case | ours(kind, settings, rows, seed)])


def main() -> None:
    parser = options(__doc__, SETS, [0, 1, 2], RESULTS)
    parser.add_argument("--binary", type=Path, help="the C++ program")
    parser.add_argument("--config", type=Path, help="its configuration file")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--lr", type=float, help="learning rate; else that of the file")
    parser.add_argument("--iterations", type=int, help="batches of training; else those of a set")
    parser.add_argument("--range-pow", type=int, help="2^this buckets in a table of the program")
    store = fill_page("as_published", KEYS, page, measure, parser, program="slide_cpp")
    if store.folder == RESULTS:
        insert(ROOT / "README.md", "published", summary(store.rows))


if __name__ == "__main__":
    main()
