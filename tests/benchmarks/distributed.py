"""Several processes that share the rows of one network: speed, memory, messages, and a model.

    python tests/benchmarks/distributed.py            # about 15 minutes, on a quiet machine
    python tests/benchmarks/distributed.py --quick --results FOLDER   # a short trial
    python tests/benchmarks/distributed.py --render   # the page anew, without measuring

Each process has one thread. First all are on this machine, and beside them stand processes with
networks of their own, which exchange nothing: they tell what the machine can do. Then, where root
has ``ip`` and TUN devices, each is on a machine of its own: a network namespace with a link of a
rate and a delay; no more of them than cores, since each machine needs one. Runs alternate, and
figures are medians over the rounds. Beside these figures stand those of a model of the time of a
step, which is fitted to one and two processes on this machine.

Writes results/benchmarks/distributed.{json,md,png}.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from distributed_page import draw_curves, page
from links import LINKS, Link, device_of, machines, missing
from report import RESULTS, last, publish
from rows import commit

ROOT = Path(__file__).resolve().parents[2]
AMAZON = {"features": 135_909, "labels": 670_091}
CASES = {
    "Amazon-670K's shape": {**AMAZON, "batch": 256},
    "Amazon-670K's shape, batch 1024": {**AMAZON, "batch": 1024},
    "2^22 labels": {"features": 135_909, "labels": 2**22, "batch": 256},
}
# So many processes also run with a network each.
APART = 2
SMALL = {"a trial": {"features": 2000, "labels": 20_000, "batch": 64}}


def run(
    case: dict, processes: int, places: Sequence[Sequence[str]] = (), apart: bool = False
) -> dict:
    """What the processes of one run measured.

    Args:
        case: see `rank_steps`.
        processes: number of processes.
        places: of each process, what stands before its command; empty: all are on this machine.
        apart: whether each has a network of its own, at the same time.

    Raises:
        RuntimeError: if one of them ends with an error.
    """
    address = "10.77.0.1" if places else "127.0.0.1"
    port = _free_port()
    started = []
    for rank in range(processes):
        told = {"RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": address, "MASTER_PORT": port}
        told |= {"RANK": 0, "WORLD_SIZE": 1} if apart else {}
        told |= {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        told |= {"GLOO_SOCKET_IFNAME": device_of(rank) if places else "lo"}
        told |= {"PYTHONPATH": ROOT, "NUMBA_NUM_THREADS": 1, "OMP_NUM_THREADS": 1}
        program = Path(__file__).with_name("rank_steps.py")
        before = places[rank] if places else ()
        command = [*before, sys.executable, "-W", "ignore", str(program), json.dumps(case)]
        environment = os.environ | {name: str(value) for name, value in told.items()}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
    said = [process.communicate() for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"{processes} processes: {[error for _, error in said]}")
    batches = processes if apart else 1
    return together([json.loads(out) for out, _ in said], batches * case["batch"])


def together(ranks: list[dict], samples: int) -> dict:
    """The figures of all ranks as those of the run: the slowest one, the largest one, means."""
    most = ("step_ms", "memory", "peak_mb")
    found = {name: max(rank[name] for rank in ranks) for name in most}
    for name in ("exchange_ms", "compute_ms", "hiding_ms", "bytes_sent", "calls"):
        found[name] = sum(rank[name] for rank in ranks) / len(ranks)
    numbers = ranks[0]["message_ms"]
    found["message_ms"] = {n: max(rank["message_ms"][n] for rank in ranks) for n in numbers}
    return found | {"processes": len(ranks), "samples_s": 1e3 * samples / found["step_ms"]}


def measure(
    cases: dict[str, dict], counts: Sequence[int], links: Sequence[Link], rounds: int
) -> list[dict]:
    """All runs, one after the other, and again in each round; a row has the medians."""
    plans: list[dict] = [{"link": None, "processes": p, "apart": False} for p in counts]
    plans += [{"link": None, "processes": p, "apart": True} for p in counts if p == APART]
    plans += [
        {"link": link.name, "processes": p, "apart": False}
        for link in links
        for p in counts
        if 1 < p <= cores()
    ]
    known, found = {link.name: link for link in links}, []
    for name, case in cases.items():
        tried: list[list[dict]] = [[] for _ in plans]
        for _ in range(rounds):
            for plan, results in zip(plans, tried, strict=True):
                link, processes, apart = plan["link"], plan["processes"], plan["apart"]
                with machines(processes, known[link]) if link else nullcontext(()) as places:
                    results.append(run(case, processes, places, apart))
                print(name, plan, results[-1], flush=True)
        found += [
            {"case": name, **middle(each), **plan} for plan, each in zip(plans, tried, strict=True)
        ]
    return found


def middle(results: list[dict]) -> dict:
    """The medians of all figures; those of ``samples_s`` are also kept as ``rounds``."""
    figures = {
        key: {n: statistics.median(one[key][n] for one in results) for n in value}
        if isinstance(value, dict)
        else statistics.median(one[key] for one in results)
        for key, value in results[0].items()
    }
    return figures | {"rounds": [one["samples_s"] for one in results]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, few steps")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--render", action="store_true", help="the page anew, without measuring")
    arguments = parser.parse_args()
    if arguments.render:
        return write(last("distributed", arguments.results), arguments.results)
    if arguments.quick and arguments.results == RESULTS:
        parser.error("--quick makes no page to publish: name another folder by --results")
    if not {1, 2} <= set(arguments.processes):
        parser.error("--processes must have 1 and 2: the model is fitted to them")
    steps = min(arguments.steps, 5) if arguments.quick else arguments.steps
    cases = SMALL if arguments.quick else CASES
    cases = {name: {**case, "steps": steps, "warm": 5} for name, case in cases.items()}
    reason = missing()
    runs = measure(cases, arguments.processes, () if reason else LINKS, arguments.rounds)
    found = {"cores": cores(), "steps": steps, "no_links": reason}
    found |= {"commit": commit(), "cases": cases, "runs": runs}
    write(found, arguments.results)


def write(found: dict, folder: Path) -> None:
    """Write figures, page and plot."""
    publish("distributed", found, page, folder)
    draw_curves(found, folder / "distributed.png")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


if __name__ == "__main__":
    main()
