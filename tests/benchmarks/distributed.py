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
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
from links import LINKS, Link, device_of, machines, missing
from matplotlib import pyplot as plt
from rank_steps import NETWORK
from report import RESULTS, ROOT, commit, last, publish, table

AMAZON = {"features": 135_909, "labels": 670_091}
CASES = {
    "Amazon-670K's shape": {**AMAZON, "batch": 512},
    "Amazon-670K's shape, batch 1024": {**AMAZON, "batch": 1024},
    "2^22 labels": {"features": 135_909, "labels": 2**22, "batch": 512},
}
# So many processes also run with a network each.
APART = 2
SMALL = {"a trial": {"features": 2000, "labels": 20_000, "batch": 64}}
# What is predicted and cannot be measured here.
MOST, FAR = 64, 10**8


def run(
    case: dict, processes: int, places: Sequence[Sequence[str]] = (), apart: bool = False
) -> dict:
    """What the processes of one run measured."""
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


class Work(NamedTuple):
    """What a step is, fitted to runs on one machine.

    Attributes:
        shared: milliseconds of work that the processes share out.
        common: milliseconds of work that each of them does in full.
        calls: messages (all-reduces) in a step.
        numbers: bytes of all messages of a step, before they are sent to others.
        handling: milliseconds of one message without a network, for each pair of passes.
        copying: milliseconds for a megabyte that a process sends, without a network.
        hiding: milliseconds of the work, shared out like ``shared`` and a part of it, during which
            one of the messages goes on; 0: each is waited for.
        waiting: milliseconds of a step in which a process waits for slower ones.
    """

    shared: float
    common: float
    calls: float
    numbers: float
    handling: float
    copying: float
    hiding: float = 0.0
    waiting: float = 0.0


def passes(processes: int) -> int:
    """How often numbers are passed on in an all-reduce, if the processes stand in a ring."""
    return 2 * (processes - 1)


def exchange_ms(work: Work, processes: int, link: Link | None = None) -> float:
    """Milliseconds that a step waits: handling, delays, bytes, and slower processes."""
    if processes == 1:
        return 0.0
    hops, sent = passes(processes), work.numbers * passes(processes) / processes
    found = work.calls * work.handling * hops / passes(2) + work.copying * sent / 1e6
    if link is not None:
        found += work.calls * 1e3 * link.delay * hops + 1e3 * 8 * sent / link.bits
    # All messages of a step have about the same size.
    return work.waiting + found - min(work.hiding / processes, found / max(work.calls, 1))


def step_ms(
    work: Work, processes: int, link: Link | None = None, cores: int | None = None
) -> float:
    """Milliseconds of a step."""
    crowd = 1.0 if cores is None else max(processes / cores, 1.0)
    own = crowd * (work.common + work.shared / processes)
    return own + exchange_ms(work, processes, link)


def fit(single: dict, pair: dict) -> Work:
    """The work of a step, from a run of one process and one of two on the same machine."""
    shared = max(2 * (single["compute_ms"] - pair["compute_ms"]), 0.0)
    common = max(single["compute_ms"] - shared, 0.0)
    (small, handling), (large, whole) = sorted(
        (int(numbers), ms) for numbers, ms in pair["message_ms"].items()
    )
    copying = max(whole - handling, 0.0) / (4 * (large - small) / 1e6)
    hiding = 2 * pair["hiding_ms"]
    work = Work(shared, common, pair["calls"], pair["bytes_sent"], handling, copying, hiding)
    return work._replace(waiting=max(pair["exchange_ms"] - exchange_ms(work, 2), 0.0))


def pays_until(times: Sequence[tuple[int, float]], gain: float = 1.2) -> int:
    """The most processes so that each doubling up to there made steps faster by ``gain``."""
    best = times[0][0]
    for (_, before), (processes, after) in pairwise(times):
        if before < gain * after:
            break
        best = processes
    return best


def runs_of(
    found: dict, case: str, link: str | None = None, apart: bool = False
) -> dict[int, dict]:
    """The runs of a case by their number of processes; ``apart``: those with a network each."""
    wanted = {"case": case, "link": link, "apart": apart}
    return {run["processes"]: run for run in found["runs"] if wanted.items() <= run.items()}


def work_of(found: dict, case: str) -> Work:
    """The work of a case, fitted to one and two processes on this machine."""
    runs = runs_of(found, case)
    return fit(runs[1], runs[2])


def measured(found: dict) -> list[dict[str, object]]:
    """A row for each run on this machine."""
    rows = []
    for case in found["cases"]:
        runs = runs_of(found, case)
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


def compared(found: dict) -> list[dict[str, object]]:
    """A row for each run with more than one process: measured, and what the model says."""
    rows, known = [], {None: None} | {link.name: link for link in LINKS}
    for run in found["runs"]:
        if run["processes"] == 1 or run["apart"]:
            continue
        work = work_of(found, run["case"])
        said = step_ms(work, run["processes"], known[run["link"]], found["cores"])
        rows.append(
            {
                "network": run["case"],
                "between processes": run["link"] or "this machine",
                "processes": run["processes"],
                "measured, ms": f"{run['step_ms']:.1f}",
                "model, ms": f"{said:.1f}",
                "error": f"{100 * (said / run['step_ms'] - 1):+.0f} %",
            }
        )
    return rows


def predicted(found: dict) -> list[dict[str, object]]:
    """A row for each network and link: how many machines the model says are worth their price."""
    rows = []
    for case in found["cases"]:
        work = work_of(found, case)
        for link in LINKS:
            times = [(p, step_ms(work, p, link)) for p in powers()]
            best, first = pays_until(times), times[0][1]
            at = dict(times)
            rows.append(
                {
                    "network": case,
                    "between machines": link.name,
                    "pays up to": f"{best} machine{'s' * (best > 1)}",
                    "then times one": f"{first / at[best]:.1f}",
                    f"with {MOST} machines": f"{first / at[MOST]:.1f}",
                    "messages there": f"{exchange_ms(work, MOST, link):.1f} of {at[MOST]:.1f} ms",
                }
            )
    return rows


def memory(found: dict) -> list[dict[str, object]]:
    """Memory of 10^8 labels on several machines: weights and moments alone."""
    return [
        {
            "machines": processes,
            "GiB each": f"{FAR * found['row_bytes'] / processes / 2**30:,.0f}",
        }
        for processes in powers()
    ]


def powers() -> list[int]:
    """1, 2, 4, ... machines."""
    return [2**i for i in range(MOST.bit_length())]


def page(found: dict[str, Any]) -> str:
    """The page."""
    links = table(compared(found))
    if found["no_links"]:
        links = f"Links with a rate and a delay were not measured: {found['no_links']}.\n\n{links}"
    return f"""\
# Several processes

Commit {found["commit"] or "unknown"}. Each process has one thread; the machine has \
{found["cores"]} cores, so more processes than that take turns. {found["network"]}. Runs of \
{found["steps"]} steps, of which the median counts, alternate; medians over \
{len(found["runs"][0]["rounds"])} rounds. One process is the ordinary network. Processes with a \
network each exchange nothing: what they fall short of their number is what the machine's memory \
and caches take, and no division of work can get it back. Memory is that of weights, moments and \
indexes, without Python and its libraries. The exchange includes waiting for the slower process. \
It counts begin and end of each message: what of the gradient of the hidden layer is sent while \
the gradient of the weight is computed is in the work.

{table(measured(found))}
## Networks, and a model of the time of a step

A step is work that the processes share out, work that each does in full, and messages. An \
all-reduce of b bytes on p processes that stand in a ring passes numbers on 2 (p - 1) times, and \
each process sends 2 b (p - 1) / p bytes. The message that goes on while the gradient of the \
weight is computed counts only as far as it takes longer than that. Work, the handling of messages \
and the waiting for a slower process are fitted to one and two processes on this machine; rate and \
delay of a link are put in, not fitted. So the rows of two processes on this machine agree by \
themselves, and the others are predictions. Processes with a link are in network namespaces, a \
core each, and a program passes their packets on. With more processes than cores, work takes \
longer by their ratio; what they wait until they get a core again is not in the model.

{links}
## A prediction

Nothing here is measured: it is the model above, for machines with one such core each. It assumes \
that work is shared out evenly, and that a step costs as much with {FAR:,} labels as with the most \
that were measured. Machines pay as long as twice as many make steps at least 1.2 times as fast.

{table(predicted(found))}
{FAR:,} labels need this memory for weights and moments, whatever the speed:

{table(memory(found))}
![{title(found)}](distributed.png)
"""


def points_of(found: dict, case: str, link: str) -> list[tuple[int, float]]:
    """Processes and samples a second of the runs over a link that had a core each."""
    runs = runs_of(found, case, link)
    return [(p, run["samples_s"]) for p, run in runs.items() if p <= found["cores"]]


def title(found: dict) -> str:
    """The title of the plot."""
    links = [link.name for link in LINKS]
    if any(points_of(found, case, link) for case in found["cases"] for link in links):
        return "A prediction by the model; points are measured"
    return "A prediction by the model; there are no measured points"


def draw_curves(found: dict, path: Path) -> None:
    """Samples a second against machines: measured points, and the curves of the model."""
    figure, panels = plt.subplots(1, len(LINKS), figsize=(10, 4.5), sharey=True)
    for link, axes in zip(LINKS, panels, strict=True):
        for number, (case, sizes) in enumerate(found["cases"].items()):
            work, color = work_of(found, case), f"C{number}"
            speed = [1e3 * sizes["batch"] / step_ms(work, p, link) for p in powers()]
            axes.plot(powers(), speed, "--", color=color, label=f"{case} (prediction)")
            points = points_of(found, case, link.name)
            if points:
                axes.plot(*zip(*points, strict=True), "o", color=color)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(title=link.name, xlabel="machines of one core")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("samples/s")
    panels[0].legend(fontsize=7)
    figure.suptitle(title(found))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


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
    found |= {"commit": commit(), "cases": cases, "runs": runs} | NETWORK
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
