"""A guard against changes that make things slower: a minute for the parts of training.

    python benchmarks/guard.py

Times steps of the default network on random rows, a rebuild of the tables, predictions, and a fixed
product of torch in turn. What counts is the ratio: a machine that is slower today is slower at the
product, too. Appends a line for this commit to build/guard.{json,md}, which git ignores, and says
what is slower than in the lines before. --quick: small sizes, to see that it works.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from harness import ROOT, Row, Store, fill_page, machine, of, options, table
from sized import BATCHES, Sampled, Size, draw, median, product, settings, taking_turns

from slide import runtime

SIZES = {"outputs": 2**17, "features": 50_000, "hidden": 256}
QUICK_SIZES = {"outputs": 2**10, "features": 500, "hidden": 8}
TURNS, SECONDS = 7, 0.25
RESULTS = ROOT / "build"
# A ratio above that of the lines before by this factor is marked. Turns on a quiet machine differ
# by less.
SLOWER, LINES = 1.2, 5
# The network is a key, so that lines of other networks are not compared.
KEYS = ("machine", "threads", "commit", "case", "network")
NETWORK = "{outputs:,} outputs, {features:,} features, {hidden} hidden units"
STEPS = ("default", "uniform, batch", "lsh, sample")
SEARCHES = ("exact", "index")


def parts(sizes: dict[str, int]) -> dict[str, Callable[[], object]]:
    """What is timed: calls by name; each was called before."""
    rng, found = np.random.default_rng(0), {}
    for case in STEPS:
        size = Size(case, **sizes)
        config = settings(case, size.outputs, size.hidden)
        made, rows = Sampled(size, config), config.trainer.batch_size
        batches = [draw(size, rows, rng) for _ in range(BATCHES)]
        found[f"step, {case}"] = taking_turns(made.step, batches)
        if case == "default":
            found["rebuild"] = made.rebuild
            features = [(batch.features, 5) for batch in batches]
            for search in SEARCHES:
                predict = partial(made.network.predict, search=search)
                call = taking_turns(lambda x, predict=predict: predict(*x), features)
                found[f"prediction, {search}"] = call
    for call in found.values():
        call()
        call()
    return found


def ratios(sizes: dict[str, int], turns: int, seconds: float, width: int = 512) -> Iterator[Row]:
    """Of each part the ratio to the product of a width (median, range), and the milliseconds."""
    calls, fixed = parts(sizes), product(width)
    fixed()
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            # Steps change the weights, which an index notices: it is ready before the clock runs.
            call()
            before = median(fixed, seconds / 4)
            taken = median(call, seconds)
            both = (before + median(fixed, seconds / 4)) / 2
            found[name].append((taken / both, taken, both))
    for name, each in found.items():
        ratio, taken, fixed_ms = (statistics.median(turn) for turn in zip(*each, strict=True))
        ends = [round(end(turn[0] for turn in each), 4) for end in (min, max)]
        times = {"ms": round(taken, 3), "product_ms": round(fixed_ms, 3)}
        yield {"case": name, "ratio": round(ratio, 4), "range": ends} | times


def page(found: dict) -> str:
    names = ("machine", "threads", "network", "date", "commit", "case", "ratio")
    return "# Guard\n\n" + table([{n: row[n] for n in names} for row in found["rows"]])


def say(rows: list[Row], commit: str, network: str) -> None:
    """What this commit's ratios are beside those before, of this machine and its threads."""
    here = of(rows, machine=machine(), threads=runtime.num_threads(), network=network)
    here.sort(key=lambda row: (row["committed"], row["at"]))
    commits = list(dict.fromkeys(row["commit"] for row in here))
    earlier = commits[: commits.index(commit)][-LINES:]
    for row in of(here, commit=commit):
        before = [r["ratio"] for r in of(here, case=row["case"]) if r["commit"] in earlier]
        said = f"{row['case']}: {row['ratio']:.3g} of the product"
        if before:
            change = row["ratio"] / statistics.median(before)
            said += f", before {statistics.median(before):.3g} ({change - 1:+.0%})"
            said += "  SLOWER" if change > SLOWER else ""
        print(said)


def measure(store: Store, arguments: argparse.Namespace) -> None:
    if arguments.quick and arguments.results == RESULTS:
        sys.exit("--quick needs --results: its figures compare with no others")
    sizes = QUICK_SIZES if arguments.quick else SIZES
    measures = (1, 0, 64) if arguments.quick else (TURNS, SECONDS)
    command = ["git", "log", "-1", "--format=%cI"]
    committed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    stamp = {"committed": committed.stdout.strip(), "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    stamp["network"] = NETWORK.format(**sizes)
    store.add([row | stamp for row in ratios(sizes, *measures)])
    say(store.rows, store.commit, stamp["network"])


def main() -> None:
    parser = options(__doc__, folder=RESULTS)
    parser.add_argument("--quick", action="store_true", help="a moment, to see that it works")
    fill_page("guard", KEYS, page, measure, parser)


if __name__ == "__main__":
    main()
