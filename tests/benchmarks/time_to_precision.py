"""Precision over seconds of training: how soon is slide as good as its peers in the end?

    pip install -e '.[bench]'
    cd tests/benchmarks
    python time_to_precision.py --root path/to/data --pecos-python path/to/pecos/bin/python
    python time_to_precision.py --root path/to/data --datasets debian --methods slide omikuji-3

slide is train.py without any setting but the seed, and with the small network of the pages on
speed. Its peers: omikuji with
one and three trees, PECOS XR-Linear with one and three models (in an environment of its own:
xr_linear.py), the default recipe's network in plain PyTorch with all outputs (dense), and with
sampled softmax and SparseAdam (sampled). The last two train for --limit minutes at most. All on
all cores, one after another. Writes results/benchmarks/time_to_precision.{json,md,png} after each
row; rows that there are for this commit and machine are not measured again (rows.py). --quick:
two epochs and few judged rows, to see whether all works.
"""

import argparse
import hashlib
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import peers
import time_page
import torch
from curves import NETWORKS, Task, in_own_process, point
from judged import Judged
from omegaconf import OmegaConf
from precision import opened
from report import RESULTS
from rows import Row, Store, add_options, parse
from sets import place
from train_process import ROOT, warm_up
from workload import SMALL_NETWORK

from slide import runtime
from slide.config import read_config
from slide.data import SparseDataset

DATASETS = ["debian", "gowalla", "fb15k", "bibtex", "files"]
RECIPES = {"slide": [], "slide-fast": ["sampler=lsh", *SMALL_NETWORK]}
EPOCHS = {"dense": 6, "sampled": 20}
JUDGED, QUICK_JUDGED = 5000, 200
QUICK = ["trainer.epochs=2"]
Measure = Callable[[SparseDataset, list[str]], Row]


def of_recipe(overrides: list[str], arguments: argparse.Namespace) -> Row:
    """A row of ours."""
    quick = QUICK if arguments.quick else []
    return in_own_process(Task("slide", [*overrides, *quick], arguments.judged))


def of_torch(
    method: str, data: SparseDataset, overrides: list[str], arguments: argparse.Namespace
) -> Row:
    """A row of a network in plain PyTorch; without scores if memory does not suffice."""
    found: Row = {"labels": data.num_labels, "limit_minutes": arguments.limit}
    task = Task(method, overrides, arguments.judged, 60 * arguments.limit)
    try:
        return found | in_own_process(task)
    except subprocess.CalledProcessError as error:
        if error.returncode >= 0:
            raise
        return found | {"curve": [], "killed": -error.returncode}


def of_peer(peer: peers.Peer, data: SparseDataset, most: int) -> Row:
    """A row of omikuji or PECOS: a curve of one point."""
    whole, part = Judged(data), Judged(data, most)
    found = peer.answer(data.train, data.test, whole.left_out)
    scores = peers.rounded(whole.scores(found.ids))
    curve = [point(found.train_seconds, part.scores(found.ids[part.rows]))]
    more = {"labels": data.num_labels, "judged": len(part.rows)}
    return more | scores | {"train_seconds": round(found.train_seconds, 3), "curve": curve}


def installed(methods: list[str], pecos_python: Path | None) -> dict[str, peers.Peer]:
    """The peers to measure that have trees."""
    found = {}
    for method in methods:
        name, _, count = method.partition("-")
        if name == "omikuji":
            found[method] = peers.omikuji(int(count))
        elif name == "pecos" and pecos_python:
            # Not resolved: the interpreter of an environment is a link.
            found[method] = peers.pecos(pecos_python.absolute(), int(count))
        elif name == "pecos":
            print(f"{method} is left out: --pecos-python names an interpreter that can import it")
    return found


@cache
def settings_of(method: str, overrides: tuple[str, ...], limit: float) -> str:
    """The version of a row of plain PyTorch: what it depends on."""
    config = OmegaConf.to_yaml(read_config(list(overrides)))
    said = f"{config} {limit} {NETWORKS[method].__name__}"
    return f"torch {torch.__version__}, settings {hashlib.sha1(said.encode()).hexdigest()[:6]}"


def measure(store: Store, arguments: argparse.Namespace, found: dict[str, peers.Peer]) -> None:
    """All missing rows; those of trees have no seed."""
    for name in arguments.datasets:
        overrides, methods = place(name, arguments.root), arguments.methods

        def cases(method: str, seeds: list[int | None], name: str = name) -> list[Row]:
            return [{"dataset": name, "method": method, "seed": seed} for seed in seeds]

        for method in [each for each in methods if each in RECIPES]:
            for case in store.missing(cases(method, arguments.seeds)):
                opened(tuple(overrides))  # Prepared before a run that is measured.
                chosen = [*overrides, *RECIPES[method], f"seed={case['seed']}"]
                store.add([case | of_recipe(chosen, arguments)])
        for method in [each for each in methods if each in found]:
            for case in store.missing(cases(method, [None]), found[method].version):
                row = of_peer(found[method], opened(tuple(overrides)), arguments.judged)
                store.add([case | row], found[method].version)
        for method in [each for each in methods if each in NETWORKS]:
            epochs = 2 if arguments.quick else EPOCHS[method]
            chosen = [*overrides, f"trainer.epochs={epochs}"]
            code = settings_of(method, tuple(chosen), arguments.limit)
            for case in store.missing(cases(method, [None]), code):
                data = opened(tuple(overrides))
                store.add([case | of_torch(method, data, chosen, arguments)], code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, DATASETS, [0])
    methods = list(time_page.TITLES)
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
    parser.add_argument("--pecos-python", type=Path, help="an interpreter that can import pecos")
    parser.add_argument("--limit", type=float, default=5, help="minutes of dense and sampled")
    parser.add_argument("--judged", type=int, default=JUDGED, help="test rows of a curve's points")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that all works")
    parser.set_defaults(results=RESULTS)
    arguments = parse(parser)
    if arguments.quick and arguments.results == RESULTS:
        parser.error("--quick needs --results: its figures are none for the page")
    if arguments.quick:
        arguments.judged = QUICK_JUDGED
    runtime.set_threads(0)
    keys = ("dataset", "method", "seed")
    store = Store("time_to_precision", keys, time_page.page, arguments)
    if not arguments.render:
        found = installed(arguments.methods, arguments.pecos_python)
        os.chdir(ROOT)  # Caches lie in its datasets/.
        if set(RECIPES) & set(arguments.methods):
            warm_up()
        measure(store, arguments, found)
    store.render()
    time_page.draw(store.rows, store.folder)
    store.report()


if __name__ == "__main__":
    main()
