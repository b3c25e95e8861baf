"""Runs killed at random moments and resumed; how long a large checkpoint stops training.

    python benchmarks/trust.py                      # 100 kills, some minutes
    python benchmarks/trust.py --kills 3 --no-page  # a short trial
    python benchmarks/trust.py --phases             # kills in each phase, sweep and save
    python benchmarks/trust.py --parts stall spread  # these anew, the other figures stay

Each run is a process that `fork` makes of one that has loaded all programs, so that it starts in
milliseconds and a kill hits the work, not the imports. Writes results/trust.{json,md}.
"""

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import cache, partial
from itertools import product
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from harness import PAGES, last, prose, publish, run_train, table

import slide
from slide import FullSampler, RowSparseAdam, SlideNetwork
from slide.config import command
from slide.ranking.base_scorer import BaseScorer
from slide.training.checkpoint import (
    Checkpoint,
    find_checkpoints,
    find_folders,
    last_checkpoint,
    read_states,
)
from slide.training.monitor import Counters
from slide.training.stopping import BEST
from slide.utils.tensor_folder import SUFFIX

# The parts of this job take about equal times.
JOB = (
    *("dataset=synthetic", "dataset.train_samples=1500", "dataset.test_samples=200"),
    *("dataset.num_features=400", "dataset.num_labels=300", "dataset.nonzeros=20"),
    *("transform.tf_idf=true", "network.hidden=[64]", "sampler.active=64"),
    *("trainer.batch_size=32", "trainer.epochs=auto", "trainer.max_epochs=2"),
    *("trainer.checkpoint_every=7", "trainer.eval_every=20", "trainer.log_every=1"),
    *("runtime.deterministic=true", "runtime.threads=1"),
)
# A smaller one, for a short trial.
SMALL = ("dataset.train_samples=500", "dataset.test_samples=50", "dataset.num_labels=100")
# A run that ends early, with the best weights, which it keeps in a folder of their own.
PATIENT = ("trainer.epochs=12", "trainer.patience=1", "optimizer.lr=0.02")
PHASES = ("preparation", "training", "a checkpoint", "evaluation and re-ranking", "the end")
# A run ends the sooner the later it is stopped.
WEIGHTS = (2, 4, 3, 3, 1)
# A run is stopped at most so often; the fourth time and so on by SIGTERM.
STOPS = 8
# Times are not repeated, nor is memory; and runs have other folders.
_OTHER = re.compile("second|speed/|peak_rss|run_dir|date")


class Chain:
    """One run that is started, stopped and resumed until it ends; or the last one of a sweep."""

    def __init__(self, home: Path, overrides: tuple[str, ...], last: str = ""):
        self.home, self.run = home, home / "run" / last
        self.first = [*overrides, f"run_dir={home / 'run'}", f"dataset.cache={home / 'cache'}"]
        home.mkdir(parents=True, exist_ok=True)

    def start(self, prepare: Callable[[], object] = bool) -> int:
        """Begin or go on in a new process, which prepares itself; returns its number."""
        known = (self.run / "config.yaml").exists()
        words = [f"resume={self.run}"] if known else self.first
        sys.stdout.flush()
        process = os.fork()
        if not process:
            prepare()
            _become(words, self.home / "said.txt")
        return process

    def phase(self, steps: float = math.inf) -> str:
        """What the run is doing, or did when it stopped, as its files tell."""
        if not (self.run / "config.yaml").exists():
            return PHASES[0]
        if list((self.run / "checkpoints").glob("*.tmp")):
            return PHASES[2]
        if (self.run / "summary.json").exists():
            return PHASES[4]
        return PHASES[1] if self.steps() < steps else PHASES[3]

    def steps(self) -> int:
        return max((line["step"] for line in self.lines() if "train/loss" in line), default=0)

    def check(self) -> None:
        """Raise AssertionError unless all checkpoints are whole and no step stands there twice."""
        for folder in find_checkpoints(self.run):
            read_states(folder)
        steps = [line["step"] for line in self.lines() if "train/loss" in line]
        assert steps == list(range(1, len(steps) + 1)), f"{self.run}: steps {steps}"

    def said(self) -> str:
        return (self.home / "said.txt").read_text()

    def lines(self) -> Iterator[dict]:
        """The lines of the log; the last one may be cut off."""
        path = self.run / "metrics.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            if line.endswith("}"):
                yield json.loads(line)

    def result(self) -> dict:
        """What must be equal at the end, bit for bit, by name."""
        last = last_checkpoint(self.run)
        assert last is not None, f"{self.run} has no checkpoint"
        found: dict = {path.name: path.read_bytes() for path in self.run.glob(f"*{SUFFIX}")}
        best = find_folders(self.run / BEST)
        for name, folder in [("checkpoint", last), *(("best", each) for each in best)]:
            found |= {f"{name} {p.name}": p.read_bytes() for p in folder.glob(f"*{SUFFIX}")}
        (state,) = read_states(last)
        state = {k: v for k, v in state.items() if isinstance(v, int | float)}
        found |= {"counters": _same(state), "log": [_same(line) for line in self.lines()]}
        found["summary"] = _same(json.loads((self.run / "summary.json").read_text()))
        return found


def _same(values: dict) -> dict:
    return {name: value for name, value in values.items() if not _OTHER.search(name)}


def _become(words: list[str], said: Path) -> None:
    """In a forked process: the command, whose output goes to a file; it does not return."""
    status = 1
    try:
        with said.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.argv = ["train.py", *words]
        command.train()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
        print(error.code, file=sys.stderr)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@contextmanager
def one_process() -> Iterator[None]:
    """Inside of it, a process from which others can be forked at any time: it has no threads."""
    # Threads of parallel kernels do not survive a fork. In a child kernels are serial
    # (slide/ops/compile.py); the caller ends with the status of the child.
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    yield


@cache
def undisturbed(home: Path, job: tuple[str, ...]) -> tuple[Chain, dict[str, float], dict]:
    """A chain that nothing stops, the seconds of its phases, and what it comes to.

    The job runs once in this process first, so that forked ones find all kernels compiled.
    """
    warm, chain, before = Chain(home / "warm", job), Chain(home / "undisturbed", job), sys.argv
    sys.argv = ["train.py", *warm.first]
    with (warm.home / "said.txt").open("w") as file, redirect_stdout(file), redirect_stderr(file):
        command.train()
    sys.argv = before
    seconds, expected = finish(chain, warm.steps()), chain.result()
    assert not compare(warm.result(), expected), "two runs that nothing disturbed differ"
    return chain, seconds, expected


def compare(found: dict, expected: dict) -> list[str]:
    return [name for name in {**expected, **found} if found.get(name) != expected.get(name)]


def finish(chain: Chain, steps: float = math.inf) -> dict[str, float]:
    """Let a chain of ``steps`` steps go on to its end; returns the seconds of each phase."""
    process, seconds, last = chain.start(), Counter(), time.perf_counter()
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        now = time.perf_counter()
        seconds[chain.phase(steps)] += now - last
        if done:
            break
        last = now
        time.sleep(0.002)
    assert not status, f"{chain.home}: {os.waitstatus_to_exitcode(status)}, {chain.said()}"
    return dict(seconds)


def strike(chain: Chain, number: int, reached: Callable[[], bool], delay: float) -> int | None:
    process, end = chain.start(), math.inf
    while time.perf_counter() < end:
        if os.waitpid(process, os.WNOHANG)[0]:
            return None
        if end == math.inf and reached():
            end = time.perf_counter() + delay
        time.sleep(0.0005)
    os.kill(process, number)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) or None


def resumed(chain: Chain, expected: dict) -> None:
    """Let a chain go on to its end, which must be the expected one."""
    finish(chain)
    chain.check()
    differing = compare(chain.result(), expected)
    assert not differing, f"{chain.home}: {', '.join(differing)}"
    shutil.rmtree(chain.home)


def kill_chains(home: Path, kills: int, seed: int, more: tuple[str, ...] = ()) -> dict:
    """Kill runs at random moments of random phases, and compare what they come to."""
    job = (*JOB, *more)
    whole, seconds, expected = undisturbed(home, job)
    steps = whole.steps()
    draw, phases, chains, statuses = random.Random(seed), Counter(), 0, Counter()
    while phases.total() < kills:
        chain, chains = Chain(home / str(chains), job), chains + 1
        for stop in range(STOPS):
            at = PHASES.index(chain.phase(steps))
            (phase,) = draw.choices(PHASES[at:], WEIGHTS[at:])
            reached = partial(lambda chain, phase: chain.phase(steps) == phase, chain, phase)
            number = signal.SIGTERM if stop % 4 == 3 else signal.SIGKILL
            status = strike(chain, number, reached, draw.uniform(0, seconds.get(phase, 0.0)))
            if status is None:
                break
            chain.check()
            if number == signal.SIGKILL:
                phases[chain.phase(steps)] += 1
            else:
                statuses[status] += 1
                assert status in (-signal.SIGTERM, 143), f"{phase}: {status}, {chain.said()}"
            if phases.total() == kills or chain.phase(steps) == PHASES[-1]:
                break
        resumed(chain, expected)
        print(f"{phases.total()} kills, {chains} runs", flush=True)
    counts = {"phases": dict(phases), "statuses": dict(statuses)}
    return counts | {"chains": chains, "steps": steps, "seconds": seconds}


# What phases call, at whose beginning or end a run is stopped; `scorers` has more of them.
FUNCTIONS = {
    "reading": "slide.data.sources.synthetic:generate_rows",
    "cache building": "slide.data.cache:write_split",
    "steps": "slide.training.loop:TrainingLoop.update",
    "checkpoint writing": "slide.utils.tensor_folder:write_file",
    "evaluation": "slide.training.trainer:predict_split",
    "final ranker": "slide.ranking.final_ranker:FinalRanker.fit",
    "summary": "slide.training.trainer:write_summary",
    "model": "slide.model.run:write_model",
    "report": "slide.report:write_report",
}
# Calls of it before the one that is stopped.
BEFORE = {"steps": 10, "checkpoint writing": 5}
# Other runs, and the scorers that only they train.
OTHERS = {
    "items": (
        ("trainer.kind=items", "dataset.num_features=100"),
        ("scorer item_similarity",),
    ),
    "graph": (("trainer.kind=graph",), ("scorer analogous",)),
    "short": (("dataset.labels_per_row=1",), ("scorer label_tree",)),
}


def scorers(chain: Chain) -> dict[str, str]:
    """The base scorers that a run has trained, as `FUNCTIONS` has phases."""
    names = json.loads((chain.run / "model.json").read_text())["ranker"]["scorers"]
    known = [each for each in BaseScorer.__subclasses__() if each.name in names]
    return {f"scorer {c.name}": f"{c.__module__}:{c.__name__}.learn" for c in known}


def stopped_in(part: str, calls: int, number: int, late: bool) -> None:
    """Let this process get a signal where it calls a function for the time after some ``calls``."""
    whole, left = resolve_name(part), [calls]

    def stopped(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == -1 and not late:
            os.kill(os.getpid(), number)
        found = whole(*given, **named)
        if left[0] == -1 and late:
            os.kill(os.getpid(), number)
        return found

    patch(part.replace(":", "."), stopped).start()


def stop_once(chain: Chain, phase: str, part: str, calls: int, number: int, late: bool) -> None:
    """Start a chain that is stopped in a part; it must end as asked."""
    hook = partial(stopped_in, part, calls, number, late)
    status = os.waitstatus_to_exitcode(os.waitpid(chain.start(hook), 0)[1])
    wanted = (-number, 143) if number == signal.SIGTERM else (-number,)
    assert status in wanted, f"{phase}: status {status}, {chain.said()}"
    assert "Traceback" not in chain.said(), f"{phase}: {chain.said()}"
    name = signal.Signals(number).name
    print({"phase": phase, "signal": name, "late": late, "status": status}, flush=True)


# Both signals, before and after what is called.
STRIKES = tuple(product((signal.SIGKILL, signal.SIGTERM), (False, True)))


def stop_in_each(home: Path, only: Collection[str]) -> None:
    """Stop runs once in each phase, by each signal, and compare what they come to when resumed."""
    words = (*JOB, *SMALL)
    whole, _, expected = undisturbed(home, words)
    parts, swept = FUNCTIONS | scorers(whole), ("-m", *words, "trainer.keep_checkpoints=3,2")
    cases = {name: (words, "", part, BEFORE.get(name, 0)) for name, part in parts.items()}
    results = dict.fromkeys(cases, expected)
    for kind, (more, names) in OTHERS.items():
        for name in names:
            if not only or name in only:
                other = (*words, *more)
                made, _, results[name] = undisturbed(home / kind, other)
                cases[name] = other, "", scorers(made)[name], 0
    # Sweeps are stopped in their second run; the first one has left a whole model.
    second = {"steps": whole.steps() + 10, "final ranker": 1, "model": 1, "report": 1}
    for name, calls in second.items():
        cases[f"sweep, {name}"] = swept, "keep_checkpoints=2", FUNCTIONS[name], calls
    for phase, (number, late) in product(cases, STRIKES):
        if only and phase not in only:
            continue
        overrides, last, part, calls = cases[phase]
        # A comma in a path of a sweep stands between two of them.
        chain = Chain(home / f"{phase.replace(',', '')}-{number}-{late}", overrides, last)
        stop_once(chain, phase, part, calls, number, late)
        if last:
            slide.load(chain.run.with_name("keep_checkpoints=3"))
        chain.check()
        resumed(chain, results.get(phase, expected))
    stop_learning(home, whole.run, only)


# What a program calls that opens a model, lets it learn and saves it where it was.
LEARNING = {
    "partial_fit": "slide.training.loop:TrainingLoop.update",
    "save, a file": "slide.utils.tensor_folder:write_file",
    "save, the list": "slide.utils.tensor_folder:write_list",
    "save, the moves": "slide.utils.tensor_folder:_install",
}


class Learner(Chain):
    """A model that learns on in a process of its own."""

    def start(self, prepare: Callable[[], object] = bool) -> int:
        (self.home / "said.txt").touch()
        process = os.fork()
        if not process:
            prepare()
            learn_on(self.run)
            os._exit(0)
        return process

    def answers(self) -> tuple[bytes, bytes]:
        found = slide.load(self.run).predict(np.eye(400, dtype=np.float32)[:50], k=5)
        return found.labels.tobytes(), found.scores.tobytes()


def learn_on(folder: Path) -> None:
    torch.manual_seed(0)  # Of dropout.
    model, rows = slide.load(folder), np.eye(400, dtype=np.float32)[:64]
    model.partial_fit(rows, [[row % 7] for row in range(64)], lr=0.05).save(folder)


def stop_learning(home: Path, run: Path, only: Collection[str]) -> None:
    """Stop models that learn on: the folder has the answers of before or of afterwards."""
    after = Learner(home / "learning", ())
    shutil.copytree(run, after.run)
    before = after.answers()
    os.waitpid(after.start(), 0)
    allowed = before, after.answers()
    assert before != allowed[1]
    for phase, (number, late) in product(LEARNING, STRIKES):
        if only and phase not in only:
            continue
        chain = Learner(home / f"{phase}-{number}-{late}", ())
        shutil.copytree(run, chain.run)
        stop_once(chain, phase, LEARNING[phase], 0, number, late)
        assert chain.answers() in allowed, f"{phase}, {number}: other answers"
        learn_on(chain.run)
        shutil.rmtree(chain.home)


# Weights of 1 GB, and two moments of each.
FEATURES, HIDDEN, LABELS = 100_000, 784, 225_000
# Runs of one seed without runtime.deterministic.
REPEATED = (
    *("dataset=synthetic", "dataset.train_samples=10000", "dataset.test_samples=2000", "seed=1"),
)
REPEATS = 5
PARTS = ("kills", "stall", "spread", "opening")
# Labels of Amazon-670K, and hidden units, of a model that is opened.
OPENED = 670_091, 512
CHECKPOINTS = {
    "prepared": "copied, and written in the background, for the first time",
    "next": "the same, later on",
    "whole": "written while all waits, as at the end of a run",
}


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


def measure_stall(home: Path) -> dict[str, float]:
    """Seconds for which a checkpoint of a large state stops training, and its size."""
    network = SlideNetwork(FEATURES, [HIDDEN], LABELS, FullSampler)
    optimizer = RowSparseAdam(network.parameters())
    for weight in network.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    checkpoint, counters, found = Checkpoint(home, network, optimizer), Counters(), {}
    for name in ("prepared", "next", "whole"):
        if name == "prepared":
            begin = time.perf_counter()
            checkpoint.prepare()
            checkpoint.wait()
            found["prepare"] = time.perf_counter() - begin
        counters.step += 1
        begin = time.perf_counter()
        (checkpoint.write if name == "whole" else checkpoint.begin)(counters)
        found[name] = time.perf_counter() - begin
        checkpoint.wait()
        found[f"{name}_complete"] = time.perf_counter() - begin
    newest = checkpoint.last()
    assert newest is not None
    found["bytes"] = sum(path.stat().st_size for path in newest.iterdir())
    begin = time.perf_counter()
    checkpoint.read()
    return found | {"read": time.perf_counter() - begin}


def measure_opening(home: Path) -> dict[str, float]:
    """The least seconds of five calls that open a large model, with hashes compared and without."""
    labels, hidden = OPENED
    slide.Model(SlideNetwork(1000, [hidden], labels, FullSampler)).save(home)
    seconds = {}
    for name, verify in (("seconds", False), ("verified_seconds", True)):
        taken = []
        for _ in range(5):
            begin = time.perf_counter()
            slide.load(home, verify=verify)
            taken.append(time.perf_counter() - begin)
        seconds[name] = min(taken)
    size = sum(path.stat().st_size for path in home.iterdir())
    return {"bytes": size, **seconds}


def measure_spread() -> dict[str, dict[str, list[float]]]:
    """P@1 and P@5 of runs that are alike: with all threads, and beside a busy process."""
    found = {}
    for name, others, more in (("all", 0, ("trainer.share_cores=false",)), ("beside", 1, ())):
        with busy(others):
            runs = [run_train(*REPEATED, *more) for _ in range(REPEATS)]
        found[name] = {score: [run[score] for run in runs] for score in ("p_at_1", "p_at_5")}
    return found


def page(found: dict) -> str:
    kills, stall = found["kills"], found["stall"]
    rows = [
        {
            "phase": name,
            "seconds of an undisturbed run": f"{kills['seconds'].get(name, 0):.2f}",
            "kills": kills["phases"].get(name, 0),
        }
        for name in PHASES
    ]
    total, statuses = sum(kills["phases"].values()), kills["statuses"]
    asked = ", ".join(f"{count} with status {status}" for status, count in statuses.items())
    text = prose(
        *("trust", "kills"),
        **{"kills": kills, "total": total, "table": table(rows)},
        **{"stopped": sum(statuses.values()), "asked": asked or "none"},
    )
    if patient := found.get("patience"):
        killed = sum(patient["phases"].values())
        text += prose("trust", "patience", chains=patient["chains"], killed=killed)
    if spread := found.get("spread"):
        told = {name: shown(scores) for name, scores in spread.items()}
        text += prose("trust", "spread", repeats=REPEATS, words=" ".join(REPEATED), **told)
    if stall:
        stalls = [
            {
                "checkpoint": label,
                "training waits, s": f"{stall[name]:.2f}",
                "complete after, s": f"{stall[f'{name}_complete']:.2f}",
            }
            for name, label in CHECKPOINTS.items()
        ]
        told = {"gigabytes": stall["bytes"] / 1e9, "sizes": (FEATURES, HIDDEN, LABELS)}
        told |= {"threads": found["threads"], "table": table(stalls)}
        text += prose("trust", "stall", **told, prepare=stall["prepare"], read=stall["read"])
    if opening := found.get("opening"):
        told = {"gigabytes": opening["bytes"] / 1e9, "labels": OPENED[0], "hidden": OPENED[1]}
        told["milliseconds"] = 1000 * opening["seconds"]
        told["verified"] = opening["verified_seconds"]
        text += prose("trust", "opening", **told)
    return text


def shown(spread: dict[str, list[float]]) -> str:
    return " and ".join(
        f"{label} from {min(values):.4f} to {max(values):.4f} (standard deviation "
        f"{statistics.stdev(values):.4f})"
        for label, values in zip(("P@1", "P@5"), spread.values(), strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phases", nargs="*", help="stop runs once in each phase, or in these")
    parser.add_argument("--no-page", action="store_true", help="kill runs of a smaller job only")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    before = one_process() if "kills" in given.parts else nullcontext()
    with before, tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if given.phases is not None:
            stop_in_each(home, given.phases)
        if given.no_page:
            print(kill_chains(home, given.kills, given.seed, SMALL))
        if given.no_page or given.phases is not None:
            return
        found = last("trust", PAGES) if set(given.parts) < set(PARTS) else {}
        if "kills" in given.parts:
            found["kills"] = kill_chains(home, given.kills, given.seed)
            patient = home / "patience"
            found["patience"] = kill_chains(patient, given.kills // 4, given.seed, PATIENT)
        if "stall" in given.parts:
            (home / "stall").mkdir()
            found |= {"stall": measure_stall(home / "stall"), "threads": torch.get_num_threads()}
        if "opening" in given.parts:
            found["opening"] = measure_opening(home / "opening")
        if "spread" in given.parts:
            found["spread"] = measure_spread()
        kept = (*PARTS, "patience", "threads")
        publish("trust", {name: found[name] for name in kept if name in found}, page, PAGES)


if __name__ == "__main__":
    main()
