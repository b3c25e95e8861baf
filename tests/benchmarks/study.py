"""A page on variants of the default: whole runs of train.py, judged on held-out training rows.

Each run is a process of its own. The page is written after each row; rows that there are for this
commit and machine are not measured again (rows.py). moments.py and choices.py are such pages.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from report import table
from rows import Row, Store, add_options, gain, numbers, origin, parse, spread
from rules import KEPT
from sets import HELD_OUT
from train_process import ROOT, run_train, seconds_of, warm_up

from slide import runtime

DEFAULT = "default"


class Study(NamedTuple):
    """What a page compares.

    Attributes:
        name: of the page's files.
        text: of the page, before its tables.
        column: what a variant is called.
        variants: overrides by name; `DEFAULT` is one of them.
        chosen: the overrides of all runs on a set, by its name and the folder of all sets.
        datasets: names of the sets.
        only: names of the variants on sets where not all are measured.
    """

    name: str
    text: str
    column: str
    variants: dict[str, list[str]]
    chosen: Callable[[str, Path], list[str]]
    datasets: list[str]
    only: dict[str, list[str]]

    def page(self, found: dict[str, Any]) -> str:
        """The generated page."""
        rows, text = found["rows"], self.text
        for name in self.datasets:
            if own := [row for row in rows if row["dataset"] == name]:
                text += f"\n## {name}\n\nSeeds {numbers(row['seed'] for row in own)}.\n\n"
                text += table([self.line(own, variant) for variant in self.of(name)])
        return text + origin(rows)

    def line(self, rows: list[Row], variant: str) -> dict[str, str]:
        """The line of a variant, of the seeds that have it and the default."""
        base = {row["seed"]: row for row in rows if row["variant"] == DEFAULT}
        own = [row for row in rows if row["variant"] == variant and row["seed"] in base]
        out = {self.column: variant, "P@1": "", "P@5": "", "training, s": ""}
        if own:
            same = [base[row["seed"]] for row in own]
            for name, column in (("p_at_1", "P@1"), ("p_at_5", "P@5")):
                alone = spread([row[name] for row in own])
                out[column] = alone if variant == DEFAULT else gain(own, same, name)
            out["training, s"] = spread([row["train_seconds"] for row in own], scale=1)
        return out

    def of(self, dataset: str) -> list[str]:
        """The names of the variants that a set has."""
        return self.only.get(dataset, list(self.variants))

    def run(self, description: str) -> None:
        """The command of the page: measure what is missing, and write it."""
        parser = argparse.ArgumentParser(description=description)
        add_options(parser, self.datasets, [0, 1])
        arguments = parse(parser)
        runtime.set_threads(0)
        store = Store(self.name, ("dataset", "seed", "variant"), self.page, arguments)
        if arguments.render:
            return store.render()
        os.chdir(ROOT)  # Caches lie in its datasets/.
        warm_up()
        for name in arguments.datasets:
            for seed in arguments.seeds:
                cases = [{"dataset": name, "seed": seed, "variant": each} for each in self.of(name)]
                for case in store.missing(cases):
                    more = self.variants[case["variant"]]
                    chosen = self.chosen(name, arguments.root)
                    summary, _ = run_train(*chosen, *more, f"seed={seed}")
                    figures = {key: summary[key] for key in KEPT}
                    store.add([case | figures | {"train_seconds": seconds_of(summary)}])
        store.render()
        store.report()


def held_out(name: str) -> str:
    """The override that holds out the rows that judge."""
    return f"dataset.holdout={HELD_OUT.get(name, 0.1)}"
