"""Do looked-up outputs teach more than uniform draws: precision at equal steps, and equal seconds.

    python tests/benchmarks/selection.py --root path/to/data
    python tests/benchmarks/selection.py --root path/to/data --datasets files
    python tests/benchmarks/selection.py --root path/to/data --cases "debian, 128 for a sample"

Runs of train.py that are alike but for the sampler, two side by side on a thread each, so that
their seconds compare. The network alone, judged on held-out training rows of debian and files, and
on test rows of the generated set of Amazon-670K's shape. The runs of files are those of the default
recipe; all others have a constant rate and are judged several times on the way. Seconds hold all of
a step, rebuilds included. Writes results/benchmarks/selection.{json,md} after each pair; rows that
there are for this commit and machine are not measured again (rows.py).
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from report import RESULTS, table
from rows import Row, Store, add_options, origin, parse
from sets import HELD_OUT
from train_process import run_train, seconds_of
from workload import SMALL_NETWORK

from slide import runtime

# Pairs that run side by side.
SHARED = (("uniform", "lsh"),)
OWN = (*SHARED, ("recent", "index"))
NEWER = (("uniform", "recent"),)
COMMON = ["ranker=none", "network.precision=bfloat16", "runtime.threads=1"]
CONSTANT = [
    *("lr_schedule=constant", "optimizer.lr=0.002", "network.init_scale=0.2"),
    "optimizer.input_rate=4",
]
LARGE = [
    *(*SMALL_NETWORK, *CONSTANT, "dataset.train_samples=100_000", "dataset.test_samples=2000"),
    "trainer.epochs=1",
]
SMALL = "network.output_scale=0.1"  # As the default recipe has it for so many labels, if shared.
DEBIAN = [
    *(*CONSTANT, f"dataset.holdout={HELD_OUT['debian']}", "network.hidden=[256]"),
    "trainer.epochs=3",
]
FILES = [f"dataset.holdout={HELD_OUT['files']}", "trainer.epochs=1"]
# The newest labels take all places that the labels of a batch leave.
NEWEST = [f"dataset.holdout={HELD_OUT['files']}", "sampler.active=3072"]
PER_SAMPLE = ["sampler.mode=per_sample", "trainer.batch_size=128"]


class Case(NamedTuple):
    """Runs that differ in their sampler.

    Attributes:
        dataset: the data set.
        every: steps between evaluations.
        overrides: what all of the runs have in common.
        pairs: the samplers.
        share: of the places that labels leave, for candidates, where there are any.
    """

    dataset: str
    every: int
    overrides: list[str]
    pairs: Sequence[tuple[str, str]] = SHARED
    share: float = 0.5


def per_sample(dataset: str, every: int, overrides: list[str], active: int) -> Case:
    """A case with sets of each sample."""
    return Case(dataset, every, [*overrides, *PER_SAMPLE, f"sampler.active={active}"], OWN)


CASES = {
    "670,091 labels, 4,096 for a batch, usual first weights": Case("amazon670k_like", 80, LARGE),
    "670,091 labels, 4,096 for a batch, small first weights": Case(
        "amazon670k_like", 80, [*LARGE, SMALL]
    ),
    "670,091 labels, 128 for a sample, usual first weights": per_sample(
        "amazon670k_like", 160, LARGE, 128
    ),
    "670,091 labels, 128 for a sample, small first weights": per_sample(
        "amazon670k_like", 160, [*LARGE, SMALL], 128
    ),
    "debian, 1,024 for a batch": Case("debian", 96, [*DEBIAN, "sampler.active=1024"], share=0.25),
    "debian, 128 for a sample": per_sample("debian", 192, DEBIAN, 128),
    **{
        f"files, {active} for a sample": Case(
            "files", 400, [*FILES, "sampler.mode=per_sample", f"sampler.active={active}"], OWN
        )
        for active in (128, 512)
    },
    **{
        f"files, 3,072 for a batch, epochs: {epochs}": Case(
            *("files", 400, [*NEWEST, f"trainer.epochs={epochs}"], NEWER, 1.0)
        )
        for epochs in (1, 5)
    },
}


def train(dataset: str, root: Path | None, overrides: list[str]) -> tuple[dict, list[dict]]:
    """Train once: the summary, and the lines of the log."""
    place = [f"dataset.root={root / dataset}"] if root else []
    summary, log = run_train(f"dataset={dataset}", *place, *overrides)
    # Training is that of the network, with the choice of its length, and that of the re-ranker.
    summary["train_seconds"] = seconds_of(summary)
    return summary, log


def curve_of(log: list[dict]) -> list[tuple[float, float]]:
    """Seconds of training and P@1 wherever a run logged both at one step."""
    by_step: dict[int, dict] = {}
    for line in log:
        by_step.setdefault(line["step"], {}).update(line)
    return [
        (line["train/seconds"], line["eval/p_at_1"])
        for line in by_step.values()
        if "train/seconds" in line and "eval/p_at_1" in line
    ]


def run(root: Path, case: str, sampler: str) -> Row:
    """A row of results."""
    dataset, every = CASES[case][:2]
    evaluate = [f"trainer.{key}_every={every}" for key in ("eval", "log", "recall")]
    more = [*words(sampler, case), *evaluate]
    summary, log = train(dataset, place(root, dataset), more)
    recall = [line["selection/recall"] for line in log if "selection/recall" in line]
    return {
        "case": case,
        "sampler": sampler,
        "curve": curve_of(log),
        "recall": float(np.mean(recall)),
        "p_at_1": summary["p_at_1"],
        "psp_at_5": summary["psp_at_5"],
        "train_seconds": summary["train_seconds"],
        "active_mean": summary["active_mean"],
    }


def words(sampler: str, case: str) -> list[str]:
    """What chooses a run, without its data and evaluations."""
    found = [f"sampler={sampler}", *COMMON, *CASES[case].overrides]
    if sampler != "uniform":
        found.append(f"sampler.candidate_share={CASES[case].share}")
    return found


def place(root: Path, dataset: str) -> Path | None:
    """The folder with a folder of the data set; None: it is generated."""
    return root if dataset in HELD_OUT else None


def measure(store: Store, root: Path, case: str, pool: ThreadPoolExecutor) -> None:
    """The missing pairs of a case."""
    cells = [{"case": case, "sampler": name} for pair in CASES[case].pairs for name in pair]
    missing = {cell["sampler"] for cell in store.missing(cells)}
    pairs = [pair for pair in CASES[case].pairs if missing & {*pair}]
    dataset, short = CASES[case].dataset, ["trainer.max_steps=1", "trainer.eval_samples=1"]
    for pair in pairs:
        for sampler in pair:  # Prepared and compiled once, before two runs want it.
            train(dataset, place(root, dataset), [*words(sampler, case), *short])
        store.add(list(pool.map(lambda sampler: run(root, case, sampler), pair)))


def at(row: Row, seconds: float) -> float:
    """P@1 of a run after so many seconds, on the line between the evaluations before and after."""
    times, precision = zip(*row["curve"], strict=True)
    return float(np.interp(seconds, times, precision))


def page(found: dict) -> str:
    """The generated page."""
    lines = []
    for case, (_, _, overrides, pairs, _) in CASES.items():
        names = [name for pair in pairs for name in pair]
        rows = {row["sampler"]: row for row in found["rows"] if row["case"] == case}
        rows = {name: rows[name] for name in names if name in rows}
        seconds = min((row["train_seconds"] for row in rows.values()), default=0.0)
        constant = CONSTANT[0] in overrides  # Else precision on the way is that of a high rate.
        for sampler, row in rows.items():
            equal = f"{100 * at(row, seconds):.2f}" if constant else ""
            lines.append(
                {
                    "case": case,
                    "sampler": sampler,
                    "outputs a set": f"{row['active_mean']:.0f}",
                    "recall of the top 10": f"{row['recall']:.3f}",
                    "P@1 at equal steps": f"{100 * row['p_at_1']:.2f}",
                    "P@1 at equal seconds": equal,
                    "PSP@5 at equal steps": f"{100 * row['psp_at_5']:.2f}",
                    "seconds": f"{row['train_seconds']:.0f}",
                }
            )
    return (
        "# Looked-up outputs against uniform draws\n\n"
        "Sets of the same size for all samplers of a case; labels are in all of them. Recall: "
        "share of the ten largest products of an input that its set holds. At equal seconds: those "
        "of the fastest; where the learning rate falls, precision on the way says nothing. One "
        "thread a run, two runs side by side.\n\n" + table(lines) + origin(found["rows"], "case")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, list(dict.fromkeys(case.dataset for case in CASES.values())), [0])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.set_defaults(results=RESULTS)
    arguments = parse(parser)
    runtime.set_threads(1)
    store = Store("selection", ("case", "sampler"), page, arguments)
    if arguments.render:
        return store.render()
    with ThreadPoolExecutor(2) as pool:
        for name, case in CASES.items():
            if case.dataset in arguments.datasets and name in arguments.cases:
                measure(store, arguments.root, name, pool)
    store.report()


if __name__ == "__main__":
    main()
