"""Time of a whole training step at Amazon-670K's shape, by part, and what an epoch learns.

    python benchmarks/step.py

The network is that of `python train.py dataset=amazon670k_like ranker=none`. Writes
results/benchmarks/step.{json,md} and the table of the README.
"""

import argparse
import gc
import inspect
import math
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from harness import ROOT, insert, last, opened, prose, publish, table, trained
from peers import Evaluation
from plain_torch import NETWORKS, step_of, train
from sized import CASES, EPOCH, QUIET, median, milliseconds

from slide import runtime
from slide.config import build_trainer, fill_in, read_config
from slide.data import Batch
from slide.sampling import schedules
from slide.training.trainer import Trainer

WARM_UP = 10
# Steps whose changed rows move to their new buckets at a time.
RUN = 8
# Turns of each case, and steps in a turn.
TURNS, REPEATS = 5, 2 * RUN
DENSE = "dense PyTorch"
DATA = [
    *("dataset=amazon670k_like", "dataset.train_samples=120000", "dataset.test_samples=2000"),
    *("dataset.cache=datasets/amazon670k_like/cache_120000", "ranker=none", "trainer.epochs=1"),
]
Step = Callable[[], object]


def on_batches(trainer: Trainer, step: Callable[[Batch], object]) -> Step:
    """A step on one batch after the other; making the batch is part of it."""
    count = iter(range(10**9))
    return lambda: step(trainer.batches.batch(*divmod(next(count), len(trainer.batches))))


def our_step(trainer: Trainer) -> Step:
    """Everything that a step needs: batch, input layer, selection, products, gradients, updates."""
    return on_batches(trainer, lambda batch: trainer.loop.update(trainer.loop.forward(batch)[0]))


class Peer:
    """A network in plain PyTorch on the batches of a trainer of the default network."""

    def __init__(self, kind: str, trainer: Trainer):
        data, config = trainer.data, read_config(["sampler=uniform", "sampler.mode=shared", *DATA])
        fill_in(config, EPOCH, data.num_labels)
        network = NETWORKS[kind](data.num_features, data.num_labels, config)
        rates = config.optimizer.lr, config.optimizer.input_rate
        self.step = on_batches(trainer, step_of(network, network.optimizer(*rates)))
        self.batch, self.data, self.config = config.trainer.batch_size, data, config

    def learnt(self) -> float:
        evaluation = Evaluation(self.data)
        network = NETWORKS["sampled"](self.data.num_features, self.data.num_labels, self.config)
        epochs = train(network, self.data, self.config, lambda: evaluation.of(network.best))
        return list(epochs)[-1]["p_at_1"]


def part_of(name: str) -> str:
    """The part of a step that a range belongs to; ``""``: none. PyTorch names its own ranges."""
    name = name.removesuffix("Backward")
    if name.startswith("slide::"):
        return name.removeprefix("slide::")
    parts = {"Optimizer.step#RowSparseAdam.step": "adam", "_SparseLinear": "input_layer"}
    layers = ("_SharedLinearLoss", "_SharedLinear", "_PerSampleLinear", "_ActiveLoss")
    return parts.get(name, "output_layer" if name in layers else "")


def seconds_by_range(profile: torch.profiler.profile) -> dict[str, float]:
    """The time in each range of ours, less the time in other ranges of ours inside of it."""
    events = [event for event in profile.events() if part_of(event.name)]
    seconds: dict[str, float] = {}
    open_ranges: list = []
    for event in sorted(events, key=lambda event: (event.time_range.start, -event.time_range.end)):
        spent = (event.time_range.end - event.time_range.start) / 1e6
        while open_ranges and open_ranges[-1].time_range.end <= event.time_range.start:
            open_ranges.pop()
        if open_ranges:
            seconds[part_of(open_ranges[-1].name)] -= spent
        seconds[part_of(event.name)] = seconds.get(part_of(event.name), 0.0) + spent
        open_ranges.append(event)
    return seconds


def milliseconds_by_part(step: Step, repeats: int) -> dict[str, float]:
    """The mean time of a step in each range of ours, and in what is left."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        times = milliseconds(step, 0, repeats)
    found = seconds_by_range(profile).items()
    parts = {name.replace("_", " "): round(1e3 * spent / repeats, 2) for name, spent in found}
    return parts | {"rest": round(statistics.fmean(times) - sum(parts.values()), 2)}


def rebuild_milliseconds(trainer: Trainer) -> float:
    layer = trainer.network.output
    if layer.sampler.proposer is None:
        return 0.0
    bias = None if layer.bias is None else layer.bias.detach()
    return median(lambda: layer.sampler.proposer.rebuild(layer.weight.detach(), bias), 0)


def in_turns(
    step: Step, batch: int, dense: Peer, counts: tuple[int, int], upkeep: float = 0.0
) -> tuple[dict[str, Any], list[float]]:
    """A row of steps in turn with themselves on one core and the dense step, whose times follow."""
    times, dense_times, ratios, cores = [], [], [], []
    milliseconds(step, 0, WARM_UP)
    for _ in range(counts[0]):
        milliseconds(step, 0, RUN)  # A dense step has emptied the caches.
        now = milliseconds(step, 0, counts[1])
        runtime.set_threads(1)
        alone = statistics.fmean(milliseconds(step, 0, RUN))
        runtime.set_threads(0)
        theirs = milliseconds(dense.step, 0, 1)
        mean = statistics.fmean(now)
        ratios.append(batch / dense.batch * theirs[0] / (mean + upkeep))
        cores.append(alone / mean)
        times += now
        dense_times += theirs
    # What happens every few steps counts, a disturbance from outside does not.
    runs = [times[i : i + RUN] for i in range(0, len(times), RUN)]
    mean = statistics.median(statistics.fmean(run) for run in runs)
    row = {"batch": batch, **spread(times), "mean_ms": round(mean, 2)}
    row["samples_per_second"] = round(1e3 * batch / (mean + upkeep))
    row["to_dense"] = round(statistics.median(ratios), 1)
    row["turns_to_dense"] = [round(ratio, 1) for ratio in ratios]
    row["two_cores_to_one"] = round(statistics.median(cores), 2)
    row["rebuild_share"] = round(upkeep / (mean + upkeep), 3)
    return row, dense_times


def spread(times: list[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(times, n=4)
    return {"ms": round(middle, 2), "quartiles_ms": [round(low, 2), round(high, 2)]}


def make_trainer(words: list[str], folder: str) -> Trainer:
    """What train.py builds, with no rebuild of the tables but the first."""
    quiet = QUIET if "sampler=lsh" in words else []
    trainer = build_trainer(read_config([*DATA, *quiet, *words, f"run_dir={folder}/run"]))
    trainer.monitor.close()  # Timed steps write no log.
    return trainer


def steps_between_rebuilds(trainer: Trainer) -> float:
    """By the default schedule, from what the steps so far have computed."""
    sampler: Any = trainer.network.output.sampler
    if sampler.proposer is None:
        return math.inf
    known = inspect.signature(schedules.by_updates).parameters
    each = sampler.computed / max(1, sampler.steps)
    updates = known["per_output"].default * sampler.out_features / each
    return max(known["at_least"].default, updates)


def measure_all(turns: int, repeats: int) -> dict[str, Any]:
    """A row for each of `CASES`, and what the network is."""
    runtime.set_threads(0)
    opened(tuple(DATA))
    rows: list[dict[str, Any]] = []
    counts, dense_times = (turns, repeats), []
    with tempfile.TemporaryDirectory() as folder:
        base = make_trainer(["sampler=uniform", "sampler.mode=shared"], f"{folder}/base")
        output, first = base.network.output, base.network.first
        dense = Peer("dense", base)
        dense.step()
        for name, chosen in CASES.items():
            if name == DENSE:
                continue
            if isinstance(chosen, str):
                peer = Peer(chosen, base)
                row, theirs = in_turns(peer.step, peer.batch, dense, counts)
                learnt = peer.learnt()
            else:
                trainer = make_trainer(chosen, f"{folder}/{len(rows)}")
                step, batch = our_step(trainer), trainer.options.batch_size
                milliseconds(step, 0, WARM_UP)
                rebuild = rebuild_milliseconds(trainer)
                charged = rebuild / steps_between_rebuilds(trainer)
                row, theirs = in_turns(step, batch, dense, counts, charged)
                row["rebuild_ms"] = round(rebuild, 1)
                row["parts_ms"] = milliseconds_by_part(step, 4 * repeats)
                del trainer, step
                gc.collect()
                learnt = trained([*DATA, *chosen])[1]["p_at_1"]
            dense_times += theirs
            rows.append({"case": name} | row | {"p_at_1": round(learnt, 4)})
            print(rows[-1], flush=True)
            gc.collect()
        shape = (
            f"{first.in_features:,} features, 75 non-zeros a row, {output.in_features} hidden "
            f"units, {output.out_features:,} outputs"
        )
    middle = statistics.median(dense_times)
    speed = {"mean_ms": round(middle, 2), "samples_per_second": round(1e3 * dense.batch / middle)}
    last_row = {"case": DENSE, "batch": dense.batch, **spread(dense_times), **speed}
    return {"shape": shape, "rows": [*rows, last_row | {"to_dense": 1.0}]}


def summary(found: dict[str, Any]) -> str:
    rows = [
        {
            "": row["case"],
            "batch": row["batch"],
            "ms a step": row["ms"],
            "samples/s": f"{row['samples_per_second']:,}",
            "times dense": row["to_dense"],
            "P@1": f"{100 * row['p_at_1']:.1f} %" if "p_at_1" in row else "",
        }
        for row in found["rows"]
        if row["case"] not in ("uniform, group", "uniform, sample")
    ]
    return f"{found['shape']}; on {found['machine']}:\n\n{table(rows)}"


def page(found: dict[str, Any]) -> str:
    main = [
        {
            "": row["case"],
            "batch": row["batch"],
            "step, ms (quartiles)": "{} ({} to {})".format(row["ms"], *row["quartiles_ms"]),
            "rebuilds": f"{100 * row.get('rebuild_share', 0):.0f} %",
            "samples/s": f"{row['samples_per_second']:,}",
            "to dense (turns)": "{} ({} to {})".format(
                row["to_dense"], min(row["turns_to_dense"]), max(row["turns_to_dense"])
            )
            if "turns_to_dense" in row
            else row["to_dense"],
            "two cores to one": row.get("two_cores_to_one", ""),
            "P@1 after an epoch": f"{100 * row['p_at_1']:.2f} %" if "p_at_1" in row else "",
        }
        for row in found["rows"]
    ]
    ours = [row for row in found["rows"] if "parts_ms" in row]
    names = dict.fromkeys(name for row in ours for name in row["parts_ms"] if name != "rest")
    parts = [
        {"ms of a step": row["case"]} | {n: row["parts_ms"].get(n, "") for n in (*names, "rest")}
        for row in ours
    ]
    return (
        prose("step", "about", **found, run=RUN)
        + table(main)
        + "\nWhere the time goes (steps of the same run, timed part by part):\n\n"
        + table(parts)
        + prose("step", "tried")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--render", action="store_true", help="only write the pages anew")
    arguments = parser.parse_args()
    counts = {"turns": TURNS, "repeats": REPEATS}
    found = last("step") if arguments.render else counts | measure_all(**counts)
    publish("step", found, page)
    insert(ROOT / "README.md", "speed", summary(last("step")))


if __name__ == "__main__":
    main()
