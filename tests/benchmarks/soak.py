"""A long run with checkpoints, rebuilds and evaluation: does memory grow, does speed fall?

    python tests/benchmarks/soak.py                         # two hours, on a quiet machine
    python tests/benchmarks/soak.py --minutes 1 --no-page   # a short trial

Writes results/soak.{json,md,png}.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from report import RESULTS, publish, table
from train_process import ROOT

PAGES = RESULTS.parent
# Hash tables are rebuilt all the time, and every part of a run comes again and again.
JOB = (
    *("dataset=synthetic", "dataset.train_samples=60000", "dataset.test_samples=3000"),
    *("dataset.num_features=60000", "dataset.num_labels=60000", "network.hidden=[128]"),
    *("sampler=lsh", "schedule=fixed", "schedule.every=20000", "schedule.redraw_every=200000"),
    *("trainer.batch_size=256", "trainer.epochs=1000000", "trainer.eval_every=500"),
    *("trainer.checkpoint_every=300", "trainer.log_every=20", "trainer.recall_every=400"),
    *("ranker=none", "report=false"),
)
# Of the whole time, this part warms up; the rest is divided into so many parts.
WARM, PARTS = 0.1, 10
# What is allowed between parts.
MEMORY, SPEED = 0.01, 0.05


def watch(minutes: float, more: list[str]) -> dict:
    """Let a run go on for some minutes; memory in MiB and samples in a second, over time."""
    memory = []
    with tempfile.TemporaryDirectory() as home:
        run = Path(home) / "run"
        words = [*JOB, *more, f"run_dir={run}", f"dataset.cache={home}/cache"]
        with (Path(home) / "said").open("w+") as said:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "train.py", *words],
                cwd=ROOT,
                stdout=said,
                stderr=said,
            )
            begin = time.time()
            while process.poll() is None and time.time() - begin < 60 * minutes:
                memory.append({"seconds": time.time() - begin, "mib": held(process.pid)})
                time.sleep(min(1.0, minutes))
            lines = (run / "metrics.jsonl").read_text().splitlines() if run.exists() else []
            process.terminate()
            status = process.wait()
            said.seek(0)
            if status != 143:  # It was asked to end, and ends after a step.
                raise RuntimeError(f"the run ended with {status}: {said.read()[-2000:]}")
        log = [json.loads(line) for line in lines]
        speed = [
            (x["step"], x["speed/samples_per_second"])
            for x in log
            if "speed/samples_per_second" in x
        ]
        done = {
            "evaluations": sum("eval/p_at_1" in x for x in log),
            "checkpoints": max(int(p.name.split("-")[0]) for p in (run / "checkpoints").iterdir()),
            "steps": log[-1]["step"],
        }
    return {"minutes": minutes, "memory": memory, "speed": speed, "done": done}


def held(process: int) -> float:
    """Memory of arrays and the like of a process, in MiB; files that it has mapped do not count."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def parts(found: dict) -> list[dict[str, float]]:
    """The most memory and the median speed of each part after the warm-up."""
    memory = np.array([[x["seconds"], x["mib"]] for x in found["memory"]])
    speed = np.array(found["speed"], float)
    rows = []
    for i in range(PARTS):
        bounds = WARM + (1 - WARM) * np.array([i, i + 1]) / PARTS
        times, steps = (values[-1, 0] * bounds for values in (memory, speed))
        now = memory[(memory[:, 0] >= times[0]) & (memory[:, 0] <= times[1]), 1]
        fast = speed[(speed[:, 0] >= steps[0]) & (speed[:, 0] <= steps[1]), 1]
        rows.append(
            {
                "mib": float(now.max(initial=0)),
                "speed": float(np.median(fast)) if len(fast) else 0.0,
            }
        )
    return rows


def page(found: dict) -> str:
    """The generated page."""
    each, done = parts(found), found["done"]
    mib, speed = ([row[key] for row in each] for key in ("mib", "speed"))
    grown = max(mib) / mib[0] - 1
    fallen = 1 - min(speed) / np.median(speed)
    said = []
    for what, value, limit in (("Memory grows", grown, MEMORY), ("speed falls", fallen, SPEED)):
        much = ", TOO MUCH" if value > limit else ""
        said.append(f"{what} by {100 * value:.1f} % ({100 * limit:.0f} % allowed{much})")
    rows = [
        {
            "part": i + 1,
            "memory at most, MiB": f"{row['mib']:,.0f}",
            "samples in a second, median": f"{row['speed']:,.0f}",
        }
        for i, row in enumerate(each)
    ]
    return (
        f"# A long run\n\n{found['minutes']:g} minutes with {done['steps']:,} steps, "
        f"{done['checkpoints']} checkpoints and {done['evaluations']} evaluations; hash tables are "
        f"rebuilt after 20,000 samples and redrawn after 200,000. After a warm-up of "
        f"{100 * WARM:.0f} %, the rest has {PARTS} equal parts. {said[0]}; {said[1]}.\n\n"
        f"{table(rows)}\n![Memory and speed over time](soak.png)\n"
    )


def draw(found: dict, path: Path) -> None:
    """Memory and speed over time as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, figsize=(8, 5), layout="constrained")
    minutes = [x["seconds"] / 60 for x in found["memory"]]
    above.plot(minutes, [x["mib"] for x in found["memory"]], linewidth=1)
    above.set(xlabel="minutes", ylabel="memory, MiB", ylim=(0, None))
    below.plot(*zip(*found["speed"], strict=True), linewidth=0.5)
    below.set(xlabel="steps", ylabel="samples in a second", ylim=(0, None))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("more", nargs="*", help="overrides of the run")
    given = parser.parse_args()
    found = watch(given.minutes, given.more)
    if given.no_page:
        print(page(found))
        draw(found, Path(tempfile.gettempdir()) / "soak.png")
    else:
        publish("soak", found, page, PAGES)
        draw(found, PAGES / "soak.png")


if __name__ == "__main__":
    main()
