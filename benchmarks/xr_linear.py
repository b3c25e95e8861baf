"""PECOS's XR-Linear in a process of its own, whose interpreter can import pecos and not slide.

    pecos/bin/python -I benchmarks/xr_linear.py FOLDER --top 20

FOLDER holds X.npz, Y.npz and test.npz of scipy.sparse: features and labels of the training rows,
and features of the rows to answer; ids.npy and measured.json are written into it. Models with
default settings and different seeds of the clustering; their scores are added up.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import scipy.sparse as smat

BEAM = 20


def train(X, Y, seed: int):
    """A model with default settings, C = 1 and threshold = 0.1 among them."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    embedding = LabelEmbeddingFactory.create(Y, X, method="pifa")
    clusters = Indexer.gen(embedding, seed=seed)
    return XLinearModel.train(X, Y, C=clusters, threshold=0.1)


def best(scores, top: int) -> np.ndarray:
    """Ids ``(rows, top)`` int32 of the largest scores, best first; -1: no more."""
    found = np.full((scores.shape[0], top), -1, np.int32)
    for row in range(scores.shape[0]):
        own = slice(scores.indptr[row], scores.indptr[row + 1])
        order = np.argsort(-scores.data[own], kind="stable")[:top]
        found[row, : len(order)] = scores.indices[own][order]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--top", type=int, required=True, help="number of labels of a row")
    parser.add_argument("--models", type=int, default=3)
    arguments = parser.parse_args()
    folder, top = arguments.folder, arguments.top
    X, Y, test = (
        smat.csr_matrix(smat.load_npz(folder / f"{name}.npz"), dtype=np.float32)
        for name in ("X", "Y", "test")
    )
    for matrix in (X, Y, test):
        matrix.sort_indices()
    total, train_seconds, predict_seconds = None, 0.0, 0.0
    for seed in range(arguments.models):
        begin = time.perf_counter()
        model = train(X, Y, seed)
        train_seconds += time.perf_counter() - begin
        begin = time.perf_counter()
        scores = model.predict(test, only_topk=top, beam_size=BEAM)
        total = scores if total is None else total + scores
        predict_seconds += time.perf_counter() - begin
    np.save(folder / "ids.npy", best(smat.csr_matrix(total), top))
    measured = {"train_seconds": train_seconds, "predict_seconds": predict_seconds}
    (folder / "measured.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
