"""Time of a whole training step at Amazon-670K's shape, by mode and by part, beside its peers.

    python tests/benchmarks/step.py

A step is everything between two batches: batch assembly, input layer, hashing, look-up, selection,
products, loss, gradients, both sparse Adams, and rehashing of rows that moved. Full rebuilds are
timed by themselves and charged by how many the default schedule asks for in the first epoch.
TensorFlow is left out where it is not installed (``pip install tensorflow-cpu``).
Writes results/benchmarks/step.{json,md}.
"""

import argparse
import gc
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

import numpy as np
from helpers.samplers import lsh_sampler
from report import insert, last, publish, table
from workload import BATCH, CASES, EPOCH, PEERS, ROOT, Step, make_trainer, our_step

from slide import runtime
from slide.sampling import schedules
from slide.training.trainer import Trainer

WARM_UP = 10
# Steps between two rehashings of rows, at most, among the cases.
RUN = 8
DENSE_STEPS = 16
# part: the functions whose time it is, less the time of others that they call.
PARTS = {
    "batch": ["slide.data.batches:Batches.batch"],
    "input layer": [
        "slide.functional.linear:_SparseLinear.forward",
        "slide.functional.linear:_SparseLinear.backward",
    ],
    "transposition": ["slide.active_set:kernels.transpose_pattern"],
    "hashing": [
        "slide.hashing.inner_product:InnerProductHash.observe",
        "slide.hashing.inner_product:InnerProductHash.query_codes",
    ],
    "votes": [
        "slide.sampling.indexed_sampling:votes.vote_shared",
        "slide.sampling.indexed_sampling:votes.vote_per_sample",
    ],
    "set": [
        "slide.sampling.sampling:kernels.count_distinct",
        "slide.sampling.sampling:kernels.assemble_shared",
        "slide.sampling.sampling:kernels.assemble_per_sample",
        "slide.sampling.indexed_sampling:select.count_updates",
    ],
    "output layer": [
        "slide.functional.linear:_PerSampleLinear.forward",
        "slide.functional.linear:_PerSampleLinear.backward",
        "slide.functional.losses:_Loss.forward",
        "slide.functional.losses:_SharedLinearLoss.forward",
    ],
    "Adam": [
        "slide.optim.row_sparse_adam:kernels.adam_rows",
        "slide.optim.row_sparse_adam:kernels.adam_factored",
    ],
    "rehashing": ["slide.sampling.indexed_sampling:lsh_sampler._refresh"],
}


@contextmanager
def timed_parts(seconds: dict[str, float]) -> Iterator[None]:
    """Add up the time spent in each of `PARTS`."""
    undo = []
    for part, names in PARTS.items():
        for name in names:
            module, _, path = name.partition(":")
            owner = importlib.import_module(module)
            *outer, last = path.split(".")
            for attribute in outer:
                owner = getattr(owner, attribute)
            raw = vars(owner)[last]
            static = isinstance(raw, staticmethod)
            timed = _timed(raw.__func__ if static else raw, part, seconds)
            setattr(owner, last, staticmethod(timed) if static else timed)
            undo.append((owner, last, raw))
    try:
        yield
    finally:
        for owner, last, raw in undo:
            setattr(owner, last, raw)


def _timed(function: Callable, part: str, seconds: dict[str, float]) -> Callable:
    @wraps(function)
    def timed(*arguments, **keywords):
        begin, inner = time.perf_counter(), sum(seconds.values())
        try:
            return function(*arguments, **keywords)
        finally:
            spent = time.perf_counter() - begin - (sum(seconds.values()) - inner)
            seconds[part] = seconds.get(part, 0.0) + spent

    return timed


def milliseconds(step: Step, repeats: int, first: int = 0) -> list[float]:
    """Times of single steps."""
    times = []
    for i in range(first, first + repeats):
        begin = time.perf_counter()
        step(i)
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def spread(times: list[float]) -> dict:
    low, middle, high = statistics.quantiles(times, n=4)
    return {"ms": round(middle, 2), "quartiles_ms": [round(low, 2), round(high, 2)]}


def typical_mean(times: list[float]) -> float:
    """The median over means of `RUN` steps: what happens every few steps counts, a disturbance
    from outside does not.
    """
    runs = [times[i : i + RUN] for i in range(0, len(times), RUN)]
    return statistics.median(statistics.fmean(run) for run in runs)


def rebuild_milliseconds(trainer: Trainer) -> float:
    """A full rebuild: median of three."""
    layer = trainer.network.output
    if not isinstance(layer.sampler, lsh_sampler):
        return 0.0
    weight, bias = layer.weight.detach(), layer.bias
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        layer.sampler._rebuild(weight, None if bias is None else bias.detach())
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def measure(name: str, repeats: int) -> dict:
    """One of our cases, with both cores and with one."""
    trainer = make_trainer(CASES[name])
    step, batch = our_step(trainer), trainer.options.batch_size
    milliseconds(step, WARM_UP)
    times = milliseconds(step, repeats, WARM_UP)
    parts: dict[str, float] = {}
    with timed_parts(parts):
        total = milliseconds(step, repeats, WARM_UP + repeats)
    shares = {part: round(1e3 * parts.get(part, 0.0) / repeats, 2) for part in PARTS}
    shares["rest"] = round(float(np.mean(total)) - sum(shares.values()), 2)
    rebuild = rebuild_milliseconds(trainer)
    mean = typical_mean(times)
    per_step = schedules.backoff(EPOCH) / (EPOCH / batch) * rebuild
    runtime.set_threads(1)
    milliseconds(step, 3, 0)
    alone = milliseconds(step, max(repeats // 2, RUN), 3)
    runtime.set_threads(0)
    return (
        {"case": name, "batch": batch}
        | spread(times)
        | {
            "mean_ms": round(mean, 2),
            "rebuild_ms": round(rebuild, 1),
            "rebuild_share": round(per_step / (mean + per_step), 3),
            "samples_per_second": round(1e3 * batch / (mean + per_step)),
            "two_cores_to_one": round(typical_mean(alone) / mean, 2),
            "parts_ms": shares,
        }
    )


def measure_peer(name: str, trainer: Trainer, repeats: int) -> dict:
    step = PEERS[name](trainer)
    milliseconds(step, 2)
    times = milliseconds(step, repeats, 2)
    mean = typical_mean(times)
    return (
        {"case": name, "batch": BATCH}
        | spread(times)
        | {
            "mean_ms": round(mean, 2),
            "samples_per_second": round(1e3 * BATCH / mean),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=64)
    parser.add_argument("--render", action="store_true", help="only write the pages anew")
    arguments = parser.parse_args()
    found = last("step") if arguments.render else {"rows": measure_all(arguments.repeats)}
    publish("step", {"repeats": arguments.repeats} | found, page)
    insert(ROOT / "README.md", "speed", summary(last("step")))


def measure_all(repeats: int) -> list[dict]:
    runtime.set_threads(0)
    rows = []
    for name in CASES:
        rows.append(measure(name, repeats))
        print(rows[-1], flush=True)
        gc.collect()
    trainer = make_trainer(["sampler=uniform"])
    for name in PEERS:
        try:
            rows.append(measure_peer(name, trainer, DENSE_STEPS if "dense" in name else repeats))
        except ImportError as error:
            print(f"{name}: left out, {error}")
            continue
        print(rows[-1], flush=True)
        gc.collect()
    dense = next(row for row in rows if "dense" in row["case"])["samples_per_second"]
    for row in rows:
        row["to_dense"] = round(row["samples_per_second"] / dense, 1)
    return rows


def summary(found: dict) -> str:
    """The table of the README."""
    rows = [
        {
            "": row["case"],
            "batch": row["batch"],
            "ms a step": row["ms"],
            "samples/s": f"{row['samples_per_second']:,}",
            "times dense": row["to_dense"],
        }
        for row in found["rows"]
    ]
    return f"On {found['machine']}:\n\n{table(rows)}"


def page(found: dict) -> str:
    ours = [row for row in found["rows"] if "parts_ms" in row]
    main = [
        {
            "": row["case"],
            "batch": row["batch"],
            "step, ms (quartiles)": "{} ({} to {})".format(row["ms"], *row["quartiles_ms"]),
            "rebuilds": f"{100 * row['rebuild_share']:.0f} %" if "rebuild_share" in row else "",
            "samples/s": f"{row['samples_per_second']:,}",
            "to dense": row["to_dense"],
            "two cores to one": row.get("two_cores_to_one", ""),
        }
        for row in found["rows"]
    ]
    parts = [{"ms of a step": row["case"]} | row["parts_ms"] for row in ours]
    return (
        f"A training step: {__doc__.split('A step is ')[1].split('Writes')[0].strip()}\n\n"
        "Shape: 135,909 features, 75 non-zeros a row, 128 hidden units, 670,091 outputs, 4,096 "
        "active where nothing else is said (labels alone: these are some 5,400) or 1,000 per "
        "sample. "
        f"{found['repeats']} steps a case (dense: {DENSE_STEPS}), after some that do not count. "
        f"Samples/s follow from the mean step (median over means of {RUN}) and the rebuilds' share "
        f"of the first epoch ({schedules.backoff(EPOCH)} rebuilds).\n\n"
        + table(main)
        + "\nWhere the time goes (steps of the same run, timed part by part):\n\n"
        + table(parts)
    )


if __name__ == "__main__":
    main()
