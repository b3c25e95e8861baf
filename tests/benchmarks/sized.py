"""Training steps of the default network at any size on random rows, and how to time them.

    python tests/benchmarks/sized.py FILE '{"case": "default", "outputs": 65536}' 0.15

As a program it writes into FILE what `measured` returns. The process begins empty, so its memory is
its own.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from plain_torch import NETWORKS, step_of
from runs import process

from slide import CSR, Pattern, runtime
from slide.config import build_network, build_optimizer, fill_in, read_config
from slide.data import Batch

# Training rows of Amazon-670K: the number of rows decides the batch size of the default call.
EPOCH = 490_449
NONZEROS, LABELS = 40, 5
# Different batches, so that a step does not find the rows of the last one in the caches.
BATCHES = 64
ALTERNATIONS, SECONDS = 5, 0.15
QUIET = ["schedule=fixed", "schedule.every=0"]  # Rebuilds are timed by themselves.
# Case: overrides of train.py, or the peer of plain_torch.py.
CASES: dict[str, list[str] | str] = {
    "default": ["sampler=uniform"],
    "lsh, shared": ["sampler=lsh"],
    "lsh, per sample": ["sampler=lsh", "sampler.mode=per_sample", "sampler.active=128"],
    "sampled softmax, PyTorch": "sampled",
    "dense PyTorch": "dense",
}


class Size(NamedTuple):
    """What is measured: a key of `CASES`, and the sizes of the network."""

    case: str = "default"
    outputs: int = 2**18
    features: int = 10**5
    hidden: int = 256


def settings(case: str, outputs: int, hidden: int | None = None) -> DictConfig:
    """The configuration of train.py for a case; the width is the default one unless it is given."""
    chosen = CASES[case]
    words = [*(["sampler=uniform"] if isinstance(chosen, str) else chosen), "ranker=none"]
    words += QUIET if "sampler=lsh" in words else []
    words += [f"network.hidden=[{hidden}]"] if hidden else []
    config = read_config(words)
    fill_in(config, EPOCH, outputs)
    return config


def memory(field: str) -> int:
    """Bytes from /proc: what is resident (VmRSS), or was at most (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"/proc/self/status has no {field}")


def available_bytes() -> int:
    """Memory that is free, or that the system can free at once."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/meminfo has no MemAvailable")


def dense_bytes(features: int, labels: int, config: DictConfig) -> int:
    """Bytes that dense training holds at least: weights, gradients, two moments, and scores."""
    (hidden,) = config.network.hidden
    return 4 * (4 * (features + labels) * hidden + 6 * config.trainer.batch_size * labels)


def draw(size: Size, batch: int, rng: np.random.Generator) -> Batch:
    """Rows of distinct features and labels, drawn uniformly, which is the worst for caches."""

    def ids(count: int, each: int) -> np.ndarray:
        each = min(each, count)
        drawn = np.sort(rng.integers(0, count - each + 1, (batch, each)), axis=1)
        return (drawn + np.arange(each)).astype(np.int32)

    features, labels = ids(size.features, NONZEROS), ids(size.outputs, LABELS)
    indptr = np.arange(batch + 1) * features.shape[1]
    values = np.full(features.size, features.shape[1] ** -0.5, np.float32)
    pattern = Pattern(np.arange(batch + 1) * labels.shape[1], labels.ravel())
    return Batch(
        rows=np.arange(batch), features=CSR(indptr, features.ravel(), values), labels=pattern
    )


class Sampled:
    """The network that train.py builds, and its step: all but making the batch and rebuilds."""

    def __init__(self, size: Size, config: DictConfig):
        self.network = build_network(config, size.features, size.outputs)
        self.optimizer = build_optimizer(config, self.network)
        self.loss = instantiate(config.loss)

    def step(self, batch: Batch) -> None:
        hidden = self.network.encode(batch.features)
        loss, _ = self.network.output.loss(hidden, batch.labels, self.loss)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def rebuild(self) -> None:
        """Hash all weight rows, and fill the tables with them."""
        layer = self.network.output
        layer.sampler.proposer.rebuild(layer.weight.detach(), layer.bias.detach())


class Peer:
    def __init__(self, size: Size, config: DictConfig):
        self.network = NETWORKS[CASES[size.case]](size.features, size.outputs, config)
        rates = config.optimizer.lr, config.optimizer.input_rate
        self.optimizer = self.network.optimizer(*rates)
        self.step = step_of(self.network, self.optimizer)


def touch(optimizer: torch.optim.Optimizer) -> None:
    """Write to all weights and moments, as steps do sooner or later: then they are resident."""
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state[parameter].values()
                for tensor in (parameter, *filter(torch.is_tensor, state)):
                    tensor.add_(0)


def product(width: int = 512) -> Callable[[], object]:
    """A fixed product in plain torch, about 2 billion operations: what the machine can do now."""
    a, b = torch.ones(width, width), torch.ones(width, 8 * width)
    out = torch.empty(width, 8 * width)
    return lambda: torch.mm(a, b, out=out)


def milliseconds(call: Callable[[], object], seconds: float, least: int = 3) -> float:
    """The median time of a call, of at least ``least`` calls and about ``seconds`` seconds."""
    times, end = [], time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def bytes_needed(size: Size) -> int:
    """Bytes of weights and moments, and of dense gradients and scores; tables are not in it."""
    config = settings(size.case, size.outputs, size.hidden)
    if CASES[size.case] == "dense":
        return dense_bytes(size.features, size.outputs, config)
    copies = 12 if isinstance(CASES[size.case], str) else 8
    return copies * (size.outputs + size.features) * size.hidden


def measured(size: Size, seconds: float = SECONDS) -> dict[str, Any]:
    """Milliseconds of a step by number of threads (medians of turns), and bytes of the process."""
    needed = bytes_needed(size)
    if needed > 0.95 * available_bytes():
        return {"needs_gib": round(needed / 2**30, 1)}
    runtime.set_threads(0)
    threads = sorted({1, runtime.num_threads()})
    config, rng = settings(size.case, size.outputs, size.hidden), np.random.default_rng(0)
    made = (Peer if isinstance(CASES[size.case], str) else Sampled)(size, config)
    batch = config.trainer.batch_size
    batches = [draw(size, batch, rng) for _ in range(BATCHES)]
    fixed, count = product(), iter(range(10**9))

    def next_step() -> None:
        made.step(batches[next(count) % BATCHES])

    for _ in range(3):
        next_step()
    times: dict[int, list[float]] = {each: [] for each in threads}
    products = []
    for _ in range(ALTERNATIONS):
        for each in threads:
            runtime.set_threads(each)
            next_step()
            times[each].append(milliseconds(next_step, seconds))
        products.append(milliseconds(fixed, seconds / 3))
    found = {
        "ms": {str(each): round(statistics.median(times[each]), 3) for each in threads},
        "spread_ms": {
            str(each): [round(f(times[each]), 3) for f in (min, max)] for each in threads
        },
        "product_ms": round(statistics.median(products), 3),
    }
    if size.case.startswith("lsh"):
        least = 3 if size.outputs <= 2**20 else 1  # Rebuilds of large tables take seconds.
        found["rebuild_ms"] = round(milliseconds(made.rebuild, 0, least), 1)
    touch(made.optimizer)
    return found | {"bytes": memory("VmRSS")}


def in_own_process(size: Size, seconds: float = SECONDS) -> dict[str, Any]:
    """What `measured` returns, of a process of its own; ``killed``: by its signal."""
    try:
        return process(__file__, json.dumps(size._asdict()), str(seconds))
    except subprocess.CalledProcessError as error:
        if error.returncode >= 0:
            raise
        return {"killed": -error.returncode}


def main() -> None:
    file, size, seconds = sys.argv[1:]
    Path(file).write_text(json.dumps(measured(Size(**json.loads(size)), float(seconds))))


if __name__ == "__main__":
    main()
