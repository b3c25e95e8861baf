"""omikuji's trees of linear classifiers on the data sets as this project prepares them.

    pip install -e '.[bench]'
    python tests/benchmarks/omikuji.py --root path/to/data
    python tests/benchmarks/omikuji.py --root path/to/data --dataset debian --holdout 0.1

omikuji (github.com/tomtung/omikuji) trains with its default settings, on as many threads as
train.py would use, and is judged by the metrics of slide on all rows of the test split. With
--holdout these are training rows set aside instead, those that train.py sets aside for the same
share and seed, and nothing is written. Without it, writes results/benchmarks/omikuji.{json,md}.
"""

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from report import publish, table

from slide import runtime
from slide.config import open_dataset, read_config, user_errors
from slide.data import SparseDataset, Split
from slide.data.formats.text_writer import write_xmc
from slide.training.evaluation import choose_rows
from slide.training.metrics import inverse_propensities, precision_at_k, psp_at_k

TOP = (1, 3, 5)


def import_omikuji() -> Any:
    """The installed package, not this file, which has its name and lies on the path of a script."""
    here, path = Path(__file__).resolve().parent, sys.path.copy()
    sys.path[:] = [place for place in path if Path(place).resolve() != here]
    sys.modules.pop("omikuji", None)
    try:
        return importlib.import_module("omikuji")
    except ModuleNotFoundError:
        sys.exit("error: omikuji is not installed; pip install -e '.[bench]' brings it")
    finally:
        sys.path[:] = path


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


def train(omikuji: Any, split: Split, threads: int, trees: int = 3) -> tuple[Any, float]:
    """A model, and the seconds it took, reading the rows as text included."""
    settings = omikuji.Model.default_hyper_param()
    settings.n_trees = trees
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.txt"
        write_xmc(path, split)
        begin = time.perf_counter()
        with silence():
            model = omikuji.Model.train_on_data(str(path), settings, n_threads=threads)
        return model, time.perf_counter() - begin


def predict(
    model: Any, split: Split, depths: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """The best labels, best first, and the seconds it took.

    Args:
        model: from `train`.
        split: the rows.
        depths: ``(rows,)`` number of labels of each row; None: 5.

    Returns:
        Ids ``(rows, k)``, -1 for no more; their scores, 0 for no more; the seconds.
    """
    indptr, indices, values = split.features
    depths = np.full(len(split), max(TOP)) if depths is None else depths
    found = np.full((len(split), int(depths.max(initial=max(TOP)))), -1, np.int64)
    scores = np.zeros(found.shape)
    pairs = [
        list(zip(indices[a:b].tolist(), values[a:b].tolist(), strict=True))
        for a, b in pairwise(indptr)
    ]
    begin = time.perf_counter()
    for row, (features, depth) in enumerate(zip(pairs, depths.tolist(), strict=True)):
        for place, (label, score) in enumerate(model.predict(features, top_k=depth)):
            found[row, place], scores[row, place] = label, score
    return found, scores, time.perf_counter() - begin


def answers(
    omikuji: Any,
    train_split: Split,
    judged: Split,
    trees: int = 3,
    depths: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, float]]:
    """Train on rows and answer others: what `predict` finds, and the seconds of both."""
    model, train_seconds = train(omikuji, train_split, runtime.num_threads(), trees)
    found, _, predict_seconds = predict(model, judged, depths)
    return found, {"train_seconds": train_seconds, "predict_seconds": predict_seconds}


def scores_of(
    found: np.ndarray, data: SparseDataset, train_split: Split, judged: Split
) -> dict[str, float]:
    """P@k and PSP@k of answers to ``judged``, with the propensities of the training rows."""
    inverse = inverse_propensities(train_split.labels, data.num_labels, *data.propensity)
    scores = {f"p_at_{k}": precision_at_k(found, judged.labels, k) for k in TOP}
    return scores | {f"psp_at_{k}": psp_at_k(found, judged.labels, k, inverse) for k in TOP}


def measure(
    omikuji: Any, data: SparseDataset, share: float, seed: int, trees: int = 3
) -> dict[str, Any]:
    """Train on a data set and judge; with a ``share`` above 0, on training rows set aside."""
    splits = choose_rows(data, share, seed)
    found, times = answers(omikuji, *splits, trees)
    scores = scores_of(found, data, *splits)
    return {"dataset": data.name} | {k: round(v, 6) for k, v in (scores | times).items()}


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    return (
        "# omikuji on the same data\n\n"
        f"omikuji {found['omikuji']} with its default settings on {found['threads']} threads, on "
        "whole test sets. Training seconds hold reading the rows as text; prediction seconds hold "
        "a call from Python for each row.\n\n" + table([cells(row) for row in found["rows"]])
    )


def cells(row: dict[str, Any]) -> dict[str, str]:
    """A row of results in words."""
    scores = {
        title: " / ".join(f"{100 * row[f'{name}_at_{k}']:.1f}" for k in TOP)
        for title, name in (("P@1 / P@3 / P@5", "p"), ("PSP@1 / PSP@3 / PSP@5", "psp"))
    }
    seconds = {f"{what}, s": f"{row[f'{what}_seconds']:.1f}" for what in ("train", "predict")}
    return {"data set": row["dataset"]} | scores | seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="folder with a folder a data set")
    parser.add_argument("--dataset", nargs="+", default=["debian", "bibtex", "delicious"])
    parser.add_argument("--holdout", type=float, default=0.0, help="judge on training rows")
    parser.add_argument("--seed", type=int, default=0, help="of the holdout")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    arguments = parser.parse_args()
    omikuji = import_omikuji()
    runtime.set_threads(arguments.threads)
    rows = []
    for name in arguments.dataset:
        with user_errors():
            root = (arguments.root / name).resolve()
            data = open_dataset(read_config([f"dataset={name}", f"dataset.root={root}"]))
            rows.append(measure(omikuji, data, arguments.holdout, arguments.seed))
        print("  ".join(f"{title}: {cell}" for title, cell in cells(rows[-1]).items()), flush=True)
    if not arguments.holdout:
        version, threads = metadata.version("omikuji"), runtime.num_threads()
        publish("omikuji", {"omikuji": version, "threads": threads, "rows": rows}, page)


if __name__ == "__main__":
    main()
