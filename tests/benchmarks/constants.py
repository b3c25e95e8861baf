"""What happens at half and at double of each constant that decides something for a data set.

    python tests/benchmarks/constants.py --root path/to/data
    python tests/benchmarks/constants.py --root path/to/data --datasets lastfm --only batch_size

A run of the default call learns from some training rows and is judged on others that it never sees;
test rows are not used. A constant of the re-ranker gives another re-ranker of the same network, one
of a run another run. Writes results/constants.{json,md} after each row.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import instantiate
from omegaconf import OmegaConf
from report import Store, add_options, origin, parse, table
from runs import opened, place
from stacking import divided, trained

from slide.config import fill_in, read_config
from slide.data import SparseDataset
from slide.ranking import EnsembleRanker, choose_kind
from slide.sparse import hits
from slide.training import Trainer

SETS = ["bibtex", "lastfm", "wordnet", "debian", "gowalla"]
CUT_OFFS, FACTORS = (1, 3, 5), (0.5, 2.0)
KIND, RANKER, RUN = "kind of rows", "re-ranker", "run"
# Constants of modules and keys of the configuration: what they are part of, and the kinds of rows
# that they count for; none: all.
CONSTANTS: dict[str, tuple[str, str, str]] = {
    "slide.data.kind": (
        *(KIND, ""),
        "_SHORT _FEW_REPEATED _ENOUGH _SHARE _POSSIBLE _SIGNIFICANT _SPREAD DENSE",
    ),
    "slide.ranking.row_kinds": (KIND, "", "_HELD _LARGEST_SHARE _MOST_PAIRS"),
    "slide.ranking.scorers.linear": (RANKER, "items", "_PENALTY WEIGHTS _MOST_SHARING"),
    "slide.ranking.scorers.item_factors": (RANKER, "items", "_TRIAL_ROWS"),
    "ranker.scorers.item_factors": (RANKER, "items", "factors penalty passes"),
    "ranker.scorers.item_similarity": (RANKER, "items", "shrink"),
    "slide.ranking.scorers.label_tree": (RANKER, "other", "_MOST_LABELS"),
    "ranker.scorers.label_tree": (RANKER, "other", "C cluster beam"),
    "ranker": (RANKER, "", "depth voted associated"),
    "ranker.classifiers": (RANKER, "other", "C"),
    "slide.ranking.scorers.cooccurrence": (RANKER, "", "_PRIOR"),
    "slide.ranking.scorers.neighbours": (RANKER, "", "RARE MANY USUAL_NEAR RARE_NEAR"),
    "slide.ranking.final_ranker": (RANKER, "", "_LEAST_HITS FEW_HITS _WRONG _RANKS_C"),
    "slide.ranking.ensemble": (RANKER, "", "_WORTH_LEARNING"),
    "slide.data.validation": (RUN, "", "_SHARE _ENOUGH _LARGEST_SHARE"),
    "slide.training.lr_schedules": (RUN, "", "FEWEST_STEPS MOST_STEPS"),
    "trainer": (RUN, "", "batch_size"),
    "sampler": (RUN, "", "active"),
    "optimizer": (RUN, "", "lr input_rate"),
}
ABOUT = """\
# Constants at half and at double

How the mean of P@1, P@3 and P@5 changes, in points, with half and with double a constant, and the \
standard error of the change over the rows. They are training rows that a run never saw; it learns \
from at most {rows:,} others, with seed 0. Bold: more than two standard errors. Where not a single \
answer changes there is a dash, and none where a constant counts for no such rows or was not \
measured. What the rows are taken for is looked at on all training rows.

"""


@contextmanager
def scaled(where: str, name: str, factor: float) -> Iterator[None]:
    """The constant of a module, times a factor."""
    module = import_module(where)
    before = getattr(module, name)
    setattr(module, name, times(before, factor))
    try:
        yield
    finally:
        setattr(module, name, before)


def times(value: float, factor: float) -> float:
    return max(round(value * factor), 1) if isinstance(value, int) else value * factor


def precision(trainer: Trainer, ranker: EnsembleRanker) -> np.ndarray:
    """The mean of P@1, P@3 and P@5 of each judged row, in points."""
    found = []
    for part in trainer.eval_split.blocks(1024):
        how = trainer.network, part.features, CUT_OFFS[-1], trainer.options.evaluation
        right = hits(ranker.rank(*how).ids, part.labels)
        found.append(np.mean([100 * right[:, :k].mean(1) for k in CUT_OFFS], axis=0))
    return np.concatenate(found)


def run(data: SparseDataset, *overrides: str) -> tuple[Trainer, np.ndarray]:
    """The default call with some settings, and its precisions."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = trained(data, 0, Path(folder), overrides)
    assert trainer.ranker is not None
    return trainer, precision(trainer, trainer.ranker)


def changed(trainer: Trainer, data: SparseDataset, part: str, overrides: list[str]) -> np.ndarray:
    """The precisions of another re-ranker of the same network, or of another run."""
    if part == RUN:
        return run(data, *overrides)[1]
    rows = trainer.train_split, trainer.held_split, trainer.inverse, trainer.options.evaluation
    ranker = instantiate(read_config(overrides).ranker)
    return precision(trainer, ranker.fit(trainer.network, *rows, trainer.every_split))


def measure(store: Store, arguments: argparse.Namespace) -> None:
    """All missing rows."""
    for dataset in arguments.datasets:
        whole, usual = opened(tuple(place(dataset, arguments.root))), None
        kind, data = choose_kind(whole.train).kind, divided(whole, arguments.rows, 0)
        cases = [
            {"dataset": dataset, "part": part, "constant": f"{where}.{name}", "factor": factor}
            for where, (part, kinds, names) in CONSTANTS.items()
            for name in names.split()
            for factor in FACTORS
            if arguments.only in f"{where}.{name}" and kinds in ("", kind)
        ]
        for case in store.missing(cases):
            where, _, name = case["constant"].rpartition(".")
            overrides, context = [], nullcontext()
            if where.startswith("slide."):
                value = getattr(import_module(where), name)
                context = scaled(where, name, case["factor"])
            else:
                config = read_config([])
                fill_in(config, len(data.train), data.num_labels)
                value = OmegaConf.select(config, case["constant"])
                overrides = [f"{case['constant']}={times(value, case['factor'])}"]
            if case["part"] == KIND:
                with context:
                    rows = replace(whole.train, kind="auto")
                    store.add(
                        [case | {"value": value, "kind": choose_kind(rows).kind, "was": kind}]
                    )
                continue
            usual = usual or run(data)
            with context:
                other = changed(usual[0], data, case["part"], overrides)
            change = other - usual[1]
            error = float(change.std() / len(change) ** 0.5)
            figures = {"precision": float(usual[1].mean()), "change": float(change.mean())}
            store.add([case | {"value": value, "rows": arguments.rows, "error": error} | figures])


def words(rows: list[dict[str, Any]]) -> str:
    """What half and double of a constant change on a data set."""
    said = []
    for row in sorted(rows, key=lambda row: row["factor"]):
        if "kind" in row:
            said.append("-" if row["kind"] == row["was"] else f"**{row['kind']}**")
            continue
        text = f"{row['change']:+.2f} ± {row['error']:.2f}" if row["error"] else "-"
        said.append(f"**{text}**" if abs(row["change"]) > 2 * row["error"] else text)
    return "; ".join(said)


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    rows = found["rows"]
    text = ABOUT.format(rows=max((row.get("rows", 0) for row in rows), default=0))
    sets = [name for name in SETS if any(row["dataset"] == name for row in rows)]
    lines = []
    for where, (part, _, names) in CONSTANTS.items():
        for name in names.split():
            own = [row for row in rows if row["constant"] == f"{where}.{name}"]
            if own:
                cells = {"constant": f"`{where}.{name}`", "of": part, "value": own[0]["value"]}
                of_sets = {s: words([row for row in own if row["dataset"] == s]) for s in sets}
                lines.append(cells | of_sets)
    return text + (table(lines) if lines else "") + origin(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, SETS, [0])
    parser.add_argument("--rows", type=int, default=10_000, help="rows to learn from, at most")
    parser.add_argument("--only", default="", help="constants whose name has this in it")
    arguments = parse(parser)
    store = Store("constants", ("dataset", "constant", "factor"), page, arguments)
    if arguments.render:
        store.render()
    else:
        measure(store, arguments)
        store.report()


if __name__ == "__main__":
    main()
