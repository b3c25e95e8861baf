"""Time of a training step as the number of outputs grows, beside dense layers.

    python tests/benchmarks/scaling.py

A step is: selection (LSH, shared and per sample; tables built beforehand), forward, loss, backward,
row-sparse Adam, for 64 hidden units. Not in it: the input layer and rebuilds of the tables. Beside
it, forward, loss and backward of a dense layer and of an index-selected slice of one, both by
autograd and without an optimizer step. Writes results/benchmarks/scaling.{json,md,png}.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import torch
from helpers.samplers import lsh_sampler, uniform_sampler
from report import machine, table

from slide import ActiveLoss, Pattern, RowSparseAdam, SampledLinear, runtime

RESULTS = Path(__file__).resolve().parents[2] / "results" / "benchmarks"
HIDDEN, BATCH, LABELS = 64, 128, 5
ACTIVE = {"shared": 2048, "per_sample": 256}
DENSE_LIMIT = 2**18


def draw(outputs: int, rng: np.random.Generator) -> tuple[torch.Tensor, Pattern]:
    """Inputs of a hidden layer and labels of as many samples."""
    x = torch.from_numpy(rng.standard_normal((BATCH, HIDDEN), np.float32)).relu_()
    labels = np.sort(rng.integers(0, outputs // LABELS, (BATCH, LABELS)) * LABELS, axis=1)
    labels = labels + np.arange(LABELS)  # distinct within a row
    return x.requires_grad_(), Pattern(
        np.arange(BATCH + 1) * LABELS, labels.astype(np.int32).ravel()
    )


def sampled(outputs: int, mode: str, kind: type) -> Callable[[], None]:
    """Our training step."""
    rng = np.random.default_rng(0)
    options = {"rebuild": lambda samples: 0} if kind is lsh_sampler else {}
    sampler = kind(HIDDEN, outputs, active=min(ACTIVE[mode], outputs), mode=mode, **options)
    layer, loss = SampledLinear(HIDDEN, outputs, sampler), ActiveLoss("softmax")
    optimizer = RowSparseAdam(layer.parameters())

    def step() -> None:
        x, labels = draw(outputs, rng)
        value, _ = layer.loss(x, labels, loss)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def dense(outputs: int, selected: bool) -> Callable[[], None]:
    """Forward, loss and backward by autograd: all outputs, or a slice chosen by index."""
    rng = np.random.default_rng(0)
    weight = torch.randn(outputs, HIDDEN, requires_grad=True)
    ids = torch.from_numpy(rng.choice(outputs, min(ACTIVE["shared"], outputs), replace=False))

    def step() -> None:
        x, labels = draw(outputs, rng)
        weight.grad = None
        scores = x @ (weight[ids] if selected else weight).T
        target = torch.from_numpy(labels.indices[::LABELS].astype(np.int64)) % scores.shape[1]
        torch.nn.functional.cross_entropy(scores, target).backward()

    return step


CASES: dict[str, Callable[[int], Callable[[], None]]] = {
    "lsh, shared": lambda n: sampled(n, "shared", lsh_sampler),
    "lsh, per sample": lambda n: sampled(n, "per_sample", lsh_sampler),
    "uniform, shared": lambda n: sampled(n, "shared", uniform_sampler),
    "dense autograd": lambda n: dense(n, selected=False),
    "index-selected slice, autograd": lambda n: dense(n, selected=True),
}


def milliseconds(step: Callable[[], None], repeats: int) -> list[float]:
    """Times of single steps, after two that do not count."""
    times = []
    for i in range(repeats + 2):
        begin = time.perf_counter()
        step()
        if i >= 2:
            times.append(1e3 * (time.perf_counter() - begin))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smallest", type=int, default=8, help="log2 of the fewest outputs")
    parser.add_argument("--largest", type=int, default=22, help="log2 of the most outputs")
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()
    runtime.set_threads(0)
    rows = []
    for power in range(arguments.smallest, arguments.largest + 1, 2):
        for name, make in CASES.items():
            slow = "autograd" in name
            if slow and 2**power > DENSE_LIMIT:
                continue
            times = milliseconds(
                make(2**power), min(5, arguments.repeats) if slow else arguments.repeats
            )
            quartiles = statistics.quantiles(times, n=4)
            rows.append(
                {
                    "case": name,
                    "outputs": 2**power,
                    "median_ms": round(statistics.median(times), 3),
                    "quartiles_ms": [round(quartiles[0], 3), round(quartiles[2], 3)],
                }
            )
            print(rows[-1], flush=True)
    write(rows, arguments.repeats)


def write(rows: list[dict], repeats: int) -> None:
    """JSON, table and plot."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": runtime.versions(),
    }
    (RESULTS / "scaling.json").write_text(json.dumps(found | {"rows": rows}, indent=1) + "\n")
    sizes = sorted({row["outputs"] for row in rows})
    shown = {
        (row["case"], row["outputs"]): "{:.2f} ({:.2f} to {:.2f})".format(
            row["median_ms"], *row["quartiles_ms"]
        )
        for row in rows
    }
    cells = [
        {"outputs": f"{size:,}"} | {name: shown.get((name, size), "") for name in CASES}
        for size in sizes
    ]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    (RESULTS / "scaling.md").write_text(
        "# Time of a training step against the number of outputs\n\n"
        f"Made by `python tests/benchmarks/scaling.py` on {found['date']}; {found['machine']}; "
        f"{versions}. Milliseconds, median (quartiles) of {repeats} steps (5 for autograd). "
        f"{HIDDEN} hidden units, batch {BATCH}, {ACTIVE['shared']:,} active outputs shared, "
        f"{ACTIVE['per_sample']} per sample.\n\n"
        "In it for ours: selection, forward, loss, backward, row-sparse Adam. Not in it: the input "
        "layer, and rebuilds. For autograd: forward, loss and backward only.\n\n"
        + table(cells)
        + "\n![plot](scaling.png)\n"
    )
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(figsize=(7, 4.5))
    for name in CASES:
        points = [(row["outputs"], row["median_ms"]) for row in rows if row["case"] == name]
        axes.loglog(*zip(*points, strict=True), "o-", label=name, base=2)
    axes.set_yscale("log", base=10)
    axes.set(xlabel="outputs", ylabel="ms a step", title="Time of a training step")
    axes.grid(alpha=0.3)
    axes.legend()
    plt.tight_layout()
    plt.savefig(RESULTS / "scaling.png", dpi=120)


if __name__ == "__main__":
    main()
