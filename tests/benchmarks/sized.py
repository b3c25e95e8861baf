"""A training step of any size on random rows, as a process of its own: its time and its memory.

    python tests/benchmarks/sized.py FILE '{"case": "lsh, shared", "outputs": 65536}'

Writes into FILE what `measured` returns. The process begins empty, so its memory is its own.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from curves import available_bytes
from plain_torch import bag, cross_entropy, positives
from train_process import ROOT

from slide import (
    CSR,
    ActiveLoss,
    ActiveSampler,
    FullSampler,
    LSHProposer,
    Pattern,
    RowSparseAdam,
    SampledLinear,
    SlideNetwork,
    runtime,
)
from slide.data import Batch
from slide.utils.sizes import DEFAULTS

NONZEROS, LABELS = 40, 5
# Different batches, so that a step does not find the rows of the last one in the caches.
BATCHES = 64
ALTERNATIONS, SECONDS = 5, 0.15


class Case(NamedTuple):
    """A kind of step.

    Attributes:
        batch: rows.
        active: outputs of a set; 0: all outputs, by PyTorch's own layers.
        mode: of the sampler.
        lsh: whether sets are looked up, or drawn uniformly.
        rounded: bfloat16 weights of the outputs, and one second moment a row.
    """

    batch: int
    active: int
    mode: str = "shared"
    lsh: bool = False
    rounded: bool = False


CASES = {
    "uniform, shared": Case(256, 2048),
    "uniform, shared, bfloat16": Case(256, 2048, rounded=True),
    "lsh, shared": Case(256, 2048, lsh=True),
    "lsh, per sample": Case(128, 256, "per_sample", lsh=True),
    "dense PyTorch": Case(256, 0),
}


class Size(NamedTuple):
    """What is measured: a key of `CASES`, and the sizes of the network."""

    case: str = "uniform, shared"
    outputs: int = 2**18
    features: int = 10**5
    hidden: int = 64


def memory(field: str) -> int:
    """Bytes from /proc: what is resident (VmRSS), or was at most (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"/proc/self/status has no {field}")


def draw(size: Size, rng: np.random.Generator) -> Batch:
    """Rows of distinct features and labels, drawn uniformly, which is the worst for caches."""
    rows = CASES[size.case].batch

    def ids(count: int, each: int) -> np.ndarray:
        each = min(each, count)
        drawn = np.sort(rng.integers(0, count - each + 1, (rows, each)), axis=1)
        return (drawn + np.arange(each)).astype(np.int32)

    features, labels = ids(size.features, NONZEROS), ids(size.outputs, LABELS)
    indptr = np.arange(rows + 1) * features.shape[1]
    values = np.full(features.size, features.shape[1] ** -0.5, np.float32)
    pattern = Pattern(np.arange(rows + 1) * labels.shape[1], labels.ravel())
    return Batch(
        rows=np.arange(rows), features=CSR(indptr, features.ravel(), values), labels=pattern
    )


class Sampled:
    """Our network, and its step: everything but making the batch and rebuilds."""

    def __init__(self, size: Size):
        case, hidden, outputs = CASES[size.case], size.hidden, size.outputs
        options = {"active": min(case.active, outputs), "mode": case.mode}
        options |= {"weighting": "none", "rebuild": lambda samples: 0}
        proposer = LSHProposer if case.lsh else None
        sampler = ActiveSampler(hidden, outputs, proposer, **options)  # type: ignore[arg-type]
        self.network = SlideNetwork(size.features, [hidden], 2, FullSampler)
        dtype = torch.bfloat16 if case.rounded else torch.float32
        self.network.output = SampledLinear(hidden, outputs, sampler, dtype=dtype)
        parameters = self.network.parameters()
        self.optimizer = RowSparseAdam(
            parameters, betas=DEFAULTS["optimizer.betas"], rowwise=case.rounded
        )
        self.loss = ActiveLoss("softmax")

    def step(self, batch: Batch) -> None:
        output = self.network.output
        hidden = self.network.encode(batch.features).to(output.weight.dtype)
        loss, _ = output.loss(hidden, batch.labels, self.loss)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def rebuild(self) -> None:
        """Hash all rows, and fill the tables with them."""
        layer = self.network.output
        assert layer.bias is not None
        layer.sampler.proposer.rebuild(layer.weight.detach(), layer.bias.detach())


class Dense:
    """The same network of PyTorch's own layers, and fused Adam."""

    def __init__(self, size: Size):
        shape = {"mode": "sum", "include_last_offset": True}
        self.first = torch.nn.EmbeddingBag(size.features, size.hidden, **shape)
        self.output = torch.nn.Linear(size.hidden, size.outputs)
        parameters = [*self.first.parameters(), *self.output.parameters()]
        self.optimizer = torch.optim.Adam(parameters, fused=True)

    def step(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        scores = self.output(torch.relu(self.first(**bag(batch.features))))
        cross_entropy(scores, *positives(batch)).backward()
        self.optimizer.step()


def make(size: Size) -> Sampled | Dense:
    """The network of a size."""
    return Sampled(size) if CASES[size.case].active else Dense(size)


def product(width: int = 512) -> Callable[[], object]:
    """A fixed product in plain torch, about 2 billion operations: what the machine can do now."""
    a, b = torch.ones(width, width), torch.ones(width, 8 * width)
    out = torch.empty(width, 8 * width)
    return lambda: torch.mm(a, b, out=out)


def milliseconds(call: Callable[[], object], seconds: float, least: int = 3) -> float:
    """The median time of a call, of at least ``least`` calls and about so many seconds."""
    times, end = [], time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def bytes_needed(size: Size) -> int:
    """Bytes of weights, moments and (dense) gradients and scores; tables are not in it."""
    case, weights = CASES[size.case], (size.outputs + size.features) * size.hidden
    if not case.active:
        return 4 * (4 * weights + 4 * case.batch * size.outputs)
    if case.rounded:
        return 6 * size.outputs * size.hidden + 8 * size.features * size.hidden
    return 12 * weights


def measured(size: Size, seconds: float = SECONDS) -> dict[str, Any]:
    """Milliseconds of a step by number of threads (medians of turns), and bytes of the process."""
    needed = bytes_needed(size)
    if needed > 0.95 * available_bytes():
        return {"needs_gib": round(needed / 2**30, 1)}
    runtime.set_threads(0)
    threads = sorted({1, runtime.num_threads()})
    rng = np.random.default_rng(0)
    batches = [draw(size, rng) for _ in range(BATCHES)]
    network, fixed, count = make(size), product(), 0

    def step() -> None:
        nonlocal count
        network.step(batches[count % BATCHES])
        count += 1

    for _ in range(3):
        step()
    times: dict[int, list[float]] = {each: [] for each in threads}
    products = []
    for _ in range(ALTERNATIONS):
        for each in threads:
            runtime.set_threads(each)
            step()
            times[each].append(milliseconds(step, seconds))
        products.append(milliseconds(fixed, seconds / 3))
    found = {
        "ms": {str(each): round(statistics.median(times[each]), 3) for each in threads},
        "spread_ms": {
            str(each): [round(f(times[each]), 3) for f in (min, max)] for each in threads
        },
        "product_ms": round(statistics.median(products), 3),
    }
    if CASES[size.case].lsh:
        least = 3 if size.outputs <= 2**20 else 1  # Rebuilds of large tables take seconds.
        rebuild = network.rebuild  # type: ignore[union-attr]
        found["rebuild_ms"] = round(milliseconds(rebuild, 0, least), 1)
    touch(network.optimizer)
    return found | {"bytes": memory("VmRSS")}


def touch(optimizer: torch.optim.Optimizer) -> None:
    """Write to all weights and moments, as steps do sooner or later: then they are resident."""
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state[parameter].values()
                for tensor in (parameter, *filter(torch.is_tensor, state)):
                    tensor.add_(0)


def in_own_process(size: Size, seconds: float = SECONDS) -> dict[str, Any]:
    """What `measured` returns, of a process of its own; ``killed``: by its signal."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "found.json"
        command = [sys.executable, __file__, str(file), json.dumps(size._asdict()), str(seconds)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        if done.returncode < 0:
            return {"killed": -done.returncode}
        done.check_returncode()
        return json.loads(file.read_text())


def main() -> None:
    file, size, seconds = sys.argv[1:]
    Path(file).write_text(json.dumps(measured(Size(**json.loads(size)), float(seconds))))


if __name__ == "__main__":
    main()
