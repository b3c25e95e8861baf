"""Several processes that share the rows of one network: speed, memory and messages.

    python benchmarks/distributed.py

More than two processes are tried at the first shape alone. Writes
results/benchmarks/distributed.{json,md}.
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import ROOT, commit, last, of, prose, publish, resident_memory, started, table
from hydra.utils import instantiate
from sized import settings

from slide import CSR, Pattern, runtime
from slide.config import build_network, build_optimizer
from slide.config.ranks import ALONE, find_rank_info
from slide.distributed import Group
from slide.distributed.launch import meet
from slide.distributed.processes import SeveralRanks
from slide.utils.resources import peak_memory_mb

AMAZON = {"features": 135_909, "labels": 670_091}
CASES = {
    "Amazon-670K's shape": {**AMAZON, "batch": 512},
    "Amazon-670K's shape, batch 1024": {**AMAZON, "batch": 1024},
    "2^22 labels": {"features": 135_909, "labels": 2**22, "batch": 512},
}
# Steps of a run that do not count, and that do; numbers of processes; rounds.
WARM_UP, STEPS, COUNTS, ROUNDS = 5, 40, (1, 2, 4), 5
HIDDEN, ACTIVE, NONZEROS, LABELS = 256, 2048, 75, 5
NETWORK = (
    f"The default network: {HIDDEN} hidden units, {NONZEROS} features a row, {ACTIVE:,} active "
    "outputs for the batch on all processes together, drawn uniformly; batch 512 where no other is "
    "named"
)


def draw(case: dict[str, Any], step: int) -> tuple[CSR, Pattern]:
    """A batch; few features and labels are frequent, as in the products' sets."""
    rng, batch = np.random.default_rng(step), case["batch"]

    def ids(number: int, most: int) -> np.ndarray:
        # The density of rank r falls as r^-0.75.
        return np.sort((most * rng.random((batch, number)) ** 4).astype(np.int32), axis=1)

    features, labels = ids(NONZEROS, case["features"]), ids(LABELS, case["labels"])
    values = np.full(features.size, NONZEROS**-0.5, np.float32)
    rows = CSR(np.arange(batch + 1) * NONZEROS, features.ravel(), values)
    return rows, Pattern.from_lists([np.unique(row).tolist() for row in labels])


def expected_counts(most: int) -> np.ndarray:
    return np.diff((np.arange(most + 1) / most) ** 0.25)


def steps_of(case: dict[str, Any], group: Group) -> dict[str, float]:
    """Milliseconds of steps, of the exchange in them, and memory."""
    before = resident_memory()
    features, labels = case["features"], case["labels"]
    config = settings("default", labels, HIDDEN)
    config.sampler.active = min(ACTIVE, labels // 2)
    counts = {"feature_counts": expected_counts(features), "label_counts": expected_counts(labels)}
    ranks = ALONE if group.size == 1 else SeveralRanks(find_rank_info(), group)
    network = build_network(config, features, labels, ranks, counts)
    optimizer, loss = build_optimizer(config, network), instantiate(config.loss)
    for parameter in network.parameters():  # Moments appear with the first gradient: all at once.
        moment = torch.zeros_like(parameter)
        moment.fill_(0)
        optimizer.state[parameter] = {"step": 0, "exp_avg_sq": moment}
    batches = [draw(case, step) for step in range(8)]
    steps, exchange = [], []
    sent = calls = 0
    for step in range(case["warm"] + case["steps"]):
        if step == case["warm"]:
            sent, calls = group.bytes_sent, sum(group.calls.values())
        features, labels = batches[step % len(batches)]
        begin, told = time.perf_counter(), group.seconds
        mean, _ = network.output.loss(network.encode(features), labels, loss)
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
        if step >= case["warm"]:
            steps.append(1e3 * (time.perf_counter() - begin))
            exchange.append(1e3 * (group.seconds - told))
    return {
        "step_ms": statistics.median(steps),
        "exchange_ms": statistics.median(exchange),
        "compute_ms": statistics.median(np.subtract(steps, exchange).tolist()),
        "memory": resident_memory() - before,
        "peak_mb": peak_memory_mb(),
        "bytes_sent": (group.bytes_sent - sent) / case["steps"],
        "calls": (sum(group.calls.values()) - calls) / case["steps"],
    }


def of_rank(case: dict[str, Any]) -> dict[str, float]:
    """The figures of this process, whose environment has the variables of torchrun."""
    info = find_rank_info()
    runtime.set_threads(1)
    group = Group.alone()
    if info.size > 1:
        meet(info, 300.0)
        group = Group()
    found = steps_of(case, group)
    group.barrier()
    if info.size > 1:
        # Threads of gloo that are still there when a process ends abort it at random.
        torch.distributed.destroy_process_group()
    return found


def run(case: dict[str, Any], processes: int, apart: bool) -> dict[str, float]:
    """The figures of a run from all of its ranks: the slowest one, the largest one, means."""
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port = each.getsockname()[1]
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    told |= {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "NUMBA_NUM_THREADS": 1, "OMP_NUM_THREADS": 1}
    size = 1 if apart else processes
    told |= {"PYTHONPATH": ROOT, "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{rank}.json") for rank in range(processes)]
        ranks = [
            started(file, "distributed", "of_rank", case, **told, RANK=rank, WORLD_SIZE=size)
            for rank, file in zip(
                [0] * processes if apart else range(processes), files, strict=True
            )
        ]
        codes = [process.wait() for process in ranks]
        if any(codes):
            raise RuntimeError(f"one of {processes} processes failed")
        found = [json.loads(file.read_text()) for file in files]
    figures = {name: max(rank[name] for rank in found) for name in ("step_ms", "memory", "peak_mb")}
    for name in ("exchange_ms", "compute_ms", "bytes_sent", "calls"):
        figures[name] = statistics.fmean(rank[name] for rank in found)
    batch = case["batch"] * (processes if apart else 1)
    return figures | {"samples_s": 1e3 * batch / figures["step_ms"]}


def measure(cases: dict[str, dict]) -> list[dict]:
    """All runs, one after the other, and again in each round; a row has the medians."""
    found = []
    for name, case in cases.items():
        most = max(COUNTS) if name == next(iter(cases)) else 2
        plans = [{"processes": p, "apart": False} for p in COUNTS if p <= most]
        plans += [{"processes": 2, "apart": True}]
        tried: list[list[dict]] = [[] for _ in plans]
        for _ in range(ROUNDS):
            for plan, results in zip(plans, tried, strict=True):
                results.append(run(case, **plan))
                print(name, plan, results[-1], flush=True)
        for plan, results in zip(plans, tried, strict=True):
            middle = {key: statistics.median(one[key] for one in results) for key in results[0]}
            rates = [one["samples_s"] for one in results]
            found.append({"case": name, **middle, "rounds": rates, **plan})
    return found


def measured(found: dict) -> list[dict[str, object]]:
    rows = []
    for case in found["cases"]:
        runs = of(found["runs"], case=case)
        first = of(runs, processes=1)[0]
        for run in sorted(runs, key=lambda run: run["apart"]):
            speeds = [speed / first["samples_s"] for speed in run["rounds"]]
            processes = run["processes"]
            rows.append(
                {
                    "network": case,
                    "processes": f"{processes}, a network each" if run["apart"] else processes,
                    "samples/s": f"{run['samples_s']:,.0f}",
                    "times one process": f"{run['samples_s'] / first['samples_s']:.2f}",
                    "least and most": f"{min(speeds):.2f} to {max(speeds):.2f}",
                    "ms a step": f"{run['step_ms']:.1f}",
                    "exchange": f"{run['exchange_ms']:.2f} ms, "
                    f"{100 * run['exchange_ms'] / run['step_ms']:.0f} %",
                    "sent, KB": f"{run['bytes_sent'] / 1e3:,.0f}",
                    "memory of a process": f"{run['memory'] / 2**20:,.0f} MiB",
                    "share": f"{run['memory'] / first['memory']:.2f}",
                }
            )
    return rows


def page(found: dict[str, Any]) -> str:
    rounds = len(found["runs"][0]["rounds"])
    return prose("distributed", "about", **found, rounds=rounds) + table(measured(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--render", action="store_true", help="the page anew, without measuring")
    given = parser.parse_args()
    if given.render:
        publish("distributed", last("distributed"), page)
        return
    cases = {name: {**case, "steps": STEPS, "warm": WARM_UP} for name, case in CASES.items()}
    found = {"cores": len(os.sched_getaffinity(0)), "steps": STEPS, "network": NETWORK}
    publish(
        "distributed", found | {"commit": commit(), "cases": cases, "runs": measure(cases)}, page
    )


if __name__ == "__main__":
    main()
