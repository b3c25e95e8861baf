"""The C++ program released with Chen et al. 2020 and recipe=slide2020, side by side.

    python tests/benchmarks/slide_cpp.py --binary path/to/runme --config path/to/Config_amz.csv \
        --root path/to/data
    python tests/benchmarks/slide_cpp.py ... --datasets debian --seeds 0 --cases today

The program is github.com/keroro824/HashingDeepLearning, built by whoever calls this; no part of it
is here. Both read the same rows in the same order, which a seed shuffles, in batches of the size in
the configuration file, and answer the same 2,560 test rows, since the program looks at its first 20
batches. K, L, rates and schedules of both come from the file; --lr replaces its rate. Where the
program has more buckets than its codes reach (9,556 for K = 6), which take memory and time,
--range-pow sets their number to a power of two.

A seed is one order of rows, and of our draws; the draws of the program cannot be set. Its threads
add gradients to the same sums without a lock, so its curve is also that of one thread. The last
case is our default for sets of a sample at equal iterations. What was measured before is not
measured again (see report.py). Writes results/benchmarks/as_published.{json,md}.
"""

import argparse
import hashlib
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from report import RESULTS, Row, Store, add_options, origin, parse, table

from slide.config import build_network, build_optimizer, fill_in, open_dataset, read_config
from slide.data import Split
from slide.data.row_files import write_xmc
from slide.nn import ActiveLoss

# The program evaluates on 20 batches.
EVALUATED = 20
SETS = {"debian": [], "amazon670k_like": ["train_samples=50000", "test_samples=5000"]}
CASES = {
    "released": "the C++ program",
    "one_thread": "the C++ program, one thread",
    "published": "slide, as published",
    "today": "slide, today",
}
KEYS = ("set", "lr", "iterations", "seed", "case")


class Settings(NamedTuple):
    """Lines ``name = value`` of the program's configuration file."""

    values: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> "Settings":
        lines = (line.partition("#")[0].partition("=") for line in path.read_text().splitlines())
        return cls({name.strip(): value.strip() for name, _, value in lines if name.strip()})

    def replaced(self, **changed: Any) -> "Settings":
        return Settings(self.values | {name: str(value) for name, value in changed.items()})

    def last(self, name: str) -> int:
        return int(self.values[name].split(",")[-1])

    def number(self, name: str) -> float:
        return float(self.values[name])

    def text(self) -> str:
        return "".join(f"{name} = {value}\n\n" for name, value in self.values.items())


class Rows(NamedTuple):
    """What both train on and answer: rows in order, and test rows."""

    train: Split
    test: Split


def shuffled(split: Split, seed: int, count: int) -> Split:
    """``count`` rows with labels, pass after pass over a shuffled order."""
    rows = np.flatnonzero(np.diff(split.labels.indptr))
    order = np.random.default_rng(seed).permutation(rows)
    return split.take(np.resize(order, count))


def draw_rows(root: Path, name: str, seed: int, iterations: int, batch: int) -> Rows:
    words = [f"dataset={name}", "transform.l2_norm=false", *(f"dataset.{w}" for w in SETS[name])]
    if name == "debian":
        words.append(f"dataset.root={root / name}")
    data = open_dataset(read_config(words))
    train = shuffled(data.train, seed, iterations * batch)
    return Rows(train, shuffled(data.test, seed, EVALUATED * batch))


def released(
    binary: Path, settings: Settings, rows: Rows, points: int, threads: str | None = None
) -> Row:
    """The curve of the program, what it retrieves, and its seconds."""
    environment = os.environ | ({"OMP_NUM_THREADS": threads} if threads else {})
    batch = int(settings.number("Batchsize"))
    iterations, width = len(rows.train) // batch, settings.values["sizesOfLayers"].split(",")[0]
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        files = {"trainData": place / "train.txt", "testData": place / "test.txt"}
        for name, split in zip(files, rows, strict=True):
            write_xmc(files[name], split)
        settings = settings.replaced(
            **files,
            InputDim=rows.train.num_features,
            totRecords=len(rows.train),
            totRecordsTest=len(rows.test),
            Epoch=1,
            Stepsize=iterations // points,
            sizesOfLayers=f"{width},{rows.train.num_labels}",
            logFile=place / "log.txt",
            savedweight=place / "weights.npz",
        )
        (place / "settings.csv").write_text(settings.text())
        command = [str(binary.resolve()), str(place / "settings.csv")]
        said = subprocess.run(
            command, cwd=place, check=True, capture_output=True, text=True, env=environment
        )
        lines = (line.split() for line in (place / "log.txt").read_text().splitlines())
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
    batch = int(settings.number("Batchsize"))
    if case == "today":
        return ["sampler.mode=per_sample", "ranker=none", f"trainer.batch_size={batch}"]
    width = settings.values["sizesOfLayers"].split(",")[0]
    return [
        "recipe=slide2020",
        f"trainer.batch_size={batch}",
        f"network.hidden=[{width}]",
        f"optimizer.lr={settings.values['Lr']}",
        f"hash.hashes_per_table={settings.last('K')}",
        f"hash.num_tables={settings.last('L')}",
        f"schedule.every={int(settings.number('Rehash'))}",
        f"schedule.redraw_every={int(settings.number('Rebuild'))}",
        f"schedule.redraw_first={int(settings.number('Rehash'))}",
    ]


def batches(split: Split, size: int) -> Iterator[tuple[int, Split]]:
    for i in range(len(split) // size):
        yield i, split.slice(i * size, (i + 1) * size)


def precision(network: Any, test: Split) -> float:
    """The share of rows whose best answer is right, in percent."""
    best = network.predict(test.features, 1)[1].numpy()[:, 0]
    own = (test.labels.slice(b, b + 1).indices for b in range(len(test)))
    return round(100 * float(np.mean([i in ids for i, ids in zip(best, own, strict=True)])), 2)


def ours(case: str, settings: Settings, rows: Rows, points: int, seed: int) -> Row:
    torch.manual_seed(seed)
    batch = int(settings.number("Batchsize"))
    config = read_config([*words_of(case, settings), f"seed={seed}"])
    train, (iterations, rehash) = rows.train, (len(rows.train) // batch, 6400 // batch)
    fill_in(config, len(train), train.num_labels)
    network = build_network(config, train.num_features, train.num_labels)
    optimizer = build_optimizer(config, network)
    loss, sampler = ActiveLoss(config.loss._args_[0]), network.output.sampler
    curve, retrieved, computed, seconds = [], [], [], 0.0
    for i, part in batches(train, batch):
        if i % (iterations // points) == 0:
            curve.append([i, precision(network, rows.test)])
        begin = time.perf_counter()
        value, active = network.output.loss(network.encode(part.features), part.labels, loss)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - begin if i >= 2 else 0.0  # These compile kernels.
        if i % rehash == rehash - 1:
            retrieved.append(round(sampler.statistics().get("look_up/rows_seen", 0.0), 3))
            computed.append(active.mean_size())
    curve.append([iterations, precision(network, rows.test)])
    return {
        "curve": curve,
        "retrieved": retrieved,
        "fill": [round(max(s - x, 0), 1) for x, s in zip(retrieved, computed, strict=True)],
        "seconds": round(seconds / (iterations - 2), 4),
    }


def page(found: dict) -> str:
    rows = found["rows"]
    text = (
        "# As published\n\n"
        "The C++ program released with Chen et al. 2020 (github.com/keroro824/HashingDeepLearning) "
        "and `recipe=slide2020`: the same rows in the same order, the same 2,560 test rows, K, L, "
        "rates and schedules of its configuration file. Retrieved: labels and all ids in the "
        "buckets of a sample, on average over a batch before each rehash, then of these; filled: "
        "outputs at random, up to 1,000. Seconds an iteration hold rehashes, and neither reading "
        "nor evaluation. P@1 in percent, on average over the seeds and from the least to the "
        "largest; a seed is an order of the rows. `slide, today` is the default for sets of a "
        "sample, with its own rates. The threads of the program add gradients to the same sums "
        "without a lock, so its curve with one thread is another one. "
        + origin(rows, "case")
        + "\n"
    )
    kinds = sorted({(row["set"], row["lr"], row["iterations"]) for row in rows})
    for name, lr, iterations in kinds:
        kind = name, lr, iterations
        own = [row for row in rows if (row["set"], row["lr"], row["iterations"]) == kind]
        text += f"\n## {name}, rate {lr}, {iterations:,} iterations\n\n"
        text += table([_cells(case, own) for case in CASES if any(r["case"] == case for r in own)])
    return text


def _cells(case: str, rows: list[Row]) -> dict[str, object]:
    own = [row for row in rows if row["case"] == case]
    cells: dict[str, object] = {"": CASES[case], "seeds": len(own)}
    for name in ("retrieved", "fill"):
        values = [statistics.fmean(row[name]) for row in own if row[name]]
        cells["filled" if name == "fill" else name] = _span(values, ".0f")
    cells["s an iteration"] = _span([row["seconds"] for row in own], ".3f")
    for at, (i, _) in enumerate(own[0]["curve"]):
        if i:
            cells[f"P@1 at {i:,}"] = _span([row["curve"][at][1] for row in own], ".1f")
    return cells


def _span(values: list[float], digits: str) -> str:
    if not values:
        return ""
    mean, least, most = (f"{f(values):{digits}}" for f in (statistics.fmean, min, max))
    return mean if least == most else f"{mean} ({least} to {most})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, help="the C++ program")
    parser.add_argument("--config", type=Path, help="its configuration file")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--iterations", type=int, default=712, help="batches of training")
    parser.add_argument("--points", type=int, default=4, help="evaluations before the end")
    parser.add_argument("--lr", help="rate; by default that of the file")
    parser.add_argument("--range-pow", type=int, help="2^this buckets in a table of the program")
    add_options(parser, list(SETS), [0, 1, 2])
    parser.set_defaults(results=RESULTS)
    arguments = parse(parser)
    store = Store("as_published", KEYS, page, arguments, "slide_cpp")
    if arguments.render:
        store.render()
        return
    if not (arguments.binary and arguments.config):
        parser.error("--binary and --config are needed: the C++ program and its configuration file")
    settings = Settings.read(arguments.config)
    if arguments.lr:
        settings = settings.replaced(Lr=arguments.lr)
    if arguments.range_pow:
        powers = settings.values["RangePow"].rpartition(",")[0]
        settings = settings.replaced(RangePow=f"{powers},{arguments.range_pow}")
    version = hashlib.sha1(arguments.binary.read_bytes()).hexdigest()[:10]
    lr, batch = settings.number("Lr"), int(settings.number("Batchsize"))
    for seed in arguments.seeds:
        for name in arguments.datasets:
            kind = {"set": name, "lr": lr, "iterations": arguments.iterations, "seed": seed}
            for case in arguments.cases:
                code = version if case in ("released", "one_thread") else None
                for row in store.missing([kind | {"case": case}], code):
                    rows = draw_rows(arguments.root, name, seed, arguments.iterations, batch)
                    if code:
                        threads = "1" if case == "one_thread" else None
                        found = released(
                            arguments.binary, settings, rows, arguments.points, threads
                        )
                    else:
                        found = ours(case, settings, rows, arguments.points, seed)
                    store.add([row | found], code)
    store.report()


if __name__ == "__main__":
    main()
