"""Is the final ranker ever worse than a base model? With 300, 1,000 and 10,000 training rows.

    python benchmarks/stacking.py --root path/to/data
    python benchmarks/stacking.py --root path/to/data --datasets lastfm --rows 300 --seeds 0

It begins no row after 11 minutes; the next call goes on. Test rows are not used. Writes
results/stacking.{json,md}.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import (
    Row,
    Store,
    grid,
    numbers,
    of,
    opened,
    options,
    origin,
    overrides_of,
    spread,
    table,
)

from slide.config import build_network, build_optimizer, fill_in, read_config
from slide.config.recipe import put_together
from slide.data import SparseDataset
from slide.ranking import choose_kind
from slide.sparse import hits, row_bounds
from slide.training import Trainer

SETS = ["gowalla", "lastfm", "debian", "bibtex", "delicious"]
SIZES = [300, 1000, 10_000]
CUT_OFFS = (1, 3, 5)
FINAL = "final ranker"
MOST_HELD_OUT, LARGEST_SHARE = 3000, 4


def divided(data: SparseDataset, rows: int, seed: int) -> SparseDataset:
    """Some training rows, and others held out, as test rows."""
    train = replace(data.train, kind=choose_kind(data.train).kind)
    order = np.random.default_rng(1000 + seed).permutation(len(train))
    count = min(MOST_HELD_OUT, len(order) // LARGEST_SHARE)
    learnt = np.sort(order[count : count + rows])
    split = train.take(learnt), train.take(np.sort(order[:count]))
    return SparseDataset(data.name, *split, data.num_features, data.num_labels)


def trained(data: SparseDataset, seed: int, folder: Path, overrides: Sequence[str] = ()) -> Trainer:
    """The default call, or one with other settings."""
    config = read_config([f"seed={seed}", *overrides])
    fill_in(config, len(data.train), data.num_labels)
    network = build_network(config, data.num_features, data.num_labels)
    trainer = put_together(config, network, build_optimizer(config, network), data, folder)
    trainer.fit()
    return trainer


def scores_of(trainer: Trainer) -> dict[str, list[float]]:
    """P@1, P@3 and P@5 of the final ranker and of each base model with a rank."""
    ranker, split = trainer.ranker, trainer.eval_split
    assert ranker is not None
    right: dict[str, list[np.ndarray]] = {}
    for part in split.blocks(1024):
        how = trainer.network, part.features, CUT_OFFS[-1], trainer.options.evaluation
        found = ranker.ranking_features(*how)
        named = found.ids >= 0
        hit, scores = hits(found.ids, part.labels), np.full(found.ids.shape, -np.inf)
        values = {
            name: -found.columns[:, column]
            for column, name in enumerate(found.names)
            if name.endswith("_rank")
        }
        values[FINAL] = ranker.final_ranker.probabilities(found.columns, row_bounds(named.sum(1)))
        for name, own in values.items():
            scores[named] = own
            best = np.argsort(-scores, axis=1, kind="stable")[:, : CUT_OFFS[-1]]
            first = np.take_along_axis(hit & named, best, 1)
            right.setdefault(name.removesuffix("_rank"), []).append(first)
    return {
        name: [round(100 * float(np.concatenate(parts)[:, :k].mean()), 2) for k in CUT_OFFS]
        for name, parts in right.items()
    }


def measure(store: Store, arguments: argparse.Namespace) -> None:
    """All missing rows."""

    def figures(case: Row) -> Row:
        whole = opened(tuple(overrides_of(case["dataset"], arguments.root)))
        data = divided(whole, case["rows"], case["seed"])
        with tempfile.TemporaryDirectory() as folder:
            trainer = trained(data, case["seed"], Path(folder))
            return {"learnt": len(data.train), "scores": scores_of(trainer)}

    # The fewest rows first: there the final ranker has the least to learn from.
    axes = {"seed": arguments.seeds, "dataset": arguments.datasets}
    store.fill(grid(rows=arguments.rows, **axes), figures)


def lines(rows: list[Row]) -> Iterator[dict[str, object]]:
    """A line of the table for each data set and number of rows."""
    for dataset, size in sorted({(row["dataset"], row["rows"]) for row in rows}):
        own = of(rows, dataset=dataset, rows=size)
        # A scorer may suit the rows of some seeds only.
        methods = [name for name in own[0]["scores"] if all(name in row["scores"] for row in own)]
        scores = {name: np.array([row["scores"][name] for row in own]) for name in methods}
        means = {name: each.mean(0) for name, each in scores.items()}
        final = means.pop(FINAL)
        best = max(means, key=lambda name: means[name].mean())
        yield {
            "data set": dataset,
            "rows": f"{own[0]['learnt']:,}",
            "seeds": numbers(row["seed"] for row in own),
            FINAL: " / ".join(f"{each:.1f}" for each in final),
            "best base model": best,
            "its precision": " / ".join(f"{each:.1f}" for each in means[best]),
            "difference of means": spread((scores[FINAL] - scores[best]).mean(1), "+", 1),
        }


def page(found: dict[str, Any]) -> str:
    text = harness.prose("stacking", "about")
    return text + table(list(lines(found["rows"]))) + origin(found["rows"])


def main() -> None:
    parser = options(__doc__, SETS, range(6))
    parser.add_argument("--rows", nargs="+", type=int, default=SIZES)
    parser.set_defaults(minutes=11)
    harness.fill_page("stacking", ("dataset", "rows", "seed"), page, measure, parser)


if __name__ == "__main__":
    main()
