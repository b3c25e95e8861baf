"""Precision of the default call beside its peers, on six real data sets; are its scores right?

    pip install -e '.[bench]'
    python tests/benchmarks/precision.py --root path/to/data --pecos-python pecos/bin/python
    python tests/benchmarks/precision.py --root path/to/data --datasets bibtex --methods slide

slide is what train.py does without any setting but the seed, in a process of its own. omikuji has
its default settings. PECOS XR-Linear needs an environment of its own (xr_linear.py says how to make
it); without --pecos-python its rows are left out. All on all cores, one after another, on whole
test sets, which are used for nothing else. Writes results/precision.{json,md} after each row, and
at the end results/precision_reliability.png and the table of the README. Rows that there are for
this commit and machine are not measured again (rows.py). A name that conf/dataset/ does not know is
a folder of train.txt and test.txt in XMC text.
"""

import argparse
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import peers
import precision_page
from report import insert
from rows import PAGES, SCORES, Row, Store, add_options, parse
from runs import answered
from sets import HELD_OUT, place
from train_process import ROOT, seconds_of, warm_up

from slide import runtime
from slide.config import open_dataset, read_config, user_errors
from slide.data import SparseDataset
from slide.sparse import Pattern, hits

METHODS = ("slide", "omikuji", "pecos")
KEYS = ("dataset", "method", "seed")
# Bins of equal width, as those of slide.training.calibration_error.
BINS = 10


def ours(overrides: list[str]) -> Row:
    """A row of the default call."""
    summary, found = answered(overrides)
    labels = Pattern(found["indptr"], found["indices"])
    keep = (*SCORES, *(f"network_{name}" for name in SCORES), "calibration_error", "peak_rss_mb")
    times = {"train_seconds": seconds_of(summary), "ranker_seconds": summary["ranker_seconds"]}
    times["predict_rows_per_second"] = labels.num_rows / float(found["seconds"])
    bins = reliability(found["scores"], found["ids"], labels)
    return {name: summary[name] for name in keep} | peers.rounded(times) | {"reliability": bins}


def reliability(scores: np.ndarray, ids: np.ndarray, labels: Pattern) -> dict[str, list[float]]:
    """The answers in bins by their score.

    Args:
        scores: ``(n, k)`` probabilities.
        ids: ``(n, k)`` integers; -1: no answer.
        labels: of n rows.

    Returns:
        For each of `BINS` bins of equal width the number of ``answers``, the sum of their
        ``scores``, and how many are ``right``.
    """
    known = ids >= 0
    sure, right = scores[known], hits(ids, labels)[known]
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    counts = np.bincount(bins, minlength=BINS), np.bincount(bins, right, BINS)
    sums = np.bincount(bins, sure, BINS)
    return {
        "answers": counts[0].tolist(),
        "scores": sums.round(3).tolist(),
        "right": counts[1].tolist(),
    }


@cache
def opened(overrides: tuple[str, ...]) -> SparseDataset:
    """A data set as train.py prepares it."""
    with user_errors():
        return open_dataset(read_config(overrides))


def measure(store: Store, arguments: argparse.Namespace, found: dict[str, peers.Peer]) -> None:
    """All missing rows; those of peers have no seed."""
    for name in arguments.datasets:
        overrides = place(name, arguments.root)
        if "slide" in arguments.methods:
            cases = [{"dataset": name, "method": "slide", "seed": s} for s in arguments.seeds]
            for case in store.missing(cases):
                opened(tuple(overrides))  # Prepared before a run whose memory is measured.
                store.add([case | ours([*overrides, f"seed={case['seed']}"])])
        for method, peer in found.items():
            for case in store.missing(
                [{"dataset": name, "method": method, "seed": None}], peer.version
            ):
                rows = peers.measure(peer, method, opened(tuple(overrides)))
                store.add([case | row for row in rows], peer.version)


def installed(arguments: argparse.Namespace) -> dict[str, peers.Peer]:
    """The peers to measure."""
    found: dict[str, Any] = {}
    if "omikuji" in arguments.methods:
        found["omikuji"] = peers.omikuji()
    if "pecos" in arguments.methods and arguments.pecos_python:
        # Not resolved: the interpreter of an environment is a link.
        found["pecos"] = peers.pecos(arguments.pecos_python.absolute())
    elif "pecos" in arguments.methods:
        print("PECOS is left out: --pecos-python names an interpreter that can import it")
    return found


def add_methods(parser: argparse.ArgumentParser) -> None:
    """The options that choose methods."""
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--pecos-python", type=Path, help="an interpreter that can import pecos")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, list(HELD_OUT), [0, 1, 2])
    add_methods(parser)
    arguments = parse(parser)
    runtime.set_threads(0)
    store = Store("precision", KEYS, precision_page.page, arguments)
    if not arguments.render:
        found = installed(arguments)
        os.chdir(ROOT)  # Caches lie in its datasets/.
        warm_up()
        measure(store, arguments, found)
    store.render()
    precision_page.draw(store.rows, store.folder)
    if store.folder == PAGES:
        insert(ROOT / "README.md", "precision", precision_page.summary(store.rows))
    store.report()


if __name__ == "__main__":
    main()
