"""Precision and training time of every way to choose active sets, on real data.

    python tests/benchmarks/real.py --root ../shared/data

Each row is one run of train.py as a process of its own, on the whole test set, with the recipe of
its data set; only the sampler differs. Writes results/real.md and results/real.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import insert, machine, table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
# Outputs in a set of a sample's own. A set for the batch holds the recipe's number, four times as
# many: it costs less a sample, since its products are dense.
PER_SAMPLE = {"debian": 512, "bibtex": 16, "delicious": 64}
CHOICES = {
    "full": ["sampler=full"],
    "lsh, shared": ["sampler=lsh", "sampler.mode=shared"],
    "lsh, per sample": ["sampler=lsh", "sampler.mode=per_sample"],
    "faiss, shared": ["sampler=faiss", "sampler.mode=shared"],
    "faiss, per sample": ["sampler=faiss", "sampler.mode=per_sample"],
    "uniform, shared": ["sampler=uniform", "sampler.mode=shared"],
    "uniform, per sample": ["sampler=uniform", "sampler.mode=per_sample"],
}


def run(dataset: str, root: Path | None, overrides: list[str]) -> dict:
    """Train once; the run's summary."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        command = [sys.executable, str(ROOT / "train.py"), f"dataset={dataset}"]
        command += [f"dataset.root={root / dataset}"] if root else []
        command += [f"run_dir={folder}", *overrides]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return json.loads((folder / "summary.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="folder with a folder a data set")
    root = parser.parse_args().root.resolve()
    # A warm-up, so that no row pays for the compilation of kernels.
    for overrides in CHOICES.values():
        run("bibtex", root, [*overrides, "trainer.max_steps=2"])
    rows = []
    for dataset in PER_SAMPLE:
        for name, overrides in CHOICES.items():
            if "sampler.mode=per_sample" in overrides:
                overrides = [*overrides, f"sampler.active={PER_SAMPLE[dataset]}"]
            summary = run(dataset, root, overrides)
            rows.append({"dataset": dataset, "sampler": name} | summary)
            print(dataset, name, summary["p_at_1"], summary["train_seconds"], flush=True)
    default = run("synthetic", None, [])
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "rows": rows,
        "default": default,
    }
    (RESULTS / "real.json").write_text(json.dumps(found, indent=1) + "\n")
    write(found)


def write(found: dict) -> None:
    """The page, and the blocks of the README."""
    (RESULTS / "real.md").write_text(page(found))
    insert(ROOT / "README.md", "real", summary_table(found["rows"]))
    insert(ROOT / "README.md", "expect", expectation(found))


def summary_table(rows: list[dict]) -> str:
    """A line a sampler, a column a data set: P@1 / P@3 / P@5, and seconds of training."""
    cells = {}
    for row in rows:
        precision = " / ".join(f"{100 * row[f'p_at_{k}']:.1f}" for k in (1, 3, 5))
        line = cells.setdefault(row["sampler"], {"sampler": row["sampler"]})
        line[row["dataset"]] = f"{precision}, {row['train_seconds']:.0f} s"
    return table(list(cells.values()))


def expectation(found: dict) -> str:
    """What a newcomer may expect of the main job."""
    summary = found["default"]
    precision = "  ".join(f"P@{k} {summary[f'p_at_{k}']:.4f}" for k in (1, 3, 5))
    return (
        f"On {found['machine']} the training takes {summary['train_seconds']:.0f} seconds, and "
        f"the last line reads\n`{precision}  results/synthetic/<time stamp>`.\n"
        "Always answering the most frequent label would give a P@1 of "
        f"{summary['majority_p_at_1']:.4f}.\n"
    )


def page(found: dict) -> str:
    """The generated page."""
    rows = found["rows"]
    columns = {
        "data set": "dataset",
        "sampler": "sampler",
        "outputs a set": "active_mean",
        "P@1": "p_at_1",
        "P@3": "p_at_3",
        "P@5": "p_at_5",
        "PSP@1": "psp_at_1",
        "training, s": "train_seconds",
        "of it rebuilds, s": "rebuild_seconds",
        "samples/s": "samples_per_second",
    }
    cells = [{title: row[key] for title, key in columns.items()} for row in rows]
    for row in cells:
        for title in ("P@1", "P@3", "P@5", "PSP@1"):
            row[title] = f"{100 * row[title]:.1f}"
    return (
        "# Real data: precision and training time by sampler\n\n"
        f"Made by `python tests/benchmarks/real.py` on {found['date']}; {found['machine']}; "
        f"{', '.join(f'{k} {v}' for k, v in rows[0]['versions'].items())}.\n\n"
        "One run a row, seed 0, the recipe of the data set, evaluated once on the whole test set "
        "with exact search. Training time holds all of a step (batch, selection, products, "
        "gradients, updates, rebuilds), not evaluation. A set also holds the labels of its samples "
        "(shared: of the whole batch), so it may be larger than asked for: with few labels a "
        "shared set is nearly full.\n\n" + table(cells)
    )


if __name__ == "__main__":
    main()
