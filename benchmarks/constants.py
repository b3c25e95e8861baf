"""What happens at half and at double of each constant that decides something for a data set.

    python benchmarks/constants.py --root path/to/data
    python benchmarks/constants.py --root path/to/data --datasets lastfm --only batch_size

Another constant of the re-ranker gives another re-ranker of the same network, another constant of a
run gives another run. Writes results/constants.{json,md}.
"""

import argparse
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import harness
import numpy as np
from harness import Row, Store, fill_page, grid, of, opened, options, origin, overrides_of, table
from hydra.utils import instantiate
from omegaconf import OmegaConf
from stacking import divided, trained

from slide.config import fill_in, read_config
from slide.data import SparseDataset
from slide.ranking import EnsembleRanker, choose_kind
from slide.sparse import hits
from slide.training import Trainer

SETS = ["bibtex", "lastfm", "wordnet", "debian", "gowalla"]
CUT_OFFS, FACTORS = (1, 3, 5), (0.5, 2.0)
KIND, RANKER, RUN = "kind of rows", "re-ranker", "run"
_KINDS = (
    "_SHORT _FEW_REPEATED _ENOUGH _SHARE _POSSIBLE _SIGNIFICANT _SPREAD DENSE "
    "MOSTLY_NONZERO _MANY_FEATURES"
)
# Modules with constants, and groups of the configuration: what they are part of, the kind of rows
# for which they count ("": all), and their names.
CONSTANTS: dict[str, tuple[str, str, str]] = {
    "slide.data.kind": (KIND, "", _KINDS),
    "slide.data.row_kinds": (KIND, "", "_HELD _LARGEST_SHARE _MOST_PAIRS"),
    "slide.ranking.scorers.linear": (RANKER, "items", "_PENALTY WEIGHTS"),
    "ranker.scorers.item_similarity": (RANKER, "items", "shrink"),
    "slide.ranking.scorers.label_tree": (RANKER, "other", "_MOST_LABELS"),
    "ranker.scorers.label_tree": (RANKER, "other", "C cluster beam"),
    "ranker.classifiers": (RANKER, "other", "C"),
    "ranker": (RANKER, "", "depth voted associated"),
    "slide.search.row_blocks": (RANKER, "", "_PRIOR _MOST_SHARING"),
    "slide.ranking.scorers.neighbours": (RANKER, "", "RARE MANY USUAL_NEAR"),
    "slide.ranking.final_ranker": (RANKER, "", "FEW_HITS _WRONG _PENALTY"),
    "slide.data.validation": (RUN, "", "_SHARE _ENOUGH _LARGEST_SHARE"),
    "slide.training.lr_schedules": (RUN, "", "FEWEST_STEPS MOST_STEPS"),
    "trainer": (RUN, "", "batch_size"),
    "sampler": (RUN, "", "active"),
    "optimizer": (RUN, "", "lr input_rate"),
}
NAMES = {f"{where}.{name}": where for where, each in CONSTANTS.items() for name in each[2].split()}


def times(value: float, factor: float) -> float:
    return max(round(value * factor), 1) if isinstance(value, int) else value * factor


def precision(trainer: Trainer, ranker: EnsembleRanker) -> np.ndarray:
    """The mean of P@1, P@3 and P@5 of each row, in points."""
    found = []
    for part in trainer.eval_split.blocks(1024):
        how = trainer.network, part.features, CUT_OFFS[-1], trainer.options.evaluation
        right = hits(ranker.rank(*how).ids, part.labels)
        found.append(np.mean([100 * right[:, :k].mean(1) for k in CUT_OFFS], axis=0))
    return np.concatenate(found)


def run(data: SparseDataset, overrides: list[str]) -> tuple[Trainer, np.ndarray]:
    """The default call with some settings, and its precisions."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = trained(data, 0, Path(folder), overrides)
    assert trainer.ranker is not None
    return trainer, precision(trainer, trainer.ranker)


def refitted(trainer: Trainer, overrides: list[str]) -> np.ndarray:
    """The precisions of another re-ranker of the same network."""
    rows = trainer.train_split, trainer.held_split, trainer.inverse, trainer.options.evaluation
    ranker = instantiate(read_config(overrides).ranker)
    return precision(trainer, ranker.fit(trainer.network, *rows, trainer.every_split))


def measure(store: Store, arguments: argparse.Namespace) -> None:
    for dataset in arguments.datasets:
        whole = opened(tuple(overrides_of(dataset, arguments.root)))
        measure_set(store, dataset, whole, arguments.only, arguments.rows)


def measure_set(store: Store, dataset: str, whole: SparseDataset, only: str, rows: int) -> None:
    """All missing rows of a data set."""
    kind, data, usual = choose_kind(whole.train).kind, divided(whole, rows, 0), None
    config = read_config([])
    fill_in(config, len(data.train), data.num_labels)
    names = [name for name in NAMES if only in name and CONSTANTS[NAMES[name]][1] in ("", kind)]
    for case in store.missing(grid(dataset=[dataset], constant=names, factor=FACTORS)):
        where, part = NAMES[case["constant"]], CONSTANTS[NAMES[case["constant"]]][0]
        own, context, overrides = case["constant"].removeprefix(where + "."), nullcontext(), []
        if where.startswith("slide."):
            value = getattr(import_module(where), own)
            context = patch.object(import_module(where), own, times(value, case["factor"]))
        else:
            value = OmegaConf.select(config, case["constant"])
            overrides = [f"{case['constant']}={times(value, case['factor'])}"]
        row: Row = case | {"value": value}
        if part == KIND:
            with context:
                found = choose_kind(replace(whole.train, kind="auto")).kind
            row["kind"] = found if found != kind else ""
        else:
            usual = usual or run(data, [])
            with context:
                other = run(data, overrides)[1] if part == RUN else refitted(usual[0], overrides)
            change = other - usual[1]
            error = float(change.std() / len(change) ** 0.5)
            row |= {"rows": rows, "usual": float(usual[1].mean())}
            row |= {"change": float(change.mean()), "error": error}
        store.add([row])


def words(row: Row) -> str:
    """What half or double of a constant changes on a data set."""
    if not row.get("error") and not row.get("kind"):
        return "-"
    text = row.get("kind") or f"{row['change']:+.2f} ± {row['error']:.2f}"
    return f"**{text}**" if "kind" in row or abs(row["change"]) > 3 * row["error"] else text


def page(found: dict[str, Any]) -> str:
    rows = sorted(found["rows"], key=lambda row: row["factor"])
    most = max((row.get("rows", 0) for row in rows), default=0)
    text = harness.prose("constants", "about", rows=most)
    lines = []
    for name in dict.fromkeys(each for each in NAMES if of(rows, constant=each)):
        own = of(rows, constant=name)
        cells = {"constant": f"`{name}`", "of": CONSTANTS[NAMES[name]][0], "value": own[0]["value"]}
        of_sets = {s: "; ".join(map(words, of(own, dataset=s))) for s in SETS}
        lines.append(cells | of_sets)
    return text + table(lines) + origin(rows)


def main() -> None:
    parser = options(__doc__, SETS, [0])
    parser.add_argument("--rows", type=int, default=10_000, help="rows to learn from, at most")
    parser.add_argument("--only", default="", help="constants whose name has this in it")
    fill_page("constants", ("dataset", "constant", "factor"), page, measure, parser)


if __name__ == "__main__":
    main()
