"""One process of `distributed.py`: makes steps of a network that several processes share.

The variables of its environment are those of torchrun. It prints a line of JSON.
"""

import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from sized import settings

from slide import CSR, Pattern, SlideNetwork, runtime
from slide.config import build_network, build_optimizer
from slide.distributed import Group
from slide.distributed.launch import find_place, meet
from slide.utils.resources import peak_memory_mb, resident_memory

HIDDEN, ACTIVE, NONZEROS, LABELS = 256, 2048, 75, 5
NETWORK = {
    "network": f"The default network: {HIDDEN} hidden units, {NONZEROS} features a row, "
    f"{ACTIVE:,} active outputs for the batch on all processes together, drawn uniformly; batch "
    "512 where no other is named"
}


def draw(case: dict[str, Any], step: int) -> tuple[CSR, Pattern]:
    """A batch; few features and labels are frequent, as in the products' sets."""
    rng, batch = np.random.default_rng(step), case["batch"]

    def ids(number: int, most: int) -> np.ndarray:
        # The density of rank r falls as r^-0.75; the distinct ones of a row are kept.
        found = (most * rng.random((batch, number)) ** 4).astype(np.int32)
        return np.sort(found, axis=1)

    features, labels = ids(NONZEROS, case["features"]), ids(LABELS, case["labels"])
    kept = [np.unique(row) for row in labels]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in kept])]).astype(np.int64)
    values = np.full(features.size, NONZEROS**-0.5, np.float32)
    rows = CSR(np.arange(batch + 1) * NONZEROS, features.ravel(), values)
    return rows, Pattern(indptr, np.concatenate(kept))


def expected_counts(most: int) -> np.ndarray:
    edges = (np.arange(most + 1) / most) ** 0.25
    return np.diff(edges)


def build(config: DictConfig, case: dict[str, Any], group: Group) -> SlideNetwork:
    """The network; that of one process is the ordinary one."""
    features, labels = case["features"], case["labels"]
    counts = {"feature_counts": expected_counts(features), "label_counts": expected_counts(labels)}
    return build_network(config, features, labels, group, counts)


def measure(case: dict[str, Any], group: Group) -> dict[str, Any]:
    """Seconds of steps, of the exchange in them, and memory."""
    before = resident_memory()
    config = settings("default", case["labels"], HIDDEN)
    config.sampler.active = min(ACTIVE, case["labels"] // 2)
    network = build(config, case, group)
    optimizer, loss = build_optimizer(config, network), instantiate(config.loss)
    for parameter in network.parameters():  # Moments appear with the first gradient: all at once.
        moment = torch.zeros_like(parameter)
        moment.fill_(0)
        optimizer.state[parameter] = {"step": 0, "exp_avg_sq": moment}
    batches = [draw(case, step) for step in range(8)]
    steps, exchange, compute = [], [], []
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
            steps.append(time.perf_counter() - begin)
            exchange.append(group.seconds - told)
            compute.append(steps[-1] - exchange[-1])
    made = case["steps"]
    return {
        "step_ms": 1e3 * statistics.median(steps),
        "exchange_ms": 1e3 * statistics.median(exchange),
        "compute_ms": 1e3 * statistics.median(compute),
        "memory": resident_memory() - before,
        "peak_mb": peak_memory_mb(),
        "bytes_sent": (group.bytes_sent - sent) / made,
        "calls": (sum(group.calls.values()) - calls) / made,
    }


def main() -> None:
    case, place = json.loads(sys.argv[1]), find_place()
    runtime.set_threads(1)
    group = Group.alone()
    if place.size > 1:
        meet(place, 300.0)
        group = Group()
    print(json.dumps(measure(case, group)), flush=True)
    group.barrier()
    if place.size > 1:
        # Threads of gloo that are still there when a process ends abort it at random.
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
