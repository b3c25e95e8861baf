"""Runs that are killed at random moments, resumed, and compared with one that nothing disturbed.

Each run is a process that `fork` makes of one that has loaded all programs, so that it starts in
milliseconds and a kill hits the work, not the imports.
"""

import importlib
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import slide
from slide.config import command
from slide.ranking.base_scorer import BaseScorer
from slide.training.checkpoint import find_checkpoints, last_checkpoint, read_checkpoint
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
# Times are not repeated, nor is memory; the place of a run is another one.
_OTHER = re.compile("second|speed/|peak_rss|run_dir|date")


class Chain:
    """One run that is started, stopped and resumed until it ends; or the last one of a sweep."""

    def __init__(self, home: Path, overrides: tuple[str, ...], last: str = ""):
        self.home, self.run = home, home / "run" / last
        places = f"run_dir={home / 'run'}", f"dataset.cache={home / 'cache'}"
        self.first = [*overrides, *places]
        home.mkdir(parents=True, exist_ok=True)

    def start(self, prepare: Callable[[], object] = bool) -> int:
        """Begin or go on in a new process, which prepares itself; returns its number."""
        words = self.first
        if (self.run / "config.yaml").exists():
            words = [f"resume={self.run}"]
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
            read_checkpoint(folder)
        steps = [line["step"] for line in self.lines() if "train/loss" in line]
        assert steps == list(range(1, len(steps) + 1)), f"{self.run}: steps {steps}"

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
        for name, folder in {"checkpoint": last, "best": self.run / BEST}.items():
            found |= {f"{name} {p.name}": p.read_bytes() for p in folder.glob(f"*{SUFFIX}")}
        state = {k: v for k, v in read_checkpoint(last).items() if isinstance(v, int | float)}
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
    # (slide/ops/kernels/compile.py); the caller ends with the status of the child.
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    yield


def warm_up(home: Path, job: tuple[str, ...]) -> Chain:
    """The job, run once in this process, so that forked ones find all kernels compiled."""
    chain, before = Chain(home, job), sys.argv
    sys.argv = ["train.py", *chain.first]
    with (home / "said.txt").open("w") as file, redirect_stdout(file), redirect_stderr(file):
        command.train()
    sys.argv = before
    return chain


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
    if status:
        said = (chain.home / "said.txt").read_text()
        raise RuntimeError(f"{chain.home} ended with {os.waitstatus_to_exitcode(status)}: {said}")
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


def kill_chains(
    home: Path, kills: int, seed: int = 0, small: bool = False, more: tuple[str, ...] = ()
) -> dict:
    """Kill runs at random moments of random phases, and compare what they come to."""
    job = (*JOB, *(SMALL if small else ()), *more)
    warm, undisturbed = warm_up(home / "warm", job), Chain(home / "undisturbed", job)
    steps = warm.steps()
    seconds, expected = finish(undisturbed, steps), undisturbed.result()
    assert not compare(warm.result(), expected), "two runs that nothing disturbed differ"
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
                said = (chain.home / "said.txt").read_text()
                assert status in (-signal.SIGTERM, 143), f"{phase}: status {status}, {said}"
            if phases.total() == kills or chain.phase(steps) == PHASES[-1]:
                break
        finish(chain)
        chain.check()
        differing = compare(chain.result(), expected)
        assert not differing, f"{chain.home}: {', '.join(differing)}"
        shutil.rmtree(chain.home)
        print(f"{phases.total()} kills, {chains} runs", flush=True)
    counts = {"phases": dict(phases), "statuses": dict(statuses)}
    return counts | {"chains": chains, "steps": steps, "seconds": seconds}


# What phases call, at whose beginning or end a run is stopped; `scorers` has more of them.
PARTS = {
    "reading": "slide.data.sources.synthetic:generate_rows",
    "cache building": "slide.data.cache:write_split",
    "steps": "slide.training.loop:TrainingLoop.update",
    "checkpoint writing": "slide.utils.tensor_folder:write_file",
    "evaluation": "slide.training.trainer:predict_split",
    "final ranker": "slide.ranking.final_ranker:FinalRanker.fit",
    "summary": "slide.training.trainer:write_summary",
    "model": "slide.config.command:write_model",
    "report": "slide.config.command:write_report",
}
# Calls of it before the one that is stopped.
BEFORE = {"steps": 10, "checkpoint writing": 5}


def scorers(chain: Chain) -> dict[str, str]:
    """The base scorers that a run has trained, as `PARTS` has phases."""
    names = json.loads((chain.run / "model.json").read_text())["ranker"]["scorers"]
    known = {each.name: each for each in BaseScorer.__subclasses__()}
    return {
        f"scorer {name}": f"{known[name].__module__}:{known[name].__name__}.learn"
        for name in names
        if name in known
    }


def stopped_in(part: str, calls: int, number: int, late: bool) -> None:
    """Let this process get a signal where it calls a function for the time after some ``calls``."""
    room, _, path = part.partition(":")
    *above, name = path.split(".")
    owner: Any = importlib.import_module(room)
    for each in above:
        owner = getattr(owner, each)
    whole, left = getattr(owner, name), [calls]

    def stopped(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == -1 and not late:
            os.kill(os.getpid(), number)
        found = whole(*given, **named)
        if left[0] == -1 and late:
            os.kill(os.getpid(), number)
        return found

    setattr(owner, name, stopped)


def stop_once(chain: Chain, phase: str, part: str, calls: int, number: int, late: bool) -> dict:
    """Start a chain that is stopped in a part; returns how it ended, which must be as asked."""
    hook = partial(stopped_in, part, calls, number, late)
    status = os.waitstatus_to_exitcode(os.waitpid(chain.start(hook), 0)[1])
    said = (chain.home / "said.txt").read_text()
    wanted = (-signal.SIGKILL,) if number == signal.SIGKILL else (-signal.SIGTERM, 143)
    assert status in wanted, f"{phase}: status {status}, {said}"
    assert "Traceback" not in said, f"{phase}: {said}"
    row = {"phase": phase, "signal": signal.Signals(number).name, "late": late, "status": status}
    print(row, flush=True)
    return row


# Both signals, before and after what is called.
STRIKES = tuple(product((signal.SIGKILL, signal.SIGTERM), (False, True)))


def stop_in_each(home: Path, only: Collection[str] = (), job: tuple[str, ...] = ()) -> list[dict]:
    """Stop runs once in each phase, by each signal, and compare what they come to when resumed."""
    words = (*JOB, *SMALL, *job)
    warm, undisturbed = warm_up(home / "warm", words), Chain(home / "undisturbed", words)
    finish(undisturbed)
    expected, rows = undisturbed.result(), []
    assert not compare(warm.result(), expected), "two runs that nothing disturbed differ"
    parts, swept = {**PARTS, **scorers(warm)}, ("-m", *words, "trainer.keep_checkpoints=3,2")
    cases = {name: (words, "", part, BEFORE.get(name, 0)) for name, part in parts.items()}
    # Sweeps are stopped in their second run; the first one has left a whole model.
    second = {"steps": warm.steps() + 10, "final ranker": 1, "model": 1, "report": 1}
    for name, calls in second.items():
        cases[f"sweep, {name}"] = swept, "keep_checkpoints=2", PARTS[name], calls
    for phase, (number, late) in product(cases, STRIKES):
        if only and phase not in only:
            continue
        overrides, last, part, calls = cases[phase]
        # A comma in a path of a sweep stands between two of them.
        chain = Chain(home / f"{phase.replace(',', '')}-{number}-{late}", overrides, last)
        rows.append(stop_once(chain, phase, part, calls, number, late))
        if last:
            slide.load(chain.run.with_name("keep_checkpoints=3"))
        chain.check()
        finish(chain)
        chain.check()
        differing = compare(chain.result(), expected)
        assert not differing, f"{phase}, {number}: {', '.join(differing)}"
        shutil.rmtree(chain.home)
    return rows + stop_learning(home, undisturbed.run, only)


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


def stop_learning(home: Path, run: Path, only: Collection[str] = ()) -> list[dict]:
    """Stop models that learn on: the folder has the answers of before or of afterwards."""
    rows, after = [], Learner(home / "learning", ())
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
        rows.append(stop_once(chain, phase, LEARNING[phase], 0, number, late))
        assert chain.answers() in allowed, f"{phase}, {number}: other answers"
        learn_on(chain.run)
        shutil.rmtree(chain.home)
    return rows


def compare(found: dict, expected: dict) -> list[str]:
    return [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
