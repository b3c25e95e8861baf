"""Time of a whole training step at Amazon-670K's shape, by mode and by part, beside its peers.

    python tests/benchmarks/step.py

A step is everything between two batches: batch assembly, input layer, hashing, look-up, selection,
products, loss, gradients, both sparse Adams, and rehashing of rows that moved. Full rebuilds are
timed by themselves and charged by how many the default schedule asks for in the first epoch.
Each case takes turns with the dense step, and with itself on one core.
TensorFlow is left out where it is not installed (``pip install tensorflow-cpu``).
Writes results/benchmarks/step.{json,md}.
"""

import argparse
import gc
import statistics
import time

import numpy as np
import torch
from report import insert, last, publish, table
from workload import BATCH, CASES, EPOCH, PEERS, ROOT, Step, make_trainer, our_step

from slide import runtime
from slide.sampling import schedules
from slide.training.trainer import Trainer

WARM_UP = 10
# Steps between two rehashings of rows, at most, among the cases.
RUN = 8
# Each case takes turns with the dense step: a turn has so many steps of this one.
DENSE, DENSE_STEPS = "dense PyTorch, Adam(fused)", 2
# The cases of the README's table.
README_CASES = (
    "lsh, shared",
    "lsh, shared, batch 512, bfloat16",
    "uniform, shared, batch 512, bfloat16",
    "lsh, per sample",
    DENSE,
    "sampled softmax, SparseAdam",
)
# Part of a step: the range ``slide::name`` of PyTorch's profiler that it is.
PARTS = {
    "batch": "batch",
    "input layer": "input_layer",
    "transposition": "transpose",
    "hashing": "hash",
    "votes": "votes",
    "set": "assemble",
    "output layer": "output_layer",
    "Adam": "adam",
    "rehashing": "rehash",
}


def seconds_by_range(profile: torch.profiler.profile) -> dict[str, float]:
    """The time in each range of ours, less the time in other ranges of ours inside of it."""
    events = [event for event in profile.events() if event.name.startswith("slide::")]
    seconds: dict[str, float] = {}
    open_ranges: list = []
    for event in sorted(events, key=lambda event: (event.time_range.start, -event.time_range.end)):
        spent = (event.time_range.end - event.time_range.start) / 1e6
        while open_ranges and open_ranges[-1].time_range.end <= event.time_range.start:
            open_ranges.pop()
        if open_ranges:
            seconds[open_ranges[-1].name] -= spent
        seconds[event.name] = seconds.get(event.name, 0.0) + spent
        open_ranges.append(event)
    return {name.removeprefix("slide::"): value for name, value in seconds.items()}


def milliseconds(step: Step, repeats: int, first: int = 0) -> list[float]:
    """Times of single steps."""
    times = []
    for i in range(first, first + repeats):
        begin = time.perf_counter()
        step(i)
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def milliseconds_by_part(
    step: Step, repeats: int, first: int
) -> tuple[list[float], dict[str, float]]:
    """Times of single steps, and the mean time of a step in each of `PARTS`."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu]) as profile:
        times = milliseconds(step, repeats, first)
    found = seconds_by_range(profile)
    return times, {part: 1e3 * found.get(name, 0.0) / repeats for part, name in PARTS.items()}


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
    if layer.sampler.proposer is None:
        return 0.0
    weight, bias = layer.weight.detach(), layer.bias
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        layer.sampler.proposer.rebuild(weight, None if bias is None else bias.detach())
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


class Dense:
    """Turns of the dense step; all of them together are a row of the page."""

    def __init__(self, trainer: Trainer):
        self.step, self.times = PEERS[DENSE](trainer), []
        milliseconds(self.step, 1)

    def turn(self) -> float:
        """Milliseconds of a step of this turn."""
        now = milliseconds(self.step, DENSE_STEPS, len(self.times))
        self.times += now
        return statistics.fmean(now)

    def row(self) -> dict:
        """The row of the page."""
        mean = statistics.median(self.times)
        speed = round(1e3 * BATCH / mean)
        row = {"case": DENSE, "batch": BATCH, **spread(self.times), "mean_ms": round(mean, 2)}
        return row | {"samples_per_second": speed, "to_dense": 1.0}


def compared(batch: int, ours: list[float], dense: list[float]) -> dict:
    """How many times as many samples a second as dense: of the turns the median, and all.

    Args:
        batch: samples in one of our steps.
        ours: of each turn the milliseconds of our step, with its share of rebuilds.
        dense: of each turn the milliseconds of a dense step.
    """
    turns = [batch / BATCH * theirs / own for own, theirs in zip(ours, dense, strict=True)]
    return {
        "to_dense": round(statistics.median(turns), 1),
        "turns_to_dense": [round(turn, 1) for turn in turns],
    }


def measure(name: str, dense: Dense, turns: int, repeats: int) -> dict:
    """One of our cases, with both cores and with one."""
    trainer = make_trainer(CASES[name])
    step, batch = our_step(trainer), trainer.options.batch_size
    milliseconds(step, WARM_UP)
    rebuild = rebuild_milliseconds(trainer)
    per_step = schedules.backoff(EPOCH) / (EPOCH / batch) * rebuild
    times, means, alone, of_dense = [], [], [], []
    for _ in range(turns):
        now = milliseconds(step, repeats, WARM_UP + len(times))
        times += now
        means.append(statistics.fmean(now))
        runtime.set_threads(1)
        alone.append(statistics.fmean(milliseconds(step, RUN, WARM_UP)))
        runtime.set_threads(0)
        of_dense.append(dense.turn())
    total, parts = milliseconds_by_part(step, 4 * repeats, WARM_UP + len(times))
    shares = {part: round(value, 2) for part, value in parts.items()}
    shares["rest"] = round(float(np.mean(total)) - sum(shares.values()), 2)
    mean = typical_mean(times)
    return (
        {"case": name, "batch": batch}
        | spread(times)
        | {
            "mean_ms": round(mean, 2),
            "rebuild_ms": round(rebuild, 1),
            "rebuild_share": round(per_step / (mean + per_step), 3),
            "samples_per_second": round(1e3 * batch / (mean + per_step)),
        }
        | compared(batch, [own + per_step for own in means], of_dense)
        | {
            "two_cores_to_one": round(
                statistics.median(one / two for one, two in zip(alone, means, strict=True)), 2
            ),
            "parts_ms": shares,
        }
    )


def measure_peer(name: str, trainer: Trainer, dense: Dense, turns: int, repeats: int) -> dict:
    step = PEERS[name](trainer)
    milliseconds(step, 2)
    times, means, of_dense = [], [], []
    for _ in range(turns):
        now = milliseconds(step, repeats, 2 + len(times))
        times += now
        means.append(statistics.fmean(now))
        of_dense.append(dense.turn())
    mean = typical_mean(times)
    return (
        {"case": name, "batch": BATCH}
        | spread(times)
        | {"mean_ms": round(mean, 2), "samples_per_second": round(1e3 * BATCH / mean)}
        | compared(BATCH, means, of_dense)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2 * RUN, help="steps in a turn")
    parser.add_argument("--render", action="store_true", help="only write the pages anew")
    arguments = parser.parse_args()
    counts = {"turns": arguments.turns, "repeats": arguments.repeats}
    found = last("step") if arguments.render else counts | {"rows": measure_all(**counts)}
    publish("step", found, page)
    insert(ROOT / "README.md", "speed", summary(last("step")))


def measure_all(turns: int, repeats: int) -> list[dict]:
    runtime.set_threads(0)
    trainer = make_trainer(["sampler=uniform"])
    dense, rows = Dense(trainer), []
    for name in CASES:
        rows.append(measure(name, dense, turns, repeats))
        print(rows[-1], flush=True)
        gc.collect()
    for name in PEERS:
        if name == DENSE:
            continue
        try:
            rows.append(measure_peer(name, trainer, dense, turns, repeats))
        except ImportError as error:
            print(f"{name}: left out, {error}")
            continue
        print(rows[-1], flush=True)
        gc.collect()
    return [*rows, dense.row()]


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
        if row["case"] in README_CASES
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
            "to dense (turns)": "{} ({} to {})".format(
                row["to_dense"], min(row["turns_to_dense"]), max(row["turns_to_dense"])
            )
            if "turns_to_dense" in row
            else row["to_dense"],
            "two cores to one": row.get("two_cores_to_one", ""),
        }
        for row in found["rows"]
    ]
    parts = [{"ms of a step": row["case"]} | row["parts_ms"] for row in ours]
    return (
        f"A training step: {__doc__.split('A step is ')[1].split('Writes')[0].strip()}\n\n"
        "Shape: 135,909 features, 75 non-zeros a row, 128 hidden units, 670,091 outputs, 4,096 "
        "active where nothing else is said (labels alone: these are some 5,400) or 1,000 per "
        "sample. The network is small (`SMALL_NETWORK` in workload.py), and its rows are "
        "generated. Sampled softmax is plain PyTorch: an `EmbeddingBag`, the labels of the batch "
        "and uniform draws (4,096 in all), their cross-entropy, `SparseAdam`. "
        f"{found['turns']} turns a case, each of {found['repeats']} steps, {RUN} steps on one core "
        f"and {DENSE_STEPS} dense steps, after some that do not count; ratios are those of a turn, "
        "of which the median counts. The time of a step is a median, without rebuilds. Samples/s "
        f"follow from the mean step (median over means of {RUN}) and the rebuilds' share of the "
        f"first epoch ({schedules.backoff(EPOCH)} rebuilds), so columns do not divide exactly.\n\n"
        + table(main)
        + "\nWhere the time goes (steps of the same run, timed part by part):\n\n"
        + table(parts)
    )


if __name__ == "__main__":
    main()
