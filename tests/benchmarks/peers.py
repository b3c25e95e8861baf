"""The peers of the page on precision: answers of omikuji and of PECOS, and what they are worth."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from slide import data as datasets
from slide import runtime
from slide.data import SparseDataset, Split, first_unknown, kind_of
from slide.data.formats.text_writer import write_xmc
from slide.sparse import CSR, Pattern
from slide.training.evaluation import inverse_propensities, precision_at_k, psp_at_k

SCRIPT = Path(__file__).with_name("xr_linear.py")
TOP = (1, 3, 5)
LEFT_OUT = ", known labels left out"
# Labels that PECOS answers for a row.
_TOP = 20


class Answers(NamedTuple):
    """What a peer answers.

    Attributes:
        ids: ``(rows, k)`` integers, best first; -1: no more.
        train_seconds, predict_seconds: what training and answers took.
    """

    ids: np.ndarray
    train_seconds: float
    predict_seconds: float


class Peer(NamedTuple):
    """A peer that is installed.

    Attributes:
        version: its name and version.
        answer: called with the training rows, the rows to answer, and ``(rows,)`` how many labels
            of each row are left out of the answers later.
    """

    version: str
    answer: Callable[[Split, Split, np.ndarray], Answers]


def omikuji(count: int = 3) -> Peer:
    """omikuji with its default settings; ends the process if it is not installed.

    Args:
        count: number of trees; its default is 3.
    """
    try:
        package = importlib.import_module("omikuji")
    except ModuleNotFoundError:
        sys.exit("error: omikuji is not installed; pip install -e '.[bench]' brings it")

    def answer(train: Split, judged: Split, left_out: np.ndarray) -> Answers:
        model, train_seconds = train_trees(package, train, runtime.num_threads(), count)
        ids, predict_seconds = predict_by_trees(model, judged, max(TOP) + left_out)
        return Answers(ids, train_seconds, predict_seconds)

    return Peer(f"omikuji {metadata.version('omikuji')}", answer)


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


def train_trees(package: Any, split: Split, threads: int, trees: int) -> tuple[Any, float]:
    """A model of omikuji, and the seconds it took, reading the rows as text included."""
    settings = package.Model.default_hyper_param()
    settings.n_trees = trees
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.txt"
        write_xmc(path, split)
        begin = time.perf_counter()
        with silence():
            model = package.Model.train_on_data(str(path), settings, n_threads=threads)
        return model, time.perf_counter() - begin


def predict_by_trees(model: Any, split: Split, depths: np.ndarray) -> tuple[np.ndarray, float]:
    """Ids ``(rows, k)`` of the best labels, -1: no more, and the seconds it took.

    Args:
        model: from `train_trees`.
        split: the rows.
        depths: ``(rows,)`` number of labels of each row.
    """
    indptr, indices, values = split.features
    found = np.full((len(split), int(depths.max(initial=max(TOP)))), -1, np.int64)
    pairs = [
        list(zip(indices[a:b].tolist(), values[a:b].tolist(), strict=True))
        for a, b in pairwise(indptr)
    ]
    begin = time.perf_counter()
    for row, (features, depth) in enumerate(zip(pairs, depths.tolist(), strict=True)):
        for place, (label, _) in enumerate(model.predict(features, top_k=depth)):
            found[row, place] = label
    return found, time.perf_counter() - begin


def pecos(python: Path, count: int = 3) -> Peer:
    """PECOS in an environment of its own.

    Args:
        python: an interpreter that can import it; see xr_linear.py.
        count: number of models.

    Raises:
        subprocess.CalledProcessError: it cannot; it has said why.
    """
    said = "import importlib.metadata as m, pecos.xmc; print(m.version('libpecos'))"
    done = subprocess.run([python, "-I", "-c", said], check=True, stdout=subprocess.PIPE, text=True)

    def answer(train: Split, judged: Split, left_out: np.ndarray) -> Answers:
        with tempfile.TemporaryDirectory() as scratch:
            folder, width = Path(scratch), train.num_features
            ones = np.ones(len(train.labels.indices), np.float32)
            labels = CSR(*train.labels, ones)
            save(folder / "X.npz", train.features, width)
            save(folder / "Y.npz", labels, train.num_labels)
            save(folder / "judged.npz", judged.features, width)
            top = min(_TOP + int(left_out.max(initial=0)), train.num_labels)
            words = ["--top", str(top), "--models", str(count)]
            subprocess.run([python, "-I", SCRIPT, folder, *words], check=True)
            times = json.loads((folder / "measured.json").read_text())
            ids = np.load(folder / "ids.npy")
        return Answers(ids, times["train_seconds"], times["predict_seconds"])

    return Peer(f"libpecos {done.stdout.strip()}", answer)


def save(path: Path, rows: CSR, width: int) -> None:
    """Write rows for scipy.sparse.load_npz."""
    parts = rows.values, rows.indices, rows.indptr
    shape = rows.num_rows, width
    matrix = scipy.sparse.csr_matrix(tuple(map(np.asarray, parts)), shape)
    scipy.sparse.save_npz(path, matrix, compressed=False)


def known_labels(train: Split, judged: Split) -> Pattern | None:
    """The labels that our default call leaves out of its answers; None: it leaves out none."""
    kind = kind_of(train)
    return None if kind == "other" else datasets.find_known(train, kind).of(judged.features)


def measure(peer: Peer, name: str, data: SparseDataset) -> list[dict[str, Any]]:
    """The rows of a peer on a data set; one more where our default call leaves out known labels.

    Args:
        peer: the peer.
        name: of the method.
        data: the data set; judged on its test rows.
    """
    train, judged = data.train, data.test
    known = known_labels(train, judged)
    sizes = np.zeros(len(judged), np.int64) if known is None else np.diff(known.indptr)
    found = peer.answer(train, judged, sizes)
    times = {"train_seconds": found.train_seconds}
    times["predict_rows_per_second"] = len(judged) / found.predict_seconds
    cases = {name: found.ids}
    if known is not None:
        cases[name + LEFT_OUT] = first_unknown(found.ids, known, max(TOP))
    return [
        {"method": method} | rounded(scores_of(ids, data, train, judged) | times)
        for method, ids in cases.items()
    ]


def scores_of(
    found: np.ndarray, data: SparseDataset, train_split: Split, judged: Split
) -> dict[str, float]:
    """P@k and PSP@k of answers to ``judged``, with the propensities of the training rows."""
    inverse = inverse_propensities(train_split.labels, data.num_labels, *data.propensity)
    scores = {f"p_at_{k}": precision_at_k(found, judged.labels, k) for k in TOP}
    return scores | {f"psp_at_{k}": psp_at_k(found, judged.labels, k, inverse) for k in TOP}


def rounded(values: dict[str, float]) -> dict[str, float]:
    """Values with as many digits as are worth keeping."""
    return {name: round(value, 6) for name, value in values.items()}
