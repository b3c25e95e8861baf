"""Recall of the selection by how rows and inputs are prepared for hashing, on held-out rows.

    python tests/benchmarks/recall.py --root path/to/data
    python tests/benchmarks/recall.py --root path/to/data --datasets files

Trains a network with uniform sets on nine tenths of the training rows, then asks, for the rows set
aside, which share of the ten largest scores the active sets hold. No labels are handed to the
samplers, and the test rows are not touched. Writes
results/benchmarks/recall.{json,md}.
"""

import argparse
import tempfile
from functools import partial
from typing import Any

import numpy as np
import torch
from report import RESULTS, table
from rows import Row, Store, add_options, origin, parse

from slide import (
    DWTA,
    ActiveLoss,
    ActiveSampler,
    LearnedSimHash,
    LSHProposer,
    RowSparseAdam,
    SampledLinear,
    SimHash,
    SlideNetwork,
    exact_top_k,
    runtime,
)
from slide.data import Batches, Split, holdout, xmc
from slide.hashing import inner_product
from slide.sampling import LookUp

DATASETS, LOSSES = ("debian", "files"), ("softmax", "squared_hinge")
TOP, QUERIES, BATCH, EPOCHS = 10, 1024, 256, 5
ACTIVE = {"shared": 2048, "per_sample": 512}
# name: (norm, center, quantile of the lengths that simple_lsh brings rows to)
PREPARATIONS = {
    "cosine": ("cosine", False, 0.99),
    "cosine, centred": ("cosine", True, 0.99),
    "one length, the longest": ("simple_lsh", False, 1.0),
    "one length, the longest; centred": ("simple_lsh", True, 1.0),
    "one length, 99 % quantile": ("simple_lsh", False, 0.99),
    "one length, 99 % quantile; centred (default)": ("simple_lsh", True, 0.99),
}
HASHES = ("none", "SimHash", "LearnedSimHash", "DWTA")
WITHOUT = ("uniform draws alone", "those most often best in training")
LARGER_K = {"SimHash": 2, "LearnedSimHash": 2, "DWTA": 1}
# With the default preparation: (elementary hashes of a code more than by default, by family; other
# settings of the proposer)
SETTINGS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "default, 4 further buckets": ({}, {"probes": 4}),
    "default, larger K, 16 further buckets": (LARGER_K, {"probes": 16}),
    "default, the best 8": ({}, {"best": 8}),
    "default, larger K, 16 further buckets, the best 8": (*(LARGER_K, {"probes": 16, "best": 8}),),
}


def trained(split: Split, name: str) -> SlideNetwork:
    """A network after some epochs with uniform sets, its biases started from label frequencies."""
    torch.manual_seed(0)
    sampler = partial(ActiveSampler, active=ACTIVE["shared"], weighting="none")
    network = SlideNetwork(split.num_features, [128], split.num_labels, sampler)
    loss, optimizer = ActiveLoss(name), RowSparseAdam(network.parameters())
    assert network.output.bias is not None
    network.output.bias.data.copy_(loss.prior_scores(split.labels, split.num_labels))
    batches = Batches(split, BATCH, seed=0)
    for epoch in range(EPOCHS):
        for batch in batches.epoch(epoch):
            result = network(batch.features, batch.labels)
            optimizer.zero_grad()
            loss(result.values, result.active).backward()
            optimizer.step()
    return network.eval()


def recall(sampler: ActiveSampler, hidden: torch.Tensor, best: np.ndarray) -> float:
    """Share of ``best`` ``(QUERIES, TOP)`` that the active sets of the inputs hold."""
    held = []
    for start in range(0, len(hidden), BATCH):
        active = sampler.select(hidden[start : start + BATCH], None)
        held += [np.isin(row, active.row(b)) for b, row in enumerate(best[start : start + BATCH])]
    return float(np.mean(held))


@torch.no_grad()
def measure(network: SlideNetwork, seen: torch.Tensor, hidden: torch.Tensor) -> list[Row]:
    """Recall on ``hidden`` ``(QUERIES, H)``; ``seen`` are vectors of training rows."""
    layer = network.output
    shape = layer.in_features, layer.out_features
    best = exact_top_k(hidden, layer.weight, layer.bias, TOP)[1].numpy()
    rows = []
    for mode, active in ACTIVE.items():
        uniform = ActiveSampler(*shape, active=active, mode=mode)
        rows.append({"hash": "none", "mode": mode, "prepared": WITHOUT[0]})
        rows[-1]["recall"] = recall(uniform, hidden, best)
        often = exact_top_k(seen, layer.weight, layer.bias, TOP)[1].numpy()
        ranked = np.argsort(-np.bincount(often.ravel()), kind="stable")[: active // 2]
        rows.append({"hash": "none", "mode": mode, "prepared": WITHOUT[1]})
        rows[-1]["recall"] = float(np.isin(best, ranked).mean())
        for family in (SimHash, LearnedSimHash, DWTA):
            for name, (norm, center, quantile) in PREPARATIONS.items():
                inner_product.LENGTH_QUANTILE = quantile
                options = {"family": family, "norm": norm, "center": center}
                proposer = partial(LSHProposer, **options)
                found = filled(layer, seen, proposer, active=active, mode=mode)
                rows.append({"hash": family.__name__, "mode": mode, "prepared": name})
                rows[-1]["recall"] = recall(found, hidden, best)
            for name, (more, options) in SETTINGS.items():
                k = family(shape[0] + 2, num_vectors=shape[1]).hashes_per_table
                made = partial(family, hashes_per_table=k + more.get(family.__name__, 0))
                proposer = partial(LSHProposer, family=made, look_up=LookUp(**options))
                found = filled(layer, seen, proposer, active=active, mode=mode)
                rows.append({"hash": family.__name__, "mode": mode, "prepared": name})
                rows[-1]["recall"] = recall(found, hidden, best)
    return rows


def filled(layer: SampledLinear, seen: torch.Tensor, proposer: Any, **options: Any) -> Any:
    """A sampler with tables over the rows of a layer, after a batch of inputs."""
    sampler = ActiveSampler(layer.in_features, layer.out_features, proposer, **options)
    sampler.update(layer.weight, layer.bias, seen)
    assert sampler.proposer is not None
    sampler.proposer.rebuild(layer.weight, layer.bias)  # By what the inputs taught.
    return sampler


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    text = (
        "# Recall of the selection by how rows and inputs are prepared\n\n"
        f"Share of the {TOP} largest scores that active sets without labels hold: "
        f"{ACTIVE['shared']:,} ids for a batch of {BATCH}, or {ACTIVE['per_sample']} a sample, "
        "half looked up and half uniform. Without a hash: uniform draws, and a fixed list for all "
        f"inputs, of the outputs that are most often among the {TOP} best of training inputs. "
        f"{QUERIES:,} held-out training rows, a network trained with uniform sets for {EPOCHS} "
        "epochs. The last lines of a hash have the default preparation, and other settings of "
        "`LSHProposer`.\n"
    )
    rows = found["rows"]
    for name in dict.fromkeys(row["dataset"] for row in rows):
        lines: dict[tuple, dict] = {}
        for row in sorted((row for row in rows if row["dataset"] == name), key=_place):
            start = {"hash": row["hash"], "prepared": row["prepared"]}
            line = lines.setdefault(tuple(start.values()), start)
            line[f"{row['loss']}, {row['mode']}"] = f"{row['recall']:.3f}"
        text += f"\n## {name}\n\n" + table(list(lines.values()))
    return text + origin(rows)


def _place(row: Row) -> tuple[int, int]:
    prepared = [*WITHOUT, *PREPARATIONS, *SETTINGS]
    return HASHES.index(row["hash"]), prepared.index(row["prepared"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, list(DATASETS), [0])
    parser.set_defaults(results=RESULTS)
    arguments = parse(parser)
    runtime.set_threads(0)
    keys = ("dataset", "loss", "hash", "mode", "prepared")
    store = Store("recall", keys, page, arguments)
    if arguments.render:
        return store.render()
    for name in arguments.datasets:
        root = arguments.root / name
        with tempfile.TemporaryDirectory() as cache:
            data = xmc(name=name, root=root, cache=cache)
            kept, aside = holdout(data.train, 0.1, seed=0)
            for loss in LOSSES:
                network = trained(kept, loss)
                with torch.no_grad():
                    seen = network.encode(kept.slice(0, 2 * QUERIES).features)
                    hidden = network.encode(aside.slice(0, QUERIES).features)
                found = measure(network, seen, hidden)
                store.add([{"dataset": name, "loss": loss} | row for row in found])


if __name__ == "__main__":
    main()
