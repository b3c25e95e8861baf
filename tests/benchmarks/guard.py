"""A guard against changes that make things slower: a minute's look at the parts of training.

    python tests/benchmarks/guard.py

Times steps of the default network on random rows (all but the making of a batch and rebuilds), a
rebuild of the tables, predictions by an index built before, and a fixed product of torch in turn.
What counts is the ratio: a machine that is slower today is slower at the product, too. Appends a
line for this commit to build/guard.{json,md}, which git ignores. Says what is slower than in the
lines before, of the same machine. It ends without an error however slow things are. --quick: small
sizes and few turns, to see that it works.
"""

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from report import ROOT, Row, Store, add_store_options, machine, table
from sized import BATCHES, Sampled, Size, draw, milliseconds, product, settings

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
STEPS = ("default", "lsh, shared", "lsh, per sample")
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
        if case == "lsh, shared":
            found["rebuild"] = made.rebuild
        if case == "default":
            features = [batch.features for batch in batches]
            for search in SEARCHES:
                predict = predicting(made, search)
                found[f"prediction, {search}"] = taking_turns(predict, features)
    for call in found.values():
        call()
        call()
    return found


def taking_turns(call: Callable[[Any], object], items: list[Any]) -> Callable[[], object]:
    count = iter(range(10**9))
    return lambda: call(items[next(count) % len(items)])


def predicting(made: Sampled, search: str) -> Callable[[Any], object]:
    return lambda features: made.network.predict(features, 5, search)


def ratios(sizes: dict[str, int], turns: int, seconds: float, width: int = 512) -> Iterator[Row]:
    """Of each part the ratio to the product of a width (median, range), and the milliseconds."""
    calls, fixed = parts(sizes), product(width)
    fixed()
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            # Steps change the weights, which an index notices: it is ready before the clock runs.
            call()
            before = milliseconds(fixed, seconds / 4)
            taken = milliseconds(call, seconds)
            both = (before + milliseconds(fixed, seconds / 4)) / 2
            found[name].append((taken / both, taken, both))
    for name, each in found.items():
        ratio, taken, fixed_ms = (statistics.median(turn) for turn in zip(*each, strict=True))
        ends = [round(end(turn[0] for turn in each), 4) for end in (min, max)]
        times = {"ms": round(taken, 3), "product_ms": round(fixed_ms, 3)}
        yield {"case": name, "ratio": round(ratio, 4), "range": ends} | times


def lines_of(rows: list[Row]) -> list[list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["committed"], row["at"])):
        groups.setdefault(row["commit"], []).append(row)
    return list(groups.values())


def usual(lines: list[list[Row]], case: str) -> float | None:
    """The median ratio of a case in the last `LINES` lines; None: there is none."""
    found = [row["ratio"] for line in lines[-LINES:] for row in line if row["case"] == case]
    return statistics.median(found) if found else None


def is_slower(row: Row, lines: list[list[Row]]) -> bool:
    """Whether a row's ratio is above the usual one of the lines before it."""
    before = usual(lines, row["case"])
    return before is not None and row["ratio"] > SLOWER * before


def page(found: dict[str, Any]) -> str:
    names = ("machine", "threads", "network", "date", "commit", "case", "ratio")
    return "# Guard\n\n" + table([{n: row[n] for n in names} for row in found["rows"]])


def say(rows: list[Row], commit: str, network: str) -> None:
    """What this commit's ratios are beside those before, of this machine and its threads."""
    here = {"machine": machine(), "threads": runtime.num_threads(), "network": network}
    lines = lines_of([row for row in rows if here.items() <= row.items()])
    place = next(i for i, line in enumerate(lines) if line[0]["commit"] == commit)
    for row in lines[place]:
        before = usual(lines[:place], row["case"])
        than = f", before {before:.3g} ({row['ratio'] / before - 1:+.0%})" if before else ""
        mark = "  SLOWER" if is_slower(row, lines[:place]) else ""
        print(f"{row['case']}: {row['ratio']:.3g} of the product{than}{mark}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_store_options(parser)
    parser.add_argument("--quick", action="store_true", help="a moment, to see that it works")
    parser.set_defaults(results=RESULTS)
    arguments = parser.parse_args()
    if arguments.quick and arguments.results == RESULTS:
        parser.error("--quick needs --results: its figures compare with no others")
    runtime.set_threads(0)
    store = Store("guard", KEYS, page, arguments)
    if arguments.render:
        store.render()
        return
    sizes = QUICK_SIZES if arguments.quick else SIZES
    measures = (1, 0, 64) if arguments.quick else (TURNS, SECONDS)
    command = ["git", "log", "-1", "--format=%cI"]
    committed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    stamp = {"committed": committed.stdout.strip(), "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    stamp["network"] = NETWORK.format(**sizes)
    store.add([row | stamp for row in ratios(sizes, *measures)])
    say(store.rows, store.commit, stamp["network"])


if __name__ == "__main__":
    main()
