"""The peers omikuji and PECOS: their answers, and how answers of all methods are evaluated."""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from slide import runtime
from slide.data import Batches, SparseDataset, Split, find_seen, first_unseen
from slide.data.row_files import write_xmc
from slide.ranking import choose_kind
from slide.sparse import CSR, Pattern
from slide.training.evaluation import inverse_propensities, precision_at_k, psp_at_k

SCRIPT = Path(__file__).with_name("xr_linear.py")
TOP = (1, 3, 5)
LEFT_OUT = ", known labels left out"
# Labels that PECOS answers for a row.
_TOP = 20
_BATCH = 512


class Answers(NamedTuple):
    ids: np.ndarray
    train_seconds: float
    predict_seconds: float


class Peer(NamedTuple):
    version: str
    answer: Callable[[Split, Split, np.ndarray], Answers]


@contextmanager
def silence() -> Iterator[None]:
    """Drops what native code writes to the terminal, such as thousands of progress bars."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    with open(os.devnull, "w") as nothing:
        for number in kept:
            os.dup2(nothing.fileno(), number)
    try:
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)


def omikuji(count: int = 3) -> Peer:
    """omikuji with its default settings; ends the process if it is not installed."""
    try:
        package = importlib.import_module("omikuji")
    except ModuleNotFoundError:
        sys.exit("error: omikuji is not installed; pip install -e '.[bench]' brings it")

    def answer(train: Split, test: Split, left_out: np.ndarray) -> Answers:
        settings = package.Model.default_hyper_param()
        settings.n_trees = count
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.txt"
            # omikuji refuses rows without features.
            write_xmc(path, train.take(np.flatnonzero(np.diff(train.features.indptr))))
            begin = time.perf_counter()  # Reading the rows as text is part of it.
            with silence():
                threads = runtime.num_threads()
                model = package.Model.train_on_data(str(path), settings, n_threads=threads)
            train_seconds = time.perf_counter() - begin
        depths = (max(TOP) + left_out).tolist()
        found = np.full((len(test), max(depths, default=max(TOP))), -1, np.int64)
        indptr, indices, values = test.features
        pairs = [
            list(zip(indices[a:b].tolist(), values[a:b].tolist(), strict=True))
            for a, b in pairwise(indptr)
        ]
        begin = time.perf_counter()
        for row, (features, depth) in enumerate(zip(pairs, depths, strict=True)):
            for rank, (label, _) in enumerate(model.predict(features, top_k=depth)):
                found[row, rank] = label
        return Answers(found, train_seconds, time.perf_counter() - begin)

    return Peer(f"omikuji {metadata.version('omikuji')}", answer)


def pecos(python: Path, count: int = 3) -> Peer:
    said = "import importlib.metadata as m, pecos.xmc; print(m.version('libpecos'))"
    done = subprocess.run([python, "-I", "-c", said], check=True, stdout=subprocess.PIPE, text=True)

    def answer(train: Split, test: Split, left_out: np.ndarray) -> Answers:
        with tempfile.TemporaryDirectory() as scratch:
            folder, width = Path(scratch), train.num_features
            labels = CSR(*train.labels, np.ones(len(train.labels.indices), np.float32))
            wide = {"X": (train.features, width), "Y": (labels, train.num_labels)}
            for name, (rows, columns) in (wide | {"test": (test.features, width)}).items():
                parts = tuple(map(np.asarray, (rows.values, rows.indices, rows.indptr)))
                matrix = scipy.sparse.csr_matrix(parts, (rows.num_rows, columns))
                scipy.sparse.save_npz(folder / f"{name}.npz", matrix, compressed=False)
            top = min(_TOP + int(left_out.max(initial=0)), train.num_labels)
            words = ["--top", str(top), "--models", str(count)]
            subprocess.run([python, "-I", SCRIPT, folder, *words], check=True)
            times = json.loads((folder / "measured.json").read_text())
            ids = np.load(folder / "ids.npy")
        return Answers(ids, times["train_seconds"], times["predict_seconds"])

    return Peer(f"libpecos {done.stdout.strip()}", answer)


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}


class Evaluation:
    """Test rows on which all methods are evaluated in one way."""

    def __init__(self, data: SparseDataset, most: int = 0):
        count = min(most, len(data.test)) if most else len(data.test)
        # Files may be sorted, so the rows come from all of them.
        self.rows = np.linspace(0, len(data.test) - 1, count).astype(np.int64)
        self.split, kind = data.test.take(self.rows), choose_kind(data.train).kind
        self.filtered, self.seen = kind != "other", Pattern.from_lists([[]] * count)
        if self.filtered:
            self.seen = find_seen(data.train, kind).of(self.split.features)
        self.left_out = np.diff(self.seen.indptr)
        self.depth = min(max(TOP) + int(self.left_out.max(initial=0)), data.num_labels)
        self.inverse = inverse_propensities(data.train.labels, data.num_labels, *data.propensity)

    def of(self, best: Callable[[CSR, int], np.ndarray]) -> dict[str, float]:
        """P@k and PSP@k of ``best(features, k)``, which returns the ids of the k best labels."""
        batches = Batches(self.split, _BATCH, seed=0, shuffle=False).epoch(0)
        return self.scores(np.concatenate([best(each.features, self.depth) for each in batches]))

    def scores(self, ids: np.ndarray, filtered: bool = True) -> dict[str, float]:
        """P@k and PSP@k of the ids ``(rows, k)`` of labels, best first; -1: no more."""
        found = first_unseen(ids, self.seen, max(TOP)) if filtered else ids
        scores = {f"p_at_{k}": precision_at_k(found, self.split.labels, k) for k in TOP}
        return scores | {
            f"psp_at_{k}": psp_at_k(found, self.split.labels, k, self.inverse) for k in TOP
        }


def measure(peer: Peer, name: str, data: SparseDataset) -> list[dict[str, Any]]:
    """The rows of a peer called ``name``; one more where our default call leaves labels out."""
    evaluation = Evaluation(data)
    found = peer.answer(data.train, data.test, evaluation.left_out)
    times = {"train_seconds": found.train_seconds}
    times["predict_rows_per_second"] = len(data.test) / found.predict_seconds
    methods = {name: False} | ({name + LEFT_OUT: True} if evaluation.filtered else {})
    return [
        {"method": method} | rounded(evaluation.scores(found.ids, filtered) | times)
        for method, filtered in methods.items()
    ]


def add_pecos(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pecos-python", type=Path, help="an interpreter that can import pecos")


def installed(methods: Iterable[str], pecos_python: Path | None) -> dict[str, Peer]:
    """The peers among methods such as omikuji or pecos-1 (one model; three by default)."""
    found = {}
    for method in methods:
        name, _, count = method.partition("-")
        if name == "omikuji":
            found[method] = omikuji(int(count or 3))
        elif name == "pecos" and not pecos_python:
            print(f"{method} is left out: --pecos-python names an interpreter that can import it")
        elif name == "pecos":  # Not resolved: the interpreter of an environment is a link.
            found[method] = pecos(pecos_python.absolute(), int(count or 3))
    return found
