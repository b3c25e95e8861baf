"""What choosing outputs gains, and could gain at best: proposers, an oracle and uniform draws.

    python tests/benchmarks/bound.py --root path/to/data
    python tests/benchmarks/bound.py --root path/to/data --datasets debian --samplers recent
    python tests/benchmarks/bound.py --root path/to/data --epochs 0.1

The network of the default recipe, without a re-ranker, on a part of the training rows; precision on
other training rows. The oracle computes all products with a random quarter of the outputs, another
quarter at each step, and proposes the largest ones of each sample: no index of a quarter of the
rows is better. skipgrams is a text of 188,065 words, each with its neighbours, in XMC text.
Writes results/bound.{json,md}.
"""

import argparse
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from report import table
from rows import Row, Store, add_options, numbers, origin, parse, spread
from sets import place
from train_process import ROOT

from slide import Pattern, Proposer, runtime
from slide.config import build_network, build_optimizer, fill_in, open_dataset, read_config
from slide.data import Split
from slide.kernels.votes import RankedIds
from slide.training import Trainer
from slide.training.first_biases import start_biases
from slide.training.selection import selection_recall

# Data set: overrides, rows to learn from, and the sizes of shared sets and of sets per sample.
SETS: dict[str, tuple[list[str], int, dict[str, list[int]]]] = {
    "debian": ([], 36_000, {"shared": [1024, 4096], "per_sample": [64, 128, 512, 1024]}),
    "gowalla": ([], 20_000, {"per_sample": [128]}),
    "fb15k": ([], 40_000, {"per_sample": [128]}),
    "files": ([], 40_000, {"shared": [2048, 8192], "per_sample": [128, 512]}),
    "skipgrams": ([], 100_000, {"shared": [2048], "per_sample": [128]}),
    "amazon670k_like": (
        ["dataset.train_samples=60000", "dataset.test_samples=10"],
        *(40_000, {"shared": [4096], "per_sample": [128]}),
    ),
}
JUDGED, QUERIES, BATCH, TOP = 4000, 1024, 256, 10
EPOCHS = (0.1, 1, 3)
SHARE = 0.5  # Of the places that the labels leave, for candidates.
FIGURES = {"p_at_1": "P@1", "p_at_5": "P@5", "psp_at_5": "PSP@5", "recall": "recall"}


class Oracle(Proposer):
    """The largest products of each sample with a random quarter of the outputs."""

    sparse_inputs = False

    def rebuild(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        assert bias is not None
        self.weight, self.bias = weight, bias  # They share memory with the layer's.

    def best(self, queries: torch.Tensor, k: int, key: np.uint64) -> np.ndarray:
        """``(B, k)`` int32 ids, best first."""
        drawn = np.random.default_rng(int(key)).permutation(self.out_features)
        part = torch.from_numpy(np.sort(drawn[: self.out_features // 4]))
        with torch.no_grad():
            scores = torch.addmm(self.bias[part], queries.detach().float(), self.weight[part].T)
            return part[scores.topk(k).indices].numpy().astype(np.int32)

    def propose(
        self, queries: Any, labels: Pattern, places: np.ndarray, key: np.uint64
    ) -> RankedIds:
        return RankedIds(self.best(queries, int(places.max(initial=1)), key), places.copy())

    def propose_shared(
        self, queries: Any, labels: Pattern, places: int, key: np.uint64
    ) -> np.ndarray:
        """First the best one of each sample, then their second ones, and so on."""
        # Samples share many of their best ones, so each is asked for more than its part.
        by_rank = self.best(queries, min(4 + 8 * places // len(queries), 1024), key).T.ravel()
        ids, first = np.unique(by_rank, return_index=True)
        return ids[np.argsort(first)][:places]

    def candidates(self, queries: Any) -> Pattern:
        return Pattern.from_lists(self.best(queries, TOP, np.uint64(0)).tolist())


# Those of conf/sampler/, and the oracle. For sets of the batch only some are of interest.
SAMPLERS = ("uniform", "lsh", "index", "neighbours", "recent", "oracle")
FOR_SHARED = ("uniform", "lsh", "recent", "oracle")


def measure(name: str, root: Path, case: Row) -> Row:
    """A row: train, and judge."""
    overrides, rows, _ = SETS[name]
    where = [f"dataset={name}"] if overrides else place(name, root)
    sizes = [f"sampler.mode={case['mode']}", f"sampler.active={case['active']}"]
    epochs = case["epochs"]
    training = [f"trainer.epochs={math.ceil(epochs)}", "ranker=none", "trainer.recall_every=0"]
    sampler = "uniform" if case["sampler"] == "oracle" else case["sampler"]
    words = [*where, *overrides, *sizes, *training, f"seed={case['seed']}", f"sampler={sampler}"]
    config = read_config([*words, f"sampler.candidate_share={SHARE}"])
    data = open_dataset(config)
    # All cases of a seed learn from the same rows.
    order = np.random.default_rng(case["seed"]).permutation(len(data.train))
    train, judged = (
        data.train.take(np.sort(part)) for part in (order[:rows], order[rows : rows + JUDGED])
    )
    data = replace(data, train=train, test=judged)
    fill_in(config, rows, data.num_labels)
    if epochs < 1:
        config.trainer.max_steps = math.ceil(epochs * rows / config.trainer.batch_size)
    torch.manual_seed(case["seed"])
    network = build_network(config, data.num_features, data.num_labels)
    if case["sampler"] == "oracle":
        network.output.sampler.proposer = Oracle(*network.output.weight.T.shape)
    loss, optimizer = instantiate(config.loss), build_optimizer(config, network)
    start_biases(network, loss, train.labels)
    options, schedule = instantiate(config.trainer, holdout=0.0), instantiate(config.lr_schedule)
    with tempfile.TemporaryDirectory() as folder:
        parts = network, optimizer, loss, data, options, Path(folder)
        found = Trainer(*parts, lr_schedule=schedule).fit()
    scores = {name: found[name] for name in FIGURES if name in found}
    return scores | {"recall": recall(network, judged), "seconds": found["train_seconds"]}


@torch.no_grad()
def recall(network: Any, judged: Split) -> float:
    """Share of the largest products that the sets of rows hold, without the help of labels."""
    layer, found = network.eval().output, []
    for part in judged.slice(0, QUERIES).blocks(BATCH):
        hidden = network.embed(part.features)
        active = layer.sampler.select(hidden, None)
        found.append(selection_recall(layer, hidden, active, TOP, BATCH).with_labels)
    return float(np.mean(found))


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    text = (
        "# What choosing outputs could gain\n\n"
        "The network of the default recipe without a re-ranker, on a part of the training rows; "
        f"precision in points on {JUDGED:,} other training rows, mean of the seeds and half the "
        "range between them, and the time of training. Each number of epochs is a run of its own, "
        "whose learning rate falls to 0; 0.1 is the start of a training. Candidates take at most "
        "half of the places that the labels leave; uniform draws take the rest. index and "
        "neighbours have few candidates a sample. The oracle knows the largest products of each "
        "sample with a random quarter of all outputs. Recall: the share of a row's ten "
        f"largest products that is in a set for {BATCH} rows (shared) or for one, no labels being "
        "put in; neighbours has no candidates without labels.\n\n"
        "How to read it: what the oracle gains over uniform draws is what an index could gain at "
        "equal steps if it saw a quarter of the rows and cost nothing. A proposer can be above it: "
        "its candidates come from all outputs. Seconds of different days do not compare, since the "
        "machine was not equally fast.\n"
    )
    rows = found["rows"]
    for name in SETS:
        if own := [row for row in rows if row["dataset"] == name]:
            seeds = numbers(row["seed"] for row in own)
            text += f"\n## {name}\n\n{SETS[name][1]:,} rows to learn from; seeds {seeds}.\n\n"
            text += table(lines(own))
    return text + origin(rows)


def lines(rows: list[Row]) -> list[dict[str, object]]:
    """A line for each kind and size of set, number of epochs and sampler."""
    keys, order = ("mode", "active", "epochs"), {name: i for i, name in enumerate(SAMPLERS)}
    rows = sorted(rows, key=lambda r: (r["mode"] != "shared", r["active"], r["epochs"]))
    out = []
    for case in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        same = [row for row in rows if tuple(row[key] for key in keys) == case]
        for sampler in sorted({row["sampler"] for row in same}, key=order.__getitem__):
            own = [row for row in same if row["sampler"] == sampler]
            out.append(
                {
                    "set": f"{case[1]:,} for {'a batch' if case[0] == 'shared' else 'a sample'}",
                    "epochs": case[2],
                    "sampler": sampler,
                }
                | {title: spread([row[name] for row in own]) for name, title in FIGURES.items()}
                | {"seconds": spread([row.get("seconds", math.nan) for row in own], scale=1)}
            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, list(SETS), [0])
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS)
    parser.add_argument("--epochs", nargs="+", type=float, choices=EPOCHS, default=EPOCHS)
    arguments = parse(parser)
    runtime.set_threads(0)
    keys = ("dataset", "seed", "mode", "active", "epochs", "sampler")
    store = Store("bound", keys, page, arguments)
    if arguments.render:
        return store.render()
    os.chdir(ROOT)  # Caches lie in its datasets/.
    cases = [
        dict(zip(keys, (name, seed, mode, active, epochs, sampler), strict=True))
        for name in arguments.datasets
        for seed in arguments.seeds
        for mode, sizes in SETS[name][2].items()
        for active in sizes
        for epochs in EPOCHS
        if epochs in arguments.epochs
        for sampler in (FOR_SHARED if mode == "shared" else SAMPLERS)
        if sampler in arguments.samplers
    ]
    for case in store.missing(cases):
        store.add([case | measure(case["dataset"], arguments.root, case)])
    store.render()
    store.report()


if __name__ == "__main__":
    main()
