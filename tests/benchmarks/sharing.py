"""Training beside busy processes: samples in a second, and the share of the cores that it gets.

    python tests/benchmarks/sharing.py                 # some minutes, on a quiet machine
    python tests/benchmarks/sharing.py --seconds 1 --no-page  # a short trial

Each way of using threads is a process of its own; they take turns, beside 0, 1, 2 and 4 processes
that only count, and at last alone in a control group with the time of one core, as in a container;
groups take the rights of an administrator. Two ways more have two Python threads that train a
network each, and a process made by fork, whose kernels are serial.

Writes results/sharing.{json,md}.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from core_group import group_of_cores
from numba.core import config
from report import RESULTS, publish, table
from train_process import ROOT

import slide
from slide import runtime
from slide.data import Batches, SparseDataset, synthetic
from slide.training.sharing import CoreShare

# Busy processes beside the one that trains, and turns of each way.
OTHERS, TURNS = (0, 1, 2, 4), 3
# In place of a number of others: the group.
GROUP = "in a group with the time of one core"


class Way(NamedTuple):
    """A way of using threads.

    Attributes:
        words: what it is.
        threads: of kernels; 0: one for each core that the process has the time of.
        watches: whether it takes fewer threads beside others.
        networks: each is trained by a Python thread of its own.
        forked: whether the process is a child of one that has used all threads.
    """

    words: str
    threads: int
    watches: bool = False
    networks: int = 1
    forked: bool = False


ALL = config.NUMBA_NUM_THREADS
WAYS = {
    "fixed": Way("all threads", ALL),
    "shared": Way("all threads, fewer beside others (the default)", 0, watches=True),
    "one": Way("one thread", 1),
    "two": Way("two Python threads, a network each", ALL, networks=2),
    "child": Way("a process made by fork", ALL, forked=True),
}
SIZES = {"num_features": 100_000, "num_labels": 100_000, "nonzeros": 30, "test_samples": 10}
BATCH = 256


class Training:
    """A network that is trained.

    Args:
        data: what it learns.
        watches: whether it takes fewer threads beside others.
    """

    def __init__(self, data: SparseDataset, watches: bool) -> None:
        self.network = slide.SlideNetwork(
            data.num_features, [256], data.num_labels, self._sampler, dropout=0.3
        )
        self.optimizer = slide.RowSparseAdam(self.network.parameters())
        self.loss, self.batches = slide.ActiveLoss("squared_hinge"), Batches(data.train, BATCH, 0)
        self.cores, self.steps = CoreShare(None if watches else 1), 0

    @staticmethod
    def _sampler(inputs: int, outputs: int) -> slide.ActiveSampler:
        return slide.ActiveSampler(inputs, outputs, active=2048)

    def until(self, end: float) -> None:
        """Make steps until a time of ``time.perf_counter``."""
        while time.perf_counter() < end:
            batch = self.batches.batch(*divmod(self.steps, len(self.batches)))
            hidden = self.network.encode(batch.features)
            mean, _ = self.network.output.loss(hidden, batch.labels, self.loss)
            mean.backward()
            self.optimizer.step()
            self.cores.look()
            self.steps += 1


def train(cache: Path, way: Way) -> None:
    """Trains for as many seconds as each line of standard input says, and prints what it did."""
    data = synthetic(cache=cache, train_samples=20_000, **SIZES)
    runtime.set_threads(way.threads)
    if way.forked:
        Training(data, way.watches).until(time.perf_counter() + 0.1)
        if child := os.fork():
            return sys.exit(os.waitpid(child, 0)[1])
    trained = [Training(data, way.watches) for _ in range(way.networks)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        begin, before = time.perf_counter(), time.process_time()
        first = sum(each.steps for each in trained)
        end = begin + float(line)
        if way.networks == 1:
            trained[0].until(end)
        else:  # Each Python thread has a number of threads of its own: here the one it begins with.
            with ThreadPoolExecutor(way.networks) as pool:
                list(pool.map(Training.until, trained, [end] * way.networks))
        seconds, ran = time.perf_counter() - begin, time.process_time() - before
        steps = sum(each.steps for each in trained) - first
        print(json.dumps({"speed": steps * BATCH / seconds, "cores": ran / seconds}))
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
        for name in WAYS:
            words = [sys.executable, "-W", "ignore", __file__, "--train", name, "--cache", cache]
            words += [] if members is None else ["--members", str(members)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            kids[name] = subprocess.Popen(words, cwd=ROOT, env=dict(os.environ), **pipes)
            assert kids[name].stdout.readline() == "ready\n"
            _turn(kids[name], min(seconds, 3.0))
        yield kids
    finally:
        for kid in kids.values():
            kid.communicate()  # It ends with its input, and a child of it with it.


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
    for name, way in WAYS.items():
        row: dict[str, object] = {"samples in a second": way.words}
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
        "period of 0.1 s, and stand still for the rest; the default is one thread there. Kernels "
        "that two Python threads call at once share the cores, and in a process made by fork, "
        "where the threads of its parent are missing, they are serial.\n"
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
        return train(given.cache, WAYS[given.train])
    found = {"seconds": given.seconds, "turns": measure(given.seconds)}
    text = page(found)
    if given.no_page:
        print(text)
    else:
        publish("sharing", found, page, RESULTS.parent)


if __name__ == "__main__":
    main()
