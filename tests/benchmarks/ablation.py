"""What each part of the default recipe is worth: precision on held-out rows when it is left out.

    python tests/benchmarks/ablation.py --root ../shared/data

Each cell is the mean of runs of train.py with different seeds, each with other rows held out (a
tenth of debian's training rows, 15 % of the others'), and half the range between the runs. The
test rows are not touched. Writes results/ablation.{json,md}.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from report import RESULTS, publish, table

ROOT = Path(__file__).resolve().parents[2]
PAGES = RESULTS.parent
HELD_OUT = {"debian": 0.1, "bibtex": 0.15, "delicious": 0.15}
WITHOUT = {
    "default recipe": [],
    "no linear classifiers": ["ranker=none"],
    "one learning rate for all layers": ["network.input_rate=1"],
    "usual first weights": ["network.init_scale=1"],
    "rows not brought to length 1": ["transform.l2_norm=false"],
    "no dropout": ["network.dropout=0"],
    "output biases from zero": ["network.prior_bias=false"],
    "constant learning rate": ["lr_schedule=constant"],
    "binary cross-entropy": ["loss=bce"],
    "uniform draws alone": ["sampler=uniform"],
    "uniform draws stand for the rest": ["sampler.weighting=stratified"],
}


def run(dataset: str, root: Path, overrides: list[str], seed: int) -> dict:
    """The summary of a run on one thread, since two runs go side by side."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        command = [sys.executable, str(ROOT / "train.py"), f"dataset={dataset}", *overrides]
        command += [f"dataset.root={root / dataset}", f"run_dir={folder}", f"seed={seed}"]
        command += [f"trainer.holdout={HELD_OUT[dataset]}", "runtime.threads=1"]
        command += ["trainer.recall_every=0"]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return json.loads((folder / "summary.json").read_text())


def summarise(dataset: str, name: str, summaries: list[dict]) -> dict:
    """Mean and half the range over the seeds."""
    row = {"dataset": dataset, "without": name}
    for key in (f"{kind}_at_{k}" for kind in ("p", "psp") for k in (1, 3, 5)):
        values = [summary[key] for summary in summaries]
        row[key] = [sum(values) / len(values), (max(values) - min(values)) / 2]
    return row


def page(found: dict) -> str:
    """The generated page."""
    text = (
        "# What each part of the default recipe is worth\n\n"
        f"Mean of {found['seeds']} seeds, each with other training rows held out, and half the "
        "range between them, in points. Bold: worse than the recipe by more than both ranges "
        "together. With few labels (bibtex, delicious) the labels of a batch fill a shared set, so "
        "that the ways to choose one hardly differ.\n"
    )
    for dataset in HELD_OUT:
        rows = [row for row in found["rows"] if row["dataset"] == dataset]
        text += f"\n## {dataset}\n\n" + table([cells(row, rows[0]) for row in rows])
    return text


def cells(row: dict, full: dict) -> dict[str, str]:
    """A row in words."""
    out = {"": row["without"]}
    for kind, title in (("p", "P"), ("psp", "PSP")):
        for k in (1, 3, 5):
            mean, spread = row[f"{kind}_at_{k}"]
            best, other = full[f"{kind}_at_{k}"]
            cell = f"{100 * mean:.1f} ± {100 * spread:.1f}"
            out[f"{title}@{k}"] = f"**{cell}**" if best - mean > spread + other else cell
    return out


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
                rows.append(summarise(dataset, name, [each.result() for each in futures]))
                print(rows[-1], flush=True)
    publish("ablation", {"seeds": len(seeds), "rows": rows}, page, PAGES)


if __name__ == "__main__":
    main()
