"""Runs killed at random moments and resumed; how long a large checkpoint stops training.

    python tests/benchmarks/trust.py                      # 100 kills, some minutes
    python tests/benchmarks/trust.py --kills 3 --no-page  # a short trial
    python tests/benchmarks/trust.py --phases             # kills in each phase, sweep and save
    python tests/benchmarks/trust.py --parts stall spread  # these anew, the other figures stay

Writes results/trust.{json,md}.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from kills import PATIENT, PHASES, kill_chains, one_process, stop_in_each
from report import PAGES, last, publish, table
from runs import run_train

from slide import FullSampler, RowSparseAdam, SlideNetwork
from slide.training.checkpoint import Checkpoint
from slide.training.monitor import Counters

# Weights of 1 GB, and two moments of each.
FEATURES, HIDDEN, LABELS = 100_000, 784, 225_000
# Runs of one seed without runtime.deterministic.
REPEATED = (
    *("dataset=synthetic", "dataset.train_samples=10000", "dataset.test_samples=2000", "seed=1"),
)
REPEATS = 5
PARTS = ("kills", "stall", "spread")


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
    text = (
        f"# Kills, and large checkpoints\n\n{kills['chains']} runs of generated data in "
        f"deterministic mode, each of {kills['steps']} steps with a checkpoint at every seventh, "
        f"were killed {total} times with SIGKILL at random moments, and resumed each time. After "
        "each kill all checkpoints could be read, and no step was in the log twice. At the end "
        "checkpoint, model, log and summary were compared with those of a run that nothing "
        "disturbed, but for times: all runs were equal bit for bit.\n\n"
        f"{table(rows)}\n"
        "A checkpoint is written while training goes on, so kills in it are in training, too. Each "
        "process is forked from one that has loaded all programs.\n\n"
        f"{sum(statuses.values())} more times the runs were stopped by SIGTERM; they ended: "
        f"{asked or 'none'}. With 143 the run had begun: a step is completed, and a checkpoint "
        "written. With -15 the program was reading its configuration, or at its end.\n"
    )
    if patient := found.get("patience"):
        killed = sum(patient["phases"].values())
        text += (
            f"\n{patient['chains']} runs that end early, with the best weights of "
            f"`trainer.patience`, were killed {killed} times in the same way, and were equal, too; "
            "also what they keep of the best weights.\n"
        )
    if spread := found.get("spread"):
        text += (
            f"\nWithout `runtime.deterministic=true`, {REPEATS} runs of one seed "
            f"({' '.join(REPEATED)}), with all threads (`trainer.share_cores=false`), have "
            f"{shown(spread['all'])}. Beside a busy process, where they change the number of their "
            f"threads by themselves, they have {shown(spread['beside'])}. With it they are equal "
            "bit for bit, with any number of threads (tests/trust/test_threads.py).\n"
        )
    if stall:
        size = f"{stall['bytes'] / 1e9:.2f} GB"
        stalls = [
            {
                "checkpoint": label,
                "training waits, s": f"{stall[name]:.2f}",
                "complete after, s": f"{stall[f'{name}_complete']:.2f}",
            }
            for name, label in (
                ("prepared", "copied, and written in the background, for the first time"),
                ("next", "the same, later on"),
                ("whole", "written while all waits, as at the end of a run"),
            )
        ]
        text += (
            f"\nA checkpoint of {size} (weights and moments of {FEATURES:,} x {HIDDEN} x "
            f"{LABELS:,}), with all hashes; threads: {found['threads']}. The memory of the copy "
            f"comes from the system in the background, after the first step; here in "
            f"{stall['prepare']:.1f} s.\n\n{table(stalls)}\n"
            f"Reading it, with all hashes compared: {stall['read']:.1f} s.\n"
        )
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
            return
        if given.no_page:
            print(kill_chains(home, given.kills, given.seed, small=True))
            return
        found = last("trust", PAGES) if set(given.parts) < set(PARTS) else {}
        if "kills" in given.parts:
            found["kills"] = kill_chains(home, given.kills, given.seed)
            patient = home / "patience"
            found["patience"] = kill_chains(patient, given.kills // 4, given.seed, more=PATIENT)
        if "stall" in given.parts:
            (home / "stall").mkdir()
            found |= {"stall": measure_stall(home / "stall"), "threads": torch.get_num_threads()}
        if "spread" in given.parts:
            found["spread"] = measure_spread()
        kept = (*PARTS, "patience", "threads")
        publish("trust", {name: found[name] for name in kept if name in found}, page, PAGES)


if __name__ == "__main__":
    main()
