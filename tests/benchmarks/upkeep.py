"""What it takes to keep the index of sampler=index up in training, by how often it is rebuilt.

    python tests/benchmarks/upkeep.py --root path/to/data
    python tests/benchmarks/upkeep.py --root path/to/data --datasets debian

Runs of the default recipe with a set for each sample and without a re-ranker, in this process on
all cores, judged on held-out training rows. Writes results/benchmarks/upkeep.{json,md} after each
run; rows that there are for this commit and machine are not measured again (rows.py).
"""

import argparse
import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from report import RESULTS, table
from rows import Row, Store, add_options, origin, parse
from runs import trained
from sets import HELD_OUT, place
from train_process import ROOT, warm_up

from slide import IndexProposer, runtime
from slide.compilation import clock
from slide.config.samplers import INDEX_GROWTH

ACTIVE = 128
# Growth of the intervals between rebuilds, and epochs.
CASES = ((0.7, 1), (INDEX_GROWTH, 1), (0.1, 1), (INDEX_GROWTH, 3))


def measure(words: list[str]) -> Row:
    """A run: its precision, and the seconds of the parts of its training."""
    seconds: dict[str, list[float]] = {"rebuild": [], "touched": []}

    def timed(name: str) -> Callable[..., None]:
        method = getattr(IndexProposer, name)

        def call(*arguments: Any) -> None:
            begin = clock()
            method(*arguments)
            seconds[name].append(clock() - begin)

        return call

    with patch.multiple(IndexProposer, **{name: timed(name) for name in seconds}):
        _, summary = trained(words)
    keep = ("p_at_1", "p_at_3", "p_at_5", "psp_at_5", "labels", "steps", "train_seconds")
    first, *later = seconds["rebuild"]
    following = summary["rebuild_seconds"] - sum(seconds["rebuild"])
    return {name: summary[name] for name in keep} | {
        "first": first,
        "later": sum(later),
        "rebuilds": len(later),
        "following": following + sum(seconds["touched"]),
    }


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    return (
        "# Keeping the index up\n\n"
        f"The network of the default recipe with {ACTIVE} outputs for a sample, chosen by "
        "`sampler=index`, without a re-ranker; precision on held-out training rows. Seconds are "
        "those of training: of all of it, of the first index, of the later rebuilds, and of "
        "noting and following the rows that were labels or candidates of each step. Kept up: the "
        "share of rebuilds and following in the training without the first index. Growth is that "
        "of the intervals between rebuilds (`schedule.growth`).\n\n"
        + table([line(row) for row in found["rows"]])
        + origin(found["rows"])
    )


def line(row: Row) -> dict[str, str]:
    """A row of the table."""
    kept = (row["later"] + row["following"]) / (row["train_seconds"] - row["first"])
    return {
        "data set": row["dataset"],
        "labels": f"{row['labels']:,}",
        "epochs": str(row["epochs"]),
        "growth": str(row["growth"]),
        "rebuilds": str(row["rebuilds"]),
        **{f"P@{k}": f"{100 * row[f'p_at_{k}']:.2f}" for k in (1, 3, 5)},
        "PSP@5": f"{100 * row['psp_at_5']:.2f}",
        "seconds": f"{row['train_seconds']:.1f}",
        "first index": f"{row['first']:.2f}",
        "rebuilds, s": f"{row['later']:.2f}",
        "following, s": f"{row['following']:.2f}",
        "kept up": f"{100 * kept:.1f} %",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, ["files"], [0])
    parser.set_defaults(results=RESULTS)
    arguments = parse(parser)
    runtime.set_threads(0)
    keys = ("dataset", "seed", "growth", "epochs")
    store = Store("upkeep", keys, page, arguments)
    if arguments.render:
        return store.render()
    os.chdir(ROOT)  # Caches lie in its datasets/.
    warm_up()
    cases = [
        dict(zip(keys, (name, seed, *case), strict=True))
        for name in arguments.datasets
        for seed in arguments.seeds
        for case in CASES
    ]
    for case in store.missing(cases):
        words = [
            *place(case["dataset"], arguments.root),
            *(f"dataset.holdout={HELD_OUT[case['dataset']]}", "sampler=index", "ranker=none"),
            *("sampler.mode=per_sample", f"sampler.active={ACTIVE}", f"seed={case['seed']}"),
            *("trainer.max_epochs=null", f"trainer.epochs={case['epochs']}"),
            *("trainer.recall_every=0", f"schedule.growth={case['growth']}"),
        ]
        store.add([case | measure(words)])
    store.render()
    store.report()


if __name__ == "__main__":
    main()
