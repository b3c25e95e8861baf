"""Rows a second, precision and waiting times of predictions, beside omikuji's on the same rows.

A trained run with its re-ranker, and the folder of the files that it was trained on:

    python train.py dataset=debian run_dir=results/debian/for_prediction
    python tests/benchmarks/prediction.py results/debian/for_prediction --root datasets --threads 2
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import peers
from report import publish, table
from sets import place

from slide import runtime
from slide.config import open_dataset, read_config
from slide.data import Split
from slide.model import Model, load
from slide.predict.command import Scores

SEARCHES = ("exact", "index")
QUANTILES = (50, 95, 99)
# The first rows are not timed: they make indexes and compile kernels.
WARM = 20


def measure(model: Model, rows: Split, search: str, singles: int) -> dict[str, float]:
    """All rows in one call, and some one after the other.

    Args:
        model: a trained model.
        rows: raw rows with their labels.
        search: see `slide.Model.predict`.
        singles: number of single rows.
    """
    model.predict_ids(rows.slice(0, min(WARM, len(rows))).features, search=search)
    begin = time.perf_counter()
    ids, _ = model.predict_ids(rows.features, search=search)
    seconds = time.perf_counter() - begin
    scores = Scores(ids.shape[1])
    scores.add(ids, rows.labels)
    times = [one_row(model, rows, row % len(rows), search) for row in range(WARM + singles)]
    waits = 1e3 * np.percentile(times[WARM:], QUANTILES)
    named = {f"p{q}": float(wait) for q, wait in zip(QUANTILES, waits, strict=True)}
    return scores.means() | named | {"rows_per_second": len(rows) / seconds}


def one_row(model: Model, rows: Split, row: int, search: str) -> float:
    """Seconds of a call with a single row."""
    x = rows.slice(row, row + 1).features
    begin = time.perf_counter()
    model.predict_ids(x, search=search)
    return time.perf_counter() - begin


def page(found: dict[str, Any]) -> str:
    """A row for each search, and one for omikuji if it was measured."""
    lines = [
        {
            "": name,
            "P@1 / P@3 / P@5": " / ".join(f"{100 * row[f'p_at_{k}']:.2f}" for k in (1, 3, 5)),
            "rows/s": f"{row['rows_per_second']:,.0f}",
            **{f"p{q}, ms": f"{row[f'p{q}']:.1f}" if f"p{q}" in row else "" for q in QUANTILES},
        }
        for name, row in found["cases"].items()
    ]
    return (
        f"# Predictions\n\n{found['rows']:,} test rows of {found['data']} ({found['labels']:,} "
        f"labels) with its re-ranker, threads: {found['threads']}. rows/s: all rows in one call; "
        f"the quantiles are of {found['singles']:,} calls with one row. `exact` scores all labels, "
        f"`index` those that an index brings up; a call that names neither takes "
        f"`{found['default']}`. omikuji has its default settings, and answers all rows in one "
        f"call.\n\n{table(lines)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a model")
    parser.add_argument("--root", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--rows", type=int, default=0, help="test rows; 0: all")
    parser.add_argument("--singles", type=int, default=2000, help="calls with one row")
    parser.add_argument("--threads", type=int, default=0, help="0: all")
    parser.add_argument("--results", type=Path, help="folder of the page; else results/benchmarks")
    parser.add_argument("--without-omikuji", action="store_true")
    options = parser.parse_args()
    runtime.set_threads(options.threads)
    data, model = open_dataset(read_config(place(options.dataset, options.root))), load(options.run)
    rows = data.test.slice(0, options.rows or len(data.test))
    cases: dict[str, Any] = {
        f"slide, {search}": measure(model, rows, search, options.singles) for search in SEARCHES
    }
    if not options.without_omikuji:
        (cases["omikuji, 3 trees"], *_) = peers.measure(peers.omikuji(), "omikuji", data)
        measured = cases["omikuji, 3 trees"]
        measured["rows_per_second"] = measured.pop("predict_rows_per_second")
    sizes = {"rows": len(rows), "labels": model.num_labels, "singles": options.singles}
    more = {"threads": runtime.num_threads(), "default": model.search, "data": options.dataset}
    where = {} if options.results is None else {"folder": options.results}
    publish("prediction", {**sizes, **more, "cases": cases}, page, **where)


if __name__ == "__main__":
    main()
