"""A long run with checkpoints, rebuilds and evaluation: does memory grow, does speed fall?

    python tests/benchmarks/soak.py                         # two hours, on a quiet machine
    python tests/benchmarks/soak.py runtime.threads=1       # beside other work
    python tests/benchmarks/soak.py --minutes 1 --no-page   # a short trial

Other work on the machine takes its caches and slows the run down. So a gauge, a fixed piece of work
like that of a step, is timed again and again, and steps are counted in its time.

Writes results/soak.{json,md,png}.
"""

import argparse
import itertools
import json
import os
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
# Rows of 128 numbers, as many as outputs and their moments; and how many of them the gauge takes.
GAUGE, TAKEN = 180_000, 20_000


class Gauge:
    """A fixed piece of work: rows are taken from everywhere, multiplied, and put back."""

    def __init__(self) -> None:
        draws = np.random.default_rng(0)
        self._rows = draws.random((GAUGE, 128), dtype=np.float32)
        self._ids = draws.integers(0, GAUGE, TAKEN)
        self._batch = draws.random((32, 128), dtype=np.float32)

    def __call__(self) -> float:
        """Processor seconds of this thread for the work."""
        begin = time.thread_time()
        taken = self._rows[self._ids]
        self._rows[self._ids] = taken + 1e-9 * (self._batch @ taken.T).sum(0)[:, None]
        return time.thread_time() - begin


def watch(minutes: float, more: list[str]) -> dict:
    """Let a run go on for some minutes, and look at it again and again.

    Each look has ``seconds`` since the start, ``processor`` seconds of the run, ``mib`` of memory,
    the last ``step`` that is in its log, and seconds of the ``gauge``.
    """
    looks, step, gauge = [], 0, Gauge()
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
            begin, log, lines = time.time(), None, []
            while process.poll() is None and time.time() - begin < 60 * minutes:
                time.sleep(min(5.0, minutes))
                if log is None and (run / "metrics.jsonl").exists():
                    log = (run / "metrics.jsonl").open()
                if log is not None:
                    lines += [json.loads(line) for line in log]  # Whole lines are written.
                    step = lines[-1]["step"] if lines else 0
                now = {"seconds": time.time() - begin, "step": step, "gauge": gauge()}
                looks.append(now | {"processor": used(process.pid), "mib": held(process.pid)})
            process.terminate()
            status = process.wait()
            said.seek(0)
            if status != 143:  # It was asked to end, and ends after a step.
                raise RuntimeError(f"the run ended with {status}: {said.read()[-2000:]}")
            if log is None:
                raise ValueError("the trial is too short: the run has not begun to train")
            log.close()
        done = {
            "evaluations": sum("eval/p_at_1" in x for x in lines),
            "checkpoints": max(int(p.name.split("-")[0]) for p in (run / "checkpoints").iterdir()),
            "steps": step,
        }
    return {"minutes": minutes, "more": more, "looks": looks, "done": done}


def used(process: int) -> float:
    """Processor seconds of a process, of all its threads."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def held(process: int) -> float:
    """Memory of arrays and the like of a process, in MiB; files that it has mapped do not count."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def parts(found: dict) -> list[dict[str, float]]:
    """Of each part the most memory, and the steps in some time, by three clocks."""
    seconds, processor, mib, step, gauge = (
        np.array([look[key] for look in found["looks"]], float)
        for key in ("seconds", "processor", "mib", "step", "gauge")
    )
    # By processor seconds: there may be pauses.
    bounds = processor[-1] * (WARM + (1 - WARM) * np.arange(PARTS + 1) / PARTS)
    rows = []
    for begin, end in itertools.pairwise(bounds):
        (inside,) = np.nonzero((processor >= begin) & (processor <= end))
        if len(inside) < 2:
            raise ValueError("the trial is too short: a part of it has no two looks")
        first, last = inside[0], inside[-1]
        steps = step[last] - step[first]
        effort = float(steps / (processor[last] - processor[first]))
        rows.append(
            {
                "mib": float(mib[inside].max()),
                "speed": float(steps / (seconds[last] - seconds[first])),
                "effort": effort,
                "gauge": float(1000 * gauge[inside].mean()),
                "share": effort * float(gauge[inside].mean()),
            }
        )
    return rows


def page(found: dict) -> str:
    """The generated page."""
    each, done = parts(found), found["done"]
    mib, share = ([row[key] for row in each] for key in ("mib", "share"))
    grown = max(mib) / mib[0] - 1
    fallen = 1 - min(share) / np.median(share)
    said = []
    for what, value, limit in (
        ("Memory grows by", grown, MEMORY),
        ("by the gauge, the slowest part is behind the median part by", fallen, SPEED),
    ):
        much = ", TOO MUCH" if value > limit else ""
        said.append(f"{what} {100 * value:.1f} % ({100 * limit:.0f} % allowed{much})")
    half, halves = PARTS // 2, []
    for name, key in (("a processor second", "effort"), ("the time of the gauge", "share")):
        first, last = (np.median([row[key] for row in some]) for some in (each[:half], each[half:]))
        halves.append(f"steps in {name} {100 * (last / first - 1):+.1f} %")
    rows = [
        {
            "part": i + 1,
            "memory at most, MiB": f"{row['mib']:,.1f}",
            "steps in a second": f"{row['speed']:.1f}",
            "steps in a processor second": f"{row['effort']:.1f}",
            "gauge, ms": f"{row['gauge']:.2f}",
            "steps in the time of the gauge": f"{row['share']:.3f}",
        }
        for i, row in enumerate(each)
    ]
    more = f" ({', '.join(f'`{word}`' for word in found['more'])})" if found["more"] else ""
    return (
        f"# A long run\n\n{found['minutes']:g} minutes, of which the run had the processor for "
        f"{found['looks'][-1]['processor'] / 60:.0f}{more}, with {done['steps']:,} steps, "
        f"{done['checkpoints']} checkpoints and {done['evaluations']} evaluations; hash tables are "
        f"rebuilt after 20,000 samples and redrawn after 200,000. After a warm-up of "
        f"{100 * WARM:.0f} %, the rest has {PARTS} parts of equal processor time. "
        f"{said[0]}; {said[1]}. The median of the last half of the parts beside that of the first "
        f"half: {', '.join(halves)}. Steps in a "
        "second depend on what else the machine does, and those in a processor second on what "
        "else is in its caches. So a gauge, a fixed piece of work that takes rows from memory as a "
        "step does, is timed every five seconds, in processor seconds, and the last column is "
        "steps in its time. Evaluations, checkpoints and rebuilds are in all of them.\n\n"
        f"{table(rows)}\n![Memory and speed over time](soak.png)\n"
    )


def draw(found: dict, path: Path) -> None:
    """Memory and speed over time as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    looks = found["looks"]
    minutes = np.array([look["seconds"] / 60 for look in looks])
    figure, (above, below) = pyplot.subplots(2, figsize=(8, 5), layout="constrained")
    above.plot(minutes, [look["mib"] for look in looks], linewidth=1)
    above.set(xlabel="minutes", ylabel="memory, MiB", ylim=(0, None))
    each = parts(found)
    below.plot(range(1, PARTS + 1), [row["share"] for row in each], "o-")
    below.set(xlabel="part", ylabel="steps in the time of the gauge", ylim=(0, None))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("more", nargs="*", help="overrides of the run")
    parser.add_argument("--render", action="store_true", help="the page anew, without measuring")
    given = parser.parse_args()
    if given.render:
        found = json.loads((PAGES / "soak.json").read_text())
    else:
        found = watch(given.minutes, given.more)
    if given.no_page:
        print(page(found))
        draw(found, Path(tempfile.gettempdir()) / "soak.png")
    else:
        publish("soak", found, page, PAGES)
        draw(found, PAGES / "soak.png")


if __name__ == "__main__":
    main()
