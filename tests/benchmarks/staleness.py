"""What the tables lose between rebuilds: recall beside tables built anew, and what rebuilds cost.

    python tests/benchmarks/staleness.py --root path/to/data
    python tests/benchmarks/staleness.py --root path/to/data --datasets files

The main job at Amazon-670K's shape, debian by several rebuild schedules, and an epoch of files by
the default recipe with tables. Every so many steps the same inputs choose sets twice, by the
tables as they are and by a copy built from the weights of that moment. Recall is the share of an
input's ten largest inner products in its set, labels not being put in. Rows that there are for
this commit and machine are not measured again (rows.py). Writes
results/benchmarks/staleness.{json,md}.
"""

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path

import torch
from report import RESULTS, table
from rows import Row, Store, add_options, origin, parse
from sets import HELD_OUT, place
from workload import JOB, SMALL_NETWORK, job

from slide import runtime
from slide.config import build_trainer
from slide.training.selection import selection_recall

LARGE = [
    *(*JOB, "trainer.epochs=1", "dataset.train_samples=100_000", "dataset.test_samples=1000"),
]
DEBIAN = [
    *(*SMALL_NETWORK, "network.hidden=[256]", "network.dropout=0.3"),
    *("optimizer.lr=0.002", "trainer.epochs=6", "sampler=lsh"),
]
FILES = ["ranker=none", "trainer.epochs=1", "sampler=lsh", "network.precision=bfloat16"]
SCHEDULES = {
    "backoff, growth 0.7": [],
    "backoff, growth 0.1": ["schedule.growth=0.1"],
    "fixed": ["schedule=fixed"],
    "drift": ["schedule=drift"],
}
DEBIAN_MODES = {
    "shared": ["sampler.mode=shared", "sampler.active=2048"],
    "per sample": ["sampler.mode=per_sample", "sampler.active=512", "trainer.max_steps=1200"],
}
FILES_MODES = {
    "shared": ["sampler.mode=shared", "sampler.active=2048", "trainer.batch_size=256"],
    "per sample": ["sampler.mode=per_sample", "sampler.active=128"],
}
# Of each data set: the settings of its runs.
CASES = {
    "amazon670k_like": {
        "shared": LARGE,
        "per sample": [
            *(*LARGE, "trainer.batch_size=128", "sampler.mode=per_sample"),
            *("sampler.active=1000", "trainer.max_steps=1200"),
        ],
    },
    "debian": {
        f"{mode}, {schedule}": [*DEBIAN, *options, *change]
        for mode, options in DEBIAN_MODES.items()
        for schedule, change in SCHEDULES.items()
    },
    "files": {
        f"{mode}, {schedule}": [*FILES, *options, *SCHEDULES[schedule]]
        for mode, options in FILES_MODES.items()
        for schedule in ("backoff, growth 0.7", "drift")
    },
}
PROBES, SAMPLES, NEIGHBOURS = 40, 128, 10


def recalls(trainer, hidden: torch.Tensor) -> tuple[float, float]:
    """Of the tables as they are, and built anew."""
    layer = trainer.network.output
    weight, bias = layer.weight.detach(), layer.bias.detach()
    found = []
    for anew in (False, True):
        sampler = copy.deepcopy(layer.sampler)
        if anew:
            sampler.proposer.rebuild(weight, bias)
        active = sampler.select(hidden, None)
        found.append(selection_recall(layer, hidden, active, NEIGHBOURS, SAMPLES).with_labels)
    return found[0], found[1]


def measure(case: Row, root: Path) -> Row:
    """A row: train, and look at the tables on the way."""
    name = case["dataset"]
    where = place(name, root) if name in HELD_OUT else []  # JOB names the generated set.
    overrides = ["dataset.holdout=0.05", *where, *CASES[name][case["case"]]]
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(job.compose(*overrides, f"run_dir={folder}/run"))
        steps, seconds, pairs = trainer.total_steps, 0.0, []
        for i in range(steps):
            begin = time.perf_counter()
            loss, _, hidden = trainer.learner.forward(
                trainer.batches.batch(*divmod(i, len(trainer.batches)))
            )
            seconds += time.perf_counter() - begin
            if i and i % max(1, steps // PROBES) == 0:
                # Before the update: the weights that the step's own set was chosen by.
                pairs.append(recalls(trainer, hidden.detach()))
            begin = time.perf_counter()
            trainer.learner.update(loss)
            seconds += time.perf_counter() - begin
        trainer.monitor.close()
    lost = [fresh - stale for stale, fresh in pairs]
    return case | {
        "steps": steps,
        "probes": len(pairs),
        "recall": round(100 * statistics.fmean(stale for stale, _ in pairs), 2),
        "recall_fresh": round(100 * statistics.fmean(fresh for _, fresh in pairs), 2),
        "lost": round(100 * statistics.fmean(lost), 2),
        "standard_error": round(100 * statistics.stdev(lost) / len(lost) ** 0.5, 2),
        "rebuilds": trainer.network.output.sampler.rebuilds,
        "rebuild_share": round(trainer.counters.rebuild_seconds / seconds, 3),
    }


def page(found: dict) -> str:
    rows = found["rows"]
    cells = [
        {
            "data set": row["dataset"],
            "sets and schedule": row["case"],
            "steps": row["steps"],
            "recall, %": row["recall"],
            "by fresh tables, %": row["recall_fresh"],
            "lost, points": f"{row['lost']} +- {row['standard_error']}",
            "rebuilds": row["rebuilds"],
            "rebuilds and rehashing": f"{100 * row['rebuild_share']:.1f} %",
        }
        for row in rows
    ]
    return (
        "# What tables lose between rebuilds\n\n"
        f"Recall of the {NEIGHBOURS} largest inner products of {SAMPLES} training inputs in the "
        f"set that the tables choose for them, labels not put in; {PROBES} times a run, at equal "
        "distances, beside tables built anew from the same weights. Mean over the probes, and the "
        "standard error of the difference. Rebuilds, the first one among them, and the share of "
        "training time that rebuilds, looks and rehashing take.\n\n" + table(cells)
    ) + origin(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, list(CASES), [0])
    parser.set_defaults(results=RESULTS)
    arguments = parse(parser)
    runtime.set_threads(0)
    store = Store("staleness", ("dataset", "case"), page, arguments)
    if arguments.render:
        return store.render()
    cases = [{"dataset": name, "case": case} for name in arguments.datasets for case in CASES[name]]
    for case in store.missing(cases):
        store.add([measure(case, arguments.root)])
    store.report()


if __name__ == "__main__":
    main()
