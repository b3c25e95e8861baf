"""Training beside busy processes: samples in a second, and the share of the cores that it gets.

    python tests/benchmarks/sharing.py                 # some minutes, on a quiet machine
    python tests/benchmarks/sharing.py --seconds 1 --no-page  # a short trial

Each way of using threads is a process of its own; they take turns, beside 0, 1, 2 and 4 processes
that only count, and at last alone in a control group with the time of one core, as in a container;
groups take the rights of an administrator. Writes results/sharing.{json,md}.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core_group import group_of_cores
from numba.core import config
from report import RESULTS, publish, table
from train_process import ROOT

import slide
from slide import runtime
from slide.data import Batches, synthetic
from slide.training.sharing import CoreShare, run_and_waited

# Busy processes beside the one that trains, and turns of each way.
OTHERS, TURNS = (0, 1, 2, 4), 3
# In place of a number of others: the group.
GROUP = "in a group with the time of one core"
# Name, what it is in words, number of threads (0: of all cores it has the time of), and whether it
# looks for others.
WAYS = (
    ("fixed", "all threads", config.NUMBA_NUM_THREADS, False),
    ("shared", "all threads, fewer beside others (the default)", 0, True),
    ("one", "one thread", 1, False),
)
SIZES = {"num_features": 100_000, "num_labels": 100_000, "nonzeros": 30, "test_samples": 10}
BATCH = 256


def train(cache: Path, threads: int, watches: bool) -> None:
    """Trains for as many seconds as each line of standard input says, and prints what it did."""
    data = synthetic(cache=cache, train_samples=20_000, **SIZES)
    runtime.set_threads(threads)

    def sampler(inputs: int, outputs: int) -> slide.ActiveSampler:
        return slide.ActiveSampler(inputs, outputs, active=2048)

    network = slide.SlideNetwork(data.num_features, [256], data.num_labels, sampler, dropout=0.3)
    optimizer = slide.RowSparseAdam(network.parameters())
    loss, batches, step = slide.ActiveLoss("squared_hinge"), Batches(data.train, BATCH, 0), 0
    cores = CoreShare(None if watches else 1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        begin, first, before = time.perf_counter(), step, run_and_waited()
        while (seconds := time.perf_counter() - begin) < float(line):
            batch = batches.batch(*divmod(step, len(batches)))
            mean, _ = network.output.loss(network.encode(batch.features), batch.labels, loss)
            mean.backward()
            optimizer.step()
            cores.look()
            step += 1
        after = run_and_waited()
        ran = after[0] - before[0] if before and after else 0.0
        print(json.dumps({"speed": (step - first) * BATCH / seconds, "cores": ran / seconds}))
        sys.stdout.flush()


@contextmanager
def busy(number: int) -> Iterator[None]:
    """So many processes that count for ever, as nice as this one."""
    processes = [subprocess.Popen([sys.executable, "-c", "while 1: 0"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(seconds: float) -> list[dict]:
    """Samples in a second and used cores of each way beside each number of processes."""
    found: list[dict] = []
    with tempfile.TemporaryDirectory() as cache:
        with _ways(cache, seconds) as kids:
            for number in OTHERS:
                with busy(number):
                    found += _turns(kids, number, seconds)
        with group_of_cores(1) as members, _ways(cache, seconds, members) as kids:
            found += _turns(kids, GROUP, seconds)
    return found


@contextmanager
def _ways(
    cache: str, seconds: float, members: Path | None = None
) -> Iterator[dict[str, subprocess.Popen]]:
    """A process for each way, in a group or not, that has warmed up."""
    kids: dict[str, subprocess.Popen] = {}
    try:
        for name, *_ in WAYS:
            words = [sys.executable, "-W", "ignore", __file__, "--train", name, "--cache", cache]
            words += [] if members is None else ["--members", str(members)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            kids[name] = subprocess.Popen(words, cwd=ROOT, env=dict(os.environ), **pipes)
            assert kids[name].stdout.readline() == "ready\n"
            _turn(kids[name], min(seconds, 3.0))
        yield kids
    finally:
        for kid in kids.values():
            kid.kill()
            kid.wait()


def _turns(kids: dict[str, subprocess.Popen], others: int | str, seconds: float) -> list[dict]:
    found = []
    for turn in range(TURNS):
        for name, kid in kids.items():
            if not turn:
                _turn(kid, min(seconds, 2.0))  # It looks for others.
            found.append({"way": name, "others": others, **_turn(kid, seconds)})
            print(found[-1], flush=True)
    return found


def _turn(kid: subprocess.Popen, seconds: float) -> dict:
    assert kid.stdin is not None
    assert kid.stdout is not None
    kid.stdin.write(f"{seconds}\n")
    kid.stdin.flush()
    return json.loads(kid.stdout.readline())


def page(found: dict) -> str:
    """The generated page."""
    rows, quiet = [], {}
    for name, words, *_ in WAYS:
        row: dict[str, object] = {"samples in a second": words}
        for number in (*OTHERS, GROUP):
            turns = [t for t in found["turns"] if (t["way"], t["others"]) == (name, number)]
            best = sorted(turns, key=lambda turn: turn["speed"])[len(turns) // 2]
            quiet.setdefault(name, best["speed"])
            share = 100 * best["speed"] / quiet[name]
            told = f"{best['speed']:,.0f} ({share:.0f} %)" if number else f"{best['speed']:,.0f}"
            place = (f"beside {number}" if number else "alone") if number != GROUP else GROUP
            row[place] = f"{told}, {best['cores']:.1f} cores"
        rows.append(row)
    return (
        "# Sharing the machine\n\nTraining beside processes that only count, and are as nice: the "
        f"median of {TURNS} turns of {found['seconds']:.0f} s. In brackets the share of the speed "
        f"alone; cores: those that the process got on average. Synthetic data, {BATCH} rows in a "
        f"step, {SIZES['num_labels']:,} labels, 256 hidden neurons, 2,048 active outputs.\n\n"
        f"{table(rows)}\n"
        "Threads of a parallel kernel wait for its slowest one, so a thread without a core holds "
        "all of them up. `trainer.share_cores=true`, the default, takes only as many threads as "
        "get a core, and tries all of them again from time to time. In a control group with the "
        "time of one core, as in a container, two threads have used that time after half of each "
        "period of 0.1 s, and stand still for the rest; the default is one thread there.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn")
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--members", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        if given.members:
            given.members.write_text("0")
        (way,) = [each for each in WAYS if each[0] == given.train]
        train(given.cache, way[2], way[3])
        return
    found = {"seconds": given.seconds, "turns": measure(given.seconds)}
    text = page(found)
    if given.no_page:
        print(text)
    else:
        publish("sharing", found, page, RESULTS.parent)


if __name__ == "__main__":
    main()
