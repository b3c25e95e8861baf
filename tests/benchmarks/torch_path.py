"""Time of a training step by kernels and in plain torch, on each device, beside plain PyTorch.

    python tests/benchmarks/torch_path.py

Where PyTorch finds a GPU, the same steps are timed there, also with ten million outputs. A step is
everything between two batches: the copy of the batch to the device, input layer, selection,
products, loss, gradients and both optimizers. Tables are built before. ``--outputs``, ``--repeats``
and ``--cases`` make it smaller, and ``--results`` keeps such a trial out of the page.
Writes results/benchmarks/torch_path.{json,md}.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from report import RESULTS, last, publish, table

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import slide  # noqa: E402
from slide import runtime  # noqa: E402
from slide.backend import backend  # noqa: E402
from slide.sampling import never  # noqa: E402

FEATURES, NONZEROS, LABELS_PER_ROW = 135_909, 75, 5
WARM_UP, BATCHES = 4, 8
LSH = slide.LSHProposer


class Shape(NamedTuple):
    """What a case computes: rows in a step, outputs in a set, hidden units, outputs in all."""

    batch: int = 256
    active: int = 4096
    hidden: int = 128
    outputs: int = 670_091


class Case(NamedTuple):
    """A case: its shape, the sampler, and what peer of PyTorch it is, if any."""

    shape: Shape = Shape()
    mode: str = "shared"
    proposer: Callable | None = None
    peer: str = ""
    needs_gpu: bool = False


LARGE = Shape(hidden=256, outputs=10_000_000)
CASES = {
    "uniform, shared, 4,096": Case(),
    "uniform, shared, 16,384": Case(Shape(active=16_384)),
    "lsh, shared, 4,096": Case(proposer=LSH),
    "lsh, per sample, 1,000": Case(Shape(128, 1000), "per_sample", LSH),
    "uniform, shared, 4,096, 10^7 x 256": Case(LARGE, needs_gpu=True),
    "dense, Adam(fused)": Case(peer="dense"),
    "sampled softmax, SparseAdam, 4,096": Case(peer="sampled"),
    "sampled softmax, SparseAdam, 16,384": Case(Shape(active=16_384), peer="sampled"),
}
Step = Callable[[int], None]


def draw_batches(shape: Shape) -> list[tuple[slide.CSR, slide.Pattern]]:
    """Batches of random rows; frequent features and labels occur more often."""
    rng = np.random.default_rng(0)

    def columns(count: int, most: int) -> np.ndarray:
        drawn = [
            np.unique((most * rng.random(count) ** 2).astype(np.int32)) for _ in range(shape.batch)
        ]
        bounds = np.concatenate([[0], np.cumsum([len(row) for row in drawn])])
        return bounds, np.concatenate(drawn)

    found = []
    for _ in range(BATCHES):
        bounds, indices = columns(NONZEROS, FEATURES)
        values = rng.random(len(indices)).astype(np.float32)
        labels = slide.Pattern(*columns(LABELS_PER_ROW, shape.outputs))
        found.append((slide.CSR(bounds, indices, values), labels))
    return found


def our_step(case: Case, device: torch.device) -> Step:
    """A step of a network of slide."""
    shape = case.shape
    sampler = partial(
        slide.ActiveSampler,
        proposer=case.proposer,
        active=shape.active,
        mode=case.mode,
        rebuild=never,
    )
    network = slide.SlideNetwork(FEATURES, [shape.hidden], shape.outputs, sampler).to(device)
    optimizer = slide.RowSparseAdam(network.parameters())
    batches, loss = draw_batches(shape), slide.ActiveLoss("softmax")

    def step(i: int) -> None:
        features, labels = batches[i % BATCHES]
        value, _ = network.output.loss(network.encode(features), labels, loss)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def peer_step(case: Case, device: torch.device) -> Step:
    """The same network in plain PyTorch: dense, or with sampled softmax."""
    shape, dense, F = case.shape, case.peer == "dense", torch.nn.functional
    kept = {"mode": "sum", "include_last_offset": True, "sparse": not dense, "device": device}
    bag = torch.nn.EmbeddingBag(FEATURES, shape.hidden, **kept)
    if dense:
        output = torch.nn.Linear(shape.hidden, shape.outputs, device=device)
        optimizer = torch.optim.Adam([*bag.parameters(), *output.parameters()], fused=True)
    else:
        kept = {"sparse": True, "device": device}
        output = torch.nn.Embedding(shape.outputs, shape.hidden, **kept)
        optimizer = torch.optim.SparseAdam([*bag.parameters(), *output.parameters()])
    batches = draw_batches(shape)

    def step(i: int) -> None:
        features, labels = batches[i % BATCHES]
        indptr, indices, values, columns = (
            torch.from_numpy(each).to(device) for each in (*features, labels.indices)
        )
        counts = torch.from_numpy(np.diff(labels.indptr)).to(device)
        rows = torch.repeat_interleave(counts, output_size=len(columns))
        hidden = torch.relu(bag(indices.long(), indptr, per_sample_weights=values))
        if dense:
            scores, at = output(hidden), columns.long()
        else:
            known, at = torch.unique(columns, return_inverse=True)
            more = torch.randint(shape.outputs, (shape.active - len(known),), device=device)
            scores = F.linear(hidden, output(torch.cat([known, more])))
        positives = torch.zeros_like(hidden[:, 0]).index_add_(0, rows, scores[rows, at])
        loss = (torch.logsumexp(scores, 1) - positives / counts.clamp(min=1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def measure(name: str, case: Case, way: str, device: torch.device, repeats: int) -> dict:
    """Times of single steps; memory of the device, if it is a GPU."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    with backend(way):
        step, times = (peer_step if case.peer else our_step)(case, device), []
        for i in range(WARM_UP + repeats):
            begin = time.perf_counter()
            step(i)
            if on_gpu:
                torch.cuda.synchronize(device)
            times.append(1e3 * (time.perf_counter() - begin))
    low, middle, high = statistics.quantiles(times[WARM_UP:], n=4)
    memory = torch.cuda.max_memory_allocated(device) / 2**20 if on_gpu else None
    return {
        "case": name,
        "way": "PyTorch" if case.peer else way,
        "device": device.type,
        "batch": case.shape.batch,
        "outputs": case.shape.outputs,
        "ms": round(middle, 2),
        "quartiles_ms": [round(low, 2), round(high, 2)],
        "memory_mb": None if memory is None else round(memory),
    }


def measure_all(names: list[str], outputs: int | None, repeats: int) -> list[dict]:
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices.append(torch.device("cuda"))
    rows = []
    for name in names:
        case = CASES[name]
        if outputs:
            case = case._replace(shape=case.shape._replace(outputs=outputs))
        for device in devices:
            if case.needs_gpu and device.type == "cpu":
                continue
            for way in ("kernels", "torch") if device.type == "cpu" else ("torch",):
                if case.peer and way == "torch" and device.type == "cpu":
                    continue  # The same as before.
                rows.append(measure(name, case, way, device, repeats))
                print(rows[-1], flush=True)
                gc.collect()
    return rows


def page(found: dict) -> str:
    dense = {row["device"]: row["ms"] for row in found["rows"] if row["case"].startswith("dense")}
    shown = []
    for row in found["rows"]:
        to_dense = dense.get(row["device"])
        shown.append(
            {
                "": row["case"],
                "device": row["device"],
                "computed by": row["way"],
                "step, ms (quartiles)": "{} ({} to {})".format(row["ms"], *row["quartiles_ms"]),
                "times as fast as dense": round(to_dense / row["ms"], 1) if to_dense else "",
                "memory, MiB": row["memory_mb"] or "",
            }
        )
    devices = {row["device"] for row in found["rows"]}
    without = "" if "cuda" in devices else " No GPU was there to measure on."
    return (
        "A step is everything between two batches: the copy of the batch to the device, input "
        "layer, selection, products, loss, gradients and both optimizers; tables are built before."
        f"{without}\n\n"
        f"{FEATURES:,} features, {NONZEROS} non-zeros a row, 128 hidden units, "
        f"{found['rows'][0]['outputs']:,} outputs, {LABELS_PER_ROW} labels a row, 256 rows in a "
        f"step or 128 with a set for each sample; {found['repeats']} steps a case. On the CPU "
        "plain torch is the definition of the kernels, not a replacement.\n\n" + table(shown)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=32)
    parser.add_argument("--outputs", type=int, help="for small trials; the page then says so")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--render", action="store_true", help="only write the page anew")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the page")
    given = parser.parse_args()
    runtime.set_threads(0)
    if given.render:
        found = last("torch_path", given.results)
    else:
        found = {"rows": measure_all(given.cases, given.outputs, given.repeats)}
    publish("torch_path", {"repeats": given.repeats} | found, page, given.results)


if __name__ == "__main__":
    main()
