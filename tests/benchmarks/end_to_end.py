"""One epoch of Amazon-670K's shape through train.py, and how long it takes to get going.

    python tests/benchmarks/end_to_end.py

Each row is a process of its own: `python train.py dataset=amazon670k_like recipe=fast
trainer.epochs=1` on 490,449 generated rows, prepared beforehand, with 2,000 test rows to evaluate
on. Training seconds hold everything between the first batch and the last update, rebuilds included,
evaluation not.
Writes results/benchmarks/end_to_end.{json,md}.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import publish, table
from workload import CASES, EPOCH, JOB, ROOT

# So many that a case takes part of a minute.
STEPS = {"lsh, per sample": 500}
# step.py times these as well, and nothing else happens in them.
LEFT_OUT = {
    "lsh, shared, batch 512",
    "lsh, shared, batch 1024, 8192 active",
    "lsh, shared, bfloat16",
    "labels alone, batch 1024, bfloat16",
}


def train(overrides: list[str]) -> tuple[dict, float]:
    """The summary of a run, and the seconds from its start to the end of the first step."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        command = [sys.executable, str(ROOT / "train.py"), *JOB]
        command += ["dataset.test_samples=2000", "trainer.epochs=1", "trainer.log_every=1"]
        command += ["trainer.recall_every=0", f"run_dir={folder}", *overrides]
        begin = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        log, first = folder / "metrics.jsonl", 0.0
        while process.poll() is None:
            if not first and log.exists() and "train/loss" in log.read_text():
                first = time.perf_counter() - begin
            time.sleep(0.02 if not first else 0.5)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed")
        return json.loads((folder / "summary.json").read_text()), first


def import_seconds() -> float:
    """The best of five imports in processes of their own."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import slide"], check=True, cwd=ROOT)
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=EPOCH)
    arguments = parser.parse_args()
    sizes = [f"dataset.train_samples={arguments.rows}"]
    rows = []
    for name, overrides in CASES.items():
        if name in LEFT_OUT:
            continue
        train([*sizes, *overrides, "trainer.max_steps=2"])  # prepares the data and the kernels
        limit = [f"trainer.max_steps={STEPS[name]}"] if name in STEPS else []
        summary, first = train([*sizes, *overrides, *limit])
        label = f"{name}, {STEPS[name]} steps" if limit else name
        rows.append({"case": label, "first_step_seconds": round(first, 1)} | summary)
        print(name, first, summary, flush=True)
    publish("end_to_end", {"import_seconds": round(import_seconds(), 2), "rows": rows}, page)


def page(found: dict) -> str:
    cells = [
        {
            "": row["case"],
            "samples": f"{row['samples']:,}",
            "training, s": row["train_seconds"],
            "of it rebuilds, s": row["rebuild_seconds"],
            "samples/s": f"{row['samples_per_second']:,.0f}",
            "start to first step, s": row["first_step_seconds"],
            "peak memory, MiB": f"{row['peak_rss_mb']:,}",
            "P@1": f"{100 * row['p_at_1']:.2f}",
        }
        for row in found["rows"]
    ]
    return (
        "# One epoch of Amazon-670K's shape\n\n"
        "`python train.py dataset=amazon670k_like recipe=fast trainer.epochs=1` and overrides: "
        "135,909 features, 75 non-zeros a row, 128 hidden units, 670,091 outputs, 4,096 active "
        "where nothing else is said (labels alone: these are some 5,400) or 1,000 per sample. Each "
        "row is one process. Training seconds hold all of a step and all rebuilds, not evaluation. "
        "The data are generated, so P@1 only tells that something is learnt. "
        f"`import slide` takes {found['import_seconds']} s.\n\n" + table(cells)
    )


if __name__ == "__main__":
    main()
