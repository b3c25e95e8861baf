"""Precision by label frequency: which labels the default call finds, beside omikuji.

    pip install -e '.[bench]'
    python tests/benchmarks/label_frequency.py --root path/to/data --datasets debian files
    python tests/benchmarks/label_frequency.py --root path/to/data --datasets debian --holdout 0.1

Labels are put into bins by how many training rows have them. Ours is the default call, and the
same with ranker.objective=psp; omikuji has its default settings. Any set in XMC text will do: a
name that conf/dataset/ does not know is a folder of train.txt and test.txt. Judged on whole test
sets; with --holdout on training rows set aside, and nothing is written. Without it, writes
results/label_frequency.{json,md} after each set; sets that there are for this commit and machine
are not measured again (rows.py).
"""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import omikuji as trees  # tests/benchmarks/omikuji.py
from frequency import found_by_bin, sizes
from peers import LEFT_OUT, known_labels
from report import table
from rows import Row, Store, add_store_options, origin, parse
from runs import trained
from sets import place
from train_process import ROOT, seconds_of, warm_up

from slide import runtime
from slide.config import read_config, user_errors
from slide.data import Split, first_unknown
from slide.training import Trainer
from slide.training.evaluation import predict_split

# Overrides of the default call.
OURS = {"ours": [], "ours, objective: psp": ["ranker.objective=psp"]}
OMIKUJI = "omikuji"


def our_answers(trainer: Trainer) -> np.ndarray:
    """Ids ``(rows, 5)`` that a finished run answers to the rows that it was judged on."""
    search = trainer.options.evaluation
    return predict_split(trainer.network, trainer.eval_split, search, trainer.ranker).ids


def measure(package: Any, overrides: list[str]) -> Row:
    """All methods on a data set."""
    methods, trainer = {}, None
    for name, more in OURS.items():
        trainer, summary = trained([*overrides, *more])
        seconds = seconds_of(summary)
        methods[name] = judge(trainer, our_answers(trainer), seconds)
    assert trainer is not None
    found, seconds, name = omikuji_answers(package, trainer.every_split, trainer.eval_split)
    methods[name] = judge(trainer, found, seconds)
    bins = sizes(frequencies(trainer), trainer.eval_split.labels)
    return {"omikuji": trees.metadata.version("omikuji"), "bins": bins, "methods": methods}


def omikuji_answers(package: Any, train: Split, judged: Split) -> tuple[np.ndarray, float, str]:
    """Ids ``(rows, 5)`` of omikuji, seconds of training, and what this is called.

    Labels that our default call leaves out of its answers are left out here, too.
    """
    known = known_labels(train, judged)
    if known is None:
        found, times = trees.answers(package, train, judged)
        return found, times["train_seconds"], OMIKUJI
    depths = max(trees.TOP) + np.diff(known.indptr)
    found, times = trees.answers(package, train, judged, depths=depths)
    return first_unknown(found, known, max(trees.TOP)), times["train_seconds"], OMIKUJI + LEFT_OUT


def judge(trainer: Trainer, found: np.ndarray, seconds: float) -> Row:
    """What answers to the rows that ``trainer`` was judged on are worth, in all and in each bin."""
    data, train, judged = trainer.data, trainer.every_split, trainer.eval_split
    parts = found_by_bin(frequencies(trainer), judged.labels, found)
    scores = trees.scores_of(found, data, train, judged)
    return scores | {"train_seconds": round(seconds, 3), "bins": parts}


def frequencies(trainer: Trainer) -> np.ndarray:
    """``(N,)`` how many training rows have each label."""
    labels = trainer.every_split.labels.indices
    return np.bincount(labels, minlength=trainer.data.num_labels)


def section(name: str, row: Row) -> str:
    """The two tables of a data set."""
    lines = [bin_cells(row, i) for i in range(len(row["bins"]))]
    totals = [total_cells(name, method) for name, method in row["methods"].items()]
    return f"\n## {name}\n\nomikuji {row['omikuji']}.\n\n{table(lines)}\n{table(totals)}"


def bin_cells(row: Row, i: int) -> dict[str, str]:
    """A bin in words."""
    size, parts = row["bins"][i], {name: m["bins"][i] for name, m in row["methods"].items()}
    return {
        "training rows with the label": size["frequency"],
        "labels": f"{size['labels']:,}",
        "share of true labels": points(size["share"]),
        **{f"recall@5, {name}": points(part["recall"]) for name, part in parts.items()},
        **{f"part of P@5, {name}": points(part["contribution"]) for name, part in parts.items()},
    }


def total_cells(name: str, method: Row) -> dict[str, str]:
    """A method in words."""
    scores = {f"{kind.upper()}@{k}": f"{kind}_at_{k}" for kind in ("p", "psp") for k in trees.TOP}
    return {
        "method": name,
        **{title: points(method[key]) for title, key in scores.items()},
        "training, s": f"{method['train_seconds']:.1f}",
    }


def points(share: float | None) -> str:
    """In per cent; nothing for None."""
    return "" if share is None else f"{100 * share:.1f}"


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    return (
        "# Precision by label frequency\n\n"
        "One run a method, seed 0, on whole test sets; omikuji has its default settings. The "
        "labels are in bins by the number of "
        "training rows that have them; bin 0 has the labels without any, which no method can "
        "learn. Recall@5 of a bin is the share of its true labels that are among the five answers "
        "of their row. The parts of P@5 add up to P@5. All in per cent; training seconds as in "
        "[accuracy.md](accuracy.md). Known labels are those of a training row with the same "
        "features in a knowledge graph, and a row's own items in a recommender; our default call "
        "leaves them out of its answers, so they are left out of omikuji's there, too.\n"
        + "".join(section(row["dataset"], row) for row in found["rows"])
        + origin(found["rows"])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="folder with a folder a data set")
    parser.add_argument("--datasets", nargs="+", default=["debian", "files"])
    parser.add_argument("--holdout", type=float, default=0.0, help="judge on training rows")
    parser.add_argument("--override", nargs="+", default=[], help="settings of all runs of ours")
    add_store_options(parser)
    arguments = parse(parser)
    runtime.set_threads(0)
    store = Store("label_frequency", ("dataset",), page, arguments)
    if arguments.render:
        return store.render()
    package = trees.import_omikuji()
    os.chdir(ROOT)  # Caches lie in its datasets/.
    common = [f"dataset.holdout={arguments.holdout}", *arguments.override]
    with user_errors():  # A misspelt setting is found before the first run.
        for name in arguments.datasets:
            for overrides in OURS.values():
                read_config([*place(name, arguments.root), *common, *overrides])
    warm_up()
    cases = [{"dataset": name} for name in arguments.datasets]
    for case in cases if arguments.holdout else store.missing(cases):
        row = measure(package, [*place(case["dataset"], arguments.root), *common])
        print(section(case["dataset"], row), flush=True)
        if not arguments.holdout:
            store.add([case | row])
    return store.report()


if __name__ == "__main__":
    main()
