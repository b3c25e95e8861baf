"""What each part of the default recipe is worth: precision on held-out rows when it is left out.

    python tests/benchmarks/ablation.py --root path/to/data

Runs of train.py with different seeds, each with other rows held out (a tenth of debian's training
rows, 15 % of the others'); the recipe and its variants see the same rows under one seed. The test
rows are not touched. Writes results/ablation.{json,md} after each data set.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from report import RESULTS, publish, table
from train_process import run_train

PAGES = RESULTS.parent
HELD_OUT = {"debian": 0.1, "bibtex": 0.15, "delicious": 0.15}
WITHOUT = {
    "default recipe": [],
    "no re-ranker": ["ranker=none"],
    "one learning rate for all layers": ["optimizer.input_rate=1"],
    "usual first weights": ["network.init_scale=1"],
    "rows not brought to length 1": ["transform.l2_norm=false"],
    "no dropout": ["network.dropout=0"],
    "output biases from zero": ["network.prior_bias=false"],
    "six epochs, a rate that falls from the start": ["trainer.epochs=6"],
    "six epochs, a constant rate": ["trainer.epochs=6", "lr_schedule=constant"],
    "binary cross-entropy": ["loss=bce"],
    "the network names no candidates but the best one": ["ranker.depth=1"],
    "neighbours name one candidate": ["ranker.voted=1"],
    "features name one candidate": ["ranker.associated=1"],
    "uniform draws alone": ["sampler=uniform"],
    "uniform draws stand for the rest": ["sampler.weighting=stratified"],
}


def run(dataset: str, root: Path, overrides: list[str], seed: int) -> dict:
    """The summary of a run on one thread, since two runs go side by side."""
    place = [f"dataset={dataset}", f"dataset.root={root / dataset}"]
    judged = [f"seed={seed}", f"dataset.holdout={HELD_OUT[dataset]}"]
    quick = ["runtime.threads=1", "trainer.recall_every=0"]
    return run_train(*place, *overrides, *judged, *quick)[0]


SCORES = [f"{kind}_at_{k}" for kind in ("p", "psp") for k in (1, 3, 5)]


def page(found: dict) -> str:
    """The generated page."""
    text = (
        "# What each part of the default recipe is worth\n\n"
        f"Precision in points: the mean of {found['seeds']} seeds, each with other training rows "
        "held out, and half the range between them. In brackets the difference to the recipe on "
        "the same rows, mean and half its range; bold where it has one sign for all seeds. With "
        "few labels (bibtex, delicious) the labels of a batch fill a shared set, so that the ways "
        "to choose one hardly differ.\n"
    )
    for dataset in dict.fromkeys(row["dataset"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["dataset"] == dataset]
        text += f"\n## {dataset}\n\n" + table([cells(row, rows[0]) for row in rows])
    return text


def cells(row: dict, full: dict) -> dict[str, str]:
    """A row in words."""
    out = {"": row["without"]}
    for key in SCORES:
        gained = [x - y for x, y in zip(row[key], full[key], strict=True)]
        cell = f"{spread(row[key])}"
        if row is not full:
            same = min(gained) > 0 or max(gained) < 0
            cell += f" (**{spread(gained, '+')}**)" if same else f" ({spread(gained, '+')})"
        out[key.replace("_at_", "@").upper()] = cell
    return out


def spread(values: list[float], sign: str = "") -> str:
    """Mean and half the range, in points."""
    mean = 100 * sum(values) / len(values)
    return f"{mean:{sign}.1f} ± {50 * (max(values) - min(values)):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="folder with a folder a data set")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    root, seeds = arguments.root.resolve(), range(arguments.seeds)
    rows = []
    with ThreadPoolExecutor(2) as pool:
        for dataset in HELD_OUT:
            for overrides in (["ranker=none"], ["ranker=none", "transform.l2_norm=false"]):
                # Prepared once, before two runs want it.
                run(dataset, root, [*overrides, "trainer.max_steps=1"], 0)
            pending = {
                name: [pool.submit(run, dataset, root, overrides, seed) for seed in seeds]
                for name, overrides in WITHOUT.items()
            }
            for name, futures in pending.items():
                summaries = [each.result() for each in futures]
                scores = {key: [summary[key] for summary in summaries] for key in SCORES}
                rows.append({"dataset": dataset, "without": name} | scores)
                print(rows[-1], flush=True)
            publish("ablation", {"seeds": len(seeds), "rows": rows}, page, PAGES)


if __name__ == "__main__":
    main()
