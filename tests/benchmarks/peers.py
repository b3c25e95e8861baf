"""The peers of the page on precision: answers of omikuji and of PECOS, and what they are worth."""

import json
import subprocess
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import omikuji as trees  # tests/benchmarks/omikuji.py
import scipy.sparse

from slide import data as datasets
from slide.data import SparseDataset, Split, first_unknown, kind_of
from slide.sparse import CSR, Pattern

SCRIPT = Path(__file__).with_name("xr_linear.py")
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
    package = trees.import_omikuji()

    def answer(train: Split, judged: Split, left_out: np.ndarray) -> Answers:
        depths = max(trees.TOP) + left_out
        ids, times = trees.answers(package, train, judged, count, depths)
        return Answers(ids, times["train_seconds"], times["predict_seconds"])

    return Peer(f"omikuji {metadata.version('omikuji')}", answer)


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
        cases[name + LEFT_OUT] = first_unknown(found.ids, known, max(trees.TOP))
    return [
        {"method": method} | rounded(trees.scores_of(ids, data, train, judged) | times)
        for method, ids in cases.items()
    ]


def rounded(values: dict[str, float]) -> dict[str, float]:
    """Values with as many digits as are worth keeping."""
    return {name: round(value, 6) for name, value in values.items()}
