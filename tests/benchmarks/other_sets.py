"""Precision on other sets of the same kinds, made of the real ones, beside omikuji and PECOS.

    python tests/benchmarks/other_sets.py --root path/to/data --pecos-python pecos/bin/python
    python tests/benchmarks/other_sets.py --root path/to/data --datasets fb15k_tenth --seeds 0 1 2

The sets are made of training rows (derived.py) and lie in datasets/derived/, which git ignores.
Runs and peers are those of precision.py. Writes results/other_sets.{json,md} after each row.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import precision
import precision_page
from derived import DERIVED, write
from report import table
from rows import Store, add_options, origin, parse
from sets import place
from train_process import ROOT, warm_up

from slide import runtime

FOLDER = ROOT / "datasets" / "derived"
ABOUT = """\
# Sets that were made of others

The default was chosen on six data sets. Those here are of the same kinds and were made of the \
training rows of the six: features and labels change places, a graph has fewer triples, or there \
are fewer rows. `tests/benchmarks/derived.py` says how. Methods and judgement are those of [the \
page on precision](precision.md): `train.py` without any setting but the seed. Graphs like these \
showed that the judge of the re-ranker learnt chance where it had few right answers to learn from, \
so it was changed. Other draws of the same kinds were looked at then, and one of these had rows \
of the test split of fb15k to judge it. A line with one seed has no range.
"""


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    rows, sets = precision_page.in_order(found["rows"]), []
    names = [name for name in DERIVED if any(row["dataset"] == name for row in rows)]
    compared = []
    for name in names:
        sets.append(
            {"data set": name, "made of": DERIVED[name].source, "what": DERIVED[name].about}
        )
        own = precision_page.of(rows, dataset=name)
        compared += precision_page.comparisons(name, own)
    text = ABOUT + "\n" + table(sets) if sets else ABOUT
    if compared:
        text += precision_page.BEST + table(compared)
    text += "\n## All methods\n"
    for name in names:
        own = precision_page.of(rows, dataset=name)
        methods = dict.fromkeys(row["method"] for row in own)
        lines = [precision_page.line(m, precision_page.of(own, method=m)) for m in methods]
        text += f"\n### {name}\n\n" + table(lines)
    return text + origin(rows)


def prepare(names: list[str], root: Path) -> None:
    """Write the sets that are not there."""
    for name in names:
        source = precision.opened(tuple(place(DERIVED[name].source, root)))
        write(name, source.train, FOLDER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, list(DERIVED), [0])
    precision.add_methods(parser)
    arguments = parse(parser)
    runtime.set_threads(0)
    store = Store("other_sets", precision.KEYS, page, arguments)
    if not arguments.render:
        found = precision.installed(arguments)
        os.chdir(ROOT)  # Caches lie in its datasets/.
        prepare(arguments.datasets, arguments.root)
        warm_up()
        arguments.root = FOLDER
        precision.measure(store, arguments, found)
    store.render()
    store.report()


if __name__ == "__main__":
    main()
