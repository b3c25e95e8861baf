"""How far the parts of a step are from what the machine can do.

    python tests/benchmarks/roofline.py

Counts, for steps at Amazon-670K's shape, the bytes that each part must move and the floating-point
operations that it must do, and divides by what a copy of rows picked at random and a matrix product
reach in the same run. The quotient of that least time and the measured time is the part's
efficiency. A dense step of the same run tells how many times faster a step of these least times
would be. Writes results/benchmarks/roofline.{json,md}.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from report import publish, table
from step import milliseconds, milliseconds_by_part
from workload import BATCH, CASES, make_trainer, our_step
from workload import dense_step as make_dense_step

from slide import runtime
from slide.kernels.adam import AdamHyper, AdamRows, adam_rows

REPEATS, DENSE_STEPS = 40, 8
MEASURED = ("lsh, shared", "uniform, shared, batch 512, bfloat16", "lsh, per sample")


def best_seconds(call: Callable[[], object], repeats: int = 7) -> float:
    call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def machine_limits(width: int = 128) -> dict[str, float]:
    """Bytes a second for rows at random, read and written back, and multiply-adds a second."""
    rng = np.random.default_rng(0)
    rows = torch.randn(670_091, width)
    ids = torch.from_numpy(rng.permutation(len(rows))[:100_000])
    gathered = torch.empty(len(ids), width)
    read = best_seconds(lambda: torch.index_select(rows, 0, ids, out=gathered))
    a, b = torch.randn(256, width), torch.randn(width, 4096)
    product = best_seconds(lambda: a @ b, 50)
    a16, b16 = a.bfloat16(), b.bfloat16()
    product16 = best_seconds(lambda: a16 @ b16, 50)
    state = AdamRows(
        *(rng.random((len(rows), width), np.float32) for _ in range(3)), np.empty(0, "i4")
    )
    gradient = rng.random((len(ids), width), np.float32)
    hyper, touched = AdamHyper(1e-3, 0.9, 0.999, 1e-8, 0.0, 1), ids.numpy().astype(np.int32)
    update = best_seconds(
        lambda: adam_rows(state, hyper, touched, gradient, 4 * runtime.num_threads())
    )
    flops = 2 * 256 * width * 4096
    return {
        # A row copied is read once and written once.
        "random_rows_gb_s": 2 * gathered.numel() * 4 / read / 1e9,
        "adam_rows_gb_s": 7 * gathered.numel() * 4 / update / 1e9,
        "product_gflops": flops / product / 1e9,
        "bfloat16_product_gflops": flops / product16 / 1e9,
    }


def needs(trainer) -> dict[str, tuple[float, float]]:
    """Bytes and floating-point operations of each part, from the sizes of one batch."""
    batch = trainer.batches.batch(0, 0)
    hidden = trainer.network.output.in_features
    row = 4 * hidden
    count, nonzeros = len(batch.rows), len(batch.features.indices)
    features = len(np.unique(batch.features.indices))
    active = trainer.network.output(trainer.network.encode(batch.features), batch.labels).active
    entries = len(active.ids) * (count if active.shared else 1)
    touched = len(np.unique(active.ids))
    product = 2.0 * entries * hidden
    # Adam reads and writes a weight's row and its second moment, and reads or forms a gradient.
    adam = row * ((5.0 if active.shared else 4.0) * touched + 4.0 * features)
    own = row * (3 * touched if active.shared else entries)
    # Scores, gradient of the inputs, and, unless Adam forms them, gradient of the rows.
    products = 3 * product if active.shared else 2 * product
    formed = 0 if active.shared else product
    return {
        "input layer": (row * nonzeros, 2.0 * nonzeros * hidden),
        "output layer": (own, products + 6.0 * entries),
        "Adam": (adam, formed + 9.0 * hidden * (touched + features)),
    }


def dense_milliseconds() -> float:
    """Time of a dense step of PyTorch with `BATCH` rows."""
    step = make_dense_step(make_trainer(["sampler=uniform"]))
    milliseconds(step, 2)
    return statistics.median(milliseconds(step, DENSE_STEPS, 2))


def measure(name: str, limits: dict[str, float]) -> list[dict]:
    trainer = make_trainer(CASES[name])
    rounded = trainer.network.output.precision == "bfloat16"
    product = limits["bfloat16_product_gflops" if rounded else "product_gflops"]
    step = our_step(trainer)
    milliseconds(step, 10)
    times, parts = milliseconds_by_part(step, REPEATS, 10)
    rows = []
    for part, (moved, flops) in needs(trainer).items():
        # Only the products of a shared set are rounded.
        rate = product if part == "output layer" else limits["product_gflops"]
        least = max(moved / limits["random_rows_gb_s"] / 1e6, flops / rate / 1e6)
        spent = parts[part]
        rows.append(
            {
                "case": name,
                "part": part,
                "moved_mb": round(moved / 1e6, 1),
                "mflop": round(flops / 1e6, 1),
                "least_ms": round(least, 2),
                "measured_ms": round(spent, 2),
                "efficiency": round(least / spent, 2),
            }
        )
        print(rows[-1], flush=True)
    whole, least = statistics.median(times), sum(row["least_ms"] for row in rows)
    per_row = limits["dense_ms"] / BATCH * trainer.options.batch_size
    rows.append(
        {
            "case": name,
            "part": "whole step",
            "least_ms": round(least, 2),
            "measured_ms": round(whole, 2),
            "efficiency": round(least / whole, 2),
            "least_to_dense": round(per_row / least),
            "to_dense": round(per_row / whole),
        }
    )
    print(rows[-1], flush=True)
    return rows


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    runtime.set_threads(0)
    found = machine_limits() | {"dense_ms": dense_milliseconds()}
    limits = {key: round(value, 1) for key, value in found.items()}
    print(limits)
    rows = [row for name in MEASURED for row in measure(name, limits)]
    publish("roofline", {"limits": limits, "rows": rows}, page)


def page(found: dict) -> str:
    limits = found["limits"]
    titles = {
        "case": "",
        "part": "part",
        "moved_mb": "MB moved",
        "mflop": "MFLOP",
        "least_ms": "least, ms",
        "measured_ms": "measured, ms",
        "efficiency": "least / measured",
        "to_dense": "times dense",
        "least_to_dense": "times dense, in its least time",
    }
    cells = [{title: row.get(key, "") for key, title in titles.items()} for row in found["rows"]]
    return (
        "# How far a step is from the machine's limits\n\n"
        f"In the same run: rows of 512 bytes picked at random are copied at "
        f"{limits['random_rows_gb_s']} GB/s (reading and writing), Adam on such rows moves "
        f"{limits['adam_rows_gb_s']} GB/s, a 256 x 128 x 4,096 product reaches "
        f"{limits['product_gflops']} GFLOP/s ({limits['bfloat16_product_gflops']} in bfloat16). "
        "The least time of a part is the larger of its bytes and its operations at these rates. "
        "Parts that stay in cache can beat the rate of random rows.\n\n"
        f"A dense step of {BATCH} rows took {limits['dense_ms']} ms in the same run. The last "
        "column is what a step would reach whose input layer, output layer and Adam took their "
        "least times, and in which nothing else took any time: no batch, no choice of outputs, no "
        "Python. So it is a bound for this way to compute a step, on this machine.\n\n"
        + table(cells)
    )


if __name__ == "__main__":
    main()
