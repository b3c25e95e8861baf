"""Training steps of the default network at any size on random rows, and how to time them."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from harness import resident_memory
from hydra.utils import instantiate
from omegaconf import DictConfig
from plain_torch import NETWORKS, step_of

from slide import CSR, Pattern, runtime
from slide.config import build_network, build_optimizer, fill_in, read_config
from slide.data import Batch
from slide.utils.resources import free_memory

# Training rows of Amazon-670K: the number of rows decides the batch size of the default call.
EPOCH = 490_449
NONZEROS, LABELS = 40, 5
# Different batches, so that a step does not find the rows of the last one in the caches.
BATCHES = 64
ALTERNATIONS, SECONDS = 5, 0.15
QUIET = ["schedule=fixed", "schedule.every=0"]  # Rebuilds are timed by themselves.
# Case: overrides of train.py, or the peer of plain_torch.py.
CASES: dict[str, list[str] | str] = {
    "default": ["sampler=lsh"],
    "uniform, group": ["sampler=uniform"],
    "uniform, batch": ["sampler=uniform", "sampler.mode=shared"],
    "lsh, sample": ["sampler=lsh", "sampler.mode=per_sample"],
    "uniform, sample": ["sampler=uniform", "sampler.mode=per_sample"],
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
    shared = ["sampler=uniform", "sampler.mode=shared"]
    words = [*(shared if isinstance(chosen, str) else chosen), "ranker=none"]
    words += QUIET if "sampler=lsh" in words else []
    words += [f"network.hidden=[{hidden}]"] if hidden else []
    config = read_config(words)
    fill_in(config, EPOCH, outputs)
    return config


def too_large(needed: int) -> dict[str, float]:
    """What a row says instead of figures if memory does not suffice; else empty."""
    free = free_memory()
    if free is None or needed <= 0.95 * free:
        return {}
    return {"needs_gib": round(needed / 2**30, 1)}


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
    """A network in plain PyTorch of the same size, and its step."""

    def __init__(self, size: Size, config: DictConfig):
        self.network = NETWORKS[str(CASES[size.case])](size.features, size.outputs, config)
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


def taking_turns(call: Callable[[Any], object], items: list[Any]) -> Callable[[], object]:
    """Calls with one item after the other, again and again."""
    count = iter(range(10**9))
    return lambda: call(items[next(count) % len(items)])


def milliseconds(call: Callable[[], object], seconds: float, least: int = 3) -> list[float]:
    """The times of at least ``least`` calls in about ``seconds`` seconds."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def median(call: Callable[[], object], seconds: float, least: int = 3) -> float:
    return statistics.median(milliseconds(call, seconds, least))


def measured(*size: Any, seconds: float = SECONDS) -> dict[str, Any]:
    """Milliseconds of a step by number of threads (medians of turns), and bytes of the process.

    A step that takes a second is made once a turn, after one that does not count; a rebuild of a
    large index, which takes seconds, too.
    """
    size = Size(*size)
    config, rng = settings(size.case, size.outputs, size.hidden), np.random.default_rng(0)
    peer = isinstance(CASES[size.case], str)
    needed = (12 if peer else 8) * (size.outputs + size.features) * size.hidden
    if CASES[size.case] == "dense":
        needed = dense_bytes(size.features, size.outputs, config)
    if missing := too_large(needed):
        return missing
    runtime.set_threads(0)
    threads = sorted({1, runtime.num_threads()})
    made = (Peer if peer else Sampled)(size, config)
    step = taking_turns(
        made.step, [draw(size, config.trainer.batch_size, rng) for _ in range(BATCHES)]
    )
    fixed = product()
    least = 1 if min(milliseconds(step, 0)) > 1000 else 3
    times: dict[int, list[float]] = {each: [] for each in threads}
    products = []
    for _ in range(ALTERNATIONS):
        for each in threads:
            runtime.set_threads(each)
            step()
            times[each].append(median(step, seconds, least))
        products.append(median(fixed, seconds / 3))
    found = {
        "ms": {str(each): round(statistics.median(times[each]), 3) for each in threads},
        "spread_ms": {
            str(each): [round(f(times[each]), 3) for f in (min, max)] for each in threads
        },
        "product_ms": round(statistics.median(products), 3),
    }
    if isinstance(made, Sampled) and made.network.output.sampler.proposer is not None:
        least = 3 if size.outputs < 2**20 else 1
        found["rebuild_ms"] = round(median(made.rebuild, 0, least), 1)
    touch(made.optimizer)
    return found | {"bytes": resident_memory()}
