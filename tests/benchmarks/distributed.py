"""Several processes that share the rows of one network: speed, memory and messages.

    python tests/benchmarks/distributed.py            # about 15 minutes, on a quiet machine
    python tests/benchmarks/distributed.py --quick --results FOLDER   # a short trial
    python tests/benchmarks/distributed.py --render   # the page anew, without measuring

Each process has one thread. Beside processes of a run stand processes with networks of their own,
which exchange nothing: they tell what the machine can do. Runs alternate, and figures are medians
over the rounds.

Writes results/benchmarks/distributed.{json,md}.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rank_steps import NETWORK
from report import RESULTS, ROOT, commit, last, publish, table

AMAZON = {"features": 135_909, "labels": 670_091}
CASES = {
    "Amazon-670K's shape": {**AMAZON, "batch": 512},
    "Amazon-670K's shape, batch 1024": {**AMAZON, "batch": 1024},
    "2^22 labels": {"features": 135_909, "labels": 2**22, "batch": 512},
}
# 2 processes also run with a network each.
APART = 2
SMALL = {"a trial": {"features": 2000, "labels": 20_000, "batch": 64}}


def run(case: dict, processes: int, apart: bool = False) -> dict:
    port = _free_port()
    started = []
    for rank in range(processes):
        told = {
            "RANK": rank,
            "WORLD_SIZE": processes,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        told |= {"RANK": 0, "WORLD_SIZE": 1} if apart else {}
        told |= {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        told |= {"GLOO_SOCKET_IFNAME": "lo"}
        told |= {"PYTHONPATH": ROOT, "NUMBA_NUM_THREADS": 1, "OMP_NUM_THREADS": 1}
        program = Path(__file__).with_name("rank_steps.py")
        command = [sys.executable, "-W", "ignore", str(program), json.dumps(case)]
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
    for name in ("exchange_ms", "compute_ms", "bytes_sent", "calls"):
        found[name] = sum(rank[name] for rank in ranks) / len(ranks)
    return found | {"processes": len(ranks), "samples_s": 1e3 * samples / found["step_ms"]}


def measure(cases: dict[str, dict], counts: Sequence[int], rounds: int) -> list[dict]:
    """All runs, one after the other, and again in each round; a row has the medians."""
    plans = [{"processes": p, "apart": False} for p in counts]
    plans += [{"processes": APART, "apart": True}] * (APART in counts)
    found = []
    for name, case in cases.items():
        tried: list[list[dict]] = [[] for _ in plans]
        for _ in range(rounds):
            for plan, results in zip(plans, tried, strict=True):
                results.append(run(case, **plan))
                print(name, plan, results[-1], flush=True)
        found += [
            {"case": name, **middle(each), **plan} for plan, each in zip(plans, tried, strict=True)
        ]
    return found


def middle(results: list[dict]) -> dict:
    """The medians of all figures; ``samples_s`` of each round is also kept as ``rounds``."""
    figures = {key: statistics.median(one[key] for one in results) for key in results[0]}
    return figures | {"rounds": [one["samples_s"] for one in results]}


def runs_of(found: dict, case: str, apart: bool) -> dict[int, dict]:
    """The runs of a case by their number of processes; ``apart``: with a network each."""
    chosen = [run for run in found["runs"] if (run["case"], run["apart"]) == (case, apart)]
    return {run["processes"]: run for run in chosen}


def measured(found: dict) -> list[dict[str, object]]:
    rows = []
    for case in found["cases"]:
        runs = runs_of(found, case, apart=False)
        apart = runs_of(found, case, apart=True)
        for processes, run in [*runs.items(), *apart.items()]:
            one = runs[1]["samples_s"]
            speeds = [speed / one for speed in run["rounds"]]
            rows.append(
                {
                    "network": case,
                    "processes": f"{processes}, a network each" if run["apart"] else processes,
                    "samples/s": f"{run['samples_s']:,.0f}",
                    "times one process": f"{run['samples_s'] / one:.2f}",
                    "least and most": f"{min(speeds):.2f} to {max(speeds):.2f}",
                    "ms a step": f"{run['step_ms']:.1f}",
                    "exchange": f"{run['exchange_ms']:.2f} ms, "
                    f"{100 * run['exchange_ms'] / run['step_ms']:.0f} %",
                    "sent, KB": f"{run['bytes_sent'] / 1e3:,.0f}",
                    "memory of a process": f"{run['memory'] / 2**20:,.0f} MiB",
                    "share": f"{run['memory'] / runs[1]['memory']:.2f}",
                }
            )
    return rows


def page(found: dict[str, Any]) -> str:
    return f"""\
# Several processes

Commit {found["commit"] or "unknown"}. Each process has one thread; the machine has \
{found["cores"]} cores, so more processes than that take turns. {found["network"]}. Runs of \
{found["steps"]} steps, of which the median counts, alternate; medians over \
{len(found["runs"][0]["rounds"])} rounds. One process is the ordinary network. Processes with a \
network each exchange nothing: what they fall short of their number is what the machine's memory \
and caches take, and no division of work can get it back. Memory is weights, moments and indexes, \
without Python and its libraries. The exchange includes waiting for the slower process. It counts \
begin and end of each message: what of the gradient of the hidden layer is sent while the gradient \
of the weight is computed is in the work.

{table(measured(found))}"""


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
        found = last("distributed", arguments.results)
        return publish("distributed", found, page, arguments.results)
    if arguments.quick and arguments.results == RESULTS:
        parser.error("--quick makes no page to publish: name another folder by --results")
    if not {1, 2} <= set(arguments.processes):
        parser.error("--processes must have 1 and 2: other figures are compared with them")
    steps = min(arguments.steps, 5) if arguments.quick else arguments.steps
    cases = SMALL if arguments.quick else CASES
    cases = {name: {**case, "steps": steps, "warm": 5} for name, case in cases.items()}
    runs = measure(cases, arguments.processes, arguments.rounds)
    found = {"cores": cores(), "steps": steps}
    found |= {"commit": commit(), "cases": cases, "runs": runs} | NETWORK
    publish("distributed", found, page, arguments.results)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


if __name__ == "__main__":
    main()
